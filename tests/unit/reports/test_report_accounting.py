"""A table's cost counts every attempt once, however it ended, and contains no invented values."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablations.cli.ui import _publish
from ablations.planning.declare_table import table_spec
from experiments.events.accounting import Amounts, AttemptCost, amounts_of, total
from experiments.events.event_log import FILE, Tail
from experiments.exchange.import_runs import import_runs, runs_in
from experiments.exchange.redaction import NOTHING
from experiments.store.layout import Store
from experiments.tracking.record import cost_points
from experiments.tracking.views import ROWS_OF
from reports.audit.verify import verify
from reports.render.formats import render
from reports.render.setup import as_markdown
from reports.results.accounting import Spending, spending
from reports.spec.choices import Choices
from reports.table.build import build_table
from reports.table.total_cost import spent_on
from tests.unit.reports.real import Made, said, write

KINDS: list[Any] = [
    *("translation", "ensembles", "own", "command"),
    pytest.param("language", marks=pytest.mark.extra("language_models")),
]


def by_hand(store: Path) -> list[dict[str, Any]]:
    """Run, wall time and CPU time of each attempt in a store, from the lines of its events."""
    found = []
    for file in sorted(store.glob(f"runs/*/attempts/*/{FILE}")):
        events = [json.loads(line) for line in file.read_text().splitlines()]
        started = next(event for event in events if event["kind"] == "started")
        wall = events[-1]["t"] - started["t"] + started["after_s"]
        cpu = [event["cpu_s"] for event in events if "cpu_s" in event]
        run_id = file.parts[-4]
        found.append({"run": run_id, "wall_s": wall, "cpu_s": cpu[-1], "ended": events[-1]["kind"], "of": started})
    return found


def run_ids(table: Any) -> set[str]:
    every = {o.run.run_id for row in table.rows for o in row.outcomes}
    return every | {member for row in table.rows for o in row.outcomes for member in o.run.spec.members}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.process
def test_a_table_costs_what_the_events_of_its_attempts_say(small, kind):
    table = small[kind].table()
    mine = [one for one in by_hand(small[kind].store) if one["run"] in run_ids(table)]
    spent = table.spent
    assert spent is not None and spent.total == total(row.all for row in spent.rows.values())
    assert (spent.total.attempts, spent.total.runs) == (len(mine), len(run_ids(table)))
    assert spent.total.wall_s == pytest.approx(sum(one["wall_s"] for one in mine), abs=0.01)
    assert spent.total.cpu_s == pytest.approx(sum(one["cpu_s"] for one in mine), abs=0.01)
    assert spent.total.thread_s == pytest.approx(spent.total.wall_s)  # the slots of these stores have one thread
    assert spent.total.wall_s > 0 < spent.total.cpu_s and not spent.total.early and not spent.total.unseen
    rows = json.loads(render(table, "json"))
    assert sum(row["cost"]["wall_hours"] for row in rows) * 3600 == pytest.approx(spent.total.wall_s)
    (note,) = said(table, "Cost: ")
    assert f"{len(run_ids(table))} run" in note and f"in {len(mine)} attempt" in note
    assert ("energy not measured" in note) is (spent.total.without_cpu_joules == len(mine))
    assert all(f"- **{row.key}**: " in as_markdown(table) for row in table.rows)


@pytest.mark.process
@pytest.mark.parametrize("left", [None, b"", 1], ids=["gone", "empty", "without its start"])
def test_an_attempt_whose_events_are_damaged_is_counted_as_far_as_it_is_known(small, tmp_path, left):
    made = small["command"].copied(tmp_path / "copy")
    whole, run_id = made.table().spent, made.rows()["base"].outcomes[0].run.run_id
    events = Store(made.store).attempt_folder(run_id, 1) / FILE
    lines = events.read_bytes().splitlines(keepends=True)
    events.write_bytes(b"".join([lines[0][::-1], *lines[1:]]) if left == 1 else left or b"")
    if left is None:
        events.unlink()
    table = made.table()
    assert table.spent.total.attempts == whole.total.attempts == 2
    assert 0 < table.spent.total.wall_s <= whole.total.wall_s
    assert said(table, "Cost: 2 runs in 2 attempts (1 counted between its known events)")
    assert "or between the known events of 1 attempt" in as_markdown(table)


@pytest.mark.process
def test_chosen_rows_alone_are_counted(small):
    whole, one = (small["own"].table(rows=rows).spent for rows in (None, "without"))
    assert whole is not None and one is not None
    assert one.rows == {"without-bias": whole.rows["without-bias"]} and one.total != whole.total


@pytest.mark.process
def test_a_run_of_two_rows_is_counted_in_the_first_and_one_of_two_tables_in_each(small):
    table, other = small["ensembles"].table(), small["translation"].table()
    assert table.spent is not None and other.spent is not None
    assert table.spent.rows["alone"].counted_in == ("base",) and table.spent.rows["base"].counted_in == ()
    assert said(table, "Cost: ", "Also for other tables: 1 run.") and said(other, "Also for other tables: 1 run.")
    assert not said(small["own"].table(), "Also for other tables")
    alone = small["ensembles"].table(rows="alone").spent
    assert alone is not None and alone.total.runs == 2  # the ensemble and its member


AMOUNTS = st.integers(0, 10**6)
ATTEMPTS = st.builds(
    AttemptCost,
    wall_s=AMOUNTS,
    seen=st.booleans(),
    ended=st.sampled_from(["finished", "killed", "bug", "stopped", ""]),
    kind=st.sampled_from([None, "cpu", "cuda"]),
    device_s=st.none() | AMOUNTS,
    cpu_s=st.none() | AMOUNTS,
    cpu_joules=st.none() | AMOUNTS,
    gpu_joules=st.none() | AMOUNTS,
)


@settings(max_examples=25)
@given(data=st.data(), kind=st.sampled_from(["ensembles", "own", "translation"]))
@pytest.mark.process
def test_each_attempt_is_counted_once_whatever_is_shared_and_tuned(small, data, kind):
    """Table = rows + tuning; runs may be shared by rows, trials by searches, and a trial may be a run of the table."""
    table = TABLES.setdefault(kind, small[kind].table())
    shown = sorted(run_ids(table))
    others = [f"{n:016x}" for n in range(5)]
    runs = {run_id: data.draw(st.lists(ATTEMPTS, max_size=3)) for run_id in (*shown, *others)}
    searches = data.draw(st.lists(st.lists(st.sampled_from([*shown, *others]), unique=True), max_size=3))
    spent = spent_on(table, Spending(runs=runs, searches=searches))
    counted = set(shown).union(*(search for search in searches if set(search) & set(shown)))
    once = amounts_of(one for run_id in counted for one in runs[run_id])
    once += Amounts(runs=sum(bool(runs[run_id]) for run_id in counted))
    assert close(spent.total, once)
    assert close(spent.total, total(row.runs for row in spent.rows.values()) + spent.tuning)
    assert spent.total.attempts == sum(len(runs[run_id]) for run_id in counted)
    assert close(total(row.runs for row in spent.rows.values()), of(runs, shown))


TABLES: dict[str, Any] = {}


def of(runs: Mapping[str, list[AttemptCost]], chosen: Any) -> Amounts:
    found = amounts_of(one for run_id in chosen for one in runs[run_id])
    return found + Amounts(runs=sum(bool(runs[run_id]) for run_id in chosen))


def close(one: Amounts, other: Amounts) -> bool:
    return all(value == pytest.approx(vars(other)[name], abs=1e-3) for name, value in vars(one).items())


@pytest.mark.process
def test_energy_is_printed_of_what_was_measured(small):
    table = small["own"].table()
    plan, store = small["own"].chosen().plan, Store.open(small["own"].store, create=False)
    found = spending([run.run_id for run in plan.trainings], store)
    assert found is not None
    joules = {"cpu_joules": 1.8e6, "gpu_joules": 3.6e6, "kind": "cuda"}
    with_energy = Spending(
        runs={i: [one.model_copy(update=joules) for one in attempts] for i, attempts in found.runs.items()}
    )
    spent = spent_on(table, with_energy)
    text = as_markdown(replace(table, spent=spent))
    assert "energy 7 kWh of processors and 14 kWh of GPUs." in text and "by their CPU time" in text
    assert spent.total.as_json()["gpu_kwh"] == pytest.approx(14) and spent.rows["base"].runs.as_json()["cpu_kwh"] == 2.5


TROUBLED = """
import os, signal, time
from dataclasses import dataclass
from ablations_task import column, task

@dataclass
class Settings:
    steps: int = 4
    trouble: str = ""

@task(Settings, steps="steps", continues=True, columns=[column("loss", better="lower")])
def TASK(settings, context):
    start = int((context.resume / "state").read_text()) if context.resume else 0
    for step in range(start + 1, settings.steps + 1):
        time.sleep(0.2)
        context.log(step, loss=1.0)
        with context.checkpoint(step) as folder:
            (folder / "state").write_text(str(step))
        if step == 2 and not start:
            time.sleep(0.3)
            if settings.trouble == "fails":
                raise ValueError("this row cannot be trained")
            if settings.trouble:
                os.kill(os.getpid(), getattr(signal, settings.trouble))
    return {"loss": 1.0}
"""
TROUBLED_STUDY = """
name = "troubled"
title = "Rows that fail, are killed, and are stopped"
task = "troubled:TASK"

[[variation]]
key = "base"

[[variation]]
key = "killed"
set = {trouble = "SIGKILL"}

[[variation]]
key = "stopped"
set = {trouble = "SIGTERM"}

[[variation]]
key = "failed"
set = {trouble = "fails"}
"""


@pytest.mark.extra("bundles")
@pytest.mark.slow
def test_the_hours_of_killed_stopped_and_failed_attempts_are_there(tmp_path):
    from ablations.extras.bundles.read import read_bundle
    from ablations.extras.bundles.write import write_bundle

    folder = write(tmp_path / "troubled", {"troubled.toml": TROUBLED_STUDY, "troubled.py": TROUBLED})
    made = Made(folder / "troubled.toml", folder / "store").run()
    table = made.table()
    spent = table.spent
    assert spent is not None
    ends = {key: (row.runs.attempts, row.runs.early) for key, row in spent.rows.items()}
    assert ends == {"base": (1, 0), "killed": (2, 1), "stopped": (2, 1), "failed": (1, 1)}
    assert spent.total.unseen == 0 and spent.total.early == 3
    for key, least in {"base": 0.8, "killed": 1.1, "stopped": 1.1, "failed": 0.7}.items():
        assert spent.rows[key].runs.wall_s >= least, key
    attempts = by_hand(made.store)
    assert sorted(one["ended"] for one in attempts) == ["ended", "failed", *["finished"] * 3, "preempted"]
    assert spent.total.wall_s == pytest.approx(sum(one["wall_s"] for one in attempts), abs=0.01)
    assert said(table, "Cost: 4 runs in 6 attempts (3 failed or stopped): wall time ")
    record = made.rows()["killed"].outcomes[0].record
    assert record is not None and record.earlier_attempts[0].ended == "killed"
    assert record.earlier_attempts[0].seconds >= 0.7  # until the coordinator saw its end

    store = Store.open(made.store, create=False)
    events = store.attempt_folder(record.spec.run_id, 1) / FILE
    lines = events.read_bytes().splitlines(keepends=True)
    events.write_bytes(b"".join(lines[:-1]))  # as where the coordinator was killed too
    unseen = made.table().spent
    assert unseen is not None and (unseen.total.early, unseen.total.unseen) == (3, 1)
    last = json.loads(lines[-1])["t"] - json.loads(lines[-2])["t"]
    # an attempt whose end is unknown lasted to its last event, or to a heartbeat after it
    assert 0 < spent.total.wall_s - unseen.total.wall_s <= last + 0.01
    assert "or between the known events of 1 attempt" in as_markdown(made.table())
    events.write_bytes(b"".join(lines))

    chosen = made.chosen(rows="base,killed,stopped")
    path = tmp_path / "troubled.tar.gz"
    write_bundle(path, chosen.plan, store, chosen.columns, [], NOTHING)
    (opened := tmp_path / "opened").mkdir()
    bundle = read_bundle(path, opened)
    # A bundle contains the costs of the other attempts, but not their folders.
    assert len(bundle.store.attempts(record.spec.run_id)) == 1
    again = build_table(table_spec(bundle.plan, bundle.columns), bundle.store)
    whole = build_table(table_spec(chosen.plan, bundle.columns), store)
    assert again.spent == whole.spent and again.footnotes == whole.footnotes

    for key, row in made.rows().items():
        points = list(cost_points(store, row.outcomes[0].run.run_id))
        last = {point.name: point.value for point in points}
        assert last == {f"cost_{name}": value for name, value in spent.rows[key].runs.known().items() if name != "runs"}
        assert last["cost_attempts"] == len({point.step for point in points})


@pytest.mark.slow
def test_an_imported_run_costs_what_its_record_tells_of_attempts_that_stayed_behind(tmp_path):
    folder = write(tmp_path / "killed", {"troubled.toml": TROUBLED_STUDY, "troubled.py": TROUBLED})
    made = Made(folder / "troubled.toml", folder / "store").run(rows="killed")
    there = made.table(rows="killed")
    target = Store.open(tmp_path / "target")
    assert [taken.how for taken in import_runs(Store.open(made.store), target, runs_in(Store.open(made.store)))]
    here = Made(made.study, target.root).table(rows="killed")
    assert there.spent is not None and here.spent is not None
    assert (here.spent.total.attempts, here.spent.total.early) == (2, 1)
    record = there.rows[0].outcomes[0].record
    assert record is not None
    whole, told = there.spent.total, here.spent.total
    first = Store.open(made.store)
    after_s = next(Tail(first.attempt_folder(record.spec.run_id, 1)).read())["after_s"]
    assert told.wall_s == pytest.approx(whole.wall_s - after_s, abs=0.01)  # the record has no time of starting
    assert told.without_cpu == 1 and said(here, "device time", "(without 1 attempt of 2)")


def test_a_later_attempt_for_another_table_changes_no_verified_cell(small, tmp_path):
    made = small["translation"].copied(tmp_path / "later")
    full = replace(made.table(), chosen=Choices(notes="full"))
    texts = {format_: render(full, format_) for format_ in ("markdown", "latex", "csv", "json")}
    run_id = made.table().rows[0].outcomes[0].run.run_id
    folder = made.store / "runs" / run_id / "attempts"
    (folder / "0002").mkdir()
    (folder / "0002" / FILE).write_bytes((folder / "0001" / FILE).read_bytes())
    after = replace(made.table(), chosen=full.chosen)
    assert said(after, "Cost: 3 runs in 4 attempts")
    for format_, text in texts.items():
        assert re.search("Cost: |cost", text) or format_ == "csv"
        assert verify(text, after, format_).same, format_


@pytest.mark.slow  # importing MLflow takes seconds
def test_mlflow_has_the_costs_of_the_table_at_its_parent_and_of_each_run(small, tmp_path):
    from mlflow import MlflowClient

    made = small["own"].copied(tmp_path / "tracked")
    spent = made.table().spent
    for _ in range(2):  # repeated, it writes nothing again
        page = _publish(made.chosen(), "")
    client = MlflowClient(tracking_uri=f"sqlite:///{made.store}/mlflow.db")
    [heading] = client.search_runs([page.experiment], "tags.heading != ''")
    assert spent is not None and heading.data.metrics["cost_attempts"] == spent.total.attempts == 14
    assert heading.data.metrics["cost_wall_hours"] * 3600 == pytest.approx(spent.total.wall_s)
    assert len(client.get_metric_history(heading.info.run_id, "cost_wall_hours")) == 1
    below = client.search_runs([page.experiment], "tags.run_id != ''")  # not the runs that stand for rows
    assert len(below) == 14
    for name in ("attempts", "wall_hours", "thread_hours", "cpu_hours"):
        assert sum(run.data.metrics[f"cost_{name}"] for run in below) == pytest.approx(
            heading.data.metrics[f"cost_{name}"]
        )


@pytest.mark.slow  # as above
def test_mlflow_has_each_rows_runs_below_it_and_those_of_no_row_below_the_table(small, tmp_path):
    from mlflow import MlflowClient

    made = small["own"].copied(tmp_path / "nested")
    page = _publish(made.chosen(), "")
    client = MlflowClient(tracking_uri=f"sqlite:///{made.store}/mlflow.db")

    def below(parent):
        search = f"tags.mlflow.parentRunId = '{parent.info.run_id}'"
        runs = client.search_runs([page.experiment], search)
        return {run.data.tags.get("run_id") or run.data.tags["training"]: run for run in runs}

    rows = client.search_runs([page.experiment], f"tags.{ROWS_OF} = '{page.table}'", order_by=["attributes.start_time"])
    printed = made.table().rows
    assert [run.data.tags["row"] for run in rows] == [row.key for row in printed]
    for row, run in zip(printed, rows, strict=True):
        assert set(below(run)) == {outcome.run.run_id for outcome in row.outcomes if outcome.record}
        for column in made.table().columns:
            head = column.header.removesuffix(f" ({column.set})")
            if column.set == "dev" and head in run.data.metrics:
                scores = [one.data.metrics[head] for one in below(run).values()]
                assert run.data.metrics[head] == pytest.approx(sum(scores) / len(scores), abs=10**-column.digits)
    [heading] = client.search_runs([page.experiment], "tags.heading != ''")
    assert not set(below(heading)) & {outcome.run.run_id for row in printed for outcome in row.outcomes if row.n}
    alone = printed[0].key
    _publish(made.chosen(rows=alone), "")
    assert [
        run.data.tags["row"] for run in client.search_runs([page.experiment], f"tags.{ROWS_OF} = '{page.table}'")
    ] == [alone]
    others = {o.run.run_id for row in printed[1:] for o in row.outcomes if o.record}
    others -= {o.run.run_id for o in printed[0].outcomes}
    assert others <= set(below(heading)) and others
