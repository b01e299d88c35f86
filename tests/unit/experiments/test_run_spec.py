"""The record of a run is read as it was written, and records of version 0.1.0 can be read."""

import json
from dataclasses import asdict

import pytest

from experiments.identity import ParentRun, with_members, with_parent_run
from experiments.run_spec import RunSpec, TrainerSpec, recorded_spec, separate
from experiments.store.tracked_run import TrackedRun
from experiments.tracking.sinks.serve import run_of

COMMAND = {
    "task": "command", "seed": 2, "lr": 0.1, "net": {"depth": 3},
    "command": "python train.py --lr {lr}", "output_patterns": [["dev", "acc", "acc ([0-9.]+)", "last"]],
    "output_progress": "step ([0-9]+)", "folder_links": ["data"], "code_globs": ["*.txt"],
    "code_tree": "a" * 40, "code_base": "b" * 40, "code_lines": 3,
}  # fmt: skip


def test_a_record_comes_back_as_it_was_written():
    settings, trainer = separate(COMMAND, "command")
    spec = RunSpec("a" * 16, settings, {"corpus": "c"}, {"settings": {}}, 9, 5, 2.0, "/home/me", "py", "l", trainer)
    written = json.loads(json.dumps(spec.to_json()))
    assert RunSpec.from_json(written) == spec == recorded_spec({"spec": written}) == recorded_spec(written)
    assert recorded_spec({"spec": spec.portable.to_json()}).folder == ""


def test_facts_of_the_trainer_are_no_settings():
    settings, trainer = separate(COMMAND, "command")
    assert settings == {"task": "command", "seed": 2, "lr": 0.1, "net": {"depth": 3}}
    assert trainer == TrainerSpec(
        COMMAND["command"], (("dev", "acc", "acc ([0-9.]+)", "last"),), "step ([0-9]+)", ("data",), ("*.txt",),
        "a" * 40, "b" * 40, 3,
    )  # fmt: skip
    assert TrainerSpec.from_json(json.loads(json.dumps(trainer.to_json()))) == trainer
    assert TrainerSpec().to_json() == {} and TrainerSpec.from_json({}) == TrainerSpec()


def test_a_recorded_setting_with_the_name_of_a_fact_stays_a_setting():
    spec = RunSpec("a" * 16, {"task": "mine:TASK", "command": "x", "code_tree": "y"}, {})
    assert recorded_spec(spec.to_json()) == spec


OTHERS = [("mine:TASK", {"command": "x"}), ("added", {"command": "x", "code_globs": []})]


@pytest.mark.parametrize(("task", "left"), OTHERS)
def test_other_tasks_may_have_settings_of_these_names(task, left):
    settings, _ = separate({"task": task, "command": "x", "code_globs": []}, task)
    assert settings == {"task": task, **left}


def test_a_record_of_version_0_1_0_has_the_facts_among_its_settings():
    old = {"run_id": "a" * 16, "config": COMMAND, "inputs": {}, "row": {}, "record_sha256": "…"}
    assert recorded_spec(old) == RunSpec(
        "a" * 16, separate(COMMAND, "command")[0], {}, trainer=separate(COMMAND, "command")[1]
    )


@pytest.mark.parametrize(("name", "field"), [("output_patterns", "patterns"), ("code_lines", "lines")])
def test_a_fact_of_version_0_1_0_of_a_wrong_type_is_damage(name, field):
    with pytest.raises(ValueError, match=field):
        separate({**COMMAND, name: "many"}, "command")


@pytest.mark.parametrize("wrong", [{"config": 3}, {"inputs": {"a": 1}}, {"run_id": None}, {"steps": "many"}])
def test_a_wrong_type_is_damage(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        recorded_spec({"run_id": "a" * 16, "config": {}, "inputs": {}, **wrong})


def test_what_follows_from_the_inputs():
    spec = RunSpec("a" * 16, {"seed": 3}, with_members({}, ["b" * 16]), steps=None)
    assert (spec.seed, spec.own_steps, spec.reads) == (0, 0, ("b" * 16,))
    branch = RunSpec("a" * 16, {"seed": 3}, with_parent_run({}, ParentRun("c" * 16, 4)), steps=9)
    assert (branch.seed, branch.own_steps, branch.reads) == (3, 5, ("c" * 16,))


def test_a_sink_reads_the_run_that_was_sent():
    trainer = TrainerSpec(command="train {lr}", patterns=(("dev", "loss", "loss (.*)", "last"),), links=("data",))
    spec = RunSpec("a" * 16, {"task": "command", "seed": 2}, {"data": "b"}, trainer=trainer)
    run = TrackedRun(spec, "FINISHED", (("s", "demo", "builtin", "base", ""),))
    assert run_of(json.loads(json.dumps(asdict(run)))) == run
