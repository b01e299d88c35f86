"""`ablations translate`: translate text with a trained model."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ablations.cli import options
from ablations.cli.terminal import for_data, unguarded
from ablations.service import choose_run
from ablations.service.selected import Selectors
from ablations.study.messages import number
from experiments.errors import UserError

if TYPE_CHECKING:
    from experiments.evaluation.trained.translator import Translation, Translator


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
        from experiments.evaluation.trained.translator import Translator

        return Translator.load(model, spec, precision)
    found = choose_run.find_trained(named, selectors)
    from experiments.evaluation.trained.translator import Translator

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
