"""`python -m benchmarks.gpu` in miniature on a processor, so that it runs unattended on a GPU."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import environment

pytestmark = pytest.mark.nightly
PARTS = (
    "tests", "errors", "steps", "command", "kernels", "training", "training-compiled", "language-model", "packing",
    "decoding", "cards", "table3",
)  # fmt: skip


def gpu(out: Path, *words: object, minutes: float = 120) -> tuple[int, list[str], dict[str, Any]]:
    """Exit code, printed lines, report."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--tiny", "--out", out, "--minutes", minutes]
    done = subprocess.run(
        [*map(str, command), *map(str, words)], capture_output=True, text=True, env=environment(), check=False
    )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines(), json.loads((out / "report.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], dict[str, Any]]:
    out = tmp_path_factory.mktemp("gpu")
    code, lines, report = gpu(out)
    logs = {path.name: path.read_text(encoding="utf-8")[-3000:] for path in out.glob("*.log")}
    assert code == 0, logs
    return out, lines, report


def result(whole: tuple[Path, list[str], dict[str, Any]], name: str) -> dict[str, Any]:
    return dict(json.loads((whole[0] / f"{name}.json").read_text(encoding="utf-8")))


def test_every_part_ends_and_prints_one_line(whole: tuple[Path, list[str], dict[str, Any]]) -> None:
    _, lines, report = whole
    assert [line.split()[0] for line in lines] == list(PARTS)
    assert {name: facts["state"] for name, facts in report["parts"].items()} == dict.fromkeys(PARTS, "done")
    assert "skipped" in report["parts"]["tests"]["says"]  # no card here


def test_kernels_of_different_widths(whole: tuple[Path, list[str], dict[str, Any]]) -> None:
    found = result(whole, "kernels")["results"]
    assert {(one["d_k"], one["d_v"]) for one in found} >= {(64, 64), (16, 64)}
    assert all(time > 0 for one in found for time in one["ms"].values())


def test_fp32_is_fp32_for_every_kind_of_layer(whole: tuple[Path, list[str], dict[str, Any]]) -> None:
    errors = result(whole, "errors")["errors"]
    assert {"lstm", "convolution"} < set(errors) and 0 < max(errors.values()) < 1e-4


def test_steps_one_by_one(whole: tuple[Path, list[str], dict[str, Any]]) -> None:
    rows = result(whole, "steps")["rows"]
    assert set(rows) == {"base", "base cudnn", "experts"}
    assert all(0 < row["step_ms"]["50"] <= row["step_ms"]["100"] and row["syncs"] == {} for row in rows.values())


def test_a_killed_table_goes_on_to_the_same_weights(whole: tuple[Path, list[str], dict[str, Any]]) -> None:
    found = result(whole, "command")
    assert found["equal"] == found["runs"] == 3 and found["resumed"] >= 1


def test_training_eager_compiled_and_of_a_language_model(whole: tuple[Path, list[str], dict[str, Any]]) -> None:
    rows = result(whole, "training")["rows"]
    assert set(rows) == {"base", "big", "base even", "base compiled"}
    assert all(row["target_tokens_per_s"] > 0 and row["mfu"] > 0 for row in rows.values())
    text = result(whole, "language-model")["rows"]
    assert text["base"]["num_params"] == text["rotary"]["num_params"] + 64 * 48  # learned positions
    assert text["base"]["target_tokens_per_step"] > 0 and text["base"]["mfu"] > 0


def test_packing(whole: tuple[Path, list[str], dict[str, Any]]) -> None:
    counts = result(whole, "packing")["counts"]
    assert list(counts) == ["1", "2"] and counts["1"]["gain"] == 1
    assert all(len(found["each"]) == int(count) and min(found["each"]) > 0 for count, found in counts.items())


def test_decoding_gives_the_text_of_the_processor(whole: tuple[Path, list[str], dict[str, Any]]) -> None:
    report = result(whole, "decoding")
    assert report["as_on_cpu"] == {"sentences": 20, "same": 20}
    assert (whole[0] / "decoding.pt").exists() and all(run["pieces"] <= run["pieces_at_most"] for run in report["runs"])
    assert report["best_s"] and {run["precision"] for run in report["runs"]} == {"fp32", "bf16"}


def test_two_processes_exchange_their_sums(whole: tuple[Path, list[str], dict[str, Any]]) -> None:
    found = result(whole, "cards")
    assert found["cards"] == 2 and found["results"][0]["bus_gb_per_s"] > 0
    assert found["training"]["1"]["gain"] == 1 and found["training"]["2"]["target_tokens_per_s"] > 0


def test_table3(whole: tuple[Path, list[str], dict[str, Any]]) -> None:
    rows = result(whole, "table3")["rows"]
    assert set(rows) == {"base", "E-learned"} and rows["base"]["dev"]["bleu"] >= 0
    assert "base" in (whole[0] / "table3.txt").read_text(encoding="utf-8")


def test_the_same_command_repeats_nothing_but_what_failed(whole: tuple[Path, list[str], dict[str, Any]]) -> None:
    out, _, report = whole
    facts = report["parts"]["cards"]
    changed = report | {"parts": report["parts"] | {"cards": facts | {"state": "failed"}}}
    (out / "report.json").write_text(json.dumps(changed), encoding="utf-8")
    (out / "cards.json").unlink()
    code, lines, again = gpu(out)
    assert code == 0 and [line.split()[0] for line in lines if "before: " not in line] == ["cards"]
    assert again["parts"]["cards"]["state"] == "done" and result(whole, "cards")["cards"] == 2


def test_a_part_that_fails_stops_no_other(tmp_path: Path) -> None:
    (tmp_path / "cards.json").mkdir()  # cannot be written
    done = {"state": "done", "seconds": 1.0, "says": "earlier"}
    parts = dict.fromkeys(PARTS, done) | {
        "cards": done | {"state": "failed"},
        "kernels": done | {"state": "unfinished"},
    }
    (tmp_path / "report.json").write_text(json.dumps({"parts": parts}), encoding="utf-8")
    code, lines, report = gpu(tmp_path)
    assert code == 1 and len(lines) == len(PARTS)
    assert report["parts"]["cards"]["state"] == "failed" and "cards.json" in report["parts"]["cards"]["says"]
    assert report["parts"]["kernels"]["state"] == "done"


def test_no_part_begins_without_time(tmp_path: Path) -> None:
    code, lines, report = gpu(tmp_path, minutes=0.01)
    assert code == 3 and len(lines) == len(PARTS)
    assert {facts["state"] for facts in report["parts"].values()} == {"unfinished"}
