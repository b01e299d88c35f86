"""The paper's paragraph on the experimental setup and the reproducibility checklist, from what the runs recorded."""

from collections.abc import Iterable, Iterator
from typing import Any

from experiments.config import flatten
from reports.provenance import corpus_name
from reports.results import Outcome, fact, look_up
from reports.table import Row, Table, missing_cells

HOUR = 3600.0


def paragraph(table: Table) -> str:
    """What a section "Experimental setup" says; sentences of which a number is not recorded are left out."""
    return " ".join(sentence for sentence in _sentences(table) if sentence)


def checklist(table: Table) -> list[tuple[str, str]]:
    """(what reviewers' checklists ask, what the runs say)."""
    outcomes = _trained(table)
    return [
        ("Number of parameters of each model", _parameters(table.rows)),
        ("Computing infrastructure", _distinct(_infrastructure(o) for o in outcomes) or "nothing is trained yet"),
        ("Software", _distinct(_software(o) for o in outcomes) or "not recorded"),
        ("Runtime", _runtime(outcomes)),
        ("Exact number of training runs", _count(table)),
        ("Variance", _variance(table)),
        ("Statistical test", " ".join(table.test_notes) or "none"),
        ("Validation score beside every test score", _dev_scores(table)),
        ("Data", _data(table)),
        ("Evaluation metrics", _metrics(table)),
        ("Hyperparameters", _hyperparameters(table)),
        ("Code", _distinct(_code(o) for o in outcomes) or "not recorded"),
    ]


def as_markdown(table: Table) -> str:
    from reports.render.markdown import escape

    lines = [f"**Experimental setup**\n\n{escape(paragraph(table))}\n\n**Reproducibility checklist**\n"]
    lines += [f"- **{escape(question)}**: {escape(answer)}" for question, answer in checklist(table)]
    return "\n".join(lines) + "\n"


def _sentences(table: Table) -> Iterator[str]:
    first = (table.base_row or table.rows[0]).outcomes
    typical = next((o for o in first if o.record is not None), first[0])
    asked = dict(flatten(typical.run.config))
    seeds = sorted({len(row.outcomes) for row in table.rows})
    times = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    yield f"We train {_number(len(table.rows), 'variation')} of the model, each with {times} random {_seeds(seeds)}."
    yield _model(asked, typical)
    yield _corpus(asked, typical)
    yield _optimiser(asked)
    yield _decoding(typical)
    yield _signatures(table)
    outcomes = _trained(table)
    hours = sum(fact(o.record, "wall_s") or 0 for o in outcomes) / HOUR
    if outcomes:
        where = _distinct(_infrastructure(o) for o in outcomes)
        yield f"All {len(outcomes)} trainings took {_hours(hours)} together on {where}."


def _model(asked: dict[str, Any], typical: Outcome) -> str:
    names = ("model.num_layers", "model.d_model", "model.d_ff", "model.num_heads", "model.d_k", "model.dropout")
    if not all(name in asked for name in names):
        return f"The base model has {typical.run.num_params:,} parameters."
    layers, d_model, d_ff, heads, d_k, dropout = (asked[name] for name in names)
    return (
        f"The base model is a Transformer of {layers} encoder and {layers} decoder layers, d_model {d_model}, "
        f"d_ff {d_ff}, {_number(heads, 'head')} of d_k {d_k}, and dropout {dropout}; it has "
        f"{typical.run.num_params:,} parameters."
    )


def _corpus(asked: dict[str, Any], typical: Outcome) -> str:
    pairs = look_up(typical.record, "data", "train", "kept")
    vocabulary = asked.get("data.vocab_size")
    size = f"{pairs:,} sentence pairs of " if isinstance(pairs, int) else ""
    pieces = f", encoded with a BPE vocabulary of {vocabulary:,} pieces trained on it" if vocabulary else ""
    return f"It is trained on {size}the corpus {corpus_name(typical)}{pieces}."


def _optimiser(asked: dict[str, Any]) -> str:
    training = {name.removeprefix("training."): value for name, value in asked.items() if name.startswith("training.")}
    needed = ("train_steps", "warmup_steps", "tokens_per_batch", "adam_beta1", "adam_beta2", "adam_epsilon")
    if not all(name in training for name in needed):
        return ""
    text = (
        "Training takes {train_steps:,} steps of Adam (β1 {adam_beta1}, β2 {adam_beta2}, ε {adam_epsilon}) with the "
        "inverse-square-root schedule and {warmup_steps:,} steps of warm-up, batches of at most {tokens_per_batch:,} "
        "tokens a side"
    ).format(**training)
    smoothing = training.get("label_smoothing")
    return f"{text}, and label smoothing {smoothing}." if smoothing is not None else f"{text}."


def _decoding(typical: Outcome) -> str:
    for scored in typical.scored.values():
        settings = dict(flatten(scored.spec.settings))
        if "beam_size" in settings and "length_penalty" in settings:
            checkpoint = settings.get("checkpoint", "last")
            weights = "the last checkpoint" if checkpoint == "last" else f"checkpoint choice {checkpoint}"
            beam, alpha = settings["beam_size"], settings["length_penalty"]
            return f"We decode {weights} with beam size {beam} and length penalty {alpha}."
    return ""


def _signatures(table: Table) -> str:
    found = dict.fromkeys(
        f"{column.metric} ({signature})"
        for row in table.rows
        for outcome in row.outcomes
        for column in table.columns
        if column.set in outcome.scored
        and (signature := look_up(outcome.scored[column.set].record, "signature", column.metric))
    )
    return f"Scores are sacrebleu's: {', '.join(found)}." if found else ""


def _trained(table: Table) -> list[Outcome]:
    """Each training once, though it may stand in several rows."""
    found = {o.run.run_id: o for row in table.rows for o in row.outcomes if o.record is not None}
    return list(found.values())


def _parameters(rows: Iterable[Row]) -> str:
    return "; ".join(f"{row.key} {row.num_params:,}" for row in rows)


def _infrastructure(outcome: Outcome) -> str:
    device, precision = fact(outcome.record, "device"), fact(outcome.record, "precision")
    return ", ".join(str(part) for part in (device, precision) if part)


def _software(outcome: Outcome) -> str:
    versions = look_up(outcome.record, "versions") or {}
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))


def _code(outcome: Outcome) -> str:
    commit, dirty = fact(outcome.record, "commit"), fact(outcome.record, "dirty")
    digest = fact(outcome.record, "code_digest")
    changed = " with uncommitted changes (kept beside the run)" if dirty else ""
    return f"commit {commit}{changed}, digest {digest}" if commit else f"digest {digest}"


def _runtime(outcomes: list[Outcome]) -> str:
    seconds = [s for o in outcomes if isinstance(s := fact(o.record, "wall_s"), int | float)]
    if not seconds:
        return "not recorded"
    total, longest = sum(seconds) / HOUR, max(seconds) / HOUR
    mean = _hours(total / len(seconds))
    return f"{_hours(total)} of training in all, {mean} a run on average, {_hours(longest)} at most"


def _hours(hours: float) -> str:
    if hours >= 1:
        return f"{hours:.1f} hours"
    return f"{hours * 60:.1f} minutes" if hours * 60 >= 1 else _number(round(hours * HOUR), "second")


def _count(table: Table) -> str:
    asked, done = sum(len(row.outcomes) for row in table.rows), len(_trained(table))
    gaps = missing_cells(table)
    text = f"{len(table.rows)} rows, {asked} runs in the table, {done} trainings finished"
    return f"{text}; {_number(gaps, 'cell')} without a number" if gaps else text


def _variance(table: Table) -> str:
    several = any(len(row.outcomes) > 1 for row in table.rows)
    return "sample standard deviation over seeds, beside each mean" if several else "none: one seed a row"


def _dev_scores(table: Table) -> str:
    sets = {column.set for column in table.columns}
    if sets <= {"dev"}:
        return "only the development set is scored"
    return "yes" if "dev" in sets else "no: the development set was not scored"


def _data(table: Table) -> str:
    parts = []
    for outcome in _trained(table)[:1]:
        facts = look_up(outcome.record, "data", "train") or {}
        parts.append(
            f"{corpus_name(outcome)}: {facts.get('kept', '?'):,} training pairs" if facts else corpus_name(outcome)
        )
        for name, scored in outcome.scored.items():
            sentences = look_up(scored.record, "sentences")
            parts.append(f"{name} {sentences:,} sentences" if isinstance(sentences, int) else name)
    return ", ".join(parts) or "not recorded"


def _metrics(table: Table) -> str:
    return "; ".join(dict.fromkeys(f"{c.metric} on {c.set}" for c in table.columns))


def _hyperparameters(table: Table) -> str:
    searched = f"tuned row by row: {', '.join(table.tuned)}" if table.tuned else "the study records no search for them"
    return (
        "each row's configuration is in its runs' config.json in full; rows differ from base only in what the table "
        f"shows; {searched}"
    )


def _distinct(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(text for text in texts if text))


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _seeds(counts: list[int]) -> str:
    return "seed" if counts == [1] else "seeds"
