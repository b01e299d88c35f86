"""The process of a trainer. It reads requests from standard input and answers them. A message is one line of JSON."""

from __future__ import annotations

import base64
import contextlib
import importlib
import os
import platform
import re
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, Mapping, Sequence

from .changes import module_of
from .errors import Preempted, UserError, failure
from .trainer import RunContext, Trainer
from .values import Channel, by_set, described, made, plain


def main() -> None:
    """Answer requests until standard input closes. The trainer's output is redirected to standard error."""
    channel = Channel(os.dup(0), os.dup(1))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    _open_path()
    channel.say({"python": platform.python_version(), "new_enough": sys.version_info >= (3, 8)})
    loaded: list[Trainer] = []
    while True:
        request = channel.next()
        if request is None:
            return
        try:
            answer = _answer(request, loaded, channel)
        except BaseException as error:
            answer = {"failed": failure(error)}
            if request["do"] == "train" and not isinstance(error, Preempted):
                with contextlib.suppress(OSError):  # the disk of the log may be full
                    print(answer["failed"].get("traceback", ""), file=sys.stderr, flush=True)
        channel.say(answer)


def _open_path() -> None:
    """Put the standard library first and the folder of this package last on the module search path.

    The folder of this package remains on the path, because processes that multiprocessing starts need it.
    """
    here, library = str(Path(__file__).resolve().parents[1]), str(Path(os.__file__).parent)
    rest = [one for one in sys.path if one and Path(one).resolve() != Path(here)]
    own = [one for one in rest if (one.startswith(library) and "-packages" not in one) or one.endswith(".zip")]
    sys.path[:] = [*own, *(one for one in rest if one not in own), here]


def _answer(request: Mapping[str, Any], loaded: list[Trainer], channel: Channel) -> dict[str, Any]:
    what = request["do"]
    if what == "load":
        loaded[:] = [_load(request["module"], request["attribute"], request["folder"])]
        return _declared(loaded[0], request["module"])
    if what == "versions":
        return {"versions": versions(request["names"])}
    trainer = loaded[0]
    if what == "count":
        return _counted(trainer, request)
    settings = made(trainer.settings_type, request["settings"])
    if what == "check":
        return {}
    if what == "ask":
        return _asked(trainer, settings, request, channel)
    if what == "train":
        return _train(trainer, settings, request, channel)
    answer = getattr(trainer, what)(settings)  # the function `reads`, `num_params` or `cost`
    return {"answer": [str(path) for path in answer] if what == "reads" else plain(answer)}


def _load(module: str, attribute: str, folder: str) -> Trainer:
    if folder:
        library = [n for n, one in enumerate(sys.path) if one.endswith("lib-dynload")]
        sys.path.insert(library[-1] + 1 if library else 0, folder)
    trainer = getattr(importlib.import_module(module), attribute, None)
    if not isinstance(trainer, Trainer):
        raise UserError(
            f"{module} has no {attribute} that is a task. Make one with `from ablations_task import task` "
            "(docs/own-task.md)."
        )
    return trainer


def _declared(trainer: Trainer, loaded_from: str) -> dict[str, Any]:
    run = trainer.run
    columns = []
    for one in trainer.columns:
        counts = one.counts
        if counts is None:
            columns.append(vars(one))
            continue
        try:  # the statistics of the table call `counts.value` with numpy arrays; check for numpy before the training
            importlib.import_module("numpy")
        except Exception as error:
            raise UserError(
                f"The column {one.key} has counts, whose function gets arrays of numpy, and {sys.executable} cannot "
                f"import it ({type(error).__name__}: {error}). Install numpy there, or leave out counts=."
            ) from None
        described_counts = {"names": list(counts.names), "file": counts.file, "length": counts.length}
        columns.append(dict(vars(one), counts=described_counts))
    module = sys.modules.get(run.__module__)
    return {
        "name": f"{run.__module__}:{getattr(run, '__qualname__', 'run')}",
        "file": str(Path(getattr(module, "__file__", None) or ".").absolute()),
        "loaded_from": str(Path(str(sys.modules[loaded_from].__file__)).absolute()),
        "module": run.__module__,
        "settings": described(trainer.settings_type),
        "columns": columns,
        "steps": trainer.steps,
        "continues": trainer.continues,
        "has": [name for name in ("reads", "num_params", "cost") if getattr(trainer, name) is not None],
        "prefixes": [sys.prefix, sys.base_prefix],
    }


def _counted(trainer: Trainer, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a metric's values for sums of counts. Arrays are sent as base64 of little-endian doubles."""
    numpy = importlib.import_module("numpy")
    counts = next(one.counts for one in trainer.columns if one.key == request["column"])
    assert counts is not None
    sums = numpy.frombuffer(base64.b64decode(request["sums"]), dtype="<f8").reshape(request["shape"])
    with numpy.errstate(divide="ignore", invalid="ignore"):
        values = numpy.asarray(counts.value(sums), dtype="<f8")
    return {"shape": list(values.shape), "values": base64.b64encode(values.tobytes()).decode()}


def versions(names: Sequence[str]) -> dict[str, str]:
    """Return the versions of Python and of the named packages. The packages are not imported.

    names: import names, such as "yaml". A package without a known version is left out.
    """
    known, missing = {"python": platform.python_version()}, []
    if not names:
        return known
    from importlib import metadata  # this import is slow

    for name in names:
        try:
            known[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        for distribution in metadata.distributions():
            tops = (distribution.read_text("top_level.txt") or "").split()
            tops += [str(file).partition("/")[0] for file in distribution.files or () if str(file).endswith(".py")]
            known.update({name: distribution.version for name in missing if name in tops and name not in known})
    return known


def _train(trainer: Trainer, settings: Any, request: Mapping[str, Any], channel: Channel) -> dict[str, Any]:
    signal.signal(signal.SIGTERM, channel.stop)  # a cluster may send SIGTERM to every process of a job
    resume = request["resume"]
    context = RunContext(
        request["seed"], request["device"], request["threads"], Path(request["folder"]),
        None if resume is None else Path(resume), channel, request["changes"],
    )  # fmt: skip
    _open_device(context, request["memory_gb"], request["share"], request["context_gb"])
    returned = by_set(trainer.run(settings, context))
    changes = [name for name, value in request["changes"].items() if value is not None]
    if changes and not context._ablated:
        raise UserError(
            f"The row changes the network by {' and '.join(changes)}, and the trainer never called "
            "`model = context.ablate(model)`. Add the line where the network is built, before its optimizer is."
        )
    return {"returned": returned, "facts": context._facts, "device_name": device_name(context.device, context.threads)}


def _asked(trainer: Trainer, settings: Any, request: Mapping[str, Any], channel: Channel) -> dict[str, Any]:
    """Return the answer of a network change's module. Files that it writes to the context's folder are removed."""
    with tempfile.TemporaryDirectory(prefix="ablations-asked-") as folder:
        context = RunContext(request["seed"], "cpu", 1, Path(folder), None, channel)
        answer: dict[str, Any] = module_of(request["change"]).answer(trainer, settings, request, context)
    return answer


def _open_device(context: RunContext, memory_gb: float | None, share: float, context_gb: float) -> None:
    """Set torch's number of threads and limit its memory on the GPU, if the trainer has imported torch.

    memory_gb: the limit. If it is None and `share` is less than 1, the limit is `share` of the GPU's memory minus
        `context_gb`, the memory that a process uses before its first tensor.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return
    torch.set_num_threads(context.threads)
    if context.device == "cuda" and (memory_gb is not None or share < 1):
        if not torch.cuda.is_available():
            raise UserError("A CUDA device was requested, but the trainer's torch sees none: check `nvidia-smi`.")
        total = torch.cuda.get_device_properties(0).total_memory
        limit = max(0.01, share - context_gb * 1e9 / total) if memory_gb is None else memory_gb * 1e9 / total
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit), 0)


def _processor() -> str:
    """Return the processor's name in the form that torch gives: without trademarks, core counts and clock rates."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    name = next((line.partition(":")[2] for line in lines if line.startswith("model name")), "")
    return " ".join(re.sub(r"\((R|TM|r|tm)\)|\d+-Core|\b(CPU|Processor)\b|@.*", " ", name).split())


def device_name(device: str, threads: int) -> str:
    """Return the device's name for tables, or "" if it is unknown. The name is the same with and without torch."""
    torch = sys.modules.get("torch")
    if torch is not None and device == "cuda":
        return str(torch.cuda.get_device_name(0))
    with contextlib.suppress(Exception):  # some versions of torch have no `get_capabilities`
        name = torch.cpu.get_capabilities().get("cpu_name") if torch is not None else _processor()
        return f"{name} ({threads} thread{'s' if threads > 1 else ''})" if name else ""
    return ""
