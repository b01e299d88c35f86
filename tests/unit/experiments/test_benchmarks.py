"""Tests of what benchmarks do before and after measuring. For example, a time without work is refused."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import decoding, errors, missing, training
from benchmarks.gpu.decoding import chains, refuse_idle
from benchmarks.gpu.turns import Turn, close, interleave, rates
from benchmarks.measured import NothingMeasuredError, exit_code, median, positive
from benchmarks.real_batches import BUILTIN_PIECES, real_jobs
from experiments.data.collate import Batch
from experiments.device import Device
from experiments.evaluation.beam import Hypothesis, SearchSettings
from experiments.store.layout import Store

CPU = Device(torch.device("cpu"), "fp32", 1)


def test_real_batches_of_the_builtin_corpus_are_made(tmp_path: Path) -> None:
    """The default of `--corpus`: its vocabulary has no more pieces than the generated text."""
    store = Store.open(tmp_path / "store")
    ours, theirs = real_jobs("builtin", store.root, "fp32", [1, 1])
    assert ours["model"]["vocab_size"] == BUILTIN_PIECES
    assert [tokens for _, tokens in ours["rounds"]] == [tokens for _, tokens in theirs["rounds"]]
    assert 0 < ours["rounds"][0][1] <= 4096


@pytest.mark.parametrize("repetitions", [[], [1.0], [1.0, 0.0], [1.0, float("nan")], [float("inf"), 1.0], [1.0, -1.0]])
def test_a_median_of_nothing_is_refused(repetitions: list[float]) -> None:
    with pytest.raises(NothingMeasuredError, match="speed"):
        median("speed", repetitions)


def test_a_benchmark_of_nothing_exits_with_1_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> int:
        positive("decoding", pieces=0)
        return 0

    assert exit_code(main) == 1 and "decoding: pieces is 0" in capsys.readouterr().out
    assert median("speed", [3.0, 1.0, 2.0]) == 2.0 and exit_code(lambda: 3) == 3


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda chain: Hypothesis((), 0.0, 0.0), "pieces is 0"),
        (lambda chain: Hypothesis((5,) * 60, 0.0, 0.0, finished=False), "reach the limit"),
        (lambda chain: Hypothesis(tuple(reversed(chain)), 0.0, 0.0), "0% of the hypotheses are right"),
    ],
)
def test_hypotheses_of_a_model_that_learned_nothing_are_refused(
    change: Callable[[list[int]], Hypothesis], why: str
) -> None:
    sources = chains(20, 1000, 30)
    right = [Hypothesis(tuple(chain), 0.0, 0.0) for chain in sources]
    facts = refuse_idle("search", right, sources, SearchSettings(), sources)
    assert facts == {"pieces": sum(map(len, sources)), "empty": 0, "at_limit": 0, "right": 1}
    with pytest.raises(NothingMeasuredError, match=why):
        refuse_idle("search", [change(chain) for chain in sources], sources, SearchSettings(), sources)


def test_every_piece_of_a_chain_but_the_last_has_one_successor() -> None:
    found = chains(40, 900, 150)
    pieces = [piece for chain in found for piece in chain]
    assert len(set(pieces)) == len(pieces) and min(pieces) >= 4 and max(pieces) < 900
    assert min(map(len, found)) >= 3


class Contest:
    """Contestants that record which of them runs at each step."""

    def __init__(self) -> None:
        self.worked = list[str]()

    def turn(self, name: str, warm: int = 1, fails_at: int = 0, ends_at: int = 0) -> Turn:
        def train(turn: Turn) -> None:
            step = 0
            while step != ends_at or not ends_at:
                step += 1
                if step == fails_at:
                    raise ValueError("no memory")
                self.worked.append(name)
                turn.stop()

        return Turn(name, train, CPU, warm, steps=2)


def test_contestants_take_turns() -> None:
    contest = Contest()
    turns = [contest.turn("a", warm=3), contest.turn("b")]
    assert list(interleave(turns, 2, time.monotonic() + 60)) == [1, 2]
    close(turns)
    assert "".join(contest.worked) == "aaab" + "aabb" * 2
    found = rates(turns[0], [100, 100])
    assert found["target_tokens_per_s"] > 0 and len(found["rounds"]) == 2


def test_a_contestant_that_fails_stops_no_other() -> None:
    contest = Contest()
    turns = [contest.turn("a", fails_at=3), contest.turn("b"), contest.turn("c", ends_at=2)]
    list(interleave(turns, 2, time.monotonic() + 60))
    close(turns)
    assert contest.worked.count("b") == 5
    assert rates(turns[0], []) == {"failed": "ValueError: no memory"}
    assert "ended before its measurement" in rates(turns[2], [])["failed"]


def test_a_contestant_that_would_warm_up_too_late_takes_no_part() -> None:
    contest = Contest()
    turns = [contest.turn("a"), contest.turn("b")]
    list(interleave(turns, 2, time.monotonic()))
    close(turns)
    assert contest.worked == [] and turns[0].late and "no time" in rates(turns[1], [])["failed"]


def test_rounds_without_tokens_or_a_single_round_or_a_loss_of_nan_are_no_result() -> None:
    for rounds, tokens, loss in ((2, [0, 0], 1.0), (1, [100], 1.0), (2, [100, 100], float("nan"))):
        turns = [Contest().turn("a")]
        list(interleave(turns, rounds, time.monotonic() + 60))
        close(turns)
        turns[0].loss = torch.tensor(loss)
        with pytest.raises(NothingMeasuredError):
            rates(turns[0], tokens)


def run(monkeypatch: pytest.MonkeyPatch, module: Any, *words: str) -> int:
    monkeypatch.setattr(module, "machine", lambda: {"machine": {}, "commit": ""})  # it starts nvidia-smi and git
    monkeypatch.setattr(sys, "argv", [module.__name__, *words, "--device", "cpu", "--tiny"])
    return exit_code(module.main)


@pytest.mark.parametrize(("tokens", "code"), [(100, 0), (0, 1)])
def test_a_training_benchmark_of_a_trainer_that_reads_no_tokens_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: int, code: int
) -> None:
    def train_row(_row: Any, _data: Any, _device: Any, _folder: Any, stop: Any, saw: Any, **_more: Any) -> None:
        step = 0
        while True:
            step += 1
            empty = torch.ones((1, 8), dtype=torch.int64)
            saw(step, [Batch(empty, empty, empty, 8, tokens)])
            time.sleep(0.001)
            stop()

    monkeypatch.setattr(training, "train_row", train_row)
    monkeypatch.setattr(training, "pairs", lambda *_: {"source": None, "target": None})
    out = tmp_path / "training.json"
    assert run(monkeypatch, training, "--out", str(out), "--peers", "", "--rounds", "2") == code
    assert out.exists() is (code == 0)
    if code == 0:
        report = json.loads(out.read_text(encoding="utf-8"))
        assert report["contestants"]["eager"]["mfu"] > 0 and {"commit", "machine", "mfu_formula"} <= set(report)


@pytest.mark.parametrize(("worst", "code"), [(1e-6, 0), (1e-3, 1), (0.0, 1), (float("nan"), 1)])
def test_errors_that_compare_nothing_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worst: float, code: int
) -> None:
    found = iter([1e-6, worst, 1e-6, 1e-6, 1e-6])
    monkeypatch.setattr(errors, "_error", lambda *_: next(found))
    assert run(monkeypatch, errors, "--out", str(tmp_path / "errors.json")) == code


def test_decoding_with_a_model_that_was_not_trained_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests a former fault that printed 3,000 sentences in 0.32 s."""
    monkeypatch.setattr(
        decoding, "translate", lambda _model, sources, *_, **__: [[Hypothesis((), 0.0, 0.0)] for _ in sources]
    )
    assert run(monkeypatch, decoding, "--out", str(tmp_path / "decoding.json"), "--steps", "1") == 1
    assert json.loads((tmp_path / "decoding.json").read_text(encoding="utf-8"))["runs"] == []


def test_what_this_machine_lacks_is_said_in_one_paragraph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = {"pydantic", "mlflow", "transformers"}
    monkeypatch.setattr(missing, "absent", lambda *names: [name for name in names if name in lacking])
    said = missing.paragraph({"--nanogpt": tmp_path / "model.py", "--corpus": None})
    assert "\n" not in said and "pip install --no-index" in said
    for what, consequence in (
        ("pydantic", "nothing can be measured"),
        ("mlflow", "command and table3"),
        ("transformers", "generate"),
        (str(tmp_path / "model.py"), "nanoGPT"),
        ("--corpus", "table3"),
    ):
        assert any(what in each and consequence in each for each in said.split(";"))
    lacking.clear()
    (tmp_path / "model.py").touch()
    assert missing.paragraph({"--nanogpt": tmp_path / "model.py", "--corpus": tmp_path}) == ""
