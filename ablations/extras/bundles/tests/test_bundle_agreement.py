"""Forged bundles of real runs: every number is computed again, or the table's first line calls it the sender's word."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ablations.extras.bundles.tests.altered import altered
from ablations.extras.bundles.write import write_bundle
from ablations.service.selected import SelectedTable, Selectors, choose_table
from ablations.service.tables import table_of
from experiments.dotted import flatten
from experiments.errors import UserError
from experiments.exchange.redaction import NOTHING
from experiments.identity import eval_identity, identity_of, of_imported, run_identity
from experiments.store.checksummed import with_checksum, without_checksum
from experiments.tasks.load import load_task
from reports.audit import verify
from reports.audit.explain import as_text, explain
from reports.render import setup
from reports.render.formats import RENDERERS, render
from reports.render.html import fragment
from tests.unit.reports.real import Made

Head, Files = dict[str, Any], dict[str, bytes]
Forgery = Callable[[Head, Files], None]


@pytest.fixture(scope="session")
def packed(small: dict[str, Made], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A bundle of two rows of a translation, and one of a command."""
    folder = tmp_path_factory.mktemp("packed")
    for kind, rows in (("translation", "base,learned"), ("command", None)):
        chosen = small[kind].chosen(rows=rows)
        write_bundle(folder / f"{kind}.tar.gz", chosen.plan, chosen.store, chosen.columns, chosen.asked, NOTHING)
    return {kind: folder / f"{kind}.tar.gz" for kind in ("translation", "command")}


def opened(path: Path) -> SelectedTable:
    return choose_table(str(path), Selectors(store=Path("none")), lambda _: None)


def edit(files: Files, last: str, change: Callable[[dict[str, Any]], object], inside: str = "") -> None:
    """Change records, and give them the right checksums again."""
    for name in [name for name in files if name.endswith(last) and inside in name]:
        record = without_checksum(json.loads(files[name]))
        change(record)
        files[name] = json.dumps(with_checksum(record)).encode()


def scored(files: Files, value: float = 99.9, metric: str = "bleu") -> None:
    edit(files, "/result.json", lambda record: record["metrics"].update({metric: value}), "/evaluations/")


def task_of_the_plan(head: Head, files: Files) -> None:
    head["plan"]["study"]["task"] = "this:TASK"


def task_of_the_plan_is_a_command(head: Head, files: Files) -> None:
    head["plan"]["study"]["task"] = "command"


def task_of_the_rows(head: Head, files: Files) -> None:
    for row in head["plan"]["rows"]:
        row["config"]["task"] = "this:TASK"


def task_of_plan_and_rows(head: Head, files: Files) -> None:
    task_of_the_plan(head, files)
    task_of_the_rows(head, files)


def task_of_the_configs(head: Head, files: Files) -> None:
    edit(files, "/config.json", lambda record: record["config"].update(task="this:TASK"))


def task_of_the_results(head: Head, files: Files) -> None:
    edit(files, "/result.json", lambda record: "spec" in record and record["spec"]["config"].update(task="this:TASK"))


def task_of_nothing_but_the_plan(head: Head, files: Files) -> None:
    """No record names a task, and the names of the runs are not to be checked."""
    task_of_plan_and_rows(head, files)
    head["names_can_be_checked"] = False
    for name in [name for name in files if name.endswith("config.json")]:
        del files[name], head["files"][name]
    edit(files, "/result.json", lambda record: "spec" in record and record["spec"]["config"].pop("task"))


def no_counts(head: Head, files: Files) -> None:
    for name in [name for name in files if name.endswith("statistics.npy")]:
        del files[name], head["files"][name]
    edit(files, "/result.json", lambda record: record["files"].pop("statistics.npy"), "/evaluations/")


def counts_of_no_sentence(head: Head, files: Files) -> None:
    none = io.BytesIO()
    np.save(none, np.zeros((0, 10), dtype=np.int64))
    files |= {name: none.getvalue() for name in files if name.endswith("statistics.npy")}
    edit(files, "/result.json", lambda r: (r.pop("files"), r.update(sentences=0)), "/evaluations/")


def a_second_evaluation_of_the_set(head: Head, files: Files) -> None:
    """The last of a set would be printed."""
    for run in head["plan"]["runs"]:
        first = run["evaluations"][0]
        other = {**first, "settings": {**first["settings"], "beam_size": 9}}
        other["eval_id"] = eval_identity(run["run_id"], other["settings"], other["inputs"])
        run["evaluations"].append(other)
        place = f"runs/{run['run_id']}/evaluations"
        record = json.loads(files[f"{place}/{first['eval_id']}/result.json"])
        record |= {"eval_id": other["eval_id"], "settings": other["settings"], "files": {}}
        files[f"{place}/{other['eval_id']}/result.json"] = json.dumps(
            {key: value for key, value in record.items() if not key.startswith("record_")}
        ).encode()


REFUSED = (
    task_of_the_plan, task_of_the_plan_is_a_command, task_of_the_rows, task_of_plan_and_rows, task_of_the_configs,
    task_of_the_results, task_of_nothing_but_the_plan, no_counts, counts_of_no_sentence, a_second_evaluation_of_the_set,
)  # fmt: skip


@pytest.mark.parametrize("forge", REFUSED)
def test_no_forgery_keeps_a_score_from_being_computed_again(
    packed: dict[str, Path], tmp_path: Path, forge: Forgery
) -> None:
    def change(head: Head, files: Files) -> None:
        scored(files)
        forge(head, files)

    with pytest.raises(UserError, match=r"forged\.tar\.gz"):
        opened(altered(packed["translation"], tmp_path / "forged.tar.gz", change))
    if forge not in (no_counts, counts_of_no_sentence):  # nor where the scores are as they were
        with pytest.raises(UserError, match=r"task|two evaluations"):
            opened(altered(packed["translation"], tmp_path / "forged.tar.gz", forge))


def other_metric(head: Head, files: Files) -> None:
    scored(files, metric="bleu2")
    for column in head["columns"]:
        column["metric"] = column["metric"].replace("bleu", "bleu2")


def heads_over_other_columns(head: Head, files: Files) -> None:
    first, second = head["columns"][:2]
    first["header"], second["header"] = second["header"], first["header"]


@pytest.mark.parametrize("forge", [other_metric, heads_over_other_columns])
def test_columns_of_a_built_in_task_follow_from_the_study(
    packed: dict[str, Path], tmp_path: Path, forge: Forgery
) -> None:
    there = opened(altered(packed["translation"], tmp_path / "forged.tar.gz", forge))
    assert render(table_of(there), "markdown") == render(table_of(opened(packed["translation"])), "markdown")


@pytest.mark.parametrize("names", [True, False])
def test_parameters_are_counted_from_the_settings(packed: dict[str, Path], tmp_path: Path, names: bool) -> None:
    def change(head: Head, files: Files) -> None:
        head["names_can_be_checked"] = names
        for run in head["plan"]["runs"]:
            run["num_params"] = 65_000_000
        edit(files, "/result.json", lambda record: "spec" in record and record.update(num_params=65_000_000))

    with pytest.raises(UserError, match="parameters = 65000000, those settings have"):
        opened(altered(packed["translation"], tmp_path / "forged.tar.gz", change))


def test_a_beam_that_was_not_searched_is_not_printed(packed: dict[str, Path], tmp_path: Path) -> None:
    """Settings of an evaluation are in no run_id: the plan's and the evaluation's own must agree."""

    def change(head: Head, files: Files) -> None:
        for row in head["plan"]["rows"]:
            row["config"]["evaluation"]["beam_size"] = 10

    with pytest.raises(UserError, match="beam_size = 10"):
        opened(altered(packed["translation"], tmp_path / "forged.tar.gz", change))


# --- what cannot be computed again


def renamed(head: Head, files: Files, names: dict[str, str]) -> None:
    """Other names of runs and evaluations, everywhere."""

    def other(text: str) -> str:
        for old, new in names.items():
            text = text.replace(old, new)
        return text

    changed = json.loads(other(json.dumps(head)))
    head.clear()
    head.update(changed)
    before = dict(files)
    files.clear()
    for name, content in before.items():
        files[other(name)] = content
        if name.endswith("json"):
            record = json.loads(other(json.dumps(without_checksum(json.loads(content)))))
            files[other(name)] = json.dumps(with_checksum(record)).encode()


def of_an_own_task(head: Head, files: Files) -> None:
    """Everything agrees: the bundle of somebody's own trainer could look so."""
    plan, names = head["plan"], {}
    scored(files)
    task_of_plan_and_rows(head, files)
    plan["settings"]["roles"] = {
        "not_in_run_id": ["evaluation."], "not_in_lineage": [], "steps": "", "frozen_defaults": False,
    }  # fmt: skip
    edit(files, ".json", lambda record: record.get("spec", record).get("config", {}).update(task="this:TASK"))
    for run in plan["runs"]:
        config = json.loads(files[f"runs/{run['run_id']}/config.json"])["config"]
        settings = {n: v for n, v in flatten(config) if n not in ("task", "seed") and not n.startswith("evaluation.")}
        run["named_by"] = {"settings": settings, "changed defaults": {}}
        names[run["run_id"]] = identity_of(config["task"], config["seed"], settings, run["inputs"])
        for e in run["evaluations"]:
            names[e["eval_id"]] = eval_identity(names[run["run_id"]], e["settings"], e["inputs"])
    renamed(head, files, names)


def with_an_imported_row(head: Head, files: Files) -> None:
    """A row that is said to have been trained elsewhere has no counts."""
    plan, names, kind = head["plan"], {}, load_task("translation").config_type
    row = plan["rows"][1]
    plan["study"]["variation"][1]["imported"] = True
    for run in [run for run in plan["runs"] if run["row"] == row["key"]]:
        run |= {"inputs": of_imported(plan["study"]["name"], row["key"]), "num_params": None}
        config = kind.from_mapping({**row["config"], "seed": run["seed"]})
        names[run["run_id"]] = run_identity(config, run["inputs"])
        for e in run["evaluations"]:
            e |= {"settings": {"imported": e["set"]}, "inputs": {}}
            names[e["eval_id"]] = eval_identity(names[run["run_id"]], e["settings"], {})

        def change(record: dict[str, Any], run: Any = run) -> None:
            if "metrics" in record:
                record |= {"settings": {"imported": record["set"]}, "inputs": {}, "files": {}}
                record["metrics"]["bleu"] = 99.9
            else:
                record.get("spec", record)["inputs"] = run["inputs"]
                record.pop("num_params", None)

        edit(files, ".json", change, f"runs/{run['run_id']}/")
        for name in [name for name in files if name.endswith(".npy") and run["run_id"] in name]:
            del files[name], head["files"][name]
    for name in [name for name in head["files"] if any(run_id in name for run_id in names)]:
        del head["files"][name]
    renamed(head, files, names)


def of_version_0_1_0(head: Head, files: Files) -> None:
    """A command with a pattern, progress, links and a row that changes code: all are among the settings."""
    plan, names = head["plan"], {}
    patterns = [["test", "loss", "loss=(.*)", "last"]]
    facts = {"output_patterns": patterns, "output_progress": "step (.*)", "folder_links": ["data"], "code_lines": 0}
    facts["command"] = plan["study"]["command"]
    plan["settings"]["defaults"] |= {**facts, "code_tree": "a" * 40}
    plan["settings"]["roles"]["not_in_run_id"] = ["output_progress", "folder_links", "code_lines"]
    changed = {"base": {"code_tree": "a" * 40}, "low": {"code_tree": "b" * 40, "code_lines": 3}}
    plan["study"]["variation"][1] |= {"label": "patch low.diff", "fixed": changed["low"]}
    configs = {}
    for row in plan["rows"]:
        row["config"] |= {**facts, **changed[row["key"]]}
        row["overrides"] |= changed[row["key"]] if row["key"] == "low" else {}
        del row["trainer"]
        configs[row["key"]] = row["config"]
    for run in plan["runs"]:
        del run["named_by"]
        config = {**configs[run["row"]], "seed": run["seed"]}
        not_named = ("task", "seed", "output_progress", "folder_links", "code_lines")
        settings = {name: value for name, value in flatten(config) if name not in not_named}
        names[run["run_id"]] = identity_of("command", run["seed"], settings, run["inputs"])
        for e in run["evaluations"]:
            del e["promised"]
            names[e["eval_id"]] = eval_identity(names[run["run_id"]], e["settings"], e["inputs"])

        def change(record: dict[str, Any], run: Any = run, config: Any = config) -> None:
            if "metrics" not in record:
                for name in ("spec", "trainer", "named_by", "code_files", "code_home"):
                    record.pop(name, None)
                record |= {"run_id": run["run_id"], "config": config, "inputs": run["inputs"]}

        edit(files, ".json", change, f"runs/{run['run_id']}/")
    renamed(head, files, names)


def test_a_bundle_of_version_0_1_0_has_the_facts_of_its_trainer_apart_from_the_settings(
    packed: dict[str, Path], tmp_path: Path
) -> None:
    chosen = opened(altered(packed["command"], tmp_path / "old.tar.gz", of_version_0_1_0))
    base, low = ({run.row: run for run in chosen.plan.runs}[key] for key in ("base", "low"))
    trainer = base.spec.trainer
    assert trainer.patterns == (("test", "loss", "loss=(.*)", "last"),)
    assert (trainer.progress, trainer.links, trainer.tree) == ("step (.*)", ("data",), "a" * 40)
    assert low.spec.trainer == replace(trainer, tree="b" * 40, lines=3)
    assert not {"code_tree", "code_lines"} & {*low.variation.fixed, *low.planned_row.overrides}
    assert (low.variation.code_tree, low.variation.code_lines) == ("b" * 40, 3) and not low.variation.is_base
    assert [chosen.plan.changes_code(run.planned_row) for run in (base, low)] == [False, True]
    assert {*dict(flatten(low.spec.config))} == {"task", "seed", "lr", "depth.n"}
    table = table_of(chosen)
    explained = explain(table, "low.loss")
    assert {*explained["runs"][0]["configuration"]} == {"task", "lr", "depth.n"}
    printed = render(table, "markdown") + setup.paragraph(table)
    assert not [name for name in ("output_", "folder_links", "code_") if name in printed]


ALL = "From a bundle. 0 cells recomputed: all numbers are the sender's."


@pytest.fixture(scope="session")
def forged(packed: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return altered(packed["translation"], tmp_path_factory.mktemp("forged") / "own.tar.gz", of_an_own_task)


def first_line(text: str, format_: str) -> str:
    if format_ == "json":
        return str(next(iter(json.loads(text)[0].values())))
    if format_ == "csv":
        head, line = text.split("\n")[:2]
        return line if "from_bundle" in head.split(",") else ""
    return text.partition("<body>")[2].split("\n")[1] if format_ == "html" else text.partition("\n")[0]


@pytest.mark.parametrize("format_", RENDERERS)
def test_the_first_line_calls_unproven_numbers_the_senders_word(forged: Path, format_: str) -> None:
    table = table_of(opened(forged))
    said = first_line(render(table, format_), format_)
    assert "From a bundle" in said and "0 cells recomputed" in said
    assert "99.9" in render(table, "markdown") and "all numbers are" in said
    assert fragment(table).startswith("<div><p>") and "0 cells recomputed" in fragment(table)


def test_no_choice_of_the_sender_hides_the_line(forged: Path, tmp_path: Path) -> None:
    def change(head: Head, files: Files) -> None:
        head["plan"]["study"]["table"]["notes"] = "none"

    table = table_of(opened(altered(forged, tmp_path / "quiet.tar.gz", change)))
    for format_ in ("markdown", "terminal", "latex", "html"):
        assert "0 cells recomputed" in render(table, format_)


@pytest.mark.parametrize(
    ("forge", "word"),
    [
        (
            None,
            "Recomputed: bleu (dev, test), parameters. The sender's numbers: perplexity (dev), "
            "token_accuracy (dev), times, costs, devices.",
        ),
        (
            with_an_imported_row,
            "Recomputed: bleu (dev, test) of base, parameters. The sender's numbers: perplexity (dev), "
            "token_accuracy (dev), bleu (dev, test) of learned, times, costs, devices.",
        ),
    ],
)
def test_numbers_are_told_apart_by_metric_set_and_row(
    packed: dict[str, Path], tmp_path: Path, forge: Forgery | None, word: str
) -> None:
    path = packed["translation"]
    table = table_of(opened(altered(path, tmp_path / "b.tar.gz", forge) if forge else path))
    assert table.bundle == f"From a bundle. {word}"


def test_verify_and_explain_say_the_same(forged: Path, packed: dict[str, Path], small: dict[str, Made]) -> None:
    chosen = opened(forged)
    table = table_of(chosen)
    assert as_text(explain(table, "base.bleu")).startswith(f"from bundle: {ALL}")
    assert ALL in list(verify.unchecked(table))
    for format_ in ("markdown", "latex", "csv", "json", "html"):  # printed there, compared with here
        there, here = table_of(opened(packed["translation"])), table_of(small["translation"].chosen("base,learned"))
        assert verify.verify(render(there, format_), here, format_).same, format_
        assert verify.verify(render(here, format_), there, format_).same, format_
