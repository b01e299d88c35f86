"""Commands that use a trained model: `ablations generate` (translate lines or continue a text) and `export`."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ablations.cli import options
from ablations.cli.terminal import for_data, print_json, unguarded
from ablations.service import choose_run
from ablations.service.selected import Selectors
from experiments.errors import UserError
from experiments.messages import number
from experiments.store.checksummed import read_json
from experiments.tasks.base import Use
from experiments.tasks.load import load_task
from experiments.tasks.translation import TRANSLATE
from model.extensions import load

if TYPE_CHECKING:
    from experiments.evaluation.translator import Translation, Translator

GENERATED = ("translate", "continue text")  # values of `Use.does` that `generate` and `export` support
_for_translation = partial(typer.Option, rich_help_panel="Options for models that translate")
_for_language = partial(typer.Option, rich_help_panel="Options for language models")
Selected = Annotated[Selectors, options.Without(("rows", "seeds"))]


@dataclass(frozen=True, kw_only=True)
class Translating:
    """Options of `ablations generate` for models that translate."""

    beam_size: Annotated[int | None, _for_translation(metavar="N", min=1, help="The run's own beam size if unset.")] = (
        None
    )
    length_penalty: Annotated[float | None, _for_translation(metavar="ALPHA", min=0)] = None
    nbest: Annotated[int, _for_translation(metavar="N", min=1, help="Print the N best: number ||| text ||| score.")] = 1


@dataclass(frozen=True, kw_only=True)
class Writing:
    """Options of `ablations generate` for language models."""

    prompt: Annotated[
        str, _for_language(metavar="TEXT", help="Text to continue; the start of a document if unset.")
    ] = ""
    pieces: Annotated[int, _for_language(metavar="N", min=1, help="Maximum number of pieces of each sample.")] = 200
    samples: Annotated[int, _for_language(metavar="N", min=1, help="Number of continuations.")] = 1
    temperature: Annotated[
        float, _for_language(metavar="T", min=0, help="Temperature of sampling; 0: always the most probable piece.")
    ] = 1.0
    top_k: Annotated[
        int, _for_language(metavar="K", min=0, help="Sample from the K most probable pieces; 0: from all.")
    ] = 0
    top_p: Annotated[
        float, _for_language(metavar="P", help="Sample from the fewest pieces that together have this probability.")
    ] = 1.0
    draw_seed: Annotated[int, _for_language(metavar="N", min=0, help="Seed of the sampling.")] = 1


def generate(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STUDY] [FILE]",
            help="The study that trained the model (not with --run or --model); to translate: a file of UTF-8 lines, "
            "standard input if unset.",
        ),
    ] = None,
    *,
    named: choose_run.Named,
    model: Annotated[Path | None, typer.Option(metavar="DIR", help="A model written by `ablations export`.")] = None,
    translating: Translating,
    writing: Writing,
    checkpoint: options.Checkpoint = None,
    precision: options.Precision = "fp32",
    devices: options.Devices = "auto",
    selectors: Selected,
    as_json: options.Json = False,
) -> None:
    """Translate lines in order (empty ones stay empty), or continue a text with a language model.

    The task of the trained model decides which of the two is done.
    """
    if not 0 < writing.top_p <= 1:
        raise UserError(f"--top-p {writing.top_p}: a probability above 0, 1 at most.")
    named, files = choose_run.study_first(named, words or (), ["FILE"], without=model is not None)
    if model is not None and named.run is not None:
        raise UserError(
            "--model and --run cannot be combined: --model names an exported folder, --run a run of the store. Leave "
            "one out."
        )
    if model is not None and checkpoint is not None:
        raise UserError("An exported folder (--model) has only one set of weights. Leave out --checkpoint.")
    spec = choose_run.device_spec(devices)
    found = None if model else choose_run.find_trained(named, selectors, GENERATED)
    use = _use_of(found.config.task if found else _task_of(Path(str(model))))

    def loaded(kind: Any) -> Any:
        if found is None:
            return kind.load(model, spec, precision)
        return kind.of_run(found.config, found.attempt, spec, precision, checkpoint)

    if use.does == "continue text":
        _refuse(translating, "a language model", [f"FILE {files[0]}"] if files else [])
        _write(loaded(load(use.by)), writing, as_json)
    else:
        _refuse(writing, "a model that translates")
        _translate(loaded(load(use.by)), Path(files[0]) if files else None, translating, as_json)


def _use_of(task: str) -> Use:
    """Return the `Use` of a task's models.

    Returns TRANSLATE for an unknown task, for a user's function, and for a task that declares no use.
    """
    own_function = ":" in task  # a user's function, which must not be imported just because a file names it
    return (load_task(task).use if task and not own_function else None) or TRANSLATE


def _task_of(model: Path) -> str:
    """Return the task of an exported model; "" if the folder names none. The model's loader then reports the error."""
    with contextlib.suppress(UserError, OSError):
        config = (read_json(model / "config.json") or {}).get("config")
        return str(config["task"]) if isinstance(config, dict) else ""
    return ""


def _refuse(given: Translating | Writing, what: str, more: Sequence[str] = ()) -> None:
    """Raise UserError if an option was given that the model does not use."""
    usual = type(given)()
    names = [name for name, value in vars(given).items() if value != getattr(usual, name)]
    if unread := [*more, *(f"--{name.replace('_', '-')}" for name in names)]:
        raise UserError(f"{', '.join(unread)}: {what} does not use this. Leave it out.")


def _translate(translator: "Translator", file: Path | None, how: Translating, as_json: bool) -> None:
    nbest = how.nbest
    beam = how.beam_size or max(translator.settings.beam_size, nbest)
    if nbest > beam:
        raise UserError(f"--nbest {nbest} is more than the beam size {beam}. Set --beam-size to {nbest} or more.")
    alpha = translator.settings.length_penalty if how.length_penalty is None else how.length_penalty
    settings = replace(translator.settings, beam_size=beam, length_penalty=alpha, nbest=nbest)
    typed = {"windows": (1,)} if file is None and sys.stdin.isatty() else {}  # translate each typed line at once
    out = for_data()
    with _progress() as progress:
        found = translator.stream(_lines(file), settings, progress=progress, **typed)
        for number, translations in enumerate(found):
            for line in _shown(number, translations, nbest, as_json):
                out.write(line + "\n")
            out.flush()


def _write(sampler: Any, how: Writing, as_json: bool) -> None:
    choice = sampler.choice(how.temperature, how.top_k, how.top_p)
    texts = sampler.sample(how.prompt, how.pieces, choice, how.samples, how.draw_seed)
    out = for_data()
    for drawn, text in enumerate(texts, start=1):
        if as_json:
            out.write(json.dumps({"sample": drawn, "prompt": how.prompt, "text": text}, ensure_ascii=False) + "\n")
        else:
            out.write(f"{how.prompt}{text}\n" + "\n---\n" * (drawn < how.samples))
    out.flush()


def _lines(path: Path | None) -> Iterator[str]:
    """Yield the lines of the input, split only at "\\n". Other line separators are part of the text.

    Raises UserError if the input cannot be read or is not UTF-8.
    """
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


def _shown(number: int, found: Iterable["Translation"], nbest: int, as_json: bool) -> Iterator[str]:
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
            yield text


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int], None]]:
    """Show the number of translated lines on standard error, if it is a terminal and standard output is not."""
    terminal = unguarded(sys.stderr)
    shown = terminal.isatty() and not unguarded(sys.stdout).isatty()
    yield lambda done: print(f"\r{number(done, 'line')}", end="", file=terminal, flush=True) if shown else None
    if shown:
        print(file=terminal)


def export(
    words: Annotated[
        list[str],
        typer.Argument(metavar="[STUDY] DIR", help="The study that trained the model (not with --run); a new folder."),
    ],
    *,
    named: choose_run.Named,
    checkpoint: options.Checkpoint = None,
    selectors: Annotated[Selectors, options.Without(("rows", "seeds"))],
    as_json: options.Json = False,
) -> None:
    """Write a trained model to a folder: weights, configuration, tokenizer, README."""
    named, folders = choose_run.study_first(named, words, ["DIR"])
    if not folders:
        raise UserError("DIR is missing. Name a new folder for the model.")
    folder = Path(folders[0])
    found = choose_run.find_trained(named, selectors, GENERATED)
    choice = checkpoint or found.config.evaluation.checkpoint
    facts = {
        "commit": found.result.revision.commit,
        "code_digest": found.result.code_digest,
        "versions": found.result.versions,
    }
    from experiments.evaluation.export import export as write

    write(
        found.config,
        found.attempt,
        folder,
        run_id=found.run_id,
        choice=choice,
        facts=facts,
        use=_use_of(found.config.task).readme,
    )
    if as_json:
        print_json({"run_id": found.run_id, "folder": str(folder), "checkpoint": choice})
        return
    typer.echo(f"wrote run {found.run_id} to {folder}; use it with: ablations generate --model {folder}")
