"""Finished runs of which something is made again: which, and what that costs."""

from collections.abc import Iterable, Sequence

from ablations.plan.planned import PlannedRun
from ablations.service.run_states import lacks_checkpoints
from ablations.service.selected import Selected
from experiments.records import TRAINING


def trained_again(chosen: Selected, runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    """Finished runs that kept too few checkpoints for what is to be made: an average, the best, a branch.

    Such a run is trained once more; its present result stays until then.
    """
    found = []
    for run in runs:
        if run.state == "damaged":  # its content is unknown
            continue
        if lacks_checkpoints(run, chosen.store, chosen.task):
            found.append(run)
    return found


def say_trained_again(runs: Sequence[PlannedRun]) -> str:
    """A message for the user; "" if there are none."""
    if not runs:
        return ""
    return (
        f"{_rows(runs)}: already trained, but with fewer checkpoints than {_needs(runs)} needs here. The run is "
        f"trained again{_cost(runs)}. Its scores stay; if the weights come out different "
        "(on another device), all scores of the run are made again."
    )


def say_renewed(runs: Sequence[PlannedRun], stale: str) -> str:
    """A message on what `--stale rerun` makes again and its cost; "" for nothing."""
    if stale != "rerun":
        return ""
    trained = [run for run in runs if TRAINING in run.stale]
    told = [f"training and all scores of {_rows(trained)}{_cost(trained)}"] if trained else []
    rest = [run for run in runs if run.stale and TRAINING not in run.stale]
    for part in dict.fromkeys(part for run in rest for part in run.stale):
        told.append(f"{part} of {_rows([run for run in rest if part in run.stale])}, no training")
    return f"made again, because the code has changed: {'; '.join(told)}" if told else ""


def _needs(runs: Iterable[PlannedRun]) -> str:
    steps = sorted({step for run in runs for step in run.read_at})
    return f"a branch from step {', '.join(map(str, steps))}" if steps else "evaluation.checkpoint"


def _rows(runs: Iterable[PlannedRun]) -> str:
    return ", ".join(dict.fromkeys(run.row for run in runs))


def _cost(runs: Iterable[PlannedRun]) -> str:
    """The cost of training the runs, in brackets; "" if it is not known."""
    cost = sum({run.run_id: run.cost for run in runs}.values())
    return f" ({cost:.1e} FLOP)" if cost else ""
