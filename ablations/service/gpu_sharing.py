"""Predict which runs share a GPU of `--devices auto`, for the output of `plan` and `run` and for forecasts."""

from collections.abc import Sequence
from dataclasses import replace

from ablations.planning.plan import Plan, PlannedRun
from ablations.service.enqueue import memory_gb, turns
from ablations.service.selected import Selected
from experiments.jobs.coordinator.decision import Decision, decide
from experiments.jobs.devices.hardware import gpus_in_use
from experiments.jobs.devices.slots import Slot
from experiments.jobs.queue.job import Waiting
from experiments.jobs.queue.queue import Queue
from experiments.processes.processor import mps_serves


def decisions(
    chosen: Selected, plan: Plan, runs: Sequence[PlannedRun], slots: Sequence[Slot], *, ask: bool = False
) -> dict[str, Decision]:
    """Decide for each GPU of `--devices auto` how many runs share it. Return the decisions by the name of the slot.

    ask: whether to query nvidia-smi for the GPUs that other processes use now.
    """
    if not runs or not any(slot.most for slot in slots):
        return {}
    turn = turns(chosen, plan)
    with Queue(chosen.store.queue_db, create=False) as queue:
        measured = queue.measured_gpu_gb(runs[0].config.task, plan.study.name)
    waiting = [
        Waiting(
            run.run_id,
            chosen.priority,
            run.spec.cost,
            "",
            "",
            devices=1 if run.spec.members else chosen.devices_per_run,
            gpu_memory_gb=memory_gb(chosen.task, run, "cuda") or measured,
            turn=turn(run),
            steps=run.spec.steps,
        )
        for run in runs
    ]
    in_use = gpus_in_use() if ask else {}
    left_alone = {slot.name: in_use[slot.device] for slot in slots if slot.device and slot.device in in_use}
    return decide(slots, waiting, left_alone=left_alone, mps=mps_serves())


def seats(chosen: Selected, plan: Plan, runs: Sequence[PlannedRun], slots: Sequence[Slot]) -> list[Slot]:
    """Return the slots. A GPU of `auto` is repeated for each run that shares it at the start."""
    found: list[Slot] = []
    decided = decisions(chosen, plan, runs, slots)
    for slot in slots:
        leases = decided[slot.name].slots if slot.name in decided else ()
        found += [replace(slot, name=lease.name, threads=lease.threads) for lease in leases] or [slot]
    return found


def sharing_lines(chosen: Selected, plan: Plan, runs: Sequence[PlannedRun], slots: Sequence[Slot]) -> list[str]:
    """Return lines with the number of runs that share each GPU of `auto`, and the reason.

    GPUs with equal decisions share a line. GPUs that other processes use are detected only if no coordinator works on
    the store, because the coordinator's runs may be these processes.
    """
    ask = any(slot.most for slot in slots) and not chosen.store.coordinator()
    alike: dict[tuple[int, str], list[str]] = {}
    for name, decision in decisions(chosen, plan, runs, slots, ask=ask).items():
        alike.setdefault((decision.at_once, decision.why), []).append(name)
    return [
        f"{', '.join(names)}: {_number(count)}{' on each' * (len(names) > 1)} ({why})"
        for (count, why), names in alike.items()
    ]


def _number(at_once: int) -> str:
    if at_once > 1:
        return f"{at_once} runs at once"
    return "one run at a time" if at_once else "no run"
