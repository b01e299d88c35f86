"""Facts about the machine and the source code that every report of a benchmark contains."""

import contextlib
import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COMMIT = "BENCHMARK_COMMIT"  # environment variable with the commit, for a copy of the source without a .git folder


def machine() -> dict[str, Any]:
    """Return the processor, cores, load, GPUs with their driver, versions, and the commit of the source."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "machine": {
            "processor": names[0] if names else platform.processor(),
            "cores": len(os.sched_getaffinity(0)),
            "load_1min": round(os.getloadavg()[0], 2),
            "platform": platform.platform(),
            "cards": cards(),
        },
        "versions": {"python": platform.python_version(), "torch": metadata.version("torch")},
        "commit": commit(),
    }


def cards() -> list[str]:
    """Return name, driver and memory of every GPU as nvidia-smi prints them, or [] if there is no GPU."""
    return _output("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader").splitlines()


def commit() -> str:
    """Return the commit of the source, with "-dirty" if files were changed.

    Without a .git folder, return the value of the environment variable BENCHMARK_COMMIT, or "unknown".
    """
    found = _output("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*").strip()
    return found or os.environ.get(COMMIT, "unknown")


def _output(*command: str) -> str:
    """Return the output of a program, or "" if the program is missing or fails."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    return ""


def keep_report(report: dict[str, Any], out: Path | None) -> None:
    """Write the report to `out` atomically, if it is given, because a benchmark may be killed at any time."""
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        aside = out.with_name(f".{out.name}.partial")
        aside.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        aside.replace(out)


def read_report(out: Path, empty: dict[str, Any]) -> dict[str, Any]:
    """Return the report of an earlier call, to which the caller adds results, or `empty` if there is none."""
    if not out.exists():
        return empty
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found
