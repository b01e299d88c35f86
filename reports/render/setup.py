"""The paper's paragraph on the experimental setup and the reproducibility checklist, from what the runs recorded."""

from collections.abc import Iterable, Iterator

from ablations.study.messages import number
from experiments.config import flatten
from reports.results.results import Outcome, look_up, object_in, objects_in, real_in, whole_in
from reports.results.table import Row, Table, missing_cells
from reports.table.cost import training_seconds
from reports.table.provenance import code, corpus_name, device, software, typical
from reports.table.settings import show, unexpected

HOUR = 3600.0
# Settings that the paragraph has words for.
_MODEL = ("model.num_layers", "model.d_model", "model.d_ff", "model.num_heads", "model.d_k", "model.d_v")
_STEPS = ("training.train_steps", "training.warmup_steps", "training.tokens_per_batch")
_ADAM = ("training.adam_beta1", "training.adam_beta2", "training.adam_epsilon")
_SAID = (*_MODEL, *_STEPS, *_ADAM, "model.dropout", "training.label_smoothing", "data.vocab_size")


def paragraph(table: Table) -> str:
    """What a section "Experimental setup" says; sentences of which a number is not recorded are left out."""
    return " ".join(sentence for sentence in _sentences(table) if sentence)


def checklist(table: Table) -> list[tuple[str, str]]:
    """(what reviewers' checklists ask, what the runs say)."""
    outcomes = _trained(table)
    return [
        ("Number of parameters of each model", _parameters(table.rows) or "not recorded"),
        ("Computing infrastructure", _distinct(map(device, outcomes)) or "nothing is trained yet"),
        ("Software", _distinct(map(software, outcomes)) or "not recorded"),
        ("Runtime", _runtime(outcomes)),
        ("Exact number of training runs", _count(table)),
        ("Variance", _variance(table)),
        ("Statistical test", " ".join(table.test_notes) or "none"),
        ("Validation score beside every test score", _dev_scores(table)),
        ("Data", _data(table)),
        ("Evaluation metrics", _metrics(table)),
        ("Hyperparameters", _hyperparameters(table)),
        ("Code", _distinct(map(code, outcomes)) or "not recorded"),
    ]


def as_markdown(table: Table) -> str:
    from reports.render.markdown import escape

    lines = [f"**Experimental setup**\n\n{escape(paragraph(table))}\n\n**Reproducibility checklist**\n"]
    lines += [f"- **{escape(question)}**: {escape(answer)}" for question, answer in checklist(table)]
    return "\n".join(lines) + "\n"


def _sentences(table: Table) -> Iterator[str]:
    base = typical(table)
    seeds = sorted({len(row.outcomes) for row in table.rows})
    times = f"{seeds[0]} to {seeds[-1]} random seeds" if len(seeds) > 1 else number(seeds[0], "random seed")
    yield f"We train {number(len(table.rows), 'variation')} of the model, each with {times}."
    ours = base.run.config.setting_roles.frozen_defaults  # then it is a Transformer, whose settings have words
    yield from _transformer(base) if ours else ()
    row = next(row for row in table.rows if row.key == base.run.row)
    if row.num_params is not None:
        yield f"The model of {row.key} has {number(row.num_params, 'parameter')}."
    others = ", ".join(unexpected(base.run.config, _SAID if ours else ()))
    if others:
        of = "other than the defaults (in brackets)" if ours else f"of {row.key}"
        yield f"Settings {of}: {others}."
    yield _decoding(base)
    yield _signatures(table)
    yield _took(_trained(table))


def _transformer(base: Outcome) -> Iterator[str]:
    settings = dict(flatten(base.run.config))
    layers, d_model, d_ff, heads, d_k, d_v = (settings[name] for name in _MODEL)
    dropout, smoothing = (show(name, settings[name]) for name in ("model.dropout", "training.label_smoothing"))
    yield (
        f"{base.run.row} is a Transformer of {number(layers, 'encoder layer')} and {number(layers, 'decoder layer')}, "
        f"d_model {d_model}, d_ff {d_ff}, {number(heads, 'head')} of d_k {d_k} and d_v {d_v}, and dropout {dropout}."
    )
    pairs = whole_in(base.record, "data", "train", "kept")
    size = "" if pairs is None else f"{number(pairs, 'pair')} of "
    vocabulary = number(settings["data.vocab_size"], "piece")
    yield (
        f"It is trained on {size}the corpus {corpus_name(base)}, encoded with a BPE vocabulary of {vocabulary} trained "
        "on it."
    )
    steps, warmup, tokens = (settings[name] for name in _STEPS)
    beta1, beta2, epsilon = (show(name, settings[name]) for name in _ADAM)
    yield (
        f"Training takes {number(steps, 'step')} of Adam (β1 {beta1}, β2 {beta2}, ε {epsilon}) with the "
        f"inverse-square-root schedule and {number(warmup, 'step')} of warm-up, batches of at most "
        f"{number(tokens, 'token')} a side, and label smoothing {smoothing}."
    )


def _decoding(base: Outcome) -> str:
    for scored in base.scored.values():
        settings = dict(flatten(scored.spec.settings))
        if {"checkpoint", "beam_size", "length_penalty"} <= settings.keys():
            checkpoint, beam, alpha = (settings.pop(name) for name in ("checkpoint", "beam_size", "length_penalty"))
            weights = "the last checkpoint" if checkpoint == "last" else f"checkpoint choice {checkpoint}"
            rest = ", ".join(f"{name} {show(name, value)}" for name, value in settings.items())
            words = f"We decode {weights} with beam size {beam} and length penalty {alpha}"
            return f"{words} ({rest})." if rest else f"{words}."
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
    return f"Scores: {', '.join(found)}." if found else ""


def _took(outcomes: list[Outcome]) -> str:
    seconds = [training_seconds(outcome) for outcome in outcomes]
    known = [value for value in seconds if value is not None]
    if not known or len(known) < len(seconds):
        return ""
    where = _distinct(map(device, outcomes))
    trainings = f"{number(len(outcomes), 'training')} took"
    return f"{trainings} {_hours(sum(known) / HOUR)}{' together' if len(outcomes) > 1 else ''} on {where}."


def _trained(table: Table) -> list[Outcome]:
    """Each training once, though it may stand in several rows."""
    found = {o.run.run_id: o for row in table.rows for o in row.outcomes if o.record is not None}
    return list(found.values())


def _parameters(rows: Iterable[Row]) -> str:
    return "; ".join(f"{row.key} {row.num_params:,}" for row in rows if row.num_params is not None)


def _runtime(outcomes: list[Outcome]) -> str:
    seconds = [value for outcome in outcomes if (value := training_seconds(outcome)) is not None]
    if not seconds:
        return "not recorded"
    total, longest = _hours(sum(seconds) / HOUR), _hours(max(seconds) / HOUR)
    mean = _hours(sum(seconds) / len(seconds) / HOUR)
    text = f"{total} of training in all, {mean} a run on average, {longest} at most"
    unfinished = [part for outcome in outcomes for part in objects_in(outcome.record, "earlier_attempts")]
    if unfinished:
        lost = _hours(sum(real_in(part, "seconds") or 0.0 for part in unfinished) / HOUR)
        text += f"; {lost} of it in {number(len(unfinished), 'attempt')} that ended early"
    continued = [outcome for outcome in outcomes if object_in(outcome.record, "continues")]
    if continued:
        text += f"; {number(len(continued), 'run')} continued a shorter one, whose time is not counted again"
    unknown = len(outcomes) - len(seconds)
    return f"{text}; without {number(unknown, 'interrupted run')}, whose time is not recorded" if unknown else text


def _hours(hours: float) -> str:
    if hours >= 1:
        return f"{hours:.1f} hours"
    return f"{hours * 60:.1f} minutes" if hours * 60 >= 1 else f"{hours * HOUR:.1f} seconds"


def _count(table: Table) -> str:
    requested, done = sum(len(row.outcomes) for row in table.rows), len(_trained(table))
    early = sum(len(objects_in(o.record, "earlier_attempts")) for o in _trained(table))
    parts = [number(len(table.rows), "row"), f"{number(requested, 'run')} in the table"]
    parts.append(f"{number(done, 'training')} finished")
    text = ", ".join(parts) + (f" (after {number(early, 'attempt')} that ended early)" if early else "")
    gaps = missing_cells(table)
    return f"{text}; {number(gaps, 'cell')} without a number" if gaps else text


def _variance(table: Table) -> str:
    counts = {len(row.outcomes) for row in table.rows}
    if counts == {1}:
        return "none: one seed a row"
    text = "sample standard deviation over seeds, beside each mean"
    return f"{text}; none for rows with one seed" if 1 in counts else text


def _dev_scores(table: Table) -> str:
    sets = {column.set for column in table.columns}
    if sets <= {"dev"}:
        return "only the development set is scored"
    return "yes" if "dev" in sets else "no: the development set was not scored"


def _data(table: Table) -> str:
    """Of each corpus that the rows were trained on, and of what they were scored on."""
    return _distinct(_data_of(outcome) for outcome in _trained(table)) or "not recorded"


def _data_of(outcome: Outcome) -> str:
    pairs = whole_in(outcome.record, "data", "train", "kept")
    inputs = ", ".join(f"{name} ({digest[:8]})" for name, digest in outcome.run.inputs.items())
    name = corpus_name(outcome) or inputs
    parts = [f"{name}: {number(pairs, 'training pair')}" if pairs is not None else name]
    for name, scored in outcome.scored.items():
        sentences = whole_in(scored.record, "sentences")
        parts += [f"{name} {number(sentences, 'sentence')}"] if sentences is not None else []
    return ", ".join(part for part in parts if part)


def _metrics(table: Table) -> str:
    return "; ".join(dict.fromkeys(f"{c.metric} on {c.set}" for c in table.columns))


def _hyperparameters(table: Table) -> str:
    searched = f"tuned row by row: {', '.join(table.tuned)}" if table.tuned else "the study records no search for them"
    return (
        "each row's configuration is in its runs' config.json in full; rows differ from base only in what the table "
        f"and its notes name; {searched}"
    )


def _distinct(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(text for text in texts if text))
