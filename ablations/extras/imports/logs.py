"""Read runs from the logs of Trackio, TensorBoard, W&B (offline), lm-evaluation-harness and Inspect.

The logs are never changed. The score of a curve is its last value. Scores of single examples are read if the log has
them.
"""

import contextlib
import json
import os
import re
import sqlite3
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ablations.extras.imports.external import ExternalRun, as_value, number, read_wandb_export
from ablations.extras.imports.tfrecords import check_records
from experiments.errors import UserError
from experiments.store.durable import read_regular

Example = Mapping[str, Any]
# Scores of correct, incorrect, partial and no answer, as in inspect_ai's value_to_float.
SHARES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}


def read_trackio(project: str) -> Iterator[ExternalRun | str]:
    """Yield the runs of a Trackio project: a .db file, or a name in TRACKIO_DIR or in Trackio's default folder."""
    home = Path(os.environ.get("TRACKIO_DIR") or Path.home() / ".cache" / "huggingface" / "trackio")
    file = Path(project) if project.endswith(".db") else home / f"{project}.db"
    if not file.is_file():
        there = ", ".join(sorted(path.stem for path in home.glob("*.db"))[:20]) or "none"
        raise UserError(f"the file {file} does not exist. Projects in {home}: {there}.")
    metrics: dict[str, dict[str, Any]] = {}
    with contextlib.closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as db:
        names = dict(db.execute("SELECT run_id, run_name FROM metrics GROUP BY run_id ORDER BY min(id)"))
        for run, logged in db.execute("SELECT run_id, metrics FROM metrics ORDER BY step, id"):
            metrics.setdefault(run, {}).update(json.loads(logged))
        configs = {run: json.loads(text) for run, text in db.execute("SELECT run_id, config FROM configs")}
    for run, name in names.items():
        yield ExternalRun(name, run, settings=configs.get(run, {}), metrics=metrics.get(run, {}))


@dataclass
class _Events:
    """Content of the event files of one folder."""

    settings: dict[str, Any]
    metrics: dict[str, float]


_SETS = {"train", "training", "val", "valid", "validation", "dev", "test", "eval"}
_TIME = re.compile(r"\d{9,}(\.\d+)?")  # add_hparams names folders by the time


def read_tensorboard(folder: str) -> Iterator[ExternalRun | str]:
    """Yield a run for each folder with event files, with its scalars and hyperparameters. Needs tensorboard.

    The name of a run is its path below `folder`. Folders of the same run are joined: those of add_hparams and
    add_scalars, and Keras's train and validation. The last part of a path, such as seed3 or 3, is the seed if the
    hyperparameters have none.
    """
    top = Path(folder)
    files = sorted(file for file in top.rglob("*tfevents*") if file.is_file())
    yield from filter(None, map(check_records, files))
    found = {place: _events(place) for place in dict.fromkeys(file.parent for file in files)}
    if any(events.metrics.get("hp_metric") == -1 for events in found.values()):
        yield "hp_metric = -1, which Lightning writes if no metric is named"
    joined: dict[Path, _Events] = {}
    for place, events in found.items():
        of, prefix, only = _part_of(place, found)
        run = joined.setdefault(of, _Events({}, {}))
        run.settings |= events.settings
        for tag, value in events.metrics.items():
            if (tag, value) != ("hp_metric", -1):
                run.metrics[f"{only}/{prefix}" if only else f"{prefix}/{tag}" if prefix else tag] = value
    named = not any(events.settings for events in joined.values())  # only the folders name the runs
    for place in sorted(joined):
        name = str(place.relative_to(top))
        row, _, last = name.rpartition("/")
        seed = last.lower().removeprefix("seed").lstrip("-_=") if row else ""
        seed = seed if seed.isdecimal() and not _TIME.fullmatch(last) else ""
        own_row = (row if seed else name) if named else ""
        yield ExternalRun(name, row=own_row, seed=seed, settings=joined[place].settings, metrics=joined[place].metrics)


def _part_of(place: Path, found: Mapping[Path, _Events]) -> tuple[Path, str, str]:
    """Return the folder of the run that a folder belongs to, and a prefix and a tag for the names of its scalars.

    If the tag is empty, a scalar gets the name PREFIX/TAG-OF-SCALAR, or TAG-OF-SCALAR if the prefix is empty too. A
    folder that add_scalars wrote has one scalar, which gets the name TAG/PREFIX. TAG is the main tag of the call, and
    PREFIX is the name of the curve. If a folder belongs to no other run, it is a run itself.
    """
    parent, name, events = place.parent, place.name, found[place]
    beside = [other for other in found if other.parent == parent]
    if _TIME.fullmatch(name) and events.settings and parent in found:
        trials = [other for other in beside if _TIME.fullmatch(other.name) and found[other].settings]
        return (parent, "", "") if len(trials) == 1 else (place, "", "")
    if name.lower() in _SETS and all(other.name.lower() in _SETS for other in beside):
        return parent, name, ""
    if parent in found and len(events.metrics) == 1 and not events.settings:
        [tag] = events.metrics
        begin = tag.replace("/", "_") + "_"
        if name.startswith(begin) and len(name) > len(begin):
            return parent, name.removeprefix(begin), tag
    return place, "", ""


def _events(place: Path) -> _Events:
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError:
        raise UserError("reading event files needs tensorboard: pip install tensorboard.") from None
    events = EventAccumulator(str(place), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    tags = events.Tags()
    found = _Events({}, {})
    for tag in tags["scalars"]:
        found.metrics[tag] = events.Scalars(tag)[-1].value
    for tag in tags["tensors"]:
        with contextlib.suppress(TypeError, ValueError):  # the tensor is not a number
            found.metrics[tag] = float(make_ndarray(events.Tensors(tag)[-1].tensor_proto))
    for about in events.summary_metadata.values():
        if about.plugin_data.plugin_name == "hparams":
            start = HParamsPluginData.FromString(about.plugin_data.content).session_start_info
            found.settings |= {name: _of_proto(v) for name, v in start.hparams.items()}
    return found


def _of_proto(given: Any) -> Any:
    kind = given.WhichOneof("kind")
    text = getattr(given, kind) if kind else ""
    return int(text) if isinstance(text, float) and text.is_integer() else text


def read_wandb(place: str) -> Iterator[ExternalRun | str]:
    """Yield the runs of an export, or the offline runs below a folder (run-*.wandb).

    Offline runs need wandb: their records are W&B's protocol buffers in LevelDB's log format. The score of a metric is
    its last value.
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
        better: dict[str, str] = {}
        for data in _log_records(file):
            record = protocol.Record.FromString(data)
            name = record.run.display_name or name
            if record.metric.name and (way := _GOALS.get(record.metric.goal)):
                better[record.metric.name] = way
            if record.HasField("exit"):
                status = f"exit code {record.exit.exit_code}" if record.exit.exit_code else ""
            config |= {
                i.key: json.loads(i.value_json) for part in (record.run.config, record.config) for i in part.update
            }
            for item in (*record.history.item, *record.summary.update):
                metrics[item.key or ".".join(item.nested_key)] = json.loads(item.value_json)
        about = name, file.stem.removeprefix("run-"), status
        yield ExternalRun(*about, settings=config, metrics=metrics, better=better)


_GOALS = {1: "lower", 2: "higher"}  # goals of define_metric


def _log_records(file: Path) -> Iterator[bytes]:
    """Yield the records of a LevelDB log: blocks of 32 KiB with fragments that have a checksum, a length and a type.

    Raises UserError for a fragment with a wrong checksum. A truncated fragment ends the log.
    """
    data = read_regular(file)
    if data[:4] != b":W&B":
        raise UserError(f"{file} does not begin as a log of W&B does: it is damaged, or another file.")
    place, parts = 7, b""  # W&B's header has 7 bytes
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        checksum, size, kind = struct.unpack("<IHB", data[place : place + 7])
        part = data[place + 7 : place + 7 + size]
        if len(part) < size:
            return
        if (checksum, size, kind) != (0, 0, 0) and checksum != zlib.crc32(part, zlib.crc32(bytes([kind]))):
            raise UserError(
                f"{file} is damaged: the record at byte {place:,} has another checksum. Copy the file again, or move "
                "it out of the folder."
            )
        parts += part
        place += 7 + size
        if kind in (1, 4):  # a whole record, or its last fragment
            yield parts
            parts = b""


def read_lm_eval(folder: str) -> Iterator[ExternalRun | str]:
    """Yield the runs in the folder of `lm_eval --output_path`, and a note on each replaced result.

    The results are in results_TIME.json (results.json in older versions). Files of samples have the scores of single
    examples. A task is a set. Its metric is called `acc` with the filter "none" or without a filter (before 0.4), and
    `exact_match.strict` with another filter. Files of one folder with the same settings are one run; if a task was
    evaluated again, its newest result is used.
    """
    top = Path(folder)
    runs: dict[tuple[str, ...], tuple[Path, ExternalRun]] = {}
    # Names of files contain the time, so the files are in order.
    for file, content in [*_json_files(top, "results.json"), *_json_files(top, "results_*.json")]:
        run = _lm_eval_run(file, content)
        key = str(file.parent), str(content.get("model_name")), json.dumps(run.settings, sort_keys=True, default=str)
        if key not in runs:
            runs[key] = file, run
            continue
        earlier, known = runs[key]
        if again := {name.partition("/")[0] for name in known.metrics} & {n.partition("/")[0] for n in run.metrics}:
            yield f"{earlier.relative_to(top)}: {', '.join(sorted(again))} evaluated again, in {file.name}"
        kept = {name: score for name, score in known.metrics.items() if name.partition("/")[0] not in again}
        joined = replace(
            run,
            metrics={**kept, **run.metrics},
            examples={**known.examples, **run.examples},
            better={**known.better, **run.better},
        )
        runs[key] = file, joined
    yield from (run for _, run in runs.values())


def _lm_eval_run(file: Path, content: Mapping[str, Any]) -> ExternalRun:
    config = content.get("config") or {}
    arguments = config.get("model_args") or {}
    if isinstance(arguments, str):
        arguments = {name: as_value(text) for name, _, text in (part.partition("=") for part in arguments.split(","))}
    settings = {"model": config.get("model"), **arguments}
    settings |= {name: config[name] for name in ("limit", "random_seed") if config.get(name) is not None}
    shots = {repr(count) for count in (content.get("n-shot") or {}).values()} or {repr(config.get("num_fewshot"))}
    settings |= {"num_fewshot": as_value(min(shots))} if len(shots) == 1 and shots != {"None"} else {}
    scores: dict[str, Any] = {}
    better: dict[str, str] = {}
    examples: dict[str, list[Example]] = {}
    for task, measured in (content.get("results") or {}).items():
        for name, score in measured.items():
            metric, comma, filtered = name.partition(",")
            if metric.endswith("_stderr") or (not comma and number(score) is None):
                continue
            kept = f"{task}/{metric}{f'.{filtered}' if comma and filtered != 'none' else ''}"
            scores[kept] = score
            declared = ((content.get("higher_is_better") or {}).get(task) or {}).get(metric)
            if isinstance(declared, bool):
                better[kept] = "higher" if declared else "lower"
        samples = file.with_name(file.name.replace("results_", f"samples_{task}_", 1)).with_suffix(".jsonl")
        if samples.is_file():
            examples[task] = _samples(samples)
    name = f"{content.get('model_name') or file.parent.name} {file.stem[8:]}".strip()
    return ExternalRun(name, settings=settings, metrics=scores, examples=examples, better=better)


def _samples(file: Path) -> list[Example]:
    """Return the scores of each example, in the order of the documents of the task."""
    of_documents: dict[int, dict[str, Any]] = {}
    for line in (json.loads(text) for text in read_regular(file).decode().split("\n") if text):
        suffix = "" if line.get("filter", "none") == "none" else f".{line['filter']}"
        scores = {f"{metric}{suffix}": number(line.get(metric)) for metric in line.get("metrics", ())}
        of_documents.setdefault(line["doc_id"], {}).update(scores)
    return [of_documents[document] for document in sorted(of_documents)]


def read_inspect(folder: str) -> Iterator[ExternalRun | str]:
    """Yield the runs in the Inspect logs of a folder. Files that end in .eval need inspect_ai; .json files do not.

    A task is a set. Its metric is called `accuracy`, or `match.accuracy` if the task has several scorers.
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
            means = ("accuracy", "mean")  # names of metrics that are means of the scores of examples
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
    """Yield the files below a folder that contain JSON objects, sorted by path. Raises UserError for invalid JSON."""
    for file in sorted(top.rglob(pattern)):
        try:
            content = json.loads(read_regular(file).decode())
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{file} cannot be read as JSON: {error}.") from None
        if isinstance(content, dict):
            yield file, content
