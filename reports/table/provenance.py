"""Notes on the origin of a table's numbers: data, training, settings, evaluated sets, seeds, devices, code."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, Literal

from experiments.dotted import flatten
from experiments.identity import without_runs
from experiments.messages import number, some_names
from experiments.store.results import Data, EvaluationResult, Revision
from reports.results.run_outcomes import Outcome, Scored
from reports.results.table import Row, Table
from reports.spec.table_spec import Note
from reports.table import cost
from reports.table.settings import between, show, unexpected


def training(table: Table) -> Iterator[Note]:
    """Yield notes on data, training and settings of the row that `typical` chooses, usually base."""
    outcome = typical(table)
    values = dict(flatten(outcome.run.config))
    settings = {name: value for name, value in values.items() if name not in outcome.run.config.unread(values)}
    facts = outcome.record.data if outcome.record else Data()
    if corpus_name(outcome):
        parts = [*_corpus(facts), _vocabulary(facts, settings), *_unknown(facts)]
        yield _sentence(f"Corpus: {corpus_name(outcome)}, ", parts)
        yield from _other_units(table, outcome)
    elif inputs := without_runs(outcome.run.spec.inputs):
        yield Note(f"Data: {', '.join(f'{name} ({digest[:8]})' for name, digest in inputs.items())}.")
    side = "" if outcome.setting("data.window") else " and side"
    parts = [
        _counted(settings, "training.train_steps", "step"),
        _counted(settings, "training.tokens_per_batch", "token", f" per batch{side} at most"),
        _counted(settings, "training.warmup_steps", "step", " of warm-up"),
    ]
    if any(parts):
        yield _sentence(f"Training of {outcome.run.row}: ", parts)
    yield from _settings(table, outcome)


def typical(table: Table) -> Outcome:
    """Return a trained run of base, or the first run if none is trained.

    If base is not in the table, the first row replaces base. If base was imported, the first row that was not imported
    replaces base.
    """
    base = table.base_row or table.rows[0]
    ours = next((row for row in table.rows if not row.imported), base)
    outcomes = (ours if base.imported else base).outcomes
    return next((o for o in outcomes if o.record is not None), outcomes[0])


def corpus_name(outcome: Outcome) -> str:
    """Return the name of the corpus and its digest, "multi30k (1f2e3d4c)"; "" for a task without a corpus."""
    path = str(outcome.setting("data.algorithm") or outcome.setting("data.corpus") or "")
    corpus = path.rstrip("/").rpartition("/")[2]
    digest = " ".join(value[:8] for value in without_runs(outcome.run.spec.inputs).values())
    return f"{corpus} ({digest})" if corpus and digest else corpus


def _corpus(facts: Data) -> Iterator[str]:
    if facts.corpus.source and facts.corpus.target:
        yield f"{facts.corpus.source}–{facts.corpus.target}"
    yield number(facts.train.kept, "training pair") if facts.train.kept is not None else ""
    yield f"{number(facts.train.bytes, 'byte')} of training text" if facts.train.bytes is not None else ""
    yield _left_out(facts)


def _left_out(facts: Data) -> str:
    dropped = facts.train.dropped_empty + facts.train.dropped_long
    return f"{dropped:,} left out (empty or too long)" if dropped else ""


def _other_units(table: Table, base: Outcome) -> Iterator[Note]:
    """Yield notes on the data of rows whose units (characters, words) differ from the units of base."""
    for row in table.rows:
        outcome = next((o for o in row.outcomes if o.record is not None), None)
        units = outcome.setting("data.units") if outcome else None
        if outcome and outcome.record and units not in (None, base.setting("data.units")):
            facts = outcome.record.data
            parts = [_vocabulary(facts, {}), _left_out(facts), *_unknown(facts)]
            yield _sentence(f"Units of {row.key}: {units}, ", parts)


def _vocabulary(facts: Data, settings: Mapping[str, Any]) -> str:
    """Return the size of the trained vocabulary. If it was not recorded, return the requested size."""
    source, target = facts.vocab_size.source, facts.vocab_size.target
    if source is not None and target is not None and source != target:
        names = (facts.corpus.source or "source", facts.corpus.target or "target")
        return " and ".join(f"{size:,} pieces for {name}" for size, name in zip((source, target), names, strict=True))
    if (size := target if source is None else source) is not None:
        return f"{number(size, 'piece')} of vocabulary"
    return _counted(settings, "data.vocab_size", "piece", " of vocabulary")


def _unknown(facts: Data) -> Iterator[str]:
    source, target = facts.train.source.unknown_rate, facts.train.target.unknown_rate
    if source is not None and target is not None:
        yield f"unknown pieces in train: source {source:.2%}, target {target:.2%}"


def _settings(table: Table, outcome: Outcome) -> Iterator[Note]:
    """Yield notes on settings that no column shows: settings of base, and settings that a row's label replaces."""
    row = table.base_row or table.rows[0]
    said = [*_IN_TRAINING, *(name for name in table.settings if name in row.settings)]
    command = outcome.run.spec.trainer.command
    others = [*([f"command {command}"] if command else []), *unexpected(outcome.run.config, table.rows, said)]
    if others and outcome.run.config.setting_roles.frozen_defaults:
        yield Note(f"Settings of {row.key} (defaults in parentheses): {', '.join(others)}.")
    elif others:
        yield Note(f"Settings of {row.key}: {', '.join(others)}.")
    hidden = [(row, words) for row in table.rows if (words := _without_column(row, table))]
    if behind := [f"{row.key}: {words}" for row, words in hidden if row.label]:
        yield Note(f"Row labels: {'; '.join(behind)}.")
    if others := [f"{row.key}: {words}" for row, words in hidden if not row.label]:
        yield Note(f"Settings without a column: {'; '.join(others)}.")
    for other in table.rows:
        if other is not row and other.key in table.bases.values():
            differing = _in_words(between(other, row))
            place = "column" if table.pivot else "group"
            yield Note(f"{other.key}, base of its {place}, differs from {row.key} in: {differing}.")


_IN_TRAINING = ("training.train_steps", "training.tokens_per_batch", "training.warmup_steps")


def _without_column(row: Row, table: Table) -> str:
    hidden = {name: value for name, value in row.settings.items() if name not in table.settings}
    return _in_words(hidden) if row is not table.base_row and row.key not in table.bases.values() else ""


def _in_words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {show(name, value)}" for name, value in settings.items())


def _counted(values: Mapping[str, Any], name: str, noun: str, rest: str = "") -> str:
    value = values.get(name)
    return number(value, noun) + rest if isinstance(value, int) else ""


def _sentence(opening: str, parts: Iterable[str]) -> Note:
    found = ", ".join(part for part in parts if part)
    return Note(f"{opening if found else opening.rstrip(', ')}{found}.")


def decoding(table: Table) -> Iterator[Note]:
    """Yield notes on base's evaluated sets and decoding settings, and on rows evaluated on other sentences.

    `typical` chooses the row if base cannot be used.
    """
    base = typical(table)
    if base.run.spec.imported:
        return
    sets: dict[str, list[str]] = {}
    for name, scored in base.scored.items():
        chosen = sorted(flatten(scored.spec.settings))
        settings = ", ".join(f"{key} {'+'.join(map(str, v)) if isinstance(v, list) else v}" for key, v in chosen)
        sets.setdefault(settings, []).append(_size(name, scored))
    differ = any(_settings_of(row.outcomes[0]) != _settings_of(base) for row in table.rows)
    opening = f"Evaluated ({base.run.row}): " if differ else "Evaluated: "
    for settings, names in sets.items():
        yield _sentence(opening, [f"{', '.join(names)}; {settings}" if settings else ", ".join(names)])
    others: dict[str, list[str]] = {}
    inputs = {name: scored.spec.inputs for name, scored in base.scored.items()}
    for row in table.rows:
        outcome = next((o for o in row.outcomes if o.record is not None), row.outcomes[0])
        if row.imported:
            continue
        theirs = {name: scored for name, scored in outcome.scored.items() if scored.spec.inputs != inputs.get(name)}
        if theirs:
            others.setdefault(", ".join(_size(name, scored) for name, scored in theirs.items()), []).append(row.key)
    for text, rows in others.items():
        yield Note(f"{', '.join(rows)}: evaluated on other sentences than {base.run.row}: {text}.")


def _settings_of(outcome: Outcome) -> dict[str, Any]:
    return {name: dict(flatten(scored.spec.settings)) for name, scored in outcome.scored.items()}


def _size(name: str, scored: Scored) -> str:
    """Return the name and size of a set, and how many of its pairs or lines are also in the training set."""
    facts = scored.record or EvaluationResult()
    known = facts.set_facts
    seen = known.seen_in_train
    what = "sentence" if known.bytes is None else "line"
    parts = [number(facts.sentences, what)] if facts.sentences is not None else []
    parts += [number(known.bytes, "byte")] if known.bytes is not None else []
    parts += [f"{seen.pair:,} of them also in train"] if seen.pair is not None else []
    parts += [f"{seen.lines:,} of its {seen.of:,} long lines also in train"] if seen.lines and seen.of else []
    return f"{name} ({', '.join(parts)})" if parts else name


def seeds(table: Table) -> Iterator[Note]:
    """Yield the note on seeds: their number, the seeds themselves if not 1, 2, …, and the rows that differ."""
    groups: dict[str, list[str]] = {}
    for row in table.rows:
        if not row.ensemble:
            found = [o.run.seed for o in row.outcomes]
            which = "" if sorted(found) == list(range(1, len(found) + 1)) else f" ({_ranges(found)})"
            groups.setdefault(f"{number(len(found), 'seed')}{which}", []).append(row.key)
    if groups:
        usual, *others = sorted(groups, key=lambda text: -len(groups[text]))
        exceptions = "".join(f"; {', '.join(groups[other])}: {other}" for other in others)
        yield Note(f"n = {usual}{exceptions}.", "sign" if others else "setup")


def spread(table: Table) -> Iterator[Note]:
    """Yield the note that explains ± in a cell."""
    counts = {m.requested for row in table.rows for m in row.measures.values() if m.sd is not None}
    if counts:
        seeds = f"{counts.pop()} seeds" if len(counts) == 1 else "several seeds"
        yield Note(f"Values over {seeds} are mean ± sample standard deviation.", "sign")


def _ranges(found: list[int]) -> str:
    """Return numbers as ranges: [1, 2, 3, 7] gives "1–3, 7"."""
    runs: list[list[int]] = []
    for seed in sorted(found):
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


TOOL = "transformer-ablations"


def made_with(table: Table) -> Iterator[Note]:
    """Yield notes on the devices, packages and code that trained the rows, without repetition."""
    done = [o for o in (*table.outcomes, *table.members) if o.record is not None and not o.run.spec.imported]
    trained = [o for o in done if not o.run.spec.members]  # an ensemble is not trained
    for opening, of, made in (("Trained on", device, trained), ("Software:", software, done)):
        found = [text for text in dict.fromkeys(of(outcome) for outcome in made) if text]
        if found:
            yield Note(f"{opening} {'; '.join(found)}.")
    changed = {row.key for row in table.rows if row.spec.diff}
    places, program = code(trained, changed)
    if places:
        kind: Literal["sign", "setup"] = "sign" if changed or len(places) > 1 else "setup"
        yield Note(f"Code: {'; '.join(filter(None, [*places, program]))}.", kind)


def device(outcome: Outcome) -> str:
    """Return device and precision: "8 × NVIDIA H100, bf16", "1/3 of NVIDIA A100, fp32", "AMD EPYC (1 thread), fp32"."""
    name, share = cost.device(outcome), cost.device_share(outcome)
    count = f"{cost.devices(outcome)} × " if cost.devices(outcome) > 1 else ""
    of = f"{Fraction(share).limit_denominator(1000)} of " if share < 1 else ""
    return _joined(name and f"{count}{of}{name}", outcome.record.precision if outcome.record else "")


def software(outcome: Outcome) -> str:
    """Return the versions of packages in training and evaluation. A package with several versions lists all of them."""
    found: dict[str, dict[str, None]] = {}
    for facts in (outcome.record, *(scored.record for scored in outcome.scored.values())):
        for name, version in facts.versions.items() if facts else ():
            found.setdefault(name, {})[version] = None
    return ", ".join(
        f"{name} {' and '.join(found[name])}" for name in sorted(found, key=lambda name: (name != "python", name))
    )


def code(trained: Iterable[Outcome], changed: Collection[str] = ()) -> tuple[list[str], str]:
    """Return the recorded revisions of the code that trained the rows, and the program that ran a user's trainer.

    Each revision is listed once. If there are several revisions, each is listed with the rows that it trained. The
    second text is "" for built-in tasks. changed: keys of the rows that change code.
    """
    places, programs = dict[str, dict[str, None]](), dict[str, None]()
    digests = dict[str, set[str]]()
    for outcome in trained:
        facts = outcome.record
        if facts is None:
            continue
        program = f"{TOOL} {facts.tool.version or ''}".rstrip()
        if outcome.run.config.setting_roles.frozen_defaults:  # a built-in task: the program's code trained the run
            place = _joined(program, _commit(facts.tool, UNCOMMITTED))
        else:
            why = "the row's change" if outcome.run.row in changed else UNCOMMITTED
            place = _joined(facts.revision.repository, _commit(facts.revision, why)) or "in no repository"
            programs[_joined(program, _commit(facts.tool, UNCOMMITTED, kept=False))] = None
        places.setdefault(place, {})[outcome.run.row] = None
        digests.setdefault(place, set()).update(filter(None, [facts.code_digest]))
    found = []
    for place, rows in places.items():
        digest = f" ({min(digests[place])})" if len(digests[place]) == 1 else ""
        found.append(f"{place}{digest}{f': {some_names(rows)}' if len(places) > 1 else ''}")
    return found, f"run by {' and '.join(programs)}" if programs else ""


def _joined(*texts: str | None) -> str:
    return ", ".join(filter(None, texts))


UNCOMMITTED = "uncommitted changes"


def _commit(revision: Revision, changes: str, *, kept: bool = True) -> str:
    """Return "commit 0123456789 with uncommitted changes (kept beside the run)"; "" if no commit was recorded."""
    if not revision.commit:
        return ""
    changed = f" with {changes}{' (kept beside the run)' if kept else ''}" if revision.dirty else ""
    return f"commit {revision.commit[:10]}{changed}"
