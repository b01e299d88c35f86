"""Explain a cell: the runs behind it, with commit, command, data, tokenizer, decoding, signature and files."""

import shlex
import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from experiments.dotted import as_set, flatten
from experiments.errors import UserError
from experiments.messages import number, suggestion
from experiments.store.results import EvaluationResult
from experiments.tasks.columns import Column, named
from reports.render.cells import plain
from reports.results.number_text import significant
from reports.results.run_outcomes import Outcome, run_facts
from reports.results.table import Row, Table
from reports.table.cost import shown
from reports.table.provenance import corpus_name

Explanation = dict[str, Any]
SETTINGS = ("configuration", "changes_from_base")  # fields whose entries are printed as arguments of --set
# Fields whose printed name is not the field's name.
HEADS = {"wall_s": "wall s (of this attempt)", "train_s": "train s (with earlier attempts)"}


def explain(table: Table, cell: str) -> Explanation:
    """Return the facts behind the cell `ROW.COLUMN`, or behind all cells of `ROW`.

    Raises UserError for a cell that does not exist.
    """
    row, name = _row(table, cell)
    asked = named(name, table.columns)
    columns = [column for column in table.columns if not name or column is asked]
    costs = [cost for cost in shown(table) if name in ("", cost.key)]
    if not columns and not costs:
        options = [*(column.key for column in table.columns), *dict.fromkeys(cost.key for cost in shown(table))]
        raise UserError(f"{table.spec.name} has no column {name!r}. {suggestion(name, options, 'columns')}")
    found: Explanation = {"from_bundle": table.bundle} if table.bundle else {}
    found |= {"cell": cell, "study": table.spec.name, "row": row.key, "label": row.label}
    found["changes_from_base"] = dict(row.spec.overrides)
    if row.spec.changes_code:
        found["change_of_code"] = row.label
    found |= {"diff": row.spec.diff.splitlines()} if row.spec.diff else {}
    for cost in costs:
        found[cost.name] = {"computed": cost.value(row, table), "trained": _recorded(row, cost.name)}
        found[cost.name]["paper"] = row.paper.get(cost.key)
    found["values"] = {column.key: _value(table, row, column) for column in columns}
    found["runs"] = [_run(outcome, columns) for outcome in row.outcomes]
    return found


def _row(table: Table, cell: str) -> tuple[Row, str]:
    """Return the row and the column's name. Keys may contain dots, so the longest key at the start of `cell` counts."""
    rows = sorted(table.rows, key=lambda row: -len(row.key))
    for row in rows:
        if cell == row.key or cell.startswith(f"{row.key}."):
            return row, cell[len(row.key) + 1 :]
    name = cell.rpartition(".")[0] or cell
    keys = [row.key for row in table.rows]
    raise UserError(f"{table.spec.name} has no row {name!r}; write ROW.COLUMN. {suggestion(name, keys, 'rows')}")


def _recorded(row: Row, name: str) -> int | None:
    """Return the count that a training of the row recorded under this name; None if no training recorded one."""
    found = (getattr(outcome.record, name, None) for outcome in row.outcomes)
    return next((value for value in found if isinstance(value, int)), None)


def _value(table: Table, row: Row, column: Column) -> Explanation:
    measure = row.measures[column.key]
    found: Explanation = {"head": column.header, "metric": column.metric, "set": column.set, "mean": measure.mean}
    found |= {"sd": measure.sd, "n": len(measure.values), "seeds": measure.requested, "paper": measure.reported}
    if not measure.complete:
        found["median_of_those_there"] = statistics.median(measure.values) if measure.values else None
        found["lacking"] = [why or "not done" for why in measure.lacking]
    found |= {"change_from_base": measure.change, "papers_change": measure.reported_change}
    if measure.test:
        test = measure.test
        found["test"] = {"between": table.test, "by": test.by, "p_corrected": test.p, "marked": test.marked}
        found["test"] |= {"interval_95": [test.low, test.high]}
        found["test"] |= {"paired_interval_95": list(test.paired)} if test.paired else {}
    return found


def _run(outcome: Outcome, columns: list[Column]) -> Explanation:
    run, facts = outcome.run, outcome.record
    found: Explanation = {} if run.spec.members else {"seed": run.seed}
    found |= {"run_id": run.run_id, "state": run.state}
    if run.added:
        found["trained_without"] = dict(run.added)
    found["attempt"] = facts.attempt if facts else None
    if facts and facts.imported:
        found["imported"] = facts.imported.model_dump(exclude_none=True)
    found |= run_facts(facts)
    found |= {"command": facts.command if facts else None, "platform": facts.platform if facts else None}
    found |= {"corpus": corpus_name(outcome), "inputs": dict(run.spec.inputs)}
    found["tokenizer"] = (facts.data.tokenizer.sha256 if facts else None) or None
    trainer = run.spec.trainer
    found |= {"trainer": given} if (given := trainer.to_json()) else {}
    found["configuration"] = {name: value for name, value in flatten(run.config) if name != "seed"}
    sets = dict.fromkeys(column.set for column in columns)
    found["evaluations"] = [_evaluation(outcome, name, columns) for name in sets if name in outcome.scored]
    found["folder"] = f"runs/{run.run_id}"
    return found


def _evaluation(outcome: Outcome, set_: str, columns: list[Column]) -> Explanation:
    scored = outcome.scored[set_]
    found: Explanation = {"set": set_, "eval_id": scored.spec.eval_id, "settings": dict(flatten(scored.spec.settings))}
    found["inputs"] = dict(scored.spec.inputs)
    metrics = dict.fromkeys(column.metric for column in columns if column.set == set_)
    found["metrics"] = {metric: outcome.measured(set_, metric) for metric in metrics}
    found["signature"] = {m: s for m in metrics if (s := scored.signature(m))}
    facts = scored.record or EvaluationResult()
    found |= {"sentences": facts.sentences, "device": facts.device, "precision": facts.precision}
    found["code_digest"] = facts.code
    found["folder"] = f"runs/{outcome.run.run_id}/evaluations/{scored.spec.eval_id}"
    return found


SHORT = 10  # maximum number of lines of a short explanation


def in_short(found: Mapping[str, Any]) -> str:
    """Return a short explanation of at most SHORT lines: the values, their runs, and the code of the runs."""
    runs = found["runs"]
    changes = changes_in_short(found["label"], found["changes_from_base"], changes_code="change_of_code" in found)
    last = [f"made by {made}"] if (made := _made_by(runs[0])) else []
    signed = [signed for e in runs[0]["evaluations"] for signed in e["signature"].items()]
    last += [f"signature of {key}: {text}" for key, text in signed]
    last = [*last[:2], "More (--full): configuration, decoding, digests of the data, versions, devices, costs."]
    lines = [f"from bundle: {found['from_bundle']}"] if "from_bundle" in found else []
    lines += [f"{found['study']} {found['row']}: {changes or 'no change from base'}"]
    lines += [f"its code: a diff of {number(len(found['diff']), 'line')} (--full)"] if "diff" in found else []
    lines += _up_to(SHORT - len(lines) - len(last) - 1, map(_value_in_short, found["values"].values()), "column")
    lines += _up_to(SHORT - len(lines) - len(last), (_run_in_short(run, found["values"]) for run in runs), "run")
    return "\n".join(map(plain, [*lines, *last])) + "\n"


def changes_in_short(label: str, changes: Mapping[str, Any], *, changes_code: bool) -> str:
    """Return a row's changes in words: its settings, and for a code change its label, such as "patch gelu.diff"."""
    if not changes_code:
        return ", ".join(as_set(name, item) for name, item in changes.items())
    return ", ".join([label, *(as_set(name, item) for name, item in changes.items() if name not in label)])


def _up_to(count: int, lines: Iterable[str], what: str) -> list[str]:
    every = list(lines)
    left = len(every) - count + 1
    return every if left <= 1 else [*every[: count - 1], f"… and {number(left, f'more {what}')}"]


def _value_in_short(value: Mapping[str, Any]) -> str:
    if value["mean"] is None:
        why = ", ".join(dict.fromkeys(value.get("lacking", ())))
        return f"{value['head']}: no value, {value['n']} of {value['seeds']} seeds done{f' ({why})' if why else ''}"
    spread = f" ± {significant(value['sd'], 2)}" if value["sd"] is not None else ""
    parts = [f"{value['head']} = {significant(value['mean'], 5)}{spread}, n = {number(value['n'], 'seed')}"]
    change = value["change_from_base"]
    parts += [f"change from base {significant(change, 3, signed=True)}"] if change is not None else []
    test = value.get("test", {})
    parts += [f"p = {test['p_corrected']:.2g} between {test['between']}"] if test.get("p_corrected") is not None else []
    parts += [f"paper {significant(value['paper'], 15)}"] if value["paper"] is not None else []
    return "; ".join(parts)


def _run_in_short(run: Mapping[str, Any], values: Mapping[str, Mapping[str, Any]]) -> str:
    metrics = {(e["set"], metric): value for e in run["evaluations"] for metric, value in e["metrics"].items()}
    asked = [metrics.get((value["set"], value["metric"])) for value in values.values()]
    numbers = ", ".join(significant(value, 5) for value in asked if value is not None)
    name = f"seed {run['seed']}" if "seed" in run else "ensemble"
    return f"{name}: {numbers or run['state']}; {run['folder']}"


def _made_by(run: Mapping[str, Any]) -> str:
    """Return the command and the commit of a run, as far as they are recorded."""
    changed = " with changes" if run.get("dirty") else ""
    commit = f"commit {run['commit'][:12]}{changed}" if run.get("commit") else ""
    return " at ".join(filter(None, [run.get("trainer", {}).get("command", ""), commit]))


def as_text(found: Mapping[str, Any]) -> str:
    """Return the explanation for a terminal: one fact per line, indented by level. Unknown facts are left out."""
    return "\n".join(_lines(found, "")) + "\n"


def _lines(value: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, part in value.items():
        head = f"{indent}{HEADS.get(name, name.replace('_', ' '))}"
        if name in SETTINGS and part:
            yield head
            given = {key: item for key, item in part.items() if item is not None and key != "task"}
            yield from (f"{indent}  {plain(shlex.quote(as_set(key, item)))}" for key, item in given.items())
        elif name == "diff":
            yield head
            yield from (indent + plain(f"|{line}") for line in part)
        elif isinstance(part, Mapping):
            if part:
                yield head
                yield from _lines(part, indent + "  ")
        elif isinstance(part, list) and part and isinstance(part[0], Mapping):
            for item in part:
                title, *rest = item.items()
                yield f"{indent}{title[0].replace('_', ' ')} {plain(title[1])}"
                yield from _lines(dict(rest), indent + "  ")
        elif part not in (None, "", []):
            text = ", ".join(map(str, part)) if isinstance(part, list) else part
            yield f"{head}: {plain(text)}"
