"""Verbs that use a trained model: `ablations translate`, `sample` and `attention`."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ablations.cli import options
from ablations.cli.terminal import for_data, unguarded
from ablations.service import choose_run
from ablations.service.selected import Selectors
from ablations.study.messages import number
from experiments.errors import UserError, explain_os_errors
from experiments.identity import digest
from experiments.store.checksummed import write_json
from experiments.store.layout import Store
from reports.figures.draw import draw_attention

if TYPE_CHECKING:
    from experiments.evaluation.translator import Translation, Translator


def translate(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STUDY] [FILE]",
            help="The study that trained the model (not with --run or --model); a file of UTF-8 lines, standard input "
            "if unset.",
        ),
    ] = None,
    *,
    named: choose_run.Named,
    model: Annotated[Path | None, typer.Option(metavar="DIR", help="A model written by `ablations export`.")] = None,
    beam_size: Annotated[int | None, typer.Option(metavar="N", min=1, help="The run's own beam size if unset.")] = None,
    length_penalty: Annotated[float | None, typer.Option(metavar="ALPHA", min=0)] = None,
    nbest: Annotated[int, typer.Option(metavar="N", min=1, help="Print the N best: number ||| text ||| score.")] = 1,
    scores: Annotated[bool, typer.Option(help="Put the score and a tab before each translation.")] = False,
    over_long: Annotated[
        str,
        typer.Option(
            metavar="refuse|skip", help="Lines of more than --max-pieces: stop, or leave empty with a warning."
        ),
    ] = "refuse",
    max_pieces: Annotated[int, typer.Option(metavar="N", min=1, help="Longest source line, in word pieces.")] = 1024,
    line_buffered: Annotated[
        bool, typer.Option(help="Translate each line at once, for a program that waits for it; slower.")
    ] = False,
    checkpoint: options.Checkpoint = None,
    precision: options.Precision = "fp32",
    devices: options.Devices = "auto",
    selectors: Annotated[Selectors, options.Without(("rows", "seeds"))],
    as_json: options.Json = False,
) -> None:
    """Translate a file or standard input line by line, in order; empty lines stay empty."""
    if over_long not in ("refuse", "skip"):
        raise UserError(f"--over-long {over_long}: write refuse or skip.")
    named, files = choose_run.study_first(named, words or (), ["FILE"], without=model is not None)
    input_ = Path(files[0]) if files else None
    translator = _load(model, named, selectors, checkpoint, precision, devices)
    from dataclasses import replace

    beam = beam_size or max(translator.settings.beam_size, nbest)
    if nbest > beam:
        raise UserError(f"--nbest {nbest} is more than the beam of {beam}: set --beam-size to {nbest} or more.")
    alpha = translator.settings.length_penalty if length_penalty is None else length_penalty
    settings = replace(translator.settings, beam_size=beam, length_penalty=alpha, nbest=nbest)
    waited_for = line_buffered or (input_ is None and sys.stdin.isatty())
    out = for_data()
    with _progress(input_) as progress:
        found = translator.stream(
            _lines(input_),
            settings,
            max_pieces=max_pieces,
            over_long=_skipped if over_long == "skip" else None,
            progress=progress,
            **({"windows": (1,)} if waited_for else {}),
        )
        for number, translations in enumerate(found):
            for line in _shown(number, translations, nbest, scores, as_json):
                out.write(line + "\n")
            out.flush()


def _load(
    model: Path | None,
    named: choose_run.Named,
    selectors: Selectors,
    checkpoint: str | None,
    precision: str,
    devices: str,
) -> "Translator":
    choose_run.only_model(model, named, checkpoint)
    spec = choose_run.device_spec(devices)
    if model is not None:
        from experiments.evaluation.translator import Translator

        return Translator.load(model, spec, precision)
    found = choose_run.find_trained(named, selectors)
    from experiments.evaluation.translator import Translator

    return Translator.of_run(found.config, found.attempt, spec, precision, checkpoint)


def _lines(path: Path | None) -> Iterator[str]:
    """Lines of the input, split at "\\n" only: other line separators belong to the text. Raises UserError."""
    try:
        source = sys.stdin.buffer if path is None else path.open("rb")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    with source:
        for number, line in enumerate(source, start=1):
            try:
                yield line.removesuffix(b"\n").removesuffix(b"\r").decode()
            except UnicodeDecodeError:
                raise UserError(f"Line {number} of {path or 'the input'} is not UTF-8.") from None


def _shown(number: int, found: Iterable["Translation"], nbest: int, scores: bool, as_json: bool) -> Iterator[str]:
    for place, one in enumerate(found):
        text = one.text.replace("\n", " ")
        if as_json:
            yield json.dumps(
                {
                    "line": number + 1, "rank": place + 1, "text": one.text, "score": one.score,
                    "log_prob": one.log_prob, "finished": one.finished,
                },
                ensure_ascii=False,
            )  # fmt: skip
        elif nbest > 1:
            yield f"{number + 1} ||| {text} ||| {one.score:.4f}"
        else:
            yield f"{one.score:.4f}\t{text}" if scores else text


def _skipped(line: int, pieces: int) -> None:
    typer.echo(f"line {line} has {pieces} pieces and was left empty (--max-pieces)", err=True)


@contextlib.contextmanager
def _progress(path: Path | None) -> Iterator[Callable[[int], None]]:
    """Progress on standard error: a bar for a file, a count for standard input; none if output is a terminal."""
    terminal = unguarded(sys.stderr)
    if not terminal.isatty() or unguarded(sys.stdout).isatty():
        yield lambda _done: None
    elif path is None:
        yield lambda done: print(f"\r{number(done, 'line')}", end="", file=terminal, flush=True)
        print(file=terminal)
    else:
        with typer.progressbar(length=_count(path), label="lines", show_pos=True, file=terminal) as bar:
            yield lambda done: bar.update(done - bar.pos)


def _count(path: Path) -> int:
    """Number of lines of a file, including a last line without "\n"."""
    lines, end = 0, b"\n"
    with contextlib.suppress(OSError), path.open("rb") as file:
        while part := file.read(1 << 20):
            lines, end = lines + part.count(b"\n"), part[-1:]
    return lines + (end != b"\n")


# --- `ablations sample`: let a trained language model write


def sample(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[STUDY]", help="The study that trained the model (not with --run or --model)."),
    ] = None,
    *,
    named: choose_run.Named,
    model: Annotated[Path | None, typer.Option(metavar="DIR", help="A model written by `ablations export`.")] = None,
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="The text to be continued; a document's start.")] = "",
    pieces: Annotated[int, typer.Option(metavar="N", min=1, help="The most pieces of each sample.")] = 200,
    samples: Annotated[int, typer.Option(metavar="N", min=1, help="How many continuations.")] = 1,
    temperature: Annotated[float, typer.Option(metavar="T", min=0, help="0: the most probable piece each time.")] = 1.0,
    top_k: Annotated[int, typer.Option(metavar="K", min=0, help="Draw from the K most probable; 0: from all.")] = 0,
    top_p: Annotated[
        float, typer.Option(metavar="P", help="Draw from the fewest that together have this probability.")
    ] = 1.0,
    draw_seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the draws; another gives another text.")] = 1,
    checkpoint: options.Checkpoint = None,
    precision: options.Precision = "fp32",
    devices: options.Devices = "auto",
    selectors: Annotated[Selectors, options.Without(("rows", "seeds"))],
    as_json: options.Json = False,
) -> None:
    """Continue a text with a trained language model, up to the end of a document."""
    if not 0 < top_p <= 1:
        raise UserError(f"--top-p {top_p}: a probability above 0, 1 at most.")
    named, _ = choose_run.study_first(named, words or (), [], without=model is not None)
    choose_run.only_model(model, named, checkpoint)
    spec = choose_run.device_spec(devices)
    found = None if model else choose_run.find_trained(named, selectors, ("language_modelling",))
    from experiments.tasks.configs import LanguageConfig
    from experiments.tasks.sampler import Choice, Sampler

    if model:
        sampler = Sampler.load(model, spec, precision)
    else:
        assert found is not None and isinstance(found.config, LanguageConfig)
        sampler = Sampler.of_run(found.config, found.attempt, spec, precision, checkpoint)
    texts = sampler.sample(prompt, pieces, Choice(temperature, top_k, top_p), samples, draw_seed)
    out = for_data()
    for drawn, text in enumerate(texts, start=1):
        if as_json:
            out.write(json.dumps({"sample": drawn, "prompt": prompt, "text": text}, ensure_ascii=False) + "\n")
        else:
            out.write(f"{prompt}{text}\n" + "\n---\n" * (drawn < samples))
    out.flush()


# --- `ablations attention`: attention weights of a sentence, as a figure and as numbers


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
    from experiments.evaluation.attention_maps import attention_maps
    from experiments.evaluation.translator import Translator

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
        write_json(home / f"{name}.json", {"run_id": found.run_id, "sentence": sentence, **maps}, checksummed=False)
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
    from experiments.tracking.database import attach

    return attach(store, run_id, {path: f"attention/{path.name}" for path in files})
