"""The child refuses settings that do not fit the given identity, before it trains or decodes."""

import pytest

from experiments.child import run
from experiments.config import RunConfig
from experiments.events.event_log import read_events
from experiments.identity import eval_identity, run_identity
from experiments.records import ChildExit
from experiments.store.checksummed import write_json
from experiments.store.layout import Store

INPUTS = {"corpus": "c" * 16}
DECODING = {"beam_size": 4, "length_penalty": 0.6}


@pytest.fixture
def attempt(tmp_path):
    """Starts the child on a spec with `changes`; returns its last event."""
    store = Store.open(tmp_path / "store")
    config = RunConfig()
    run_id = run_identity(config, INPUTS)
    number, folder = store.new_attempt(run_id)
    evaluation = {"eval_id": eval_identity(run_id, DECODING, {}), "set": "dev", "settings": DECODING, "inputs": {}}
    spec = {
        "store": str(store.root), "run_id": run_id, "attempt": number, "task": "translation", "inputs": INPUTS,
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
