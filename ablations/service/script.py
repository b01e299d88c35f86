"""Write a study for an existing script: its options become settings, and the numbers that it prints become metrics.

The script is parsed, not run. The package from_script finds options of argparse, click, typer, absl, Fire, Hydra and
dataclasses in the script and in the local files that it imports. Only `--ask` runs the script, up to the point where it
parses its options.
"""

import ast
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ablations.service.from_script.ask import PARSERS, ask
from ablations.service.from_script.collect import options_in
from ablations.service.from_script.metrics import printed
from ablations.service.from_script.option import SEEDS
from ablations.service.from_script.reach import Code
from ablations.service.from_script.study_text import command_of, is_setting, study_text
from experiments.errors import UserError, explain_os_errors
from experiments.store.durable import read_regular
from experiments.store.imports import local_files
from experiments.tasks.own.command_files import Scripts

_WRITTEN = re.compile(r"\.?/?(out|output|outputs|results?|logs?|runs?|checkpoints?|ckpts?|saved?|models?|wandb|tmp)\b")

# Suffixes of files that no interpreter runs. A command may read such a file, but is not such a file.
DATA = {".toml", ".yaml", ".yml", ".json", ".csv"}


@dataclass(frozen=True)
class WrittenStudy:
    """The text of a study for a script, and remarks for the user about options that were not read or were left out."""

    text: str
    remarks: Sequence[str]


def study_of(name: str, given: str, folder: Path, ask_parser: bool = False) -> WrittenStudy:
    """Return the study for a script or a command.

    ask_parser: run the script up to its parser, and leave out the settings whose defaults the parser contradicts.
    Raises UserError if `given` names no script, or if the script cannot be read.
    """
    try:
        words = shlex.split(given)
    except ValueError as error:
        raise UserError(f"--from {given!r} is not a valid shell command: {error}.") from None
    if words and words[0].endswith(".py") and not words[0].startswith(("./", "/", "~")):
        words = ["python", *words]
    scripts = Scripts(shlex.join(words), folder)
    if not scripts.script:
        missing = next((word for word in words if word.endswith(".py")), given)
        where = "this folder" if folder.absolute() == Path.cwd() else folder.absolute()
        raise UserError(
            f"--from {given!r}: no script `{missing}` in {where}. Write --from train.py, or a whole command: "
            '--from "python -m package".'
        )
    script = Path(scripts.script)
    if script.suffix in DATA and len(words) == 1 + (Path(words[0]).name.startswith("python")):
        raise UserError(
            f"--from {given!r}: {script.name} is a {script.suffix} file, not a script. Write --from train.py."
        )
    files = [script, *(file for file in local_files(scripts.files, [folder]) if file != script)]
    code = Code(script, {file: _parsed(file) for file in files if file.suffix == ".py"})
    start = _start(words, script)
    found = options_in(code, words, start, folder)
    remarks = [*found.remarks]
    if ask_parser:
        if not code.imports & PARSERS:
            raise UserError(
                f"--ask: {script.name} imports no parser that --ask supports ({', '.join(sorted(PARSERS))})."
            )
        settings = [option for option in found.options if is_setting(option) and not option.in_file]
        wrong = ask(words, start, command_of(found), settings, folder)
        found = replace(found, options=[
            option.without(f"--ask: {wrong[option.name]}") if option.name in wrong else option
            for option in found.options
        ])  # fmt: skip
        same = len(settings) - len(wrong)
        remarks += [f"The parser confirms {same} of {len(settings)} settings."]
        remarks += [f"{name} is left out: {why}." for name, why in wrong.items()]
    if not any(is_setting(option) or option.name in SEEDS for option in found.options):
        remarks.insert(0, f"No options found in {script.name} can be settings. Write them into the command "
                       "and [base] by hand, such as --lr {lr} and lr = 0.1.")  # fmt: skip
    links = _links(code, [*files, *(folder / word.rpartition("=")[2] for word in words)], folder)
    metrics = printed(code)
    text = study_text(name, found, code, metrics, links, remarks)
    if all(one.doubt for one in metrics):
        remarks.append(f"No metric is certain in the output of {script.name}. Correct [[metric]] in the study.")
    return WrittenStudy(text, remarks)


def _start(words: Sequence[str], script: Path) -> int:
    """Return the index of the script, or of its module's name, in the words of a command."""
    for place, word in enumerate(words):
        if Path(word).name == script.name:
            return place
    return next((n for n, before in enumerate(words[:-1], 1) if before in ("-m", "--module")), 0)


def _parsed(file: Path) -> ast.Module:
    with explain_os_errors(f"read {file}"):
        try:
            return ast.parse(read_regular(file))
        except (SyntaxError, ValueError, RecursionError) as error:
            raise UserError(f"{file} is not valid Python: {error}.") from None


def _links(code: Code, files: Iterable[Path], folder: Path) -> list[str]:
    """Return the entries of the folder that the script needs: its files, and existing paths in its string literals."""
    texts = [node.node.value for node in code.nodes if isinstance(node.node, ast.Constant)]
    named = [text for text in texts if isinstance(text, str) and 0 < len(text) < 200 and "\0" not in text]
    paths = [Path(text) for text in named if not _WRITTEN.match(text) and text[0] != "/"]
    found, home = dict[str, None](), folder.resolve()
    for path in [*files, *(folder / path.parts[0] for path in paths if path.parts)]:
        if path.exists() and (there := path.resolve()).is_relative_to(home) and there != home:
            found[there.relative_to(home).parts[0]] = None
    return [name for name in found if not name.startswith(".") and not name.endswith(".toml")]
