"""Where a selection has no results: the nearest one of the same study that has some, to be pasted."""

import shlex
from dataclasses import replace

from ablations.plan.planned import Plan
from ablations.service.run_states import DONE
from ablations.service.selected import Place, Selectors, choose
from ablations.service.store_tables import StoreTable, store_tables
from ablations.study.messages import number, show
from experiments.errors import UserError


def nearest_with_results(study: str, selectors: Selectors, plan: Plan) -> str:
    """A sentence with the command line; "" where the plan has a result, or no table of the study has one."""
    if any(run.state in (*DONE, "running", "waiting") for run in plan.runs):
        return ""
    found = [table for table in store_tables(selectors, plan.study.name) if table.words and table.finished]
    for table in sorted(found, key=lambda table: _distance(table, plan)):
        other = _selectors(table, selectors)
        mine, there = replace(other, rows=selectors.rows, seeds=selectors.seeds), ",".join(table.rows)
        for narrowed in (mine, other, replace(other, rows=there)):  # all rows may be impossible with its settings
            if count := _finished(study, narrowed):
                return _sentence(study, selectors, narrowed, table, plan, count)
    return ""


def _distance(table: StoreTable, plan: Plan) -> tuple[bool, bool, bool, int, int]:
    other_corpus, other_rows = table.name.corpus != _corpus(plan), {run.row for run in plan.runs}.isdisjoint(table.rows)
    return other_rows, table.name.profile != plan.profile, other_corpus, len(table.settings), -table.finished


def _corpus(plan: Plan) -> str:
    """The corpus's name, as the runs of a plan record it."""
    corpus = getattr(getattr(plan.runs[0].config, "data", None), "corpus", "")
    return str(corpus).rstrip("/").rpartition("/")[2]


def _selectors(table: StoreTable, place: Place) -> Selectors:
    """The options that select the table."""
    given: dict[str, str] = {}
    sets = []
    for flag, word in zip(table.words[1::2], table.words[2::2], strict=True):
        if flag == "--set":
            sets.append(word)
        else:
            given[flag.removeprefix("--")] = word
    return Selectors(store=place.store, state_dir=place.state_dir, sets=sets or None, **given)  # type: ignore[arg-type]


def _finished(study: str, selectors: Selectors) -> int:
    """Finished runs that these options really select."""
    try:
        plan = choose(study, selectors).plan
    except UserError:
        return 0
    return sum(run.state in DONE for run in plan.runs)


def _sentence(study: str, selectors: Selectors, other: Selectors, table: StoreTable, plan: Plan, count: int) -> str:
    """ "6 finished runs of table3 exist with training.train_steps = 150: add --set …"."""
    same_profile = table.name.profile == plan.profile
    differs = [] if same_profile else [f"the profile {table.name.profile}"]
    if table.name.corpus != _corpus(plan):
        differs.append(f"the corpus {table.name.corpus}")
    differs += [f"{name} = {show(value)}" for name, value in table.settings.items()]
    if same_profile and selectors.profile is None:
        other = replace(other, profile=None)
    line = shlex.join([study, *other.words(whole=True)])
    typed_others = selectors.sets or selectors.corpus or selectors.profile
    only_added = not typed_others and selectors.rows in (None, other.rows)
    typed = {name: None for name in ("rows", "seeds") if getattr(other, name) == getattr(selectors, name)}
    more = replace(other, store=Place().store, state_dir=None, **typed).words(whole=True)
    added = f"add {shlex.join(more)}, or write " if more and only_added else ""
    runs = f"{number(count, 'finished run')} of {plan.study.name} {'exists' if count == 1 else 'exist'}"
    with_ = " and ".join(differs) or "the study's own settings"
    return f"No run of this selection is in {selectors.store}. {runs} with {with_}: {added}`ablations report {line}`."
