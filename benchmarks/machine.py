"""Facts of the machine for the reader of a measurement."""

import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Processor, cores, load, versions."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "machine": {
            "processor": names[0] if names else platform.processor(),
            "cores": len(os.sched_getaffinity(0)),
            "load_1min": round(os.getloadavg()[0], 2),
            "platform": platform.platform(),
        },
        "versions": {"python": platform.python_version(), "torch": metadata.version("torch")},
    }


def keep_report(report: dict[str, Any], out: Path | None) -> None:
    """Write the result to `--out`, if given."""
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
