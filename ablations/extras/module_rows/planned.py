"""Modules of a network of this program, and what lines add to it, for a plan: asked of one process with torch."""

import contextlib
import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import IO, Any

from experiments.client.ablations_task.values import Channel
from experiments.config.network_change import Added, PlannedNetwork
from experiments.errors import UserError
from experiments.identity import digest
from experiments.store.user_cache import UserCache

IDLE_S = 20.0  # then the process ends
_LOOK = f"""
import ablations  # puts the folder of model, experiments and reports on the import path
from experiments.client.ablations_task.values import Channel
from ablations.extras.module_rows.operations import answer
answer(Channel(0, 1), {IDLE_S})
"""
_lookers: list[tuple["subprocess.Popen[bytes]", Channel, IO[bytes]]] = []
_CHANGES = "network-changes-1"  # the cache of `added_by`
Row = dict[str, Any]  # a module: name, type, params, flops, shapes of input and output


def looked_at(
    network: PlannedNetwork, lines: Sequence[str], at_evaluation: Sequence[str], selector: str | None
) -> list[Row]:
    """Describe the modules of a network on a pair of typical length, with the lines applied.

    selector: describe only what it matches; None: only check the lines. Raises UserError for lines that do not fit, and
    where the network does not compute a batch.
    """
    return _looked_at(_as_json(network, lines=[list(lines), list(at_evaluation)]), selector)


def added_by(network: PlannedNetwork, lines: Sequence[str]) -> Added:
    """Return what lines add to a network. Raises UserError as `looked_at` does."""
    return _added_by(_as_json(network, lines=list(lines)))


def _as_json(network: PlannedNetwork, **more: Any) -> str:
    model = network.model.model_dump_json()
    return json.dumps({"model": model, "sizes": network.sizes, "lengths": network.lengths, **more})


@functools.cache
def _looked_at(request: str, selector: str | None) -> list[Row]:
    rows: list[Row] = _asked_of_network({"do": "modules", **json.loads(request), "selector": selector})
    return rows


@functools.cache
def _added_by(request: str) -> Added:
    """Compute `added_by` for a request, or read it from the user's cache: it takes seconds."""
    given = json.loads(request)
    with UserCache(_CHANGES) as cache:
        key = digest([request, metadata.version("torch")])
        found: Any = cache.get(key)
        if found is None:
            found = _asked_of_network({"do": "change", **given})
            cache.put(key, found)
    return Added(int(found["params"]), float(found["flops"]))


def _asked_of_network(request: Mapping[str, Any]) -> Any:
    """The answer of the process that builds networks (operations.py). Raises UserError."""
    why = ""
    for _ in range(2):  # an idle one has ended
        if not _lookers:
            said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed once the process has ended
            child = subprocess.Popen(
                [sys.executable, "-P", "-c", _LOOK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said
            )
            assert child.stdin is not None and child.stdout is not None
            _lookers.append((child, Channel(child.stdout.fileno(), child.stdin.fileno()), said))
        child, channel, said = _lookers[0]
        answer: dict[str, Any] | None = None
        with contextlib.suppress(BrokenPipeError):
            answer = channel.ask(dict(request))
        if answer is None:
            _lookers.clear()
            child.communicate()
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
            said.close()
            why = f"the process that builds the network ended with {child.returncode}: {(lines or ['no message'])[-1]}"
        elif "refused" in answer:
            raise UserError(answer["refused"])
        elif "failed" in answer:
            why = answer["failed"]
            break
        else:
            return answer["answer"]
    raise UserError(f"modules: the network of this row does not compute a batch: {why}")
