"""Runs in the logs of other programs: Trackio, TensorBoard, W&B offline, lm-evaluation-harness, Inspect. Only read.

Of a curve the last value counts. Scores of single examples are kept where the log has them.
"""

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from experiments.exchange.external import (
    ExternalRun,
    Reader,
    as_value,
    number,
    read_csv,
    read_wandb_export,
)

Example = Mapping[str, Any]
SHARES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}  # correct, incorrect, partial, no answer: inspect_ai's value_to_float


def _trackio(project: str) -> Iterator[ExternalRun]:
    """A project of Trackio, by its name (in TRACKIO_DIR, or Trackio's own folder) or its .db file."""
    home = Path(os.environ.get("TRACKIO_DIR") or Path.home() / ".cache" / "huggingface" / "trackio")
    file = Path(project) if project.endswith(".db") else home / f"{project}.db"
    if not file.is_file():
        there = ", ".join(sorted(path.stem for path in home.glob("*.db"))[:20]) or "none"
        raise UserError(f"there is no file {file}. Projects in {home}: {there}.")
    metrics: dict[str, dict[str, Any]] = {}
    with contextlib.closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as db:
        names = dict(db.execute("SELECT run_id, run_name FROM metrics GROUP BY run_id ORDER BY min(id)"))
        for run, logged in db.execute("SELECT run_id, metrics FROM metrics ORDER BY step, id"):
            metrics.setdefault(run, {}).update(json.loads(logged))
        configs = {run: json.loads(text) for run, text in db.execute("SELECT run_id, config FROM configs")}
    for run, name in names.items():
        yield ExternalRun(name, run, settings=configs.get(run, {}), metrics=metrics.get(run, {}))


def _tensorboard(folder: str) -> Iterator[ExternalRun]:
    """Each folder with event files is a run, called as its path below `folder`: its scalars and hyperparameters.

    A last part of the path such as seed3 or 3 is the seed, where the hyperparameters have none. Needs tensorboard.
    """
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError:
        raise UserError("reading event files needs tensorboard: pip install tensorboard.") from None
    top = Path(folder)
    for place in sorted({file.parent for file in top.rglob("*tfevents*")}):
        events = EventAccumulator(str(place), size_guidance={"scalars": 0, "tensors": 0}).Reload()
        tags = events.Tags()
        settings: dict[str, Any] = {}
        metrics: dict[str, float] = {}
        for tag in tags["scalars"]:
            metrics[tag] = events.Scalars(tag)[-1].value
        for tag in tags["tensors"]:
            with contextlib.suppress(TypeError, ValueError):  # no number
                metrics[tag] = float(make_ndarray(events.Tensors(tag)[-1].tensor_proto))
        for about in events.summary_metadata.values():
            if about.plugin_data.plugin_name == "hparams":
                start = HParamsPluginData.FromString(about.plugin_data.content).session_start_info
                settings |= {name: _of_proto(v) for name, v in start.hparams.items()}
        name = str(place.relative_to(top))
        row, _, last = name.rpartition("/")
        seed = last.lower().removeprefix("seed").lstrip("-_=") if row else ""
        seed = seed if seed.isdecimal() else ""
        yield ExternalRun(name, seed=seed, settings=settings, metrics=metrics)


def _of_proto(given: Any) -> Any:
    kind = given.WhichOneof("kind")
    text = getattr(given, kind) if kind else ""
    return int(text) if isinstance(text, float) and text.is_integer() else text


def _wandb(place: str) -> Iterator[ExternalRun]:
    """The runs of an export, or those that W&B has kept offline (run-*.wandb below a folder).

    Their records are W&B's protocol buffers in LevelDB's log format; needs wandb. The last value of each metric counts.
    """
    if not Path(place).is_dir():
        yield from read_wandb_export(place)
        return
    try:
        from wandb.proto import wandb_internal_pb2 as protocol
    except ImportError:
        raise UserError("reading offline runs needs wandb: pip install wandb.") from None
    for file in sorted(Path(place).rglob("run-*.wandb")):
        name, status, config = file.stem, "cut off", dict[str, Any]()
        metrics: dict[str, Any] = {}
        for data in _log_records(file.read_bytes()):
            record = protocol.Record.FromString(data)
            name = record.run.display_name or name
            if record.HasField("exit"):
                status = f"exit code {record.exit.exit_code}" if record.exit.exit_code else ""
            config |= {
                i.key: json.loads(i.value_json) for part in (record.run.config, record.config) for i in part.update
            }
            for item in (*record.history.item, *record.summary.update):
                metrics[item.key or ".".join(item.nested_key)] = json.loads(item.value_json)
        yield ExternalRun(name, file.stem.removeprefix("run-"), status, settings=config, metrics=metrics)


def _log_records(data: bytes) -> Iterator[bytes]:
    """The records of a log of LevelDB: blocks of 32 KiB, whose parts have a checksum, a length and a type."""
    place, parts = 7, b""  # W&B's own head
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def _lm_eval(folder: str) -> Iterator[ExternalRun]:
    """The folder of `lm_eval --output_path`: each results_*.json is a run; with --log_samples also its examples.

    A task is a set; its metrics are `acc` of the filter none, and `exact_match.strict` of another filter.
    """
    for file, content in _json_files(Path(folder), "results_*.json"):
        config = content.get("config") or {}
        arguments = config.get("model_args") or {}
        if isinstance(arguments, str):
            arguments = {
                name: as_value(text) for name, _, text in (part.partition("=") for part in arguments.split(","))
            }
        settings = {"model": config.get("model"), **arguments}
        settings |= {name: config[name] for name in ("limit", "random_seed") if config.get(name) is not None}
        shots = {repr(count) for count in (content.get("n-shot") or {}).values()}
        settings |= {"num_fewshot": as_value(min(shots))} if len(shots) == 1 else {}
        scores: dict[str, Any] = {}
        examples: dict[str, list[Example]] = {}
        for task, measured in (content.get("results") or {}).items():
            for name, score in measured.items():
                metric, comma, filtered = name.partition(",")
                if comma and not metric.endswith("_stderr"):
                    scores[f"{task}/{metric}{'' if filtered == 'none' else f'.{filtered}'}"] = score
            samples = file.with_name(file.name.replace("results_", f"samples_{task}_", 1)).with_suffix(".jsonl")
            examples[task] = _samples(samples) if samples.is_file() else []
        name = f"{content.get('model_name') or file.parent.name} {file.stem[8:]}"
        yield ExternalRun(name, settings=settings, metrics=scores, examples=examples)


def _samples(file: Path) -> list[Example]:
    """The scores of each example, in the order of the task's documents."""
    of_documents: dict[int, dict[str, Any]] = {}
    for line in (json.loads(text) for text in file.read_text(encoding="utf-8").split("\n") if text):
        suffix = "" if line.get("filter", "none") == "none" else f".{line['filter']}"
        scores = {f"{metric}{suffix}": number(line.get(metric)) for metric in line.get("metrics", ())}
        of_documents.setdefault(line["doc_id"], {}).update(scores)
    return [of_documents[document] for document in sorted(of_documents)]


def _inspect(folder: str) -> Iterator[ExternalRun]:
    """The logs of Inspect in a folder: .json as they are; .eval by inspect_ai, if it is installed.

    A task is a set; its metrics are `accuracy`, or `match.accuracy` where it has several scorers.
    """
    top = Path(folder)
    contents = [content for _, content in _json_files(top, "*.json") if "eval" in content]
    if packed := sorted(top.rglob("*.eval")):
        try:
            from inspect_ai.log import read_eval_log
        except ImportError:
            raise UserError(
                f"{packed[0].name} is packed, and inspect_ai is not installed here. Install it, or "
                f"write JSON: inspect log convert --to json --output-dir DIR {folder}."
            ) from None
        contents += [read_eval_log(str(file)).model_dump(mode="json") for file in packed]
    for content in sorted(contents, key=lambda one: str(one["eval"].get("created"))):
        about, name = content["eval"], f"{content['eval'].get('task')} {content['eval'].get('run_id')}"
        arguments = {**(about.get("task_args") or {}), **(about.get("model_args") or {})}
        simple = {key: v for key, v in arguments.items() if isinstance(v, str | int | float | bool)}
        scorers = (content.get("results") or {}).get("scores") or []
        several, task = len(scorers) > 1, about.get("task", "task")
        scores = {
            f"{task}/{scorer['name'] + '.' if several else ''}{metric}": kept["value"]
            for scorer in scorers
            for metric, kept in scorer["metrics"].items()
            if metric not in ("stderr", "std", "var")
        }
        examples: list[Example] = []
        for sample in sorted(content.get("samples") or [], key=lambda one: (str(one["id"]), one["epoch"])):
            shares = {key: _share(one.get("value")) for key, one in (sample.get("scores") or {}).items()}
            means = ("accuracy", "mean")  # of these an example's share is its score
            examples.append({f"{k}.{m}" if several else m: share for k, share in shares.items() for m in means})
        status = "" if content.get("status") == "success" else str(content.get("status"))
        settings = {"model": about.get("model"), **simple}
        run = ExternalRun(name, about.get("run_id") or "", status, settings=settings, metrics=scores)
        yield replace(run, examples={task: examples})


def _share(given: Any) -> float | None:
    if isinstance(given, str) and given in SHARES:
        return SHARES[given]
    return float(given) if isinstance(given, bool) else number(given)


def _json_files(top: Path, pattern: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The JSON objects below a folder, in the order of their names. Raises UserError."""
    for file in sorted(top.rglob(pattern)):
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{file} cannot be read as JSON: {error}.") from None
        if isinstance(content, dict):
            yield file, content


READERS: dict[str, Reader] = {
    "csv": read_csv,
    "wandb": _wandb,
    "trackio": _trackio,
    "tensorboard": _tensorboard,
    "lm-eval": _lm_eval,
    "inspect": _inspect,
}
