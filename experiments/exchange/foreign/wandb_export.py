"""Runs exported from Weights & Biases: the CSV of its runs table, or JSON of its API's runs.

CSV: the columns that the table showed: Name, State, ID, Group, then config and summary without a difference between
them. JSON: a list of runs, or one run per line, with `name`, `id`, `state`, `group`, `config` and `summary` (or
`summary_metrics`, `summaryMetrics`); config values may be wrapped as {"value": …}. Such a file is written by

    json.dump([{"id": r.id, "name": r.name, "state": r.state, "group": r.group, "config": r.config,
                "summary": dict(r.summary)} for r in wandb.Api().runs("ENTITY/PROJECT")], file, default=str)
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from experiments.exchange.foreign.csv_file import table
from experiments.exchange.foreign.runs import Foreign, ForeignRun, as_text, flat, number, read_bytes, seed_of

_SUMMARIES = ("summary", "summary_metrics", "summaryMetrics")
_OF_WANDB = (
    "Name", "State", "ID", "Group", "Notes", "User", "Tags", "Created", "Runtime", "Sweep", "End Time", "Hostname",
    "Description", "Commit", "GitHub", "GPU Type", "Job Type", "Updated", "Host", "Command",
)  # fmt: skip


def read_wandb(path: Path, row_by: str = "", seed_by: str = "") -> Foreign:
    """The finished runs; others are left out and named. Raises UserError."""
    data, digest = read_bytes(path, "--wandb-export")
    text, where = as_text(data, path, "--wandb-export"), f"--wandb-export {path}"
    runs = (
        _of_json(text, where, row_by, seed_by) if text.lstrip()[:1] in "[{" else _of_csv(text, where, row_by, seed_by)
    )
    kept = tuple(run for run, state in runs if state in ("", "finished"))
    left_out = tuple(f"{run.where}: its state is {state}" for run, state in runs if state not in ("", "finished"))
    if not kept:
        raise UserError(f"{where} has no finished run{f' ({left_out[0]})' if left_out else ''}. Nothing was imported.")
    return Foreign("wandb", path.name, kept, digest, left_out)


def _of_csv(text: str, where: str, row_by: str, seed_by: str) -> list[tuple[ForeignRun, str]]:
    head, lines = table(text, where)
    if "Name" not in head:
        raise UserError(
            f"{where} has no column Name, so it is no export of a W&B runs table. Its columns are: {', '.join(head)}. "
            "A table of your own is imported with --csv. Nothing was imported."
        )
    _known(where, row_by, head, "--row-by")
    found = []
    for _, cells in lines:
        rest = {name: text for name, text in cells.items() if name not in (*_OF_WANDB, row_by) and text}
        seed, fields = seed_of(rest, seed_by)
        name, row = cells["Name"], cells.get(row_by, "") if row_by else ""
        run = ForeignRun(f"run {name}", name, cells.get("ID", ""), row, seed=seed, fields=fields)
        found.append((run, cells.get("State", "").lower()))
    return found


def _of_json(text: str, where: str, row_by: str, seed_by: str) -> list[tuple[ForeignRun, str]]:
    found = []
    for run in _runs(text, where):
        name = str(run.get("display_name") or run.get("displayName") or run.get("name") or run.get("id") or "")
        config = flat(_plain(_object(run.get("config"), where, name)))
        summary: Any = next((run[key] for key in _SUMMARIES if run.get(key)), {})
        scores = {
            key: score for key, v in flat(_object(summary, where, name)).items() if (score := number(v)) is not None
        }
        metrics = {key: score for key, score in scores.items() if not key.startswith("_")}
        seed, settings = seed_of(config, seed_by)
        row = str(settings.pop(row_by) if row_by in settings else run.get(row_by) or "") if row_by else ""
        if row_by and not row:
            raise UserError(f"{where}, run {name}: it has no {row_by!r}, which --row-by names. Nothing was imported.")
        ours = ForeignRun(
            f"run {name}", name, str(run.get("id") or ""), row, seed=seed, settings=settings, metrics=metrics
        )
        found.append((ours, str(run.get("state") or "").lower()))
    return found


def _runs(text: str, where: str) -> list[Mapping[str, Any]]:
    try:
        whole = json.loads(text)
    except ValueError:
        try:
            whole = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError as error:
            raise UserError(f"{where} is neither JSON nor JSON lines: {error}. Nothing was imported.") from None
    whole = whole.get("runs", [whole]) if isinstance(whole, Mapping) else whole
    if not isinstance(whole, list) or not whole or not all(isinstance(run, Mapping) for run in whole):
        raise UserError(f"{where}: expected a list of runs, each with config and summary. Nothing was imported.")
    return whole


def _object(part: Any, where: str, name: str) -> Mapping[str, Any]:
    """An object, also where it is text of its own (as the API's raw attributes have it)."""
    try:
        part = json.loads(part) if isinstance(part, str) else part
    except ValueError:
        part = ()
    if part is not None and not isinstance(part, Mapping):
        raise UserError(f"{where}, run {name}: config and summary are JSON objects. Nothing was imported.")
    return part or {}


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Without W&B's own entries and wrappings."""
    own = {name: v for name, v in config.items() if not name.startswith("_")}
    return {n: v["value"] if isinstance(v, Mapping) and "value" in v and set(v) <= {"value", "desc"} else v
            for n, v in own.items()}  # fmt: skip


def _known(where: str, name: str, head: list[str], option: str) -> None:
    if name and name not in head:
        raise UserError(f"{where} has no column {name!r}, which {option} names. Its columns are: {', '.join(head)}.")
