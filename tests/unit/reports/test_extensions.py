"""An installed package can add to each extension point (docs/extending.md) without a fork of this program."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ablations.cli.main import app, main
from ablations.cli.terminal import MISTAKE
from ablations.cli.verbs import CORE, verbs
from ablations.service.selected import Selectors, choose_table
from ablations.study.study import load_study
from experiments.config.network_change import change_network, changes_of
from experiments.errors import UserError
from experiments.identity import run_identity
from experiments.jobs.engines.by_name import engine_class, load_engine
from experiments.jobs.engines.local import LocalEngine
from experiments.store.layout import Store
from experiments.tasks import load
from experiments.tasks.network import evaluation_settings
from experiments.tasks.translation import Translation
from experiments.tracking.sinks.sink import check_sink, folder_of
from model import extensions
from model.config import ModelConfig
from model.cost import num_params
from model.network import build_model
from reports.render.formats import formats, render
from tests.unit.reports.conftest import Bench

PAGE = (Path(__file__).parents[3] / "docs" / "extending.md").read_text(encoding="utf-8")
PACKAGE = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
DECLARED = re.findall(r"^```toml\n(\[project\.entry-points.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
ENTRIES = re.sub(r'"', "", "\n".join(DECLARED).replace("project.entry-points.", ""))
SIZES: dict[str, Any] = {"num_layers": 1, "d_model": 8, "d_ff": 12, "num_heads": 2, "d_k": 4, "d_v": 4}
STUDY = 'name = "small"\ntitle = "Small"\n{}[[variation]]\nkey = "base"\n'


def install(folder: Path, name: str, text: str, entries: str) -> None:
    """Install a package of one module as pip does in site-packages."""
    (folder / f"{name}.py").write_text(text)
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(entries)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install(tmp_path, "my_package", PACKAGE, ENTRIES)
    monkeypatch.syspath_prepend(str(tmp_path))
    extensions.forget()
    yield
    extensions.forget()


pytestmark = pytest.mark.usefixtures("installed")


def test_the_page_has_an_example_of_each_extension_point() -> None:
    documented = set(re.findall(r"^\[ablations\.(\w+)\]", ENTRIES, re.MULTILINE))
    assert documented == set(extensions.KINDS)
    assert all(extensions.load(place) for kind in documented for place in extensions.added(kind).values())


def test_a_task_is_known_by_its_name() -> None:
    task = load.load_task("retrieval")
    assert isinstance(task, Translation) and task.name == "retrieval" and not load.trains_apart("retrieval")
    assert task.code.keys() == {"likelihood", "decode", "score"}
    with pytest.raises(UserError, match=r"no task 'retrival'.*retrieval"):
        load.load_task("retrival")


@pytest.mark.process
def test_an_engine_starts_children(tmp_path: Path) -> None:
    assert issubclass(engine_class("queue"), LocalEngine)
    engine = load_engine("queue", {}, tmp_path, 1)
    engine.close()
    assert engine.name == "queue"


def test_a_sink_gets_runs(tmp_path: Path) -> None:
    check_sink("lines")
    store = Store.open(tmp_path / "store")
    made = extensions.load(extensions.added("sinks")["lines"])(store, folder_of(store, "lines"))
    assert made.folder == folder_of(store, "lines")
    with pytest.raises(UserError, match=r"The sinks are: .*lines"):
        check_sink("nothing")


def test_a_format_prints_tables(bench: Bench) -> None:
    table = bench.row("base", results=[(5.0, 27.0)]).table()
    assert render(table, "keys").split() == [row.key for row in table.rows] and "keys" in formats()
    with pytest.raises(UserError, match=r"no table format 'key'.*latex.*keys"):
        render(table, "key")


def test_a_layer_is_part_of_a_network() -> None:
    gated = ModelConfig(encoder="N * (self_attention, gated)", **SIZES)
    assert num_params(gated, 20) - num_params(ModelConfig(**SIZES), 20) == 8 * 12 + 12
    with pytest.raises(ValueError, match="there is no sub-layer gatid; nearest: gated"):
        ModelConfig(encoder="N * gatid", **SIZES)


def test_a_change_of_networks_is_a_setting_of_rows_and_of_evaluations(tmp_path: Path) -> None:
    kind: Any = load.load_task("translation").config_type
    half = kind.from_mapping({"prune": 0.5})
    assert run_identity(half, {}) != run_identity(kind(), {}) == run_identity(kind.from_mapping({"prune": 0.0}), {})
    assert half.model_dump()["prune"] == 0.5 and "prune" not in kind().model_dump()
    assert evaluation_settings(kind.from_mapping({"evaluation": {"prune": 0.5}}))["prune"] == 0.5
    model = build_model(ModelConfig(**SIZES), 20)
    change_network(half, changes_of(half), model)
    matrix = next(weight for name, weight in model.named_parameters() if name.endswith("inner.weight"))
    assert (matrix == 0).sum() == matrix.numel() // 2
    file = tmp_path / "small.toml"
    file.write_text(STUDY.format("") + "prune = 0.5\n")
    assert load_study(str(file)).variations[0].fixed == {"prune": 0.5}
    file.write_text(STUDY.format("") + "prune_all = 0.5\n")
    with pytest.raises(UserError, match=r'row "base": unknown key `prune_all`.*`prune`'):
        load_study(str(file))


def test_a_command_is_listed_described_and_called() -> None:
    assert verbs()["rows"].docstring == "Print the keys of a study's rows."
    run = CliRunner().invoke(app, ["rows", "table3"])
    assert run.exit_code == 0 and run.stdout.split()[0] == load_study("table3").variations[0].key
    listed = typer.main.get_command(app).list_commands(None)  # type: ignore[attr-defined,arg-type]
    assert listed[: len(CORE)] == list(CORE) and "rows" in listed
    with pytest.raises(UserError, match=r"There is no command 'row'.*studies.*rows"):
        CliRunner().invoke(app, ["row", "table3"], catch_exceptions=False)


def test_a_section_is_read_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text(STUDY.format('[venue]\nname = "ACL"\nrows = ["base"]\n'))
    assert load_study(str(file)).sections["venue"].name == "ACL"
    file.write_text(STUDY.format('[venue]\nname = "ACL"\nrows = ["A"]\n'))
    with pytest.raises(UserError, match=r"\[venue\]: there is no row A"):
        load_study(str(file))
    file.write_text(STUDY.format("[venue]\nname = 3\n"))
    with pytest.raises(UserError, match=r"venue\.name: "):
        load_study(str(file))
    file.write_text(STUDY.format('[venues]\nname = "ACL"\n'))
    with pytest.raises(UserError, match=r"unknown key `venues`.*venue"):
        load_study(str(file))


def test_a_note_is_printed_under_the_table(bench: Bench) -> None:
    bench.study["sections"] = {"venue": {"name": "ACL"}}
    table = bench.row("base", results=[(5.0, 27.0)]).table()
    assert "For ACL." in render(table, "markdown")


def test_a_file_stands_in_place_of_a_study_and_is_verified(tmp_path: Path) -> None:
    file = tmp_path / "table.link"
    file.write_text("table3\n")
    assert choose_table(str(file), Selectors(), print).study.name == "table3"
    with pytest.raises(UserError, match="Leave out the selectors"):
        choose_table(str(file), Selectors(seeds=2), print)
    call = CliRunner().invoke
    assert call(app, ["verify", str(file)]).exit_code == 0
    file.write_text("")
    assert call(app, ["verify", str(file)]).exit_code == 1


@pytest.mark.extra("imports")
def test_a_reader_gives_the_runs_of_a_table(tmp_path: Path) -> None:
    (tmp_path / "runs.txt").write_text("base 1 0.5\nbase 2 0.7\nwide 1 0.9\nwide 2 0.9\n")
    done = CliRunner().invoke(app, ["tabulate", f"lines:{tmp_path / 'runs.txt'}", "--json"])
    assert [(row["row"], row["score_test"]) for row in json.loads(done.stdout)] == [("base", 0.6), ("wide", 0.9)]


# --- Packages that do not work


def test_a_package_that_cannot_be_imported_is_named_where_it_is_used(
    tmp_path: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = "".join(f"[ablations.{kind}]\nbroken = broken_package:X\n" for kind in extensions.KINDS)
    install(tmp_path, "broken_package", "import no_such_module", entries)
    extensions.forget()
    why = "The installed package broken-package does not work: broken_package:X cannot be imported .*no_such_module"
    assert CliRunner().invoke(app, ["rows", "table3"]).exit_code == 0  # the commands of others work
    with pytest.raises(UserError, match=f"There is no command 'broken'.*{why}"):
        CliRunner().invoke(app, ["broken"], catch_exceptions=False)
    with pytest.raises(UserError, match=why):
        load.load_task("broken")
    with pytest.raises(ValueError, match=why):
        ModelConfig(encoder="N * broken")
    assert "self_attention without window in brackets" in ModelConfig(encoder="", decoder="N * lstm").readers("window")
    table = bench.row("base", results=[(5.0, 27.0)])
    with pytest.raises(extensions.ExtensionError, match=why):
        table.table()
    monkeypatch.setattr(sys, "argv", ["ablations", "plan", "table3", "--set", "model.encoder=N * broken"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == MISTAKE


def test_a_package_whose_commands_are_no_mapping_is_named(tmp_path: Path) -> None:
    install(tmp_path, "odd_package", "def commands(): ...", "[ablations.commands]\nodd = odd_package:commands\n")
    extensions.forget()
    assert CliRunner().invoke(app, ["rows", "table3"]).exit_code == 0
    with pytest.raises(UserError, match="odd_package:commands adds no commands"):
        CliRunner().invoke(app, ["odd"], catch_exceptions=False)


def test_a_name_that_two_packages_add_is_refused_where_it_is_used(tmp_path: Path) -> None:
    install(tmp_path, "other_package", PACKAGE, "[ablations.layers]\ngated = other_package:GatedSpec\n")
    extensions.forget()
    with pytest.raises(ValueError, match=r"The installed packages (my-package and other|other-package and my)-package"):
        ModelConfig(encoder="N * gated")
    assert ModelConfig().layers("encoder")
