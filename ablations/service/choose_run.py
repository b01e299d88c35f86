"""Find the runs that a command line names: one trained run, or runs of the queue."""

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from ablations.planning.resolve import resolve
from ablations.service.selected import Selectors, choose, task_of_study
from ablations.study.selectors import Selection, only_row
from ablations.study.study import Study, load_study
from experiments.config.evaluation import EvaluationConfig
from experiments.config.network_change import recorded_settings
from experiments.config.run_config import RunConfig
from experiments.device_spec import DeviceSpec
from experiments.errors import UserError
from experiments.identity import seed_in_words
from experiments.jobs.attempts.liveness import observed
from experiments.jobs.devices.slots import parse_slots
from experiments.jobs.queue.job import JobStatus, State
from experiments.jobs.queue.queue import Queue
from experiments.messages import number
from experiments.store.layout import Store
from experiments.store.results import RESULT_FILE, TrainingResult
from experiments.tasks.load import load_task


@dataclass(frozen=True)
class Trained:
    """A run whose training has finished."""

    run_id: str
    config: RunConfig
    attempt: Path  # the attempt's folder, with the weights
    result: TrainingResult


@dataclass(frozen=True, kw_only=True)
class Named:
    """A trained run as named on a command line: by `run`, or by a study with row and seed."""

    run: str | None = None
    study: str | None = None
    row: str | None = None
    seed: int | None = None


def study_first(
    named: Named, words: Sequence[str], others: Sequence[str], without: bool = False
) -> tuple[Named, list[str]]:
    """Take STUDY from a command's arguments, unless --run or another option names the model.

    without: whether another option names the model. others: names of the arguments that may follow. Returns the named
    run and the remaining arguments. Raises UserError if there are too many arguments.
    """
    left = list(words)
    if not (without or named.run) and left:
        named = replace(named, study=left.pop(0))
    if len(left) > len(others):
        there = " ".join(others) or "no more arguments"
        raise UserError(
            f"{' '.join(left)}: after STUDY or --run, this command takes {there}. Put text in quotation marks."
        )
    return named, left


def find_trained(named: Named, selectors: Selectors, does: Sequence[str] = ("translate",)) -> Trained:
    """Return the named run.

    does: accepted values of `Use.does` (experiments/tasks/base.py). Raises UserError if `named` selects no run or
    several runs. Also raises UserError if the run is not trained, is an ensemble, or has a task with another value of
    `Use.does`.
    """
    if (named.run is None) == (named.study is None):
        raise UserError("No model was named. Name it with STUDY, --row KEY and --seed N, or with --run RUN_ID.")
    store = selectors.open()
    run_id, own = (_by_id(store, named.run), None) if named.run is not None else _by_row(store, named, selectors)
    result, attempt = store.result(run_id), store.weights_folder(run_id)
    if result is None or attempt is None:
        raise UserError(f"The run {run_id} is not trained in {store.root}. Train it with `ablations run`.")
    own_function = ":" in result.task  # the task is a user's function, so no network of this program exists
    use = None if own_function else load_task(result.task).use
    can = use.does if use else ""
    if can not in does:
        instead = " Use `ablations generate`." if can == "continue text" else ""
        raise UserError(
            f"The run {run_id} belongs to the task {result.task}, which does not {' or '.join(does)}.{instead}"
        )
    if result.ensemble:
        members = ", ".join(f"--run {member.run_id}" for member in result.ensemble)
        raise UserError(f"The run {run_id} is an ensemble, which has no weights. Name a member: {members}.")
    config = _recorded_config(run_id, result)
    if own is not None:  # rows may share the run, and the recorded decoding settings may be another row's
        config = config.model_copy(update={"evaluation": own})
    return Trained(run_id, config, attempt, result)


def _recorded_config(run_id: str, result: TrainingResult) -> RunConfig:
    """Return the recorded settings of a run, without evaluation settings that this version does not know.

    Raises UserError if this version does not know a recorded setting of the training.
    """
    kind, recorded = load_task(result.task).config_type, result.config
    try:
        config = kind.from_mapping(recorded)
    except ValidationError as error:
        unknown = {found["loc"][1] for found in error.errors() if found["loc"][:1] == ("evaluation",)}
        evaluation = {name: value for name, value in recorded.get("evaluation", {}).items() if name not in unknown}
        config = recorded_settings(kind, {**recorded, "evaluation": evaluation}, f"The run {run_id}")
    assert isinstance(config, RunConfig)
    return config


def _by_id(store: Store, run: str) -> str:
    known = sorted(path.parent.name for path in store.runs.glob(f"*/{RESULT_FILE}"))
    fitting = [run_id for run_id in known if run_id.startswith(run)]
    if len(fitting) != 1:
        none = f"no run begins with it; {number(len(known), 'trained run')}"
        found = f"{len(fitting)} runs begin with it" if fitting else none
        raise UserError(f"--run {run}: {found} in {store.root}: {', '.join((fitting or known)[:8]) or 'none'}.")
    return fitting[0]


def _by_row(store: Store, named: Named, selectors: Selectors) -> tuple[str, EvaluationConfig | None]:
    """Return the run_id and the row's decoding settings; None instead of settings if the recorded settings apply."""
    name, seed, profile = str(named.study), named.seed, selectors.profile
    study = load_study(name)
    wanted = named.row or (study.base_row or study.variations[0]).key
    if selectors.corpus is None and not selectors.sets:
        known = _recorded(store, study.name, wanted, seed, profile)
        if len(known) == 1:
            return known[0].run_id, _own_decoding(study, wanted, known[0])
    # The queue lists no run of the row, or several (with other profiles or corpora). Planning the study selects one,
    # but must read the corpus.
    chosen = choose(name, replace(selectors, rows=only_row(study, wanted)))
    runs = [run for run in chosen.plan.runs if run.row == wanted and seed in (None, run.seed)]
    if not runs:
        raise UserError(f"The study {study.name} has no row {wanted!r} with seed {seed}; see `ablations plan`.")
    config = runs[0].config
    return runs[0].run_id, config.evaluation if isinstance(config, RunConfig) else None


def _own_decoding(study: Study, row: str, run: JobStatus) -> EvaluationConfig | None:
    """Return a row's decoding settings for a run that several rows share.

    Return None if only one row has the run, because the recorded settings are then those of this row.
    """
    profiles = [m.profile for m in run.members if m.study == study.name and m.row == row]
    if len({m.row for m in run.members}) == 1 or not profiles:
        return None
    selection = Selection(profile=profiles[0], rows=(only_row(study, row),))
    config = resolve(study, selection, task_of_study(study))[0].config
    return config.evaluation if isinstance(config, RunConfig) else None


def _recorded(store: Store, study: str, row: str, seed: int | None, profile: str | None) -> list[JobStatus]:
    """Return the trained runs that the queue lists for a row. The training data are not read.

    seed: None selects the lowest seed that the queue has for the row.
    """
    named = [
        queued
        for queued in all_rows(store)
        if any(m.study == study and m.row == row and profile in (None, m.profile) for m in queued.members)
    ]
    first = min((queued.seed for queued in named), default=None)
    return [q for q in named if q.seed == (first if seed is None else seed) and store.result(q.run_id)]


def device_spec(devices: str) -> DeviceSpec:
    """Return the first device of --devices if it is a GPU. Otherwise, return the CPU with the threads of all slots.

    For a GPU, set CUDA_VISIBLE_DEVICES. Raises UserError for invalid devices (see `parse_slots`).
    """
    slots = parse_slots(devices)
    if slots[0].kind == "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = slots[0].device or ""
        return DeviceSpec("cuda", slots[0].threads, slots[0].memory_gb)
    return DeviceSpec("cpu", sum(slot.threads for slot in slots))


HOW = (
    "Write a row (A-h16), the beginning of rows (A-h), a row with its seed (A-h16:2), a study (table3, or its file), "
    "the beginning of a run_id, or `all`."
)
NOT_TRAINING = "nothing is training"  # beginning of the message for a run that waits while no command trains
SHORTEST = 4  # minimum number of digits of a run_id that select a run


def chosen(store: Store, names: Sequence[str], states: Collection[State] = tuple(State)) -> list[JobStatus]:
    """Return the runs of the queue that `names` select and whose state is in `states`.

    Raises UserError for a name that selects no run.
    """
    rows = all_rows(store)
    if not rows:
        held = "It has results (see `ablations tables`) but no queue. " if store.run_ids() else ""
        raise UserError(f"Nothing is queued in {store.root}. {held}Name another store with --store.")
    found: dict[str, JobStatus] = {}
    for given in names:
        name = study_name(given)
        meant = [row for row in rows if _means(name, row)]
        meant = meant or [row for row in rows if name and any(member.row.startswith(name) for member in row.members)]
        if not meant:
            known = ", ".join(sorted({member.row for row in rows for member in row.members})[:30])
            raise UserError(f"{given!r} selects no run in {store.root}. {HOW} Rows there: {known}.")
        found |= {row.run_id: row for row in meant if row.state in states}
    return list(found.values())


def of_study(store: Store, words: Sequence[str]) -> list[JobStatus]:
    """Return the runs of the queue that the arguments `RUN` or `STUDY RUN` select.

    Raises UserError for other arguments, and if the arguments select no run.
    """
    if len(words) > 2:
        raise UserError(f"{' '.join(words)}: write RUN, such as A-h16:2, or STUDY RUN.")
    rows = chosen(store, words[-1:])
    if len(words) == 1:
        return rows
    study = study_name(words[0])
    found = [row for row in rows if any(member.study == study for member in row.members)]
    if not found:
        studies = sorted({member.study for row in rows for member in row.members})
        raise UserError(f"{words[-1]!r} selects no run of the study {study}, but runs of {', '.join(studies)}.")
    return found


def study_name(given: str) -> str:
    """Return the name of the study in a study file. Return other text unchanged.

    Raises UserError for a file with mistakes.
    """
    return load_study(given, many=True).name if given.endswith(".toml") and Path(given).is_file() else given


def all_rows(store: Store) -> list[JobStatus]:
    """Return all runs of the queue; an empty list if there is no queue."""
    with Queue(store.queue_db, create=False) as queue:
        return observed(store, queue, queue.status())


def label(row: JobStatus) -> str:
    """Return a text such as "table3 A-h16 seed 2 (1f2e…)", with every study and row that the run belongs to.

    The text for an ensemble is, for example, "averaging ensemble3 ensemble (…)".
    """
    names = ", ".join(sorted({f"{member.study} {member.row}" for member in row.members})) or "run"
    return f"{names} {seed_in_words(row.seed)} ({row.run_id})"


def labels(rows: Iterable[JobStatus]) -> str:
    """Return one line per run, with its state and label."""
    return "".join(f"  {row.state.value:<9} {label(row)}\n" for row in rows)


def _means(name: str, row: JobStatus) -> bool:
    if name == "all" or (len(name) >= SHORTEST and row.run_id.startswith(name)):
        return True
    key, colon, seed = name.rpartition(":")
    if colon and seed.isdigit():
        return row.seed == int(seed) and any(key == member.row for member in row.members)
    return any(name in (member.row, member.study) for member in row.members)
