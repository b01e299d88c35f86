"""New patterns of a study read metrics of a command's finished run from its kept files."""

import pytest

from experiments.events.event_log import EventWriter
from experiments.events.history import History
from experiments.store.checksummed import write_json
from experiments.store.layout import Store
from experiments.store.results import EvaluationResult, Output, TrainingResult
from experiments.tasks.own import trainer_output
from experiments.tasks.own.kept import keep_readings, outdated, read_kept
from experiments.tasks.own.patterns import Readings

ACC, LOSS = r"epoch (?P<step>\d+) acc ([\d.]+)", r"loss ([\d.]+)"
PRINTED = "".join(f"epoch {step} acc 0.{step} loss {1 / step:.2f}\n" for step in (1, 2, 3))


def of(metric, pattern, take="last"):
    return ("test", metric, pattern, take)


@pytest.fixture
def weights(tmp_path):
    """Return the folder of an attempt of a command whose study read `acc` and whose JSON output reported `seen`."""
    folder = tmp_path / "0001"
    (folder / "final").mkdir(parents=True)
    readings = Readings([of("acc", ACC)], "", lambda kind, **fields: None)
    for line in PRINTED.splitlines():
        readings.line(line)
    keep_readings(folder / "final", readings)
    write_json(folder / "final" / "metrics.json", {"": {"seen": 7.0}})
    ours = "a line of this program: loss 99\n"
    (folder / "log.txt").write_text(ours + PRINTED + "later: loss 98\n")
    ranges = [[len(ours), len(ours) + len(PRINTED)]]
    TrainingResult(run_id="a" * 16, attempt=1, output=Output(ranges=ranges)).write(folder / "result.json")
    return folder


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ([of("acc", ACC)], {"acc": 0.3}),  # as it was read while the command ran
        ([of("accuracy", ACC)], {"accuracy": 0.3}),
        ([of("acc", ACC), of("loss", LOSS)], {"acc": 0.3, "loss": 0.33}),
        ([of("acc", ACC, "lowest"), of("loss", LOSS, "highest")], {"acc": 0.1, "loss": 1.0}),
        ([], {}),
    ],
)
def test_numbers_are_those_of_the_output_whenever_the_pattern_was_written(weights, patterns, expected):
    found = read_kept(weights, "test", [metric for _, metric, *_ in patterns], patterns)
    assert found.metrics == {"seen": 7.0, **expected}
    assert found.lacking == {}
    made = EvaluationResult(readings=found.readings)
    assert not outdated(made, [], patterns)
    assert outdated(made, [], [*patterns, of("other", LOSS)])


def test_how_numbers_are_written_may_be_said_after_the_training(weights):
    """If a study adds `number` later, the kept log is read again with it."""
    commas = PRINTED.replace(".", ",")
    log = (weights / "log.txt").read_text().replace(PRINTED, commas)
    (weights / "log.txt").write_text(log)
    pattern = of("commas", r"acc ([\d.,]+)")
    found = read_kept(weights, "test", ["commas"], [pattern])
    assert "can be read in two ways" in found.lacking["commas"] and "commas" not in found.metrics
    said = (*pattern, "1.234,5")
    assert read_kept(weights, "test", ["commas"], [said]).metrics == {"seen": 7.0, "commas": 0.3}
    assert outdated(EvaluationResult(readings=found.readings), [], [said])
    readings = Readings([said], "", lambda kind, **fields: None)
    readings.line("acc 0,7")
    keep_readings(weights / "final", readings)
    assert read_kept(weights, "test", ["commas"], [said]).metrics == {"seen": 7.0, "commas": 0.7}
    assert "commas" in read_kept(weights, "test", ["commas"], [pattern]).lacking


def test_the_curve_of_an_added_pattern_is_read_once_and_that_of_a_corrected_one_anew(weights, tmp_path):
    store = Store.open(tmp_path / "store")
    folder = store.attempt_folder("a" * 16, 1)
    folder.mkdir(parents=True)
    writer = EventWriter(folder)
    writer.emit("started", attempt=1, after_s=0.0)
    writer.emit("metrics", step=9, metrics={"acc": 5.0})  # by another pattern, which was wrong
    history = History(store, "a" * 16)
    assert [(point.name, point.step) for point in history.read()] == [("acc", 9)]
    patterns = [of("acc", r"epoch (?P<step>\d+) .*loss ([\d.]+)"), of("drawn", ACC)]
    before = EvaluationResult(metrics={"acc": 5.0, "seen": 7.0}, readings={"acc": ["wrong (.)", "last"]})
    found = read_kept(weights, "test", ["acc", "drawn"], patterns, before, writer.emit)
    assert found.metrics == {"seen": 7.0, "acc": 0.33, "drawn": 0.3}
    points = [(point.name, point.step, point.value) for point in history.read()]
    assert sorted(points) == [
        *(("acc", step, round(1 / step, 2)) for step in (1, 2, 3)),
        *(("drawn", step, step / 10) for step in (1, 2, 3)),
    ]
    renewed = EvaluationResult(metrics=dict(found.metrics), readings=found.readings)
    read_kept(weights, "test", ["acc", "drawn"], patterns, renewed, writer.emit)
    assert list(history.read()) == []


def test_what_was_cut_out_of_a_log_is_a_gap_and_no_earlier_number(weights):
    text = PRINTED + "… 1,000 bytes left out …\n" + "epoch 9 acc 0.9\n"
    (weights / "log.txt").write_text(text)
    head, end = len(PRINTED.encode()), len(text.encode())
    tail = end - len("epoch 9 acc 0.9\n")
    output = Output(ranges=[[0, head], [tail, end]], left_out=1000)
    TrainingResult(run_id="a" * 16, attempt=1, output=output).write(weights / "result.json")
    patterns = [of("last", r" acc ([\d.]+)"), of("best", r"acc +([\d.]+)", "highest"), of("loss", LOSS)]
    found = read_kept(weights, "test", ["last", "best", "loss"], patterns)
    assert found.metrics == {"seen": 7.0, "last": 0.9}
    assert found.lacking.keys() == {"best", "loss"}
    assert all("1,000 bytes of the middle of log.txt" in why for why in found.lacking.values())


def test_a_number_stays_where_nothing_of_it_changed(weights):
    """A metric without a set belongs to the only set, and stays there when the study gets a second set."""
    first = read_kept(weights, "test", ["seen"], [])
    before = EvaluationResult(metrics=dict(first.metrics))
    assert read_kept(weights, "test", ["test.seen"], [], before).metrics == {"seen": 7.0}
    assert read_kept(weights, "dev", ["dev.seen"], []).lacking == {"seen": ""}


def test_a_metric_that_the_study_prints_no_more_stays_in_the_record(weights):
    first = read_kept(weights, "test", ["acc"], [of("acc", ACC)])
    before = EvaluationResult(metrics=dict(first.metrics), readings=first.readings)
    found = read_kept(weights, "test", ["loss"], [of("loss", LOSS)], before)
    assert found.metrics == {"seen": 7.0, "acc": 0.3, "loss": 0.33}
    assert found.readings == {"acc": [ACC, "last"], "loss": [LOSS, "last"]}
    renewed = EvaluationResult(metrics=dict(found.metrics), readings=found.readings)
    corrected = read_kept(weights, "test", ["acc"], [of("acc", r"no acc ([\d.]+)")], renewed)
    assert "acc" not in corrected.metrics and corrected.lacking.keys() == {"acc"}


def test_a_log_gets_whole_lines_of_each_stream(monkeypatch):
    written = []
    monkeypatch.setattr(trainer_output.os, "write", lambda to, data: (written.append((to, bytes(data))), len(data))[1])
    log = trainer_output.Log()
    log.write(b"test acc 0.", 1)
    log.write(b" 10%\r 20", 2)
    log.write(b"93\nnext", 1)
    log.write(b"%\n", 2)
    log.end(1)
    assert [pair for pair in written if pair[1]] == [
        (2, b" 10%\r"), (1, b"test acc 0.93\n"), (2, b" 20%\n"), (1, b"next\n")
    ]  # fmt: skip
