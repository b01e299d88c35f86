"""Tune one row: choose the settings of its next trial with Optuna. No other module imports optuna.

The trials of a row are stored in one JSON file of the store, `tuning/<digest>.json`. The file is written atomically
before a trial starts and after it ends. To choose a trial, an Optuna study in memory is filled from the file, with a
sampler whose seed depends on the trial's number. The chosen settings are therefore a function of the file. A killed
process loses no trial, a restart does not change the next trial, and printing a table does not need Optuna.

The storages of Optuna are not used. With SQLite, several processes may get the same waiting trial. With Optuna's
journal, an interrupted write makes the file unreadable.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from experiments.errors import UserError
from experiments.identity import digest
from experiments.store.checksummed import read_json, write_json
from experiments.store.layout import Store

RUNNING, COMPLETE, FAILED = "running", "complete", "failed"
SAMPLERS = ("tpe", "random")
STARTUP = 4  # number of random trials before the sampler TPE uses its model; small, because searches have few trials


def trials_of(study: str) -> str:
    """Return the name under which the trials of a study's rows are queued and recorded."""
    return f"{study}-tuning"


@dataclass(frozen=True)
class Range:
    """The values that a setting may take: from low to high, or one of `choices`.

    If low and high are integers, the values are integers.
    """

    low: float = 0
    high: float = 0
    log: bool = False
    step: float | None = None
    choices: tuple[Any, ...] = ()

    def __str__(self) -> str:
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        how = " (log)" if self.log else f" (step {self.step:g})" if self.step else ""
        return f"{self.low:g}–{self.high:g}{how}"


@dataclass(frozen=True)
class Space:
    """The search space, the metric and the sampler of a search. Rows with equal spaces are tuned in the same way."""

    ranges: Mapping[str, Range]
    metric: str
    set: str
    minimize: bool
    sampler: str = "tpe"
    seed: int = 0


@dataclass(frozen=True)
class Trial:
    """One trial: its settings, its state, its run, and its value when it is known."""

    number: int  # the first trial has the number 0
    params: Mapping[str, Any]
    state: str = RUNNING
    value: float | None = None
    run_id: str = ""


class Search:
    """The trials of one row. The name of their file is a digest of `space` and `about`.

    about: the row's other settings, its trainer and its inputs.
    """

    def __init__(self, store: Store, space: Space, about: Any) -> None:
        key = digest({"space": asdict(space), "about": about})
        self._path = store.root / "tuning" / f"{key}.json"
        self.space, self._key = space, key
        known = read_json(self._path) or {"trials": []}
        self.trials = [Trial(**trial) for trial in known["trials"]]

    @property
    def running(self) -> list[Trial]:
        """The trials that have not ended."""
        return [trial for trial in self.trials if trial.state == RUNNING]

    def counted(self, state: str) -> int:
        """Return the number of trials in a state."""
        return sum(trial.state == state for trial in self.trials)

    @property
    def best(self) -> Trial | None:
        """The complete trial with the best value, or the first of several equal ones; None if no trial is complete."""
        done = [trial for trial in self.trials if trial.state == COMPLETE and trial.value is not None]
        sign = 1 if self.space.minimize else -1
        return min(done, key=lambda trial: (sign * (trial.value or 0.0), trial.number), default=None)

    def ask(self) -> Trial:
        """Choose the next trial, store it in the file, and return it."""
        number = len(self.trials)
        study = self._study(number)
        asked = study.ask(fixed_distributions=self._distributions())
        trial = Trial(number, dict(asked.params))
        self._keep([*self.trials, trial])
        return trial

    def started(self, number: int, run_id: str) -> None:
        """Record the run of a trial."""
        self._change(replace(self.trials[number], run_id=run_id))

    def tell(self, number: int, state: str, value: float | None = None) -> None:
        """Record the end of a trial. A trial that has ended already is not changed."""
        trial = self.trials[number]
        if trial.state == RUNNING:
            self._change(replace(trial, state=state, value=value))

    def _study(self, number: int) -> Any:
        """Return an Optuna study that contains the present trials."""
        optuna, space = _optuna(), self.space
        with warnings.catch_warnings(action="ignore"):  # Optuna warns about experimental options
            study = optuna.create_study(
                study_name=self._key,
                direction="minimize" if space.minimize else "maximize",
                sampler=_sampler(space.sampler, space.seed * 1_000_003 + number),
            )
            study.add_trials(map(self._frozen, self.trials))
        return study

    def _frozen(self, trial: Trial) -> Any:
        optuna = _optuna()
        states = {RUNNING: "RUNNING", COMPLETE: "COMPLETE", FAILED: "FAIL"}
        return optuna.trial.create_trial(
            state=optuna.trial.TrialState[states[trial.state]],
            params=dict(trial.params),
            distributions=self._distributions(),
            value=trial.value,
        )

    def _distributions(self) -> dict[str, Any]:
        return {name: _distribution(given) for name, given in self.space.ranges.items()}

    def _change(self, trial: Trial) -> None:
        self._keep([trial if other.number == trial.number else other for other in self.trials])

    def _keep(self, trials: Sequence[Trial]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._path, {"space": asdict(self.space), "trials": [asdict(trial) for trial in trials]})
        self.trials = list(trials)


def check_sampler(name: str) -> None:
    """Raise UserError for an unknown sampler."""
    if name not in SAMPLERS:
        raise UserError(f'[tune] sampler = "{name}": write one of {", ".join(SAMPLERS)}.')


def _optuna() -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _distribution(given: Range) -> Any:
    made = _optuna().distributions
    if given.choices:
        return made.CategoricalDistribution(given.choices)
    if isinstance(given.low, int) and isinstance(given.high, int):
        return made.IntDistribution(given.low, given.high, log=given.log, step=int(given.step or 1))
    return made.FloatDistribution(given.low, given.high, log=given.log, step=given.step)


def _sampler(name: str, seed: int) -> Any:
    samplers = _optuna().samplers
    if name == "tpe":
        # constant_liar: count running trials as bad, so that parallel trials differ
        return samplers.TPESampler(seed=seed % 2**32, constant_liar=True, n_startup_trials=STARTUP)
    return samplers.RandomSampler(seed=seed % 2**32)
