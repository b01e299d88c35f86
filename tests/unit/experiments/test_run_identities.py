"""Before it trains or decodes, a child refuses settings that do not match the given identity."""

import hashlib
from typing import ClassVar

import pytest

from experiments.child import run
from experiments.config.run_config import RunConfig
from experiments.config.task_config import SettingRoles, TaskConfig
from experiments.events.event_log import read_events
from experiments.identity import (
    NO_SEED,
    ParentRun,
    code_change_in,
    digest,
    eval_identity,
    identity_settings,
    imported_in,
    lineage,
    members_in,
    of_imported,
    parent_run_in,
    run_identity,
    seed_in_words,
    with_code_change,
    with_members,
    with_parent_run,
    without_runs,
)
from experiments.records import ChildExit
from experiments.store.checksummed import write_json
from experiments.store.layout import Store

INPUTS = {"corpus": "c" * 16}
DECODING = {"beam_size": 4, "length_penalty": 0.6}


@pytest.fixture
def attempt(tmp_path):
    """Start the child on a spec with `changes` and return its last event."""
    store = Store.open(tmp_path / "store")
    config = RunConfig()
    run_id = run_identity(config, INPUTS)
    number, folder = store.new_attempt(run_id)
    evaluation = {"eval_id": eval_identity(run_id, DECODING, {}), "set": "dev", "settings": DECODING, "inputs": {}}
    spec = {
        "store": str(store.root), "run_id": run_id, "attempt": number, "task": "translation", "inputs": {**INPUTS},
        "config": config.model_dump(mode="json"), "train": True, "evaluations": [evaluation],
        "device": {"kind": "cpu", "threads": 1},
    }  # fmt: skip

    def start(change, old="", new=""):
        change(spec)
        path = folder / "spec.json"
        write_json(path, spec)
        path.write_text(path.read_text().replace(old, new) if old else path.read_text())
        code = run.main(folder / "spec.json")
        return code, read_events(folder)[-1], folder

    return start


CHANGES = {
    "dropout": lambda spec: spec["config"]["model"].update(dropout=0.5),
    "seed": lambda spec: spec["config"].update(seed=2),
    "corpus": lambda spec: spec["inputs"].update(corpus="d" * 16),
    "beam": lambda spec: spec["evaluations"][0]["settings"].update(beam_size=1),
    "eval_id": lambda spec: spec["evaluations"][0].update(eval_id="e" * 16),
    "run_id": lambda spec: spec.update(run_id="f" * 16),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.process
def test_settings_of_another_run_are_refused(attempt, name):
    code, last, folder = attempt(CHANGES[name])
    assert code == ChildExit.FAILED
    assert (last["kind"], last["cls"]) == ("failed", "user_error")
    assert "not the settings of this name" in last["message"]
    assert not (folder / "result.json").exists()


@pytest.mark.process
def test_what_does_not_enter_the_identity_is_free(attempt):
    def elsewhere(spec):
        spec["config"]["data"]["corpus"] = "/moved/corpus"
        spec["config"]["training"]["checkpoint_steps"] = 7

    _, last, _ = attempt(elsewhere)
    assert "There is no encoded corpus" in last["message"], "accepted: it fails later, for want of a corpus"


def test_a_damaged_spec_is_refused(attempt):
    code, last, _ = attempt(lambda spec: None, '"threads": 1', '"threads": 3')
    assert (code, last["kind"], last["cls"]) == (ChildExit.FAILED, "failed", "user_error")
    assert "spec.json is damaged" in last["message"]


# --- What names are made of: frozen, since the names of all finished runs depend on it

A, B, C = "a" * 16, "b" * 16, "c" * 16


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def test_a_digest_is_that_of_canonical_json():
    assert digest({"b": 1, "a": ["ü", None, True, 0.1]}) == sha('{"a":["\\u00fc",null,true,0.1],"b":1}')
    assert digest({"b": {"y": 1, "x": 2}}) == digest({"b": {"x": 2, "y": 1}}) != digest({"b": [1, 2]})
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="JSON compliant"):
            digest([value])


def test_a_run_is_named_by_its_task_its_seed_and_what_differs_from_the_defaults():
    config = RunConfig.model_validate({"seed": 3, "model": {"d_k": 16}})
    assert run_identity(config, INPUTS) == sha(
        '{"inputs":{"corpus":"cccccccccccccccc"},"seed":3,"settings":{"model.d_k":16},"task":"translation"}'
    )
    assert identity_settings(config)["model.d_k"] == 16 and not {"task", "seed"} & set(identity_settings(config))
    assert eval_identity(A, {"x": 1}, {"set": "s"}) == sha(
        f'{{"inputs":{{"set":"s"}},"run_id":"{A}","settings":{{"x":1}}}}'
    )


class Own(TaskConfig):
    """Settings of a user's trainer."""

    setting_roles: ClassVar[SettingRoles] = SettingRoles(not_in_run_id=("log", "group."))
    task: str = "t:TASK"
    size: float = 1.5
    lr: float = 0.1
    log: bool = True


def test_an_own_run_is_named_by_what_differs_from_its_declared_defaults_and_by_the_defaults_that_changed():
    payload = '"inputs":{},"seed":2,"settings":{"lr":0.5},"task":"t:TASK"'
    config = Own.model_validate({"seed": 2, "lr": 0.5, "log": False})
    assert run_identity(config, {}) == sha(f"{{{payload}}}")
    changed = sha('{"size":1.5}')
    assert run_identity(config, {}, {"size": 1.5}) == sha(f'{{"changed defaults":"{changed}",{payload}}}')


def test_a_change_of_code_names_a_run_and_is_no_data():
    changed = with_code_change(INPUTS, "d" * 16)
    assert (
        run_identity(Own(), changed) != run_identity(Own(), INPUTS) == run_identity(Own(), with_code_change(INPUTS, ""))
    )
    assert code_change_in(changed) == "d" * 16 and code_change_in(INPUTS) == "" and without_runs(changed) == INPUTS


def test_only_the_length_of_a_training_is_no_part_of_its_lineage():
    steps = [RunConfig.model_validate({"training": {"train_steps": n}}) for n in (100, 200)]
    assert run_identity(steps[0], INPUTS) != run_identity(steps[1], INPUTS)
    assert lineage(steps[0], INPUTS) == lineage(steps[1], INPUTS) != lineage(steps[0], {"corpus": A})
    longer = [RunConfig.model_validate({"training": {"train_steps": n, "schedule": "cosine"}}) for n in (100, 200)]
    assert lineage(longer[0], INPUTS) != lineage(longer[1], INPUTS), "this schedule depends on its end"
    assert lineage(steps[0].model_copy(update={"seed": 2}), INPUTS) != lineage(steps[0], INPUTS)


def test_the_lineage_of_an_own_trainer_has_its_command_and_its_defaults():
    config = Own()
    assert lineage(config, {}, "python a.py") != lineage(config, {}, "python b.py") != lineage(config, {})
    assert lineage(RunConfig(), INPUTS) == digest({
        "task": "translation", "seed": RunConfig().seed, "settings": {}, "inputs": INPUTS,
    })  # fmt: skip
    assert lineage(config, {}) == digest({
        "task": config.task, "seed": config.seed, "settings": identity_settings(config), "inputs": {},
    })  # fmt: skip
    assert identity_settings(config)


def test_members_are_numbered_from_one_in_the_order_of_their_names():
    run_ids = [f"{number:016x}" for number in range(12, 0, -1)]
    inputs = with_members({"corpus": C}, run_ids)
    assert (inputs["ensemble member 1"], inputs["ensemble member 12"]) == (f"{1:016x}", f"{12:016x}")
    assert len(inputs) == 13 and inputs == with_members({"corpus": C}, reversed(run_ids))
    assert members_in(inputs) == members_in(dict(reversed(inputs.items()))) == tuple(sorted(run_ids))
    assert members_in({"corpus": C, "ensemble member x": A, "an ensemble member 1": B}) == ()


def test_a_branch_is_named_by_its_parent_and_the_step():
    inputs = with_parent_run({"corpus": C}, ParentRun(A, 300))
    assert parent_run_in(inputs) == ParentRun(A, 300) and parent_run_in({"corpus": C}) is None
    parent, after = (name for name in inputs if name != "corpus")
    for name, wrong in ((parent, A[:-1]), (parent, A + "a"), (parent, "G" * 16), (after, "-1"), (after, "")):
        assert parent_run_in({**inputs, name: wrong}) is None, (name, wrong)
    assert parent_run_in({parent: A}) is None and parent_run_in({after: "3"}) is None


def test_the_data_alone_is_what_is_left_without_runs():
    data = {"corpus": C, "text": B}
    branch = with_parent_run(data, ParentRun(A, 3))
    assert without_runs(branch) == without_runs(with_members(data, [A, B])) == without_runs(data) == data
    assert without_runs({**of_imported("s", "r"), **data}) == data
    step = next(name for name, value in branch.items() if value == "3")
    assert without_runs({**data, step: "3"}) == {**data, step: "3"}, "without a parent run this is an input of the data"
    parent, after = (name for name in branch if name not in data)
    half = {**data, parent: "not a run", after: "3"}
    assert without_runs(half) == half, "no branch: a user's own inputs may have these names"


def test_an_imported_run_has_the_name_of_its_place():
    there = of_imported("study", "row")
    assert imported_in(there) and not imported_in(INPUTS)
    assert list(there.values()) == [sha('["study","row"]')] and there != of_imported("study", "other")


def test_a_run_without_a_seed_is_an_ensemble_in_words():
    assert (seed_in_words(3), seed_in_words(NO_SEED)) == ("seed 3", "ensemble")
