"""`ablations evaluate`: decode finished runs again with other settings, without training."""

from dataclasses import replace

from ablations.cli import options
from ablations.cli.run import run_chosen
from ablations.cli.terminal import say
from ablations.service.enqueue import wanted
from ablations.service.made_again import trained_again
from ablations.service.nearest import nearest_with_results
from ablations.service.obstacles import missing_precisions, paragraphs, warnings
from ablations.service.selected import Selectors, choose
from ablations.service.shares import user_name
from ablations.service.work import WorkOptions
from experiments.errors import UserError


def evaluate(
    study: options.LastStudy = None,
    *,
    selectors: Selectors,
    devices: options.Devices = "auto",
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Score trained runs with other evaluation.* settings; never trains.

    For example: ablations evaluate table3 --set evaluation.beam_size=1
    """
    study, selectors = selectors.with_last(study, say)
    chosen = replace(choose(study, selectors, there=True, used=True), user=user_name(user))
    plan = chosen.plan
    needed = {run_id for run in plan.runs for run_id in run.members or (run.run_id,)}  # of a branch not its trunk
    trained = {run_id for run_id in needed if chosen.store.result(run_id)}
    untrained = [run.name for run in plan.trainings if run.run_id in needed - trained]
    if untrained:
        raise UserError(
            f"Not trained in {chosen.store.root} with these settings: {', '.join(untrained)}. `evaluate` never trains: "
            "train them with `ablations run`, or leave them out with --rows. Only evaluation.* settings may differ. "
            f"{nearest_with_results(study, selectors, plan)}".rstrip()
        )
    members = [run for run in wanted(plan, "keep") if run.read_by]
    if again := trained_again(chosen, [*plan.runs, *members]):
        raise UserError(
            f"The trainings of {', '.join(dict.fromkeys(run.row for run in again))} kept too few checkpoints for this "
            "evaluation.checkpoint, and `evaluate` never trains. Use `ablations run` with the same options."
        )
    working = WorkOptions(devices)
    todo = wanted(plan, "keep")
    if lacking := missing_precisions(chosen, todo, working.slots):
        raise UserError(paragraphs(lacking, plan.runs))
    for warning in warnings(chosen, todo, working.slots):
        say(f"note: {warning}")
    run_chosen(chosen, working, "keep", "json" if as_json else "")
