"""Run a small version of `python -m benchmarks.gpu` on the CPU, so that it works unattended on a GPU."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import environment

pytestmark = pytest.mark.nightly
PARTS = {
    1: (
        "tests", "errors", "command", "compile-base", "compile-language-model", "training-base",
        "training-language-model", "training-small",
    ),
    2: ("decoding", "training-big", "packing", "table3", "steps", "kernels", "cards"),
}  # fmt: skip


def gpu(out: Path, part: int, *words: object, minutes: float = 120) -> tuple[int, list[str], dict[str, Any]]:
    """Return the exit code, the printed lines of benchmarks, and the report."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--part", part, "--device", "cpu", "--tiny", "--out", out]
    command += ["--minutes", minutes, "--stretch", 20, *words]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=environment(), check=False)
    assert not done.stderr, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("Missing")]
    return done.returncode, lines, json.loads((out / "report.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], dict[str, Any]]:
    out, printed = tmp_path_factory.mktemp("gpu"), list[str]()
    for part in PARTS:
        code, lines, report = gpu(out, part)
        logs = {path.name: path.read_text(encoding="utf-8")[-3000:] for path in out.glob("*.log")}
        assert code == 0, (lines, logs)
        printed += lines
    return out, printed, report


def result(whole: tuple[Path, list[str], dict[str, Any]], name: str) -> dict[str, Any]:
    return dict(json.loads((whole[0] / f"{name}.json").read_text(encoding="utf-8")))


def test_every_benchmark_ends_prints_one_line_and_names_the_source(
    whole: tuple[Path, list[str], dict[str, Any]],
) -> None:
    out, lines, report = whole
    assert [line.split()[0] for line in lines] == [*PARTS[1], *PARTS[2]]
    assert {facts["state"] for facts in report["benchmarks"].values()} == {"done"}
    for path in out.glob("*.json"):
        assert {"commit", "machine", "versions"} <= set(json.loads(path.read_text(encoding="utf-8"))), path.name


def test_training_by_variants_and_beside_peers(whole: tuple[Path, list[str], dict[str, Any]]) -> None:
    for case in ("base", "language-model", "small", "big"):
        found = result(whole, f"training-{case}")
        assert found["rounds"] == 2 and {"eager"} < set(found["contestants"]), case
        assert all(one["target_tokens_per_s"] > 0 and one["mfu"] > 0 for one in found["contestants"].values())
    assert "torch" in result(whole, "training-base")["contestants"]


def test_a_killed_table_goes_on_to_the_same_weights(whole: tuple[Path, list[str], dict[str, Any]]) -> None:
    found = result(whole, "command")
    assert found["equal"] == found["runs"] == 2 and found["resumed"] >= 1


def test_decoding_writes_the_sentences_it_was_trained_on(whole: tuple[Path, list[str], dict[str, Any]]) -> None:
    report = result(whole, "decoding")
    assert report["as_on_cpu"]["same"] == report["as_on_cpu"]["sentences"] > 0
    assert report["best_s"] and {run["precision"] for run in report["runs"]} == {"fp32", "bf16"}
    assert all(run["pieces"] > 0 and run["right"] > 0.5 and run["empty"] < 0.05 for run in report["runs"])


def test_packing(whole: tuple[Path, list[str], dict[str, Any]]) -> None:
    counts = result(whole, "packing")["counts"]
    assert list(counts) == ["1", "2"] and counts["1"]["gain"] == 1
    assert all(len(found["each"]) == int(count) and min(found["each"]) > 0 for count, found in counts.items())


def test_steps_and_kernels(whole: tuple[Path, list[str], dict[str, Any]]) -> None:
    rows = result(whole, "steps")["rows"]
    assert set(rows) == {"base", "base cudnn", "experts"}
    assert all(0 < row["step_ms"]["50"] <= row["step_ms"]["100"] and row["syncs"] == {} for row in rows.values())
    assert all(time > 0 for one in result(whole, "kernels")["results"] for time in one["ms"].values())


def test_two_processes_exchange_their_sums(whole: tuple[Path, list[str], dict[str, Any]]) -> None:
    found = result(whole, "cards")
    assert found["cards"] == 2 and found["results"][0]["bus_gb_per_s"] > 0
    assert found["training"]["1"]["gain"] == 1 and found["training"]["2"]["target_tokens_per_s"] > 0


def test_table3_by_the_command(whole: tuple[Path, list[str], dict[str, Any]]) -> None:
    found = result(whole, "table3")
    assert found["finished"] == found["rows"] == 2 and not found["stopped"]
    assert "base" in (whole[0] / "table3.txt").read_text(encoding="utf-8")


def test_the_same_command_repeats_nothing_but_what_failed(whole: tuple[Path, list[str], dict[str, Any]]) -> None:
    out, _, report = whole
    facts = report["benchmarks"]["cards"]
    changed = report | {"benchmarks": report["benchmarks"] | {"cards": facts | {"state": "failed"}}}
    (out / "report.json").write_text(json.dumps(changed), encoding="utf-8")
    (out / "cards.json").unlink()
    code, lines, again = gpu(out, 2)
    assert code == 0 and [line.split()[0] for line in lines if "before: " not in line] == ["cards"]
    assert again["benchmarks"]["cards"]["state"] == "done" and result(whole, "cards")["cards"] == 2


def test_a_benchmark_that_fails_stops_no_other(tmp_path: Path) -> None:
    (tmp_path / "steps.json").mkdir()  # cannot be written
    done = {"state": "done", "seconds": 1.0, "says": "earlier"}
    known = dict.fromkeys(PARTS[2], done) | {
        "steps": done | {"state": "failed"},
        "kernels": done | {"state": "unfinished"},
    }
    (tmp_path / "report.json").write_text(json.dumps({"benchmarks": known}), encoding="utf-8")
    code, lines, report = gpu(tmp_path, 2)
    assert code == 1 and len(lines) == len(PARTS[2])
    assert report["benchmarks"]["steps"]["state"] == "failed" and "steps.json" in report["benchmarks"]["steps"]["says"]
    assert report["benchmarks"]["kernels"]["state"] == "done"


def test_no_benchmark_begins_without_time(tmp_path: Path) -> None:
    code, lines, report = gpu(tmp_path, 1, minutes=0.01)
    assert code == 3 and len(lines) == len(PARTS[1])
    assert {facts["state"] for facts in report["benchmarks"].values()} == {"unfinished"}
