"""Checkpoints are complete or absent, damage is detected, and the right checkpoints are kept."""

import errno
import os
import shutil

import pytest
import safetensors.torch
import torch
from torch import nn

from experiments.errors import Damaged, UserError
from experiments.store.checksummed import read_json, write_json
from experiments.store.retention import BEST, SPACED, Keep
from experiments.training import checkpoint, kept_checkpoints
from experiments.training.tensor_files import read_tensors, write_tensors

META = {"lineage": "a", "code": "b", "target_tokens": 7, "keeps": [], "best_steps": {}}


def _save(folder, step, **meta):
    weights = {"w": torch.full((3, 2), float(step)), "b": torch.arange(2.0)}
    return checkpoint.save(folder, step, weights, {"exp_avg/w": torch.ones(3, 2)}, {**META, **meta})


def _newest(*attempts, lineage="a", code="b", last_step=10**6):
    skipped = []
    found = checkpoint.newest(
        attempts, lineage=lineage, code=code, last_step=last_step, skipped=lambda path, why: skipped.append((path, why))
    )
    return found, skipped


def _steps(folder):
    return [int(p.name[5:]) for p in sorted((folder / "checkpoints").iterdir())]


def test_the_file_is_safetensors_and_its_description_holds(tmp_path):
    tensors = {
        "m": torch.randn(5, 3),
        "t": torch.randn(4, 2).T,  # not contiguous
        "d": torch.randn(3, dtype=torch.float64),
        "i": torch.tensor([1, -2]),
        "flag": torch.tensor([True, False, True]),
        "none": torch.zeros(0, 3),
        "scalar": torch.tensor(2.5),
    }
    written = write_tensors(tmp_path / "x", tensors)
    for loaded in (safetensors.torch.load_file(tmp_path / "x"), read_tensors(tmp_path / "x", written)):
        assert loaded.keys() == tensors.keys()
        assert all(torch.equal(loaded[k], tensors[k]) and loaded[k].dtype == tensors[k].dtype for k in tensors)


@pytest.mark.parametrize("harm", ["truncate", "flip", "remove"])
def test_a_harmed_file_is_damaged(tmp_path, harm):
    path = tmp_path / "x"
    written = write_tensors(path, {"m": torch.randn(50)})
    data = bytearray(path.read_bytes())
    if harm == "truncate":
        path.write_bytes(data[:-4])
    elif harm == "flip":
        data[-1] ^= 1
        path.write_bytes(data)
    else:
        path.unlink()
    with pytest.raises(Damaged, match="x"):
        read_tensors(path, written)


def test_the_newest_of_several_attempts_is_found(tmp_path):
    for attempt, steps in (("1", (100, 200)), ("2", (150,)), ("3", ())):
        (tmp_path / attempt).mkdir()
        for step in steps:
            _save(tmp_path / attempt, step)
    found, skipped = _newest(tmp_path / "3", tmp_path / "2", tmp_path / "1")
    assert (found.step, skipped) == (200, [])
    assert torch.equal(found.weights()["w"], torch.full((3, 2), 200.0))
    assert torch.equal(found.optimizer()["exp_avg/w"], torch.ones(3, 2))
    assert _newest(tmp_path / "1", last_step=199)[0].step == 100, "a longer run's state is no start for a shorter"


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "meta.json"])
def test_a_torn_checkpoint_is_passed_over_and_told(tmp_path, file):
    _save(tmp_path, 100)
    torn = _save(tmp_path, 200) / file
    torn.write_bytes(torn.read_bytes()[:-9])
    found, [(path, why)] = _newest(tmp_path)
    assert found.step == 100
    assert path.name == "step-00000200"
    assert file in why


def test_another_configuration_is_refused_other_code_passed_over(tmp_path):
    _save(tmp_path, 100)
    _save(tmp_path, 200, code="new")
    found, [(_, why)] = _newest(tmp_path)
    assert found.step == 100
    assert "other code" in why
    with pytest.raises(UserError, match="another configuration"):
        _newest(tmp_path, lineage="z")


def test_another_version_is_refused(tmp_path):
    path = _save(tmp_path, 100) / "meta.json"
    write_json(path, {**read_json(path), "format": 99})
    with pytest.raises(UserError, match="another version"):
        _newest(tmp_path)


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path, monkeypatch):
    _save(tmp_path, 100)

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="no space left"):
        _save(tmp_path, 200)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-00000100"]


@pytest.mark.parametrize("name", [".step-00000100.partial", f".step-00000100.{'0' * 16}.partial"])
def test_a_killed_save_is_no_checkpoint(tmp_path, name):
    left = tmp_path / "checkpoints" / name
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    assert _newest(tmp_path)[0] is None
    saved = _save(tmp_path, 100)
    assert kept_checkpoints.all_of(tmp_path) == [saved] == [_newest(tmp_path)[0].path]


def test_pruning_keeps_the_newest_the_regular_ones_and_the_best(tmp_path):
    for step in (100, 200, 250, 300, 350):
        _save(tmp_path, step, **({"dev_perplexity": 5.0} if step == 100 else {}))
    kept_checkpoints.prune(tmp_path, [Keep(SPACED, 100, 2), Keep(BEST, 100)])
    assert _steps(tmp_path) == [100, 200, 300, 350], "350 is where a resume goes on, 250 was a stop's"
    assert kept_checkpoints.step_of(kept_checkpoints.best(tmp_path)) == 100
    assert [p.name[-3:] for p in kept_checkpoints.last(tmp_path, 3, 100)] == ["200", "300", "350"]
    with pytest.raises(UserError, match=r"has 4 of the checkpoints .*keep_checkpoints"):
        kept_checkpoints.last(tmp_path, 5, 100)


def test_a_new_attempt_takes_over_what_the_old_one_kept(tmp_path):
    old, new = tmp_path / "1", tmp_path / "2"
    old.mkdir()
    new.mkdir()
    for step in (100, 200, 300):
        _save(old, step, dev_perplexity=step / 10)
    found, _ = _newest(new, old, last_step=250)
    checkpoint.link_checkpoints(found, [new, old], new)
    assert _steps(new) == [100, 200]
    assert _newest(new)[0].step == 200
    inode = (old / "checkpoints/step-00000100/model.safetensors").stat().st_ino
    assert (new / "checkpoints/step-00000100/model.safetensors").stat().st_ino == inode, "linked, not copied"


def test_final_weights_are_read_back_or_refused(tmp_path):
    path = checkpoint.save_weights(tmp_path / "final", {"w": torch.ones(4)}, {"step": 3})
    assert torch.equal(checkpoint.load_weights(path)["w"], torch.ones(4))
    assert sorted(p.name for p in path.iterdir()) == ["meta.json", "model.safetensors"]
    (path / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="damaged"):
        checkpoint.load_weights(path)


class _Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.register_buffer("count", torch.tensor(4))


def test_a_tied_weight_is_kept_once_and_restored(tmp_path):
    model, other = _Tied(), _Tied()
    tensors = checkpoint.model_tensors(model)
    assert set(tensors) == {"a.weight", "a.bias", "b.bias", "count"}
    checkpoint.restore_model(other, tensors)
    assert other.b.weight is other.a.weight
    assert torch.equal(other.b.weight, model.a.weight)


def test_weights_of_another_model_are_refused():
    tensors = checkpoint.model_tensors(_Tied())
    with pytest.raises(ValueError, match=r"names.*b\.bias"):
        checkpoint.restore_model(_Tied(), {k: v for k, v in tensors.items() if k != "b.bias"})
    with pytest.raises(ValueError, match=r"a\.bias is \(2,\), the model's is \(3,\)"):
        checkpoint.restore_model(_Tied(), {**tensors, "a.bias": torch.zeros(2)})


def _flipped(path, old, new):
    text = path.read_bytes()
    assert text.count(old) == 1
    path.write_bytes(text.replace(old, new))


def test_a_step_that_was_changed_is_no_place_to_go_on_from(tmp_path):
    _save(tmp_path, 71)
    _flipped(_save(tmp_path, 81) / "meta.json", b'"step": 81', b'"step": 91')
    found, [(_, why)] = _newest(tmp_path)
    assert found.step == 71
    assert "checksum" in why


def test_a_meta_of_another_step_is_not_taken_for_that_of_its_folder(tmp_path):
    older, newer = (_save(tmp_path, step) / "meta.json" for step in (71, 81))
    newer.write_bytes(older.read_bytes())
    found, [(_, why)] = _newest(tmp_path)
    assert found.step == 71
    assert "to step 71" in why


def test_another_checkpoint_does_not_pass_for_the_best(tmp_path):
    for step, perplexity, best in ((100, 7.0, 100), (200, 5.0, 200), (300, 6.0, 200)):
        _save(tmp_path, step, dev_perplexity=perplexity, best_steps={"100": best})
    assert kept_checkpoints.step_of(kept_checkpoints.best(tmp_path)) == 200
    _flipped(tmp_path / "checkpoints/step-00000200/meta.json", b"5.0", b"9.0")
    with pytest.raises(Damaged, match="step-00000200"):
        kept_checkpoints.best(tmp_path)
    kept_checkpoints.prune(tmp_path, [Keep(SPACED, 100, 1), Keep(BEST, 100)])
    assert _steps(tmp_path) == [100, 200, 300], "which is the best is unknown: all are kept"
    shutil.rmtree(tmp_path / "checkpoints/step-00000200")
    with pytest.raises(Damaged, match="lacks its best checkpoint, of step 200"):
        kept_checkpoints.best(tmp_path)


def test_an_older_checkpoint_does_not_stand_in_for_one_of_an_average(tmp_path):
    for step in (100, 200, 300, 350):
        _save(tmp_path, step)
    shutil.rmtree(tmp_path / "checkpoints/step-00000300")
    with pytest.raises(UserError, match=r"has 2 of the checkpoints .*step 300 is missing"):
        kept_checkpoints.last(tmp_path, 3, 100)


def test_a_file_added_to_weights_is_checked_with_them(tmp_path):
    final = checkpoint.save_weights(tmp_path / "final", {"w": torch.ones(2)}, {"step": 3})
    checkpoint.add_file(final, "tokenizer.model", b"pieces")
    assert checkpoint.load_weights(final)["w"].tolist() == [1, 1]
    (final / "tokenizer.model").write_bytes(b"Pieces")
    with pytest.raises(UserError, match=r"tokenizer\.model has changed since it was written"):
        checkpoint.load_weights(final)
