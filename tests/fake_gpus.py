"""A fake `nvidia-smi` on PATH that lists the GPUs that a test declares, on machines without a GPU."""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

# The fake program prints the requested fields, as NVIDIA's does, and supports `nvidia-smi -L`.
_PROGRAM = """#!{python} -IS
import json, sys, time
facts = json.load(open({facts!r}))
time.sleep(facts["sleep_s"])
if facts["code"]:
    print("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
    sys.exit(facts["code"])
word = sys.argv[1]
if word == "-L":
    for gpu in facts["gpus"]:
        print("GPU %s: NVIDIA H100 80GB HBM3 (UUID: %s)" % (gpu["index"], gpu["uuid"]))
        for number, (profile, uuid) in enumerate(gpu["slices"]):
            print("  MIG %-15s Device %2d: (UUID: %s)" % (profile, number, uuid))
what, _, fields = word.partition("=")
for row in facts["gpus" if what == "--query-gpu" else "apps"] if fields else ():
    print(", ".join(row[field] for field in fields.split(",")))
"""


def gpu(index: int, uuid: str, total: str = "81559", used: str = "0", **more: object) -> dict[str, object]:
    """Return a GPU as nvidia-smi describes it, memory in MiB. `slices` lists (profile, UUID) of its MIG devices."""
    row: dict[str, object] = {
        "index": str(index), "uuid": uuid, "memory.total": total, "memory.used": used, "compute_mode": "Default",
        "mig.mode.current": "[N/A]", "slices": [],
    }  # fmt: skip
    return {**row, **more, **({"mig.mode.current": "Enabled"} if more.get("slices") else {})}


def app(uuid: str, pid: int, used: str = "39000", name: str = "python") -> dict[str, str]:
    """Return a process that computes on a GPU, as nvidia-smi describes it."""
    return {"gpu_uuid": uuid, "pid": str(pid), "used_memory": used, "process_name": name}


def put_nvidia_smi(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    gpus: Iterable[Mapping[str, object]] = (),
    apps: Sequence[Mapping[str, str]] = (),
    *,
    code: int = 0,
    sleep_s: float = 0,
) -> None:
    """Put the fake `nvidia-smi` first on PATH.

    code: its exit code; any other than 0 makes it fail. sleep_s: seconds before it answers.
    """
    facts, program = folder / "gpus.json", folder / "nvidia-smi"
    told = {"gpus": list(gpus), "apps": list(apps), "code": code, "sleep_s": sleep_s}
    facts.write_text(json.dumps(told), encoding="utf-8")
    program.write_text(_PROGRAM.format(python=sys.executable, facts=str(facts)), encoding="utf-8")
    program.chmod(0o755)
    path = os.environ["PATH"]
    if not path.startswith(f"{folder}{os.pathsep}"):
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{path}")
