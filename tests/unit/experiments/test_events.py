"""Written events are read, damaged lines are skipped and counted, and no other event is lost."""

import json
import os
import random
import resource
import subprocess
import sys
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.events.event_log import FILE, LAST_BYTES, EventWriter, Tail, damaged_events, last_event, read_events
from experiments.events.history import History
from experiments.events.lines import LAST_STEP, LONGEST_LINE, LONGEST_TEXT
from experiments.store.layout import Store

RUN = "a" * 16


def write(folder, count=5):
    folder.mkdir(parents=True, exist_ok=True)
    events = EventWriter(folder)
    events.emit(
        "started", attempt=1, after_s=0.0, pid=1, host="höst", code_digest="d", members=[["s", "p", "c", "row", ""]]
    )
    for step in range(1, count + 1):
        events.emit("metrics", step=step, metrics={"loss": 1 / step})
    events.emit("checkpoint", step=count, path="checkpoints/x")
    events.emit("trained", step=count)
    events.close()
    return (folder / FILE).read_bytes()


def read(folder):
    tail = Tail(folder)
    return list(tail.read()), tail.damaged


def canonical(event):
    plain = {name: value for name, value in event.items() if name != "crc"}
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def test_every_line_carries_the_checksum_of_its_canonical_json(tmp_path):
    lines = [json.loads(line) for line in write(tmp_path).splitlines()]
    assert [event.get("format") for event in lines] == [2] + [None] * 7
    assert all(event["crc"] == f"{zlib.crc32(canonical(event)):08x}" for event in lines)


def test_a_line_written_in_another_order_of_names_is_as_good(tmp_path):
    data = write(tmp_path)
    turned = [json.dumps(dict(reversed(json.loads(line).items()))) for line in data.splitlines()]
    (tmp_path / FILE).write_text("\n".join(turned) + "\n")
    assert read(tmp_path)[1] == 0


def test_every_single_bit_flip_is_harmless_or_counted(tmp_path):
    """Of a whole file, with the newlines between its lines."""
    data = write(tmp_path, count=1)
    whole, _ = read(tmp_path)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / FILE).write_bytes(flipped)
        found, damaged = read(tmp_path)
        assert damaged or found == whole, f"bit {bit}"
        assert all(event in whole for event in found)


NOT_EVENTS = [
    b'{"kind":"metrics","step":1,"metrics":{}}',
    b'{"t":1,"kind":"metrics","step":9223372036854775808,"metrics":{}}',
    b'{"t":1,"kind":"metrics","step":-1,"metrics":{}}',
    b'{"t":1,"kind":"metrics","step":true,"metrics":{}}',
    b'{"t":1,"kind":"metrics","step":1.5,"metrics":{}}',
    b'{"t":1,"kind":"metrics","step":1,"metrics":{"a":1' + b"0" * 400 + b"}}",
    b'{"t":1e999,"kind":"finished"}',
    b'{"t":-5,"kind":"finished"}',
    b'{"t":NaN,"kind":"finished"}',
    b'{"t":"1","kind":"finished"}',
    b'{"t":1' + b"0" * 5000 + b',"kind":"finished"}',
    b'{"t":1,"kind":["finished"]}',
    b'{"t":1,"kind":"failed","message":"no class"}',
    b'{"t":1,"kind":"failed","cls":"bug","message":"\\ud800"}',
    b'{"t":1,"kind":"evaluated","eval_id":"../../x","set":"dev"}',
    b'{"t":1,"kind":"started","attempt":1,"after_s":0,"members":[["too short"]]}',
    b'{"t":1,"kind":"started","attempt":1,"after_s":0,"revision":7}',
    b"[" * 5000,
    b'{"a":' * 5000 + b"1" + b"}" * 5000,
    b"\xff\xfe\x00",
    b'{"t":1,"kind":"finished"} {"t":1,"kind":"finished"}',
    b"null",
    b"[1]",
    b'"finished"',
]


def test_what_is_no_event_is_passed_over_and_counted(tmp_path):
    """This also holds for lines with a correct checksum."""
    write(tmp_path, count=1)
    with (tmp_path / FILE).open("ab") as file:
        for line in NOT_EVENTS:
            if line.endswith(b"}"):
                file.write(line[:-1] + b',"crc":"%08x"}\n' % zlib.crc32(line))
            file.write(line + b"\n")
    with_crc = sum(line.endswith(b"}") for line in NOT_EVENTS)
    found, damaged = read(tmp_path)
    assert damaged == len(NOT_EVENTS) + with_crc
    assert [event["kind"] for event in found] == ["started", "metrics", "checkpoint", "trained"]


def test_a_kind_of_a_later_version_is_no_damage(tmp_path):
    write(tmp_path, count=1)
    line = b'{"kind":"melted","t":1}'
    with (tmp_path / FILE).open("ab") as file:
        file.write(line[:-1] + b',"crc":"%08x"}\n' % zlib.crc32(line))
    found, damaged = read(tmp_path)
    assert (len(found), damaged) == (4, 0)


@settings(max_examples=200)
@given(data=st.data())
def test_whatever_a_file_holds_reading_it_ends_and_keeps_what_is_whole(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("events")
    lines = write(folder, count=3).splitlines(keepends=True)
    junk = data.draw(st.lists(st.binary(max_size=60).map(lambda b: b.replace(b"\n", b"") + b"\n"), max_size=6))
    mixed = list(lines)
    for piece in junk:
        mixed.insert(data.draw(st.integers(0, len(mixed))), piece)
    (folder / FILE).write_bytes(b"".join(mixed))
    found, damaged = read(folder)
    assert len(found) == len(lines)
    assert damaged == sum(bool(piece.strip()) for piece in junk)


def test_a_torn_end_is_no_damage_and_does_not_swallow_what_follows(tmp_path):
    data = write(tmp_path, count=2)
    (tmp_path / FILE).write_bytes(data[:-9])
    found, damaged = read(tmp_path)
    assert (len(found), damaged) == (4, 0)
    events = EventWriter(tmp_path)
    events.emit("finished")
    assert read(tmp_path)[0][-1]["kind"] == "finished"


def test_a_line_cut_short_by_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    data = write(tmp_path, count=2)
    events, real = EventWriter(tmp_path), os.write

    def full(file, line):
        monkeypatch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        return real(file, line[:10])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        events.emit("metrics", step=3, metrics={"loss": 1.0})
    assert (tmp_path / FILE).read_bytes() == data
    monkeypatch.undo()
    events.emit("finished")
    assert read(tmp_path)[1] == 0


def test_a_tail_goes_on_where_it_stopped(tmp_path):
    tmp_path.mkdir(exist_ok=True)
    events, tail = EventWriter(tmp_path), Tail(tmp_path)
    events.emit("started", attempt=1, after_s=0.0)
    assert [event["kind"] for event in tail.read()] == ["started"]
    with (tmp_path / FILE).open("ab") as file:
        file.write(b"rubbish\n")
    events.emit("metrics", step=1, metrics={})
    assert next(tail.read())["step"] == 1
    events.emit("metrics", step=2, metrics={})
    assert [event["step"] for event in tail.read()] == [2]
    assert tail.damaged == 1
    assert list(Tail(tmp_path).read(until=tail.offset)) == read_events(tmp_path)


@pytest.mark.parametrize("bad", [{"step": LAST_STEP + 1}, {"step": 1, "metrics": {"a": "b"}}, {"metrics": {}}])
def test_what_would_be_damaged_is_not_written(tmp_path, bad):
    events = EventWriter(tmp_path)
    with pytest.raises(ValueError, match="metrics"):
        events.emit("metrics", **{"metrics": {}, **bad})
    assert (tmp_path / FILE).read_bytes() == b""


def test_names_of_a_trainers_numbers_take_nothing_from_the_event(tmp_path):
    metrics = {name: float(number) for number, name in enumerate(("t", "kind", "step", "self", "crc", "format", "a/b"))}
    EventWriter(tmp_path).emit("metrics", step=7, metrics=metrics)
    [event] = read_events(tmp_path)
    assert (event["kind"], event["step"], event["metrics"]) == ("metrics", 7, metrics)


def test_names_that_are_no_unicode_and_endless_messages_are_told(tmp_path):
    message = os.fsdecode(b"no file \xff") + "x" * (3 * LONGEST_TEXT)
    EventWriter(tmp_path).emit("failed", cls="bug", message=message, traceback="end")
    [event] = read_events(tmp_path)
    assert event["message"].startswith("no file ?x") and "left out" in event["message"]
    assert len(event["message"]) < LONGEST_TEXT + 100


@pytest.mark.process
def test_a_line_without_an_end_is_one_damaged_line_and_is_not_held_in_memory(tmp_path):
    whole = write(tmp_path, count=1)
    with (tmp_path / FILE).open("ab") as file:
        for _ in range(100):
            file.write(b"x" * (1 << 20))
    code = (
        "import resource, sys; from pathlib import Path; from experiments.events.event_log import Tail; "
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; tail = Tail(Path(sys.argv[1])); "
        "found = len(list(tail.read())); "
        "print(found, tail.damaged, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    found, damaged, grown_kb = map(int, done.stdout.split())
    assert (found, damaged) == (4, 1)
    assert grown_kb < 4 * LONGEST_LINE / 1024
    tail = Tail(tmp_path)
    assert len(list(tail.read())) == 4
    with (tmp_path / FILE).open("ab") as file:
        file.write(b"x\n" + whole.splitlines()[-1] + b"\n")
    assert [event["kind"] for event in tail.read()] == ["trained"]
    assert tail.damaged == 1


@pytest.mark.nightly
@pytest.mark.slow
def test_a_million_lines_are_read_in_bounded_memory(tmp_path):
    store = Store.open(tmp_path / "store")
    _, folder = store.new_attempt(RUN)
    events = EventWriter(folder)
    for step in range(1000):
        events.emit("metrics", step=step, metrics={"loss": 1.0, "perplexity": 2.0})
    many = (folder / FILE).read_bytes()
    with (folder / FILE).open("ab") as file:
        for _ in range(999):
            file.write(many)
    History(store, RUN).read()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert sum(1 for _ in History(store, RUN).read()) == 2000, "a step is given once"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000  # KB


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: path.symlink_to(path)])
def test_what_is_no_file_stops_nobody(tmp_path, make):
    make(tmp_path / FILE)
    assert read_events(tmp_path) == []


def test_the_store_knows_which_runs_have_damaged_lines(tmp_path):
    store = Store.open(tmp_path / "store")
    for run_id in (RUN, "b" * 16):
        for _ in range(2):
            write(store.new_attempt(run_id)[1])
    assert list(damaged_events(store)) == []
    path = store.attempt_folder(RUN, 2) / FILE
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b'{"kind": "metrics", "step": 3}\n', *lines[2:]]))
    [(run_id, attempt, line)] = damaged_events(store)
    assert (run_id, attempt) == (RUN, 2)
    assert line == f"1 damaged line was skipped in runs/{RUN}/attempts/0002/{FILE}"


def test_a_history_goes_on_from_a_position_as_if_it_had_read_what_lies_before(tmp_path):
    store, chance = Store.open(tmp_path / "store"), random.Random(1)
    for attempt in range(4):
        _, folder = store.new_attempt(RUN)
        events = EventWriter(folder)
        if attempt == 1:
            events.emit("restarted", why="a test")
        events.emit("started", attempt=attempt + 1, after_s=0.0)
        for step in range(4 * attempt, 4 * attempt + 9):
            events.emit("metrics", step=step, metrics={"loss": chance.random(), "lr": 1.0})
            if step % 5 == 0:
                with (folder / FILE).open("ab") as file:
                    file.write(b"rubbish\n")
    whole = list(History(store, RUN).read())
    assert len({(point.name, point.step) for point in whole}) == len(whole) == 2 * 17
    for stop in range(18):
        first, second = History(store, RUN), History(store, RUN)
        batches = first.batches(1)
        begun = [point for _ in range(stop) for point in next(batches)]
        second.skip(first.position)
        assert begun + list(second.read()) == whole
        assert second.last == {"loss": 20, "lr": 20}


@given(
    count=st.integers(0, 40),
    long=st.integers(0, 3 * LAST_BYTES),
    cut=st.integers(0, 400),
    damaged=st.integers(0, 30),
)
def test_the_last_event_is_that_of_the_whole_file(tmp_path_factory, count, long, cut, damaged):
    folder = tmp_path_factory.mktemp("events")
    clock = iter(range(1000))
    events = EventWriter(folder, lambda fresh: {"cpu_s": next(clock)} if fresh else {})
    events.emit("started", attempt=1, after_s=0.0)
    for step in range(count):
        events.emit("metrics", step=step, metrics={"loss": 1.0})
    events.emit("failed", cls="bug", message="x" * long)
    events.close()
    data = (folder / FILE).read_bytes()
    data = data[: max(0, len(data) - cut)] + b"rubbish\n" * damaged
    (folder / FILE).write_bytes(data)
    found = read_events(folder)
    assert last_event(folder) == (found[-1] if found else None)
    having = [event for event in found if "cpu_s" in event]
    assert last_event(folder, "cpu_s") == (having[-1] if having else None)
    assert last_event(folder / "nothing") is None
