"""Lines of the ledger are only appended, and damaged lines are named and skipped."""

import json
import os
import random
import threading

import pytest

from experiments.errors import Damaged, UserError
from experiments.store import ledger
from experiments.store.budget import Account
from experiments.store.layout import Store


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "s")


def lines(store):
    return (store.root / ledger.FILE).read_bytes().splitlines(keepends=True)


def rewrite(store, new):
    (store.root / ledger.FILE).write_bytes(b"".join(new))


def test_lines_are_numbered_and_kept_as_they_were_written(store):
    assert ledger.entries(store) == ledger.damaged(store) == []
    ledger.append(store, "request", run_ids=["a"], because="Größer?")
    before = lines(store)
    ledger.append_all(store, [{"what": "start"}, {"what": "end", "seconds": 1.5}])
    found = ledger.entries(store)
    assert [(entry["n"], entry["what"]) for entry in found] == [(1, "request"), (2, "start"), (3, "end")]
    assert found[0]["because"] == "Größer?" and found[2]["seconds"] == 1.5
    assert lines(store)[:1] == before and ledger.damaged(store) == []


def test_lines_of_earlier_versions_are_read(store):
    """With the digest of the line before, of a guarded study and of a passphrase; `bundle` wrote a digest too."""
    common = {"time": 5.0, "before": "0" * 64}
    rows = {"a": {"settings": "0", "runs": [["r1", "e1"]]}}
    old = [
        {"n": 1, "who": "ada", **common, "what": "protect", "secret": "1" * 64},
        {"n": 2, "who": "ada", **common, "what": "guard", "study": "s", "sealed": ["test"], "contents": []},
        {"n": 3, "who": "ada", **common, "what": "request", "study": "s", "profile": "p", "rows": rows},
        {"n": 4, "who": "ada", **common, "what": "result", "run_id": "r1", "records": {"training": "2" * 64}},
        {"n": 5, "who": "ada", **common, "what": "budget", "limits": {"runs": 3}, "allowed": "any"},
        {"n": 6, **common, "what": "request", "digest": "3" * 64},
    ]
    (store.root / ledger.FILE).write_text("".join(f"{json.dumps(line)}\n" for line in old))
    ledger.append(store, "end", run_id="r1", attempt=1, outcome="finished", seconds=1.0)
    assert ledger.damaged(store) == [] and [entry["n"] for entry in ledger.entries(store)] == list(range(1, 8))
    assert ledger.rows_with_results(ledger.entries(store), "s") == [{("r1", "e1")}]
    assert Account(store).limits == {"runs": 3}


def test_a_line_that_a_kill_cut_short_is_removed_and_others_continue(store):
    ledger.append(store, "one")
    for torn in (b"{", b'{"n": 2, "what": "two"}', b"x" * 3 * ledger.WINDOW):
        with (store.root / ledger.FILE).open("ab") as file:
            file.write(torn)
        assert len(ledger.entries(store)) == 1 and ledger.damaged(store) == []  # it was never acknowledged
    ledger.append(store, "two", text="y" * 3 * ledger.WINDOW)
    ledger.append(store, "three")
    assert [entry["what"] for entry in ledger.entries(store)] == ["one", "two", "three"] and not ledger.damaged(store)


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b'{"what": 1, "time": 2}', b"\xff", b"[" * 100_000])
def test_a_damaged_line_is_named_and_lines_are_still_appended(store, damage):
    ledger.append_all(store, [{"what": "one"}, {"what": "two"}])
    rewrite(store, [lines(store)[0], damage + b"\n"])
    with pytest.raises(Damaged, match="is damaged"):
        ledger.since(store, 0)
    ledger.append(store, "three")
    assert len(lines(store)) == 3
    assert [entry["what"] for entry in ledger.entries(store)] == ["one", "three"]
    assert [text.partition("(")[0] for text in ledger.damaged(store)] == ["Line 2 of the ledger "]


REQUEST = {"what": "request", "study": "s", "profile": "p", "rows": {"a": {"settings": "0", "runs": [["r1", "e1"]]}}}
LINES = [
    REQUEST, {"what": "budget", "limits": {"hours": 2.0, "runs": 3}, "allowed": "any"}, REQUEST,
    {"what": "start", "run_id": "r1", "attempt": 1, "slots": 1, "trains": True, "predicted_s": 0.0},
    {"what": "end", "run_id": "r1", "attempt": 1, "outcome": "finished", "seconds": 4.5},
    {"what": "cancel", "run_ids": ["r1"]},
]  # fmt: skip


def test_whatever_a_letter_becomes_the_other_lines_are_read(store):
    """Changing any letter of any line gives only a message with the line's number, in the store and in its bundle."""
    ledger.append_all(store, LINES)
    whole, bundle = lines(store), Store.open(store.root.parent / "bundle")
    draw = random.Random(3)
    for n, line in enumerate(whole):
        for place in range(n % 3, len(line) - 1, 3):
            letter = draw.choice([bytes([line[place] ^ 1 << draw.randrange(7)]), b"", b"0", b"z", b'"', b"\xff"])
            changed = (line[:place] + letter + line[place + 1 :]).replace(b"\n", b"") + b"\n"
            rewrite(store, [*whole[:n], changed, *whole[n + 1 :]])
            found = ledger.entries(store)
            named = ledger.damaged(store)
            assert len(found) + len(named) == len(whole) and all(f"Line {n + 1} " in text for text in named)
            if named:
                assert [entry["n"] for entry in found] == [m for m in range(1, len(whole) + 1) if m != n + 1]
            assert all(len(words) > 0 for words in ledger.tried(found, "s").values())
            ledger.of_study(found, "s")
            (bundle.root / ledger.FILE).write_bytes(ledger.shared(store, "s", dict))
            assert len(ledger.entries(bundle)) == len(whole)
            assert ledger.damaged(bundle) == (
                [f"Line {n + 1} of the ledger was damaged when it was bundled."] * len(named)
            )
            try:
                Account(store)
            except UserError as error:
                assert f"Line {n + 1} of" in str(error) or f"Line {n + 2} of" in str(error)


def test_training_a_finished_run_again_is_one_more_training(store):
    def attempt(number, outcome, trains=True, run_id="r1"):
        account.start(run_id, number, 1, trains, 0.0)
        account.end(run_id, number, outcome, 1.0)

    def used():
        assert Account(store).as_json()["runs"] == account.as_json()["runs"]
        return account.as_json()["runs"]["used"]

    ledger.append(store, "budget", limits={"runs": 2}, allowed="")
    account = Account(store)
    attempt(1, "killed")
    attempt(2, "failed")
    attempt(3, "finished")
    assert used() == 1  # a resumed or repeated attempt is no other training
    attempt(4, "finished", trains=False)
    assert used() == 1 and account.refuses("r1", 1, True, 0.0, {})[0] == ""
    attempt(5, "killed")  # --stale rerun
    assert used() == 2 and account.refuses("r1", 1, True, 0.0, {})[0] == ""
    attempt(6, "finished")
    assert used() == 2 and "2 runs is used up" in account.refuses("r1", 1, True, 0.0, {})[0]
    assert "2 runs is used up" in account.refuses("r2", 1, True, 0.0, {})[0]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_named_and_not_waited_for(store, make):
    make(store.root / ledger.FILE)
    for use in (ledger.entries, ledger.damaged, lambda one: ledger.append(one, "x")):
        with pytest.raises(UserError, match=ledger.FILE):
            use(store)


def test_many_append_at_once(store):
    def write(name):
        for n in range(20):
            ledger.append_all(store, [{"what": "a", "name": name, "count": n}, {"what": "b"}])

    threads = [threading.Thread(target=write, args=(str(name),)) for name in range(4)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    assert len(ledger.entries(store)) == 160 and ledger.damaged(store) == []
    assert [e["what"] for e in ledger.entries(store)] == ["a", "b"] * 80  # the lines of one call stay together


def test_a_full_disk_leaves_no_part_of_a_line(store, monkeypatch):
    ledger.append(store, "one")
    write = os.write

    def full(file, data):
        if len(data) < 20:
            raise OSError(28, "No space left on device")
        return write(file, data[: len(data) - 10])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(UserError, match="no space left"):
        ledger.append(store, "two")
    monkeypatch.undo()
    ledger.append(store, "three")
    assert [entry["what"] for entry in ledger.entries(store)] == ["one", "three"] and not ledger.damaged(store)


@pytest.mark.parametrize("text", ["a\nb", "a\x1b[2J", "a\x00", "a\u202eb", "a\u2028b", "x" * 1001])
def test_a_reason_is_one_printable_paragraph(text):
    assert ledger.reason(" a larger model? ") == "a larger model?"
    with pytest.raises(UserError, match="--because"):
        ledger.reason(text)
