"""`ablations.load`, `ablations.plan` and `ablations.run`: the command's verbs for scripts and notebooks.

They take what the command takes, and raise UserError for what it refuses. Children are programs of their own, never
copies of this process, so a script needs no `if __name__ == "__main__"` and a notebook can train.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ablations.api.tables import LoadedTable, PlannedTable
from ablations.planning.planned import Plan, PlannedRun
from ablations.service import work as words
from ablations.service.enqueue import wanted
from ablations.service.preflight import obstacles, paragraphs
from ablations.service.selected import Selected, SelectedTable, Selectors, choose, choose_table, device_count
from ablations.service.tables import BY_STUDY, TableOptions
from ablations.service.train import Training, options_for
from ablations.service.work import WorkOptions, engine_settings, held, user_name
from ablations.study.messages import number, show, suggestion
from ablations.study.overrides import dotted, parse_set
from experiments.errors import UserError
from experiments.jobs.coordinator.loop import HANG_S
from experiments.jobs.coordinator.reporter import Summary, View
from experiments.store.layout import Store
from reports.results.failures import failures

# --- Arguments of Python's functions in the form of the command's options, so that both select and check the same way


Settings = Mapping[str, Any] | Iterable[str] | None  # {"model.num_heads": 4}, or ["model.num_heads=4"]
Names = str | Iterable[str] | None  # "base,A", or ["base", "A"]


def selectors(
    store: str | Path,
    state_dir: str | Path | None,
    profile: str | None,
    corpus: str | Path | None,
    rows: Names,
    seeds: int | None,
    set_: Settings,
) -> Selectors:
    """The selectors of the command. Raises UserError for a value that no option can have."""
    if seeds is not None and (isinstance(seeds, bool) or not isinstance(seeds, int)):
        raise UserError(f"seeds={seeds!r}: it must be an integer, the number of seeds of every row.")
    return Selectors(
        store=Path(store),
        state_dir=None if state_dir is None else Path(state_dir),
        profile=profile,
        corpus=None if corpus is None else str(corpus),
        rows=_joined(rows),
        seeds=seeds,
        sets=_settings(set_),
    )


def _joined(names: Names) -> str | None:
    return names if names is None or isinstance(names, str) else ",".join(map(str, names))


def _settings(given: Settings) -> list[str] | None:
    if given is None:
        return None
    if isinstance(given, str):
        return [given]
    if not isinstance(given, Mapping):
        return list(given)
    try:
        return [_assignment(name, value) for name, value in dotted(given).items()]
    except ValueError as error:
        raise UserError(f"set={show(dict(given))}: {error}.") from None


def _assignment(name: str, value: Any) -> str:
    """The setting as --set has it: a bare word where that means the same, else TOML."""
    bare = f"{name}={value}"
    try:
        if not isinstance(value, bool) and parse_set([bare]) == {name: value}:
            return bare
    except UserError:
        pass
    return f"{name}={json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)}"


def printing(choices: Mapping[str, Any]) -> TableOptions:
    """columns, hide, plain, digits … as `ablations report` has them; lists and dicts may stand for "a,b" and "a=1"."""
    known = [field.name for field in fields(TableOptions)]
    for name in choices:
        if name not in known:
            raise UserError(f"There is no argument {name}. {suggestion(name, known, 'choices of printing')}")
    return TableOptions(**{name: _as_option(value) for name, value in choices.items()})


def _as_option(value: Any) -> Any:
    if isinstance(value, Mapping):
        return ",".join(f"{name}={given}" for name, given in value.items())
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return value if value is None or isinstance(value, bool) else str(value)


# --- The three functions


PROGRESS_EVERY_S = 10.0


def load(
    study: str | Path,
    *,
    store: str | Path = "runs",
    state_dir: str | Path | None = None,
    profile: str | None = None,
    corpus: str | Path | None = None,
    rows: Names = None,
    seeds: int | None = None,
    set: Settings = None,  # noqa: A002 - the command's --set
    significance: str = "auto",
    provisional: bool = False,
    **choices: Any,
) -> LoadedTable:
    """The table of a study, or of a bundle (.tar.gz, .zip), from what the store holds now. Trains nothing.

    choices: columns, hide, plain, paper, digits, units, caption, notes … as in `ablations report` (docs/printing.md).
    """
    how = printing(choices)
    chosen = choose_table(str(study), selectors(store, state_dir, profile, corpus, rows, seeds, set), _say)
    return LoadedTable(_at_present(chosen), significance, provisional, how)


def plan(
    study: str | Path,
    *,
    store: str | Path = "runs",
    state_dir: str | Path | None = None,
    profile: str | None = None,
    corpus: str | Path | None = None,
    rows: Names = None,
    seeds: int | None = None,
    set: Settings = None,  # noqa: A002 - the command's --set
    yes: bool = False,
) -> PlannedTable:
    """The runs of a table, with their settings, parameters, cost and state. Trains nothing."""
    chosen = choose(str(study), selectors(store, state_dir, profile, corpus, rows, seeds, set), many=yes)
    planned = chosen.plan
    todo = wanted(planned, "keep")
    found = obstacles(chosen, todo)
    if any(not obstacle.needs_corpus for obstacle in found):
        raise UserError(paragraphs(found, todo))
    notes = (*planned.notes, *([f"ablations.run would refuse this: {paragraphs(found, todo)}"] if found else ()))
    return PlannedTable(planned, notes)


def run(
    study: str | Path,
    *,
    store: str | Path = "runs",
    state_dir: str | Path | None = None,
    profile: str | None = None,
    corpus: str | Path | None = None,
    rows: Names = None,
    seeds: int | None = None,
    set: Settings = None,  # noqa: A002 - the command's --set
    devices: str = "auto",
    devices_per_run: int | str = 1,
    priority: int = 0,
    user: str | None = None,
    stale: str = "keep",
    yes: bool = False,
    hang_after: float = HANG_S / 60,
    notify: str | None = None,
    sinks: Iterable[str] = (),
    engine: str = "local",
    engine_set: Iterable[str] = (),
    address: str | None = None,
    workers: int | None = None,
    setup: Iterable[str] = (),
    max_hours: float | None = None,
    progress: bool = True,
) -> LoadedTable:
    """Train and evaluate the missing runs of a table, and return the table.

    Raises UserError if a run failed or was not started, with the reasons; what finished is kept, and `ablations.load`
    returns it.
    Interrupt once (Ctrl-C, or the notebook's stop button): children save a checkpoint first, and the same call
    continues there.
    progress: write a line to standard error every ten seconds.
    """
    chosen = choose(str(study), selectors(store, state_dir, profile, corpus, rows, seeds, set), many=yes)
    wide = device_count(str(devices_per_run))
    chosen = replace(chosen, devices_per_run=wide, priority=priority, user=user_name(user))
    say: Callable[[str], None] = _say if progress else _ignore
    working = options_for(
        chosen,
        devices,
        engine,
        engine_settings(list(engine_set), address),
        hang_after * 60,
        notify,
        list(sinks),
        workers,
        list(setup),
        stale=stale,
        max_hours=max_hours,
        progress=_ignore,
        say=say,
    )

    def work(_plan: Plan, _runs: list[PlannedRun]) -> Summary:
        return _work(chosen.store, working, say)

    summary = Training(chosen, stale, work, _ignore, say).run()
    if summary.interrupted:
        raise KeyboardInterrupt("stopped; the same call continues from the last checkpoints")
    table = LoadedTable(_at_present(chosen), "auto", False, BY_STUDY)
    if summary.failed or summary.left:
        raise UserError(" ".join(filter(None, [_failed(table, chosen, summary), _left(chosen, summary)])))
    return table


def _at_present(chosen: SelectedTable) -> SelectedTable:
    """The selection with its plan as it is now, so that all parts of a table are of one moment."""
    planned: Plan = chosen.plan
    return replace(chosen, replan=lambda: planned)


def _work(store: Store, working: WorkOptions, say: Callable[[str], None]) -> Summary:
    shown_at = time.monotonic()

    def show(view: View) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= PROGRESS_EVERY_S:
            shown_at = time.monotonic()
            line = words.summary(words.counted(view.counts), view.preparing, view.left_s)
            say("; ".join([line, *words.lines(view)]))

    summary = working.start(store, "empty", show)
    for reason in held(store):
        say(f"not run, {reason}")
    return summary


def _failed(table: LoadedTable, chosen: Selected, summary: Summary) -> str:
    if not summary.failed:
        return ""
    found = failures(table.as_built, chosen.store)[:3]
    reasons = [f"{one.row} (seed {one.seed}): {(one.message.strip().splitlines() or ['ended'])[0]}" for one in found]
    logs = [chosen.store.attempt_folder(one.run_id, one.attempt) / "log.txt" for one in found if one.attempt]
    return (
        f"{number(summary.failed, 'run')} failed. {'; '.join(reasons)}. Logs: {', '.join(map(str, logs)) or 'none'}. "
        "The others are kept: ablations.load returns the table with gaps, and the same call of ablations.run tries "
        "the failed runs again."
    )


def _left(chosen: Selected, summary: Summary) -> str:
    """Runs that were not started: `ablations drain`, or they are held."""
    if not summary.left:
        return ""
    why = "; ".join(held(chosen.store)) or "another process asked for no more runs to start (`ablations drain`)"
    were = "was" if summary.left == 1 else "were"
    return f"{number(summary.left, 'run')} {were} not started: {why}. The same call of ablations.run continues."


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _ignore(*_: Any) -> None:
    pass
