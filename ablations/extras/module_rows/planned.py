"""Check the lines of planned rows and predict their cost, by one process that imports torch."""

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

IDLE_S = 20.0  # seconds without a request after which the process ends
_LOOK = f"""
import ablations  # puts the folder of model, experiments and reports on the import path
from experiments.client.ablations_task.values import Channel
from ablations.extras.module_rows.operations import answer
answer(Channel(0, 1), {IDLE_S})
"""
_lookers: list[tuple["subprocess.Popen[bytes]", Channel, IO[bytes]]] = []
_CHANGES = "network-changes-1"  # name of the cache of `added_by`
Row = dict[str, Any]  # description of a module: name, type, params, flops, shapes of input and output


def looked_at(
    network: PlannedNetwork, lines: Sequence[str], at_evaluation: Sequence[str], selector: str | None
) -> list[Row]:
    """Apply the lines to a network and return its modules, as measured on two pairs of typical length.

    selector: return only modules that it matches; "" returns all, and None only checks the lines. Raises UserError for
    lines that do not fit, and if the network does not compute a batch.
    """
    return _looked_at(_as_json(network, lines=[list(lines), list(at_evaluation)]), selector)


def added_by(network: PlannedNetwork, lines: Sequence[str]) -> Added:
    """Return the parameters and operations that lines add to a network. Raises UserError as `looked_at` does."""
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
    """Return the answer of `added_by` to a request, from the user's cache if possible.

    The cache is used because the computation takes seconds.
    """
    given = json.loads(request)
    with UserCache(_CHANGES) as cache:
        key = digest([request, metadata.version("torch")])
        found: Any = cache.get(key)
        if found is None:
            found = _asked_of_network({"do": "change", **given})
            cache.put(key, found)
    return Added(int(found["params"]), float(found["flops"]))


def _asked_of_network(request: Mapping[str, Any]) -> Any:
    """Send a request to the process that builds networks (operations.py) and return its answer.

    Starts the process if it is not running. Raises UserError if the process refuses the request or fails.
    """
    why = ""
    for _ in range(2):  # try twice, because the process may have ended after it was idle
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
