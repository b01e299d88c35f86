"""`ablations attention`: attention weights of a sentence, as a figure and as numbers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ablations.cli import options
from ablations.service import choose_run
from ablations.service.selected import Selectors
from ablations.study.messages import number
from experiments.errors import UserError, explain_os_errors
from experiments.identity import digest
from experiments.store.layout import Store
from experiments.store.sealed import write_json
from reports.figures.attention import draw_attention

NAMES = {
    "encoder": "self_attention in its encoder",
    "decoder": "self_attention in its decoder",
    "cross": "cross_attention",
}
KINDS = tuple(NAMES)


def attention(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[STUDY] SENTENCE",
            help="The study that trained the model (not with --run); a source sentence in quotation marks.",
        ),
    ],
    *,
    named: choose_run.Named,
    target: Annotated[str | None, typer.Option(metavar="TEXT", help="A translation; the model's own if unset.")] = None,
    kind: Annotated[str, typer.Option(metavar="|".join(KINDS), help="Which attention.")] = "cross",
    layer: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Of the layers with this attention, from 1; the last if unset."),
    ] = None,
    head: Annotated[int | None, typer.Option(metavar="N", min=1, help="Head, from 1; all if unset.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a copy of the figure: .png, .pdf or .svg.")
    ] = None,
    checkpoint: options.Checkpoint = None,
    selectors: Annotated[Selectors, options.Without(("rows", "seeds"))],
    as_json: options.Json = False,
) -> None:
    """Draw attention weights of a sentence (as the paper's figures 3 to 5), and write all weights as JSON.

    Figure and JSON are stored with the run and, if it is tracked, as artifacts in MLflow; --out writes a copy.
    """
    if kind not in KINDS:
        raise UserError(f"--kind {kind}: write one of {', '.join(KINDS)}.")
    named, sentences = choose_run.study_first(named, words, ["SENTENCE"])
    if not sentences:
        raise UserError("SENTENCE is missing: a source sentence in quotation marks.")
    sentence = sentences[0]
    opened = selectors.open()
    found = choose_run.find_trained(named, selectors, ("translation", "algorithmic"))
    from experiments.evaluation.trained.attention_maps import attention_maps
    from experiments.evaluation.trained.translator import Translator

    translator = Translator.of_run(found.config, found.attempt, choose_run.device_spec("cpu:1"), "fp32", checkpoint)
    maps = attention_maps(translator, sentence, target)
    layers = _of_kind(maps["maps"], kind)
    place = _within("--layer", layer or len(layers), len(layers), f" layers of {kind} attention")
    heads = range(len(layers[place - 1]))
    if head is not None:
        heads = range(_within("--head", head, len(heads)) - 1, head)
    home = opened.run_folder(found.run_id) / "attention"
    name = f"{digest({'source': sentence, 'target': maps['translation'], 'checkpoint': checkpoint})[:8]}"
    figure = home / f"{name}-{kind}-{place}{f'-{head}' if head else ''}.png"
    with explain_os_errors(f"write {home}"):
        home.mkdir(exist_ok=True)
        write_json(home / f"{name}.json", {"run_id": found.run_id, "sentence": sentence, **maps}, sealed=False)
        draw_attention(maps, kind, place - 1, heads, figure)
        if out is not None:
            draw_attention(maps, kind, place - 1, heads, out)
    tracked = _track(opened, found.run_id, [figure, home / f"{name}.json"])
    if as_json:
        typer.echo(json.dumps({"sentence": sentence, **maps}, ensure_ascii=False))
    else:
        typer.echo(f"{maps['translation']}\nfigure: {out or figure}\nweights: {home / f'{name}.json'}")
        typer.echo("also in MLflow, under the run's artifacts" if tracked else "the run is not in MLflow", err=True)


def _of_kind(maps: Mapping[str, Sequence[Any]], kind: str) -> Sequence[Any]:
    """The layers that have this kind of attention. Raises UserError for a network without any."""
    if not maps[kind]:
        there = ", ".join(f"--kind {name} ({number(len(layers), 'layer')})" for name, layers in maps.items() if layers)
        raise UserError(f"--kind {kind}: this network has no {NAMES[kind]}. It has: {there or 'no attention at all'}.")
    return maps[kind]


def _within(option: str, found: int, most: int, what: str = "") -> int:
    if found > most:
        raise UserError(
            f"{option} {found}: the model has {' '.join(filter(None, (str(most), what)))}, numbered from 1."
        )
    return found


def _track(store: Store, run_id: str, files: list[Path]) -> bool:
    if not store.mlflow_db.exists():
        return False
    from experiments.tracking.artifacts import attach
    from experiments.tracking.mlflow import forgiving

    with forgiving():
        return attach(store, run_id, {path: f"attention/{path.name}" for path in files})
    return False
