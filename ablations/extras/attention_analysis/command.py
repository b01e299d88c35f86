"""The command `ablations attention`: draw the attention weights of a sentence, or measure what each head does."""

import csv
import itertools
import json
from pathlib import Path
from typing import Annotated

import typer

from ablations.cli import options
from ablations.cli.terminal import aligned, print_json
from ablations.extras.attention_analysis.figures import draw_attention, draw_heads
from ablations.service import choose_run
from ablations.service.selected import Selectors
from experiments.errors import UserError, explain_os_errors
from experiments.identity import digest
from experiments.messages import number
from experiments.store.checksummed import write_json
from experiments.tasks.load import load_task
from experiments.tasks.translation import SequenceTask

NAMES = {
    "encoder": "self_attention in its encoder",
    "decoder": "self_attention in its decoder",
    "cross": "cross_attention",
}
KINDS = tuple(NAMES)


def attention(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STUDY] [SENTENCE]",
            help="The study that trained the model (not with --run); a source sentence in quotation marks.",
        ),
    ] = None,
    *,
    named: choose_run.Named,
    heads: Annotated[
        bool,
        typer.Option(
            "--heads",
            help="Measure what each head attends to in sentences of dev instead; writes a figure and a CSV file.",
        ),
    ] = False,
    sentences: Annotated[int, typer.Option(metavar="N", min=1, help="With --heads: number of sentences of dev.")] = 100,
    target: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Translation; the model translates if unset.")
    ] = None,
    kind: Annotated[str, typer.Option(metavar="|".join(KINDS), help="Kind of attention.")] = "cross",
    layer: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Layer among those with this attention, from 1; the last if unset."),
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

    Figure and JSON are stored with the run, and shown among its artifacts by `ablations ui`; --out writes a copy.
    """
    if kind not in KINDS:
        raise UserError(f"--kind {kind}: write one of {', '.join(KINDS)}.")
    named, texts = choose_run.study_first(named, words or (), [] if heads else ["SENTENCE"])
    if heads:
        _heads(named, selectors, sentences, checkpoint, out, as_json)
        return
    if not texts:
        raise UserError("SENTENCE is missing. Write a source sentence in quotation marks, or use --heads.")
    sentence = texts[0]
    opened = selectors.open()
    found = choose_run.find_trained(named, selectors)
    from ablations.extras.attention_analysis.maps import attention_maps
    from experiments.evaluation.translator import Translator

    translator = Translator.of_run(found.config, found.attempt, choose_run.device_spec("cpu:1"), "fp32", checkpoint)
    maps = attention_maps(translator, sentence, target)
    layers = maps["maps"][kind]
    if not layers:
        kinds = [f"--kind {name} ({number(len(of), 'layer')})" for name, of in maps["maps"].items() if of]
        there = ", ".join(kinds) or "no attention"
        raise UserError(f"--kind {kind}: this network has no {NAMES[kind]}. It has: {there}.")
    place = _within("--layer", layer or len(layers), len(layers), f" layers of {kind} attention")
    shown = range(len(layers[place - 1]))
    if head is not None:
        shown = range(_within("--head", head, len(shown)) - 1, head)
    home = opened.run_folder(found.run_id) / "attention"
    name = f"{digest({'source': sentence, 'target': maps['translation'], 'checkpoint': checkpoint})[:8]}"
    figure = home / f"{name}-{kind}-{place}{f'-{head}' if head else ''}.png"
    with explain_os_errors(f"write {home}"):
        home.mkdir(exist_ok=True)
        write_json(home / f"{name}.json", {"run_id": found.run_id, "sentence": sentence, **maps}, checksummed=False)
        draw_attention(maps, kind, place - 1, shown, figure)
        if out is not None:
            draw_attention(maps, kind, place - 1, shown, out)
    if as_json:
        typer.echo(json.dumps({"sentence": sentence, **maps}, ensure_ascii=False))
    else:
        typer.echo(f"{maps['translation']}\nfigure: {out or figure}\nweights: {home / f'{name}.json'}")


def _heads(
    named: choose_run.Named, selectors: Selectors, count: int, checkpoint: str | None, out: Path | None, as_json: bool
) -> None:
    """Measure every head on sentences of dev. Write the figure and the CSV file to the folder of the run."""
    opened = selectors.open()
    found = choose_run.find_trained(named, selectors, ("translate", "parse"))
    task = load_task(found.config.task)
    assert isinstance(task, SequenceTask)
    corpus = task.corpus(found.config)
    from ablations.extras.attention_analysis.heads import MEASURES, HasSpans, TextPair, of_run, positional_heads

    spans = corpus.source_spans("dev") if isinstance(corpus, HasSpans) else itertools.repeat(None)
    lines = [
        TextPair(source, target, brackets)
        for (source, target), brackets in zip(itertools.islice(corpus.read("dev"), count), spans, strict=False)
    ]
    rows = of_run(found.config, found.attempt, checkpoint, task.vocab_sizes(found.config), lines)
    if not rows:
        raise UserError(f"The run {found.run_id} has no attention, so no head can be measured.")
    home = opened.run_folder(found.run_id) / "attention"
    table, figure = home / "heads.csv", home / "heads.png"
    with explain_os_errors(f"write {home}"):
        home.mkdir(exist_ok=True)
        with table.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        for path in filter(None, (figure, out)):
            draw_heads(rows, MEASURES, path)
    if as_json:
        print_json(rows)
        return
    typer.echo(f"{number(len(lines), 'sentence')} of dev")
    printed = [
        tuple("–" if v is None else f"{v:.2f}" if isinstance(v, float) else str(v) for v in r.values()) for r in rows
    ]
    for line in aligned([tuple(rows[0]), *printed]):
        typer.echo(line)
    counts = positional_heads(rows)
    for kind in KINDS:
        if (kind, "trained") in counts:
            (trained, heads), (random, _) = counts[kind, "trained"], counts[kind, "random"]
            typer.echo(f"positional heads, {kind}: {trained} of {heads} trained, {random} of {heads} random")
    typer.echo(f"figure: {out or figure}\nnumbers: {table}")


def _within(option: str, found: int, most: int, what: str = "") -> int:
    if found > most:
        raise UserError(f"{option} {found}: the model has {most}{what}, numbered from 1.")
    return found
