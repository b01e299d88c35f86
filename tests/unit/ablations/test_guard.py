"""[guard]: sealed sets leave the plan by name and by content, and the ledger keeps a guard from becoming looser."""

from pathlib import Path

import pytest

from ablations.planning.planned import Plan
from ablations.service.guard import record_guard, unseal
from ablations.service.selected import Selectors, choose
from experiments.errors import UserError
from experiments.store import ledger
from experiments.store.layout import Store

STUDY = """
extends = "table3"
name = "{name}"
title = "Guarded"
{guard}
[[variation]]
key = "base"
[[variation]]
key = "A-h2"
set = {{model.num_heads = 2}}
"""
GUARD = '[guard]\nsealed = ["test"]\nsettings = ["model.*"]\n'


def _plan(folder: Path, guard: str = GUARD, name: str = "mine", **options: object) -> Plan:
    (folder / "mine.toml").write_text(STUDY.format(name=name, guard=guard), encoding="utf-8")
    return choose(str(folder / "mine.toml"), Selectors(store=folder / "runs", **options)).plan  # type: ignore[arg-type]


def _sets(plan: Plan) -> list[tuple[list[str], list[str]]]:
    return [([e.spec.set for e in run.evaluations], [e.spec.set for e in run.sealed]) for run in plan.runs]


def test_a_guard_names_no_run_and_takes_the_sealed_set_out_of_the_plan(tmp_path: Path) -> None:
    free, guarded = _plan(tmp_path, ""), _plan(tmp_path)
    assert [run.run_id for run in free.runs] == [run.run_id for run in guarded.runs]
    assert _sets(free) == [(["dev", "test"], [])] * 2
    assert _sets(guarded) == [(["dev"], ["test"])] * 2


def test_other_studies_of_the_store_do_not_see_the_content_of_a_sealed_set(tmp_path: Path) -> None:
    store, plan = Store.open(tmp_path / "runs"), _plan(tmp_path)
    record_guard(plan.study, plan, store)
    record_guard(plan.study, plan, store)
    assert [line["what"] for line in ledger.entries(store)] == ["guard"]  # once, as it says no more
    assert _sets(_plan(tmp_path, "", name="another")) == [(["dev"], ["test"])] * 2


def test_unsealed_are_the_rows_that_are_in_the_table_with_their_decoding(tmp_path: Path) -> None:
    store, plan = Store.open(tmp_path / "runs"), _plan(tmp_path, rows="base")
    assert unseal(plan, store) == (["test"], ["base"])
    assert _sets(_plan(tmp_path)) == [(["dev", "test"], []), (["dev"], ["test"])]
    assert _sets(_plan(tmp_path, seeds=2, rows="base")) == [(["dev", "test"], []), (["dev"], ["test"])]
    open_ = GUARD.replace("model.*", "*")
    with pytest.raises(UserError, match="looser in settings"):
        _plan(tmp_path, open_)
    other = _plan(tmp_path, open_, name="other", rows="base", sets=["evaluation.beam_size=2"])
    assert _sets(other) == [(["dev"], ["test"])]  # another beam is another evaluation


@pytest.mark.parametrize("options", [{"sets": ["training.train_steps=9"]}, {"corpus": "builtin"}])
def test_options_change_what_the_guard_allows_alone(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(UserError, match=r"\[guard\] settings allows only model"):
        _plan(tmp_path, **options)


def test_a_guard_may_become_tighter_and_never_looser(tmp_path: Path) -> None:
    store, plan = Store.open(tmp_path / "runs"), _plan(tmp_path)
    record_guard(plan.study, plan, store)
    _plan(tmp_path, GUARD.replace('"test"', '"test", "dev"').replace("model.*", "model.num_heads"))
    for looser in ("", GUARD.replace('"test"', ""), GUARD.replace("model.*", "*")):
        with pytest.raises(UserError, match="looser"):
            _plan(tmp_path, looser)


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    plan = _plan(tmp_path, f'{GUARD}files = ["data/test.txt"]\n')
    with pytest.raises(UserError, match="folder has no data"):
        record_guard(plan.study, plan, Store.open(tmp_path / "runs"))
