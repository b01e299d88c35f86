"""Options fill a dataclass: typed values set its fields, other fields keep their defaults."""

import dataclasses
import inspect
import os
import shlex
import subprocess
import sys
from ast import literal_eval
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from ablations.cli import options
from ablations.cli.main import app, verb
from ablations.cli.verbs import verbs
from ablations.service.choose_run import Named
from ablations.service.selected import Selectors, StoreOptions
from ablations.service.tables import TableOptions

VERBS = verbs()
TYPED = {
    "profile": "demo", "corpus": "/somewhere", "rows": "base,A", "seeds": 3, "sets": ["a.b=1", "c=x"],
    "store": Path("kept"), "state_dir": Path("local"),
}  # fmt: skip


def words_of(values):
    for name, value in values.items():
        option = "--set" if name == "sets" else f"--{name.replace('_', '-')}"
        for one in value if isinstance(value, list) else [value]:
            yield from (option, str(one))


def run(verb, *words):
    app = typer.Typer()
    app.command()(options.spread(verb))
    return CliRunner().invoke(app, list(words), env={"ABLATIONS_STORE": None, "ABLATIONS_STATE_DIR": None})


@pytest.mark.parametrize("names", [[], ["sets"], ["rows", "store"], list(TYPED)], ids=str)
def test_what_is_typed_arrives_and_the_rest_keeps_its_default(names):
    calls = []

    def verb(devices: options.Devices, *, named: Named, selectors: Selectors, as_json: options.Json = False) -> None:
        calls.append((devices, named, selectors, as_json))

    values = {name: TYPED[name] for name in names}
    result = run(verb, "--devices", "cpu:2", "--row", "big", *words_of(values), "--json")
    assert result.exit_code == 0, result.output
    assert calls == [("cpu:2", Named(row="big"), Selectors(**values), True)]


def test_a_field_left_out_is_no_option_and_keeps_its_default():
    calls = []

    def verb(selectors: Annotated[Selectors, options.Without(("seeds", "rows"))]) -> None:
        calls.append(selectors)

    assert run(verb, "--seeds", "2").exit_code == 2 and not calls
    assert run(verb, "--profile", "demo").exit_code == 0 and calls == [Selectors(profile="demo")]


def test_every_field_has_an_option():
    kinds = (Named, StoreOptions, Selectors, TableOptions)
    fields = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    assert fields - set(options.OPTIONS) == {"study"}  # an argument


@pytest.mark.parametrize("name", VERBS)
def test_the_verb_that_is_imported_late_is_what_help_announces(name):
    listed = typer.main.get_command(app).get_command(None, name)
    assert listed.help == inspect.getdoc(VERBS[name].function) == verb(name).help


@pytest.mark.process
def test_help_of_all_verbs_imports_none():
    code = """
import sys
sys.argv = ["ablations", "--help"]
from ablations.cli.main import main
try:
    main()
finally:
    print(sorted(name for name in sys.modules if name.startswith(("ablations.cli.", "experiments.", "pydantic"))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(f" {name} " in done.stdout for name in VERBS)
    imported = literal_eval(done.stdout.splitlines()[-1])
    others = {name for name in imported if not name.startswith("experiments.client")}  # it imports only Python's own
    assert others == {
        "ablations.cli.main", "ablations.cli.terminal", "ablations.cli.verbs",
        "experiments.errors", "experiments.masking",
    }  # fmt: skip


@pytest.mark.parametrize("name", VERBS)
def test_a_verbs_example_is_accepted_and_its_help_is_complete(name, capsys, monkeypatch):
    """rich reads [words] as markup. Text that looks like markup must still be printed."""
    command, (first, *words) = verb(name), shlex.split(VERBS[name].example.partition(" > ")[0])
    assert first == name
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 4000)  # no text is wrapped
    command.make_context(name, words)
    with pytest.raises(SystemExit):
        command.main([name, "-h"][1:], prog_name=name)
    shown = " ".join(capsys.readouterr().out.split())
    texts = [param.help for param in command.params if not getattr(param, "hidden", False)]
    for text in (*texts, *command.help.split("\n\n"), f"Example: ablations {VERBS[name].example}"):
        assert text is None or " ".join(text.split()) in shown, text


def test_every_verb_that_prints_facts_has_json():
    without = {name for name in VERBS if not any("--json" in param.opts for param in verb(name).params)}
    assert without <= SERVES, without - SERVES


SERVES = {"new", "work", "fill", "paper", "mcp"}  # they run, ask or write for a person, or answer a program


def command_line(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "ablations", *words], capture_output=True, text=True, env={**os.environ, **environment}
    )


@pytest.mark.process
def test_the_module_is_the_command():
    assert command_line("--version").stdout == f"ablations {version('transformer-ablations')}\n"
    assert "Train its rows" in command_line("-h").stdout
    assert command_line("nonsense").returncode == 2


@pytest.mark.parametrize(
    ("words", "found"), [(("pla",), ["plan"]), (("plan", "tab"), ["table2", "table3", "tab.toml"])]
)
@pytest.mark.process
def test_a_shell_completes_verbs_and_studies(tmp_path, monkeypatch, words, found):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tab.toml").touch()
    (tmp_path / "tab.txt").touch()
    asked = {"COMP_WORDS": " ".join(("ablations", *words)), "COMP_CWORD": str(len(words))}
    environment = {**os.environ, "_ABLATIONS_COMPLETE": "complete_bash", **asked}
    script = Path(sys.executable).with_name("ablations")
    said = subprocess.run([script], capture_output=True, text=True, env=environment)
    assert set(found) <= set(said.stdout.split()) and "tab.txt" not in said.stdout


def test_a_store_with_a_space_in_its_name_can_be_pasted():
    selectors = Selectors(store=Path("my runs"), state_dir=Path("here"), sets=["model.d_ff=8"])
    assert shlex.split(selectors.where) == ["--store", "my runs", "--state-dir", "here"]
    assert selectors.words(whole=True)[-6:] == ("--set", "model.d_ff=8", "--store", "my runs", "--state-dir", "here")
