"""How a table's numbers were made, in sentences: data, training, decoding, seeds, hardware, code."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from experiments.config import flatten
from reports.results import Outcome, asked, fact, look_up
from reports.table import Table


def training(table: Table) -> Iterator[str]:
    """The base row's corpus and training; where no base was selected, the first row's."""
    outcome = _typical(table)
    settings = dict(flatten(outcome.run.config))
    facts = look_up(outcome.record, "data") or {}
    parts = [*_corpus(facts), _counted(settings, "data.vocab_size", "pieces of vocabulary"), *_unknown(facts)]
    if corpus_name(outcome):
        yield _sentence(f"Corpus: {corpus_name(outcome)}, ", parts)
    parts = [
        _counted(settings, "training.train_steps", "steps"),
        _counted(settings, "training.tokens_per_batch", "tokens per batch and side at most"),
        _counted(settings, "training.warmup_steps", "steps of warm-up"),
    ]
    if any(parts):
        yield _sentence(f"Training of {outcome.run.row}: ", parts)


def corpus_name(outcome: Outcome) -> str:
    """The corpus as a reader knows it, and the digest of what was read: "multi30k (1f2e3d4c)"; no path."""
    corpus = str(asked(outcome, "data.corpus") or "").rstrip("/")
    digest = " ".join(value[:8] for value in outcome.run.inputs.values())
    return " ".join(part for part in (corpus.rpartition("/")[2], f"({digest})" if digest else "") if part)


def _typical(table: Table) -> Outcome:
    """A run of base that has been trained, where there is one."""
    outcomes = (table.base_row or table.rows[0]).outcomes
    return next((o for o in outcomes if o.record is not None), outcomes[0])


def _corpus(facts: Mapping[str, Any]) -> Iterator[str]:
    languages = [facts[side] for side in _SIDES if isinstance(facts.get(side), str)]
    yield "–".join(languages)
    train = facts.get("train") or {}
    yield _counted(train, "kept", "training pairs")
    dropped = [train.get(name) or 0 for name in ("dropped_empty", "dropped_long")]
    yield f"{sum(dropped):,} left out (empty or too long)" if any(dropped) else ""


def _unknown(facts: Mapping[str, Any]) -> Iterator[str]:
    rates = [look_up(facts, "train", side, "unknown_rate") for side in _SIDES]
    if all(isinstance(rate, float) for rate in rates):
        yield "unknown pieces in train: source {:.2%}, target {:.2%}".format(*rates)


_SIDES = ("source", "target")


def _counted(values: Mapping[str, Any], name: str, words: str) -> str:
    value = values.get(name)
    return f"{value:,} {words}" if isinstance(value, int) else ""


def _sentence(opening: str, parts: Iterable[str]) -> str:
    return f"{opening}{', '.join(part for part in parts if part)}.".replace(", .", ".")


def decoding(table: Table) -> Iterator[str]:
    """The sets that were scored and how they were decoded, from what the plan asks of the base row."""
    sets: dict[str, list[str]] = {}
    for name, scored in _typical(table).scored.items():
        settings = ", ".join(f"{key} {value}" for key, value in sorted(flatten(scored.spec.settings)))
        facts = ", ".join(_size(scored.record))
        sets.setdefault(settings, []).append(f"{name} ({facts})" if facts else name)
    for settings, names in sets.items():
        yield f"Evaluated: {', '.join(names)}; {settings}." if settings else f"Evaluated: {', '.join(names)}."


def _size(record: Mapping[str, Any] | None) -> Iterator[str]:
    """Sentences, and how many of them the training set holds, exactly."""
    sentences, seen = look_up(record, "sentences"), look_up(record, "corpus", "seen_in_train", "pair")
    if isinstance(sentences, int):
        yield f"{sentences:,} sentences"
    if isinstance(seen, int):
        yield f"{seen:,} of them also in train"


def seeds(table: Table) -> Iterator[str]:
    """Which seeds the rows ask for; a row that asks for others is named."""
    groups: dict[str, list[str]] = {}
    for row in table.rows:
        groups.setdefault(_ranges([o.run.seed for o in row.outcomes]), []).append(row.key)
    usual, *others = sorted(groups, key=lambda text: -len(groups[text]))
    exceptions = "".join(f"; {', '.join(groups[other])}: {other}" for other in others)
    several = any(len(row.outcomes) > 1 for row in table.rows)
    spread = " Values are mean ± sample standard deviation over seeds." if several else ""
    yield f"n: how many seeds; they are numbered {usual}{exceptions}.{spread}"


def _ranges(numbers: list[int]) -> str:
    """[1, 2, 3, 7] → "1–3, 7"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def hardware(table: Table) -> Iterator[str]:
    """The devices, arithmetic and code that trained the rows; each kind once, in the rows' order."""
    trained = [o for row in table.rows for o in row.outcomes if o.record is not None]
    for opening, of in (("Trained on ", _device), ("Code: ", _code)):
        found = [text for text in _distinct(trained, of) if text]
        if found:
            yield _sentence(opening, found)


def _distinct(outcomes: Iterable[Outcome], of: Any) -> list[str]:
    return list(dict.fromkeys(of(outcome) for outcome in outcomes))


def _device(outcome: Outcome) -> str:
    names = ("device", "precision", "torch")
    device, precision, torch = (fact(outcome.record, name) for name in names)
    return ", ".join(part for part in (device, precision, torch and f"torch {torch}") if part)


def _code(outcome: Outcome) -> str:
    commit, dirty = fact(outcome.record, "commit"), fact(outcome.record, "dirty")
    digest = fact(outcome.record, "code_digest")
    text = f"commit {commit[:10]}{' with uncommitted changes' if dirty else ''}" if commit else ""
    return " ".join(part for part in (text, f"({digest})" if digest and text else digest) if part)
