"""The reproducibility checklist of a table: what reviewers ask, and what the runs recorded."""

from collections.abc import Iterable

from ablations.study.messages import number
from experiments.identity import without_runs
from reports.render import spent
from reports.render.setup import HOUR, distinct, paragraph, trained
from reports.results.results import Outcome
from reports.results.table import Row, Table, missing_cells
from reports.table.cost import training_seconds
from reports.table.made_with import code, device, software
from reports.table.provenance import corpus_name
from reports.table.spent import duration


def checklist(table: Table) -> list[tuple[str, str]]:
    """(what reviewers' checklists ask, what the runs say)."""
    outcomes = trained(table)
    return [
        ("Number of parameters of each model", _parameters(table.rows) or "not recorded"),
        ("Computing infrastructure", distinct(map(device, outcomes)) or _no_device(table)),
        ("Software", distinct(map(software, outcomes)) or "not recorded"),
        ("Runtime", _runtime(outcomes)),
        ("Exact number of training runs", _count(table)),
        ("Variance", _variance(table)),
        ("Statistical test", " ".join(table.test_notes) or "none"),
        ("Validation score beside every test score", _dev_scores(table)),
        ("Data", _data(table)),
        ("Evaluation metrics", _metrics(table)),
        ("Hyperparameters", _hyperparameters(table)),
        ("Code", distinct(map(code, outcomes)) or "not recorded"),
    ]


def _no_device(table: Table) -> str:
    return "not recorded" if any(row.imported for row in table.rows) else "nothing is trained yet"


def _parameters(rows: Iterable[Row]) -> str:
    return "; ".join(f"{row.key} {row.num_params:,}" for row in rows if row.num_params is not None)


def _runtime(outcomes: list[Outcome]) -> str:
    seconds = [value for outcome in outcomes if (value := training_seconds(outcome)) is not None]
    if not seconds:
        return "not recorded"
    total, longest = duration(sum(seconds) / HOUR), duration(max(seconds) / HOUR)
    mean = duration(sum(seconds) / len(seconds) / HOUR)
    text = f"{total} of training in all, {mean} a run on average, {longest} at most"
    unfinished = [part for outcome in outcomes if outcome.record for part in outcome.record.earlier_attempts]
    if unfinished:
        lost = duration(sum(part.seconds for part in unfinished) / HOUR)
        text += f"; {lost} of it in {number(len(unfinished), 'attempt')} that ended early"
    continued = [outcome for outcome in outcomes if outcome.record and outcome.record.continues]
    if continued:
        text += f"; {number(len(continued), 'run')} continued a shorter one, whose time is not counted again"
    unknown = len(outcomes) - len(seconds)
    return f"{text}; without {number(unknown, 'interrupted run')}, whose time is not recorded" if unknown else text


def _count(table: Table) -> str:
    requested, done = sum(len(row.outcomes) for row in table.rows if not row.ensemble), len(trained(table))
    elsewhere = sum(len(row.outcomes) for row in table.rows if row.imported)
    ensembles = sum(row.ensemble for row in table.rows)
    early = sum(len(o.record.earlier_attempts) for o in trained(table) if o.record)
    parts = [number(len(table.rows), "row"), f"{number(requested, 'run')} in the table"]
    parts += [number(ensembles, "ensemble")] if ensembles else []
    parts += [f"{elsewhere} of them trained elsewhere and imported"] if elsewhere else []
    parts.append(f"{number(done, 'training')} finished")
    text = ", ".join(parts) + (f" (after {number(early, 'attempt')} that ended early)" if early else "")
    gaps = missing_cells(table)
    return f"{text}; {number(gaps, 'cell')} without a number" if gaps else text


def _variance(table: Table) -> str:
    counts = {len(row.outcomes) for row in table.rows if not row.ensemble}
    if counts <= {1}:
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
    return distinct(_data_of(outcome) for outcome in trained(table)) or "not recorded"


def _data_of(outcome: Outcome) -> str:
    pairs = outcome.record.data.train.kept if outcome.record else None
    inputs = ", ".join(f"{name} ({digest[:8]})" for name, digest in without_runs(outcome.run.inputs).items())
    name = corpus_name(outcome) or inputs
    parts = [f"{name}: {number(pairs, 'training pair')}" if pairs is not None else name]
    for name, scored in outcome.scored.items():
        sentences = scored.record.sentences if scored.record else None
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


def as_markdown(table: Table) -> str:
    """The paragraph on the setup, the checklist, and what the table cost, as Markdown."""
    from reports.render.markdown import escape

    lines = [f"{escape(table.bundle)}\n"] if table.bundle else []
    lines += [f"**Experimental setup**\n\n{escape(paragraph(table))}\n\n**Reproducibility checklist**\n"]
    lines += [f"- **{escape(question)}**: {escape(answer)}" for question, answer in checklist(table)]
    if found := spent.lines(table):
        lines += ["\n**What it cost**\n", *(f"- **{escape(what)}**: {escape(cost)}." for what, cost in found)]
    return "\n".join(lines) + "\n"
