"""Commands that describe and start studies: `ablations new`, `studies` and `settings`."""

import contextlib
import importlib.resources
import re
import statistics
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from ablations.cli import options
from ablations.cli.terminal import aligned, answer
from ablations.service.enqueue import wanted
from ablations.service.layers import (
    LONGEST,
    LayerType,
    Rounds,
    Sizes,
    Times,
    crossing,
    layer_types,
    measure,
)
from ablations.service.preflight import refuse
from ablations.service.script import study_of
from ablations.service.selected import Selectors, StoreOptions, choose, task_of_study
from ablations.study.overrides import settings_of
from ablations.study.study import load_study
from ablations.study.study_file import builtin_studies
from experiments.errors import UserError, explain_os_errors
from experiments.messages import suggestion
from experiments.store.durable import read_regular, write_bytes
from experiments.store.imports import OURS
from experiments.store.repository import top_of
from experiments.tasks.base import Task
from experiments.tasks.load import OF_STUDIES, load_task, named_tasks

TEMPLATES = importlib.resources.files("ablations") / "templates"


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the study: letters, digits, '_' and '-'.")],
    folder: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the two files.")] = Path(),
    command: Annotated[
        bool, typer.Option("--command", help="Write a script that a command runs, instead of a Python function.")
    ] = False,
    script: Annotated[
        str,
        typer.Option("--from", metavar="SCRIPT", help="Your script (train.py) or command; write only a study for it."),
    ] = "",
    ask: Annotated[
        bool,
        typer.Option("--ask", help="With --from: run the script up to its parser, and check the defaults there."),
    ] = False,
) -> None:
    """Write a small study NAME.toml and its trainer NAME_task.py, as a start for your own.

    With --from, write a study for an existing script, with the script's options as settings. The script is not changed.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name) or name in OURS:
        raise UserError(f"{name!r} cannot be the name of a study and of a Python module. Use letters, digits, _ and -.")
    module = f"{name.replace('-', '_')}_{'train' if command else 'task'}"
    kind = "command" if command else "function"
    files = {f"{name}.toml": f"{kind}.toml"} | ({} if script else {f"{module}.py": f"{kind}.py.txt"})
    for file in files:
        if (folder / file).exists():
            raise UserError(f"{folder / file} already exists and was not changed. Choose another name, or --folder.")
    if ask and not script:
        raise UserError('--ask needs --from: ablations new NAME --from "python train.py" --ask.')
    if script:
        _new_from(name, script, folder, ask)
        return
    templates = {file: Template((TEMPLATES / of).read_text(encoding="utf-8")) for file, of in files.items()}
    texts = {file: template.substitute(name=name, module=module) for file, template in templates.items()}
    with explain_os_errors(f"write to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            write_bytes((folder / file).absolute(), text.encode())
    typer.echo(f"wrote {folder / name}.toml and {module}.py; run them with: ablations run {folder / name}.toml")
    _note_store()


def _new_from(name: str, script: str, folder: Path, ask: bool) -> None:
    """Write a study for a script and plan it as `ablations plan` does. Remove the study if the plan is refused."""
    study, file = study_of(name, script, folder, ask), folder / f"{name}.toml"
    with explain_os_errors(f"write to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(file.absolute(), study.text.encode())
    try:
        # No store exists at this path, so all runs are planned as missing.
        nowhere = Path(tempfile.gettempdir()) / f"no-store-{uuid.uuid4().hex}"
        chosen = choose(str(file), Selectors(store=nowhere))
        refuse(chosen, wanted(chosen.plan, "keep"))
    except BaseException as error:
        file.unlink(missing_ok=True)
        if isinstance(error, UserError):
            raise UserError(
                f"No study was written for {script!r}, because it would not be valid: {error} Write it by hand, "
                f"starting from `ablations new {name} --command`."
            ) from None
        raise
    typer.echo(f"wrote {file}; check its rows and metrics, then: ablations run {file}")
    for remark in study.remarks:
        typer.echo(f"note: {remark}")
    _note_store()


def _note_store() -> None:
    """Print a note if git would add the store of this folder's runs."""
    here, top, store = Path.cwd(), top_of(Path.cwd()), StoreOptions().store
    if top is None:
        return
    lines: list[str] = []
    for folder in (here, *here.parents):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            lines += read_regular(folder / ".gitignore").decode().splitlines()
        if folder == top:
            break
    if str(store) not in (line.strip().strip("/") for line in lines):
        typer.echo(f"note: {top} is a git repository; add {store}/ to .gitignore, so that git ignores the runs.")


# --- `ablations studies`: list the built-in studies


def studies(as_json: options.Json = False) -> None:
    """List the built-in studies, their profiles and rows."""
    found = [load_study(name) for name in builtin_studies()]
    facts, lines = [], list[str]()
    for study in found:
        profiles = {name: profile.description for name, profile in study.profiles.items()}
        rows = [row.key for row in study.variations]
        facts.append({"study": study.name, "title": study.title, "task": study.task,
                      "default_profile": study.default_profile, "profiles": profiles, "rows": rows})  # fmt: skip
        lines.append(f"{study.name}: {study.title}")
        for name, description in profiles.items():
            lines.append(f"  --profile {name}{' (default)' * (name == study.default_profile)}: {description}")
        lines.append(f"  rows: {' '.join(rows)}")
    answer(as_json, facts, lines)


# --- `ablations settings`: list the settings that a row may change


_of_layers = partial(typer.Option, rich_help_panel="Types of layers")


def settings(
    task: Annotated[
        str,
        typer.Argument(metavar="[TASK|STUDY]", help=f"{', '.join(named_tasks())}; module:OBJECT; or a study's."),
    ] = "translation",
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Only names that begin so, such as model. or training.")
    ] = "",
    layers: Annotated[
        bool, _of_layers("--layers", help="Compare types of layers instead, as in the paper's Table 1.")
    ] = False,
    n: Annotated[int, _of_layers(metavar="N", help="Positions of the sequence.")] = 70,
    d: Annotated[int, _of_layers(metavar="D", help="Width of the representation.")] = 512,
    k: Annotated[int, _of_layers(metavar="K", help="Kernel of the convolutions.")] = 3,
    r: Annotated[int, _of_layers(metavar="R", help="Neighbourhood of restricted self-attention.")] = 16,
    measured: Annotated[
        bool, _of_layers("--measure", help="Measure the time of sub-layers over n and d (takes a minute).")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """List the settings of a task: name, default, allowed values, meaning.

    With --layers, list types of layers with their complexity, sequential operations and longest path.
    """
    if layers:
        _layers(Sizes(n, d, k, r), measured, as_json)
        return
    of_task = _task(task)
    every = settings_of(of_task.config_type)
    found = [one for one in every if one.name.startswith(prefix)]
    if not found:
        groups = dict.fromkeys(f"{one.name.partition('.')[0]}." for one in every if "." in one.name)
        names = [*groups, *(one.name for one in every)]
        raise UserError(f"No setting of {task} begins with {prefix!r}. {suggestion(prefix, names, 'beginnings')}")
    lines = [f"{one.assignment}  ({one.values}){f': {one.meaning}' if one.meaning else ''}" for one in found]
    if of_task.metrics and not prefix:
        lines.insert(0, f"metrics for [[metric]] in a study: {', '.join(of_task.metrics)}\n")
    answer(as_json, [asdict(one) for one in found], lines)


def _task(name: str) -> Task:
    if name in named_tasks() and name not in OF_STUDIES:
        return load_task(name)
    if name in builtin_studies() or name.endswith(".toml"):
        return task_of_study(load_study(name))
    if ":" in name:
        return load_task(name)
    if name in OF_STUDIES:
        raise UserError(f"The settings of the task {name} are those in [base] of its study. Name the study.")
    nearest = suggestion(name, [*named_tasks(), *builtin_studies()], "names")
    raise UserError(f"There is no task or study {name!r}. {nearest}")


# --- `ablations settings --layers`: compare types of layers, as in Table 1 of "Attention Is All You Need"


HEAD = ("layer type", "complexity", "products", "counted", "sequential", "path", "formula", "exact", "in layers")


def _layers(sizes: Sizes, measured: bool, as_json: bool) -> None:
    types = layer_types(sizes)
    times = measure(sizes) if measured else None
    n = sizes.n
    lines = [
        f"n = {n}, d = {sizes.d}, k = {sizes.k}, r = {sizes.r}; "
        "n is the sequence, d the width, k the kernel, r the neighbourhood",
        *aligned([HEAD, *map(_row, types)]),
        "products: the leading term. counted: all products of one sub-layer, with projections, both matrices of a",
        "recurrent cell, and for restricted attention the pairs of its blocks. exact: causal layers after which",
        "each position sees all positions before it; –: never.",
        *([f"note: paths are propagated up to n = {LONGEST:,}."] if n > LONGEST else []),
        *(_times(times) if times else ()),
    ]
    answer(as_json, _as_json(sizes, types, times), lines)


def _row(one: LayerType) -> tuple[str, ...]:
    sequential = f"{one.sequential} {one.operations:,}"
    exact = "–" if one.exact is None else f"{one.exact:,}"
    depth = f"{one.layers:,}" if one.layers else "–"
    return (
        one.name, one.complexity, f"{one.leading:,}", f"{one.counted:,}", sequential, one.path, f"{one.formula:.4g}",
        exact, depth,
    )  # fmt: skip


def _times(times: Times) -> list[str]:
    """Return the lines on the measured times.

    They contain one table per width, and the lengths at which self-attention and another sub-layer take equally long.
    """
    lines = []
    for width, first in times.rounds["self_attention"].items():
        rows = [(f"d = {width}, ms a sequence", *(f"n={length}" for length in first))]
        for name, of in times.rounds.items():
            rows.append((name, *(f"{statistics.median(rounds) * 1e3:.3g}" for rounds in of[width].values())))
        lines += ["", *aligned(rows)]
        for name in (name for name in times.rounds if name != "self_attention" and not times.loaded):
            lines.append(f"self-attention against {name}: {_verdict(first, times.rounds[name][width])}")
    lines.append("times: CPU time of one thread, the median of interleaved rounds")
    if times.loaded:
        busy = f"other programs use {times.load:.1f} of {times.processors} processors"
        lines.append(f"no conclusion: {busy}. Repeat --measure when they use at most half.")
    return lines


def _verdict(first: Rounds, second: Rounds) -> str:
    found = crossing(first, second)
    if found is None:
        return "no conclusion: the rounds disagree, or there is more than one crossing"
    now, then = ("faster", "slower") if found[0] else ("slower", "faster")
    return f"{now} at all lengths" if found[1] is None else f"{now} up to n = {found[1]:.0f}, {then} from there"


def _as_json(sizes: Sizes, types: Sequence[LayerType], times: Times | None) -> dict[str, object]:
    found: dict[str, object] = {"sizes": asdict(sizes), "types": [asdict(one) for one in types]}
    if times is not None:
        full = times.rounds["self_attention"]
        found["measured"] = asdict(times) | {"loaded": times.loaded}
        found["crossings"] = None if times.loaded else {
            name: {width: crossing(full[width], rounds) for width, rounds in of.items()}
            for name, of in times.rounds.items()
            if name != "self_attention"
        }  # fmt: skip
    return found
