"""What a measurement's reader must know of the machine."""

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
