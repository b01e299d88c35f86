"""An ensemble's record has sums if all members have the value, and facts if all members agree."""

import pytest

from experiments.errors import UserError
from experiments.run_spec import RunSpec
from experiments.store.checksummed import write_json
from experiments.store.ensembles import members, together
from experiments.store.layout import Store
from experiments.store.results import RESULT_FILE, TrainingResult

KNOWN = {
    "num_params": 100, "flops": 1e9, "target_tokens": 50, "train_s": 2.5, "device": "Xeon", "devices": 1, "threads": 2,
    "precision": "fp32", "code_digest": "2-aa", "versions": {"torch": "2.1"}, "step": 9, "wall_s": 2.0,
}  # fmt: skip
SUMS = ("num_params", "flops", "target_tokens", "train_s")


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


def trained(store, number, sha="t", **facts):
    run_id = f"{number:016x}"
    store.new_attempt(run_id)
    data = {"tokenizer": {"sha256": {"tokenizer.model": sha}}}
    spec = RunSpec(run_id, {"task": "translation", "seed": number}, {}).to_json()
    record = {"spec": spec, "attempt": 1, "data": data}
    write_json(store.run_folder(run_id) / RESULT_FILE, {**record, **KNOWN, **facts})
    write_json(store.run_folder(run_id) / "config.json", {"spec": spec})
    return run_id


def joined(store, *of):
    made = together(members(store, of))
    return TrainingResult.read(TrainingResult(**made).content)


def test_equal_members(store):
    record = joined(store, *(trained(store, number) for number in (1, 2, 3)))
    assert [getattr(record, name) for name in SUMS] == [3 * KNOWN[name] for name in SUMS]
    for name in ("device", "devices", "threads", "precision", "code_digest", "versions", "step"):
        assert getattr(record, name) == KNOWN[name]
    assert [member.seed for member in record.ensemble] == [1, 2, 3]
    assert record.wall_s is None  # a time of its own would pass for that of a training


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_with_an_unknown_part_is_unknown(store, name):
    one, two = trained(store, 1), trained(store, 2, **{name: None}, wall_s=None)
    assert getattr(joined(store, one, two), name) is None


def test_the_time_of_one_that_went_on_from_a_shorter_run_is_unknown(store):
    two = trained(store, 2, continues={"run_id": "0" * 16, "step": 3})
    assert joined(store, trained(store, 1), two).train_s is None


def test_members_that_were_not_made_alike(store):
    """Facts in words name each; facts of a device are left out together, so that no cost is computed from half."""
    one, two = trained(store, 1), trained(store, 2, precision="bf16", code_digest="2-bb", devices=2, step=12)
    record = joined(store, one, two)
    assert (record.precision, record.code_digest) == ("fp32 and bf16", "2-aa and 2-bb")
    assert (record.device, record.devices, record.threads, record.step) == (None, None, None, None)
    assert record.num_params == 200


def test_a_missing_member_and_another_vocabulary_are_refused_by_name(store):
    one, two = trained(store, 1), trained(store, 2, sha="other")
    with pytest.raises(UserError, match=r"with seed 2 \(run 0{15}2\).* another vocabulary than the member with seed 1"):
        members(store, [one, two])
    (store.run_folder(two) / RESULT_FILE).unlink()
    with pytest.raises(UserError, match=r"with seed 2 \(run 0{15}2\) of this ensemble is not trained"):
        members(store, [one, two])
