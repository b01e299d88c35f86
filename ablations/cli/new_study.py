"""Start a study: `ablations new`."""

import contextlib
import importlib.resources
import re
import tempfile
import uuid
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from ablations.service.enqueue import wanted
from ablations.service.preflight import refuse
from ablations.service.script import study_of
from ablations.service.selected import Selectors, StoreOptions, choose
from experiments.errors import UserError, explain_os_errors
from experiments.store.durable import read_regular, write_bytes
from experiments.store.imports import OURS
from experiments.store.repository import top_of

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
