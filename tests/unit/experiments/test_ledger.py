"""The ledger: a chain that any rewriting, truncation or reordering breaks, and the passphrase beside it."""

import hashlib
import json
import os
import random
import threading

import pytest

from experiments.errors import Damaged, UserError
from experiments.store import ledger, secret
from experiments.store.budget import Account
from experiments.store.layout import Store


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "s")


def lines(store):
    return (store.root / ledger.FILE).read_bytes().splitlines(keepends=True)


def rewrite(store, new):
    (store.root / ledger.FILE).write_bytes(b"".join(new))


def chain(found):
    """The chain of these entries as a forger would compute it anew."""
    before = ledger.NONE
    for n, entry in enumerate(found, 1):
        line = json.dumps({**entry, "n": n, "before": before}).encode()
        before = hashlib.sha256(line).hexdigest()
        yield line + b"\n"


def test_lines_are_numbered_and_chained(store):
    assert (ledger.entries(store), ledger.head(store), ledger.broken(store)) == ([], f"0:{'0' * 64}", [])
    ledger.append(store, "request", run_ids=["a"], because="Größer?")
    ledger.append_all(store, [{"what": "start"}, {"what": "end", "seconds": 1.5}])
    found = ledger.entries(store)
    assert [(entry["n"], entry["what"]) for entry in found] == [(1, "request"), (2, "start"), (3, "end")]
    assert found[0]["because"] == "Größer?" and found[0]["before"] == "0" * 64
    digests = [hashlib.sha256(line.rstrip(b"\n")).hexdigest() for line in lines(store)]
    assert found[2]["before"] == digests[1] and ledger.head(store) == f"3:{digests[2]}"
    assert ledger.broken(store) == ledger.broken(store, ledger.head(store)) == []


def test_every_rewriting_truncation_and_reordering_is_seen_with_the_head(store):
    ledger.append_all(store, [{"what": "end", "run_id": f"{n:016x}", "outcome": "failed"} for n in range(8)])
    whole, head, found = lines(store), ledger.head(store), ledger.entries(store)
    ledger.append(store, "later")
    assert ledger.broken(store, head) == []  # what came later is no change
    draw = random.Random(1)
    for _ in range(200):
        n = draw.randrange(8)
        without, other = found[:n] + found[n + 1 :], {**found[n], "outcome": "finished"}
        swapped = found[:n] + found[n:][::-1]
        forged = draw.choice([without, [*found[:n], other, *found[n + 1 :]], swapped, found[:n], [*found[:n], other]])
        if forged == found:
            continue
        rewrite(store, chain(forged))
        assert ledger.broken(store) == []  # the forger was careful: only the kept head shows it
        assert ledger.broken(store, head)
    for n in range(7):  # one who is not careful
        for new in (whole[:n] + whole[n + 1 :], [*whole[:n], whole[n + 1], whole[n], *whole[n + 2 :]]):
            rewrite(store, new)
            assert ledger.broken(store)
        rewrite(store, [*whole[:n], whole[n].replace(b"failed", b"fine"), *whole[n + 1 :]])
        assert ledger.broken(store) == [
            f"Line {n + 2} of the ledger does not continue line {n + 1}: one of them was changed."
        ]
    (store.root / ledger.FILE).unlink()
    assert ledger.broken(store, head) == ["The ledger has 0 lines, and its kept head is line 8: lines were removed."]


def test_a_line_that_a_kill_cut_short_is_removed_and_others_continue(store):
    ledger.append(store, "one")
    for torn in (b"{", b'{"n": 2, "what": "two"}', b"x" * 3 * ledger.WINDOW):
        with (store.root / ledger.FILE).open("ab") as file:
            file.write(torn)
        assert len(ledger.entries(store)) == 1 and ledger.broken(store) == []  # it was never acknowledged
    ledger.append(store, "two", text="y" * 3 * ledger.WINDOW)
    ledger.append(store, "three")
    assert [entry["what"] for entry in ledger.entries(store)] == ["one", "two", "three"] and not ledger.broken(store)


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b'{"what": 1, "time": 2}', b"\xff", b"[" * 100_000])
def test_a_damaged_line_is_named_and_lines_are_still_appended(store, damage):
    ledger.append_all(store, [{"what": "one"}, {"what": "two"}])
    rewrite(store, [lines(store)[0], damage + b"\n"])
    with pytest.raises(Damaged, match="is damaged"):
        ledger.since(store, 0)
    ledger.append(store, "three")
    assert len(lines(store)) == 3 and "Line 2 of the ledger" in ledger.broken(store)[0]
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
    """Each letter of each line in turn: nothing but a message with the line's number, in the store and its bundle."""
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
                assert f"Line {n + 1} of the ledger is damaged" in ledger.broken(store)[0]
            assert all(len(words) > 0 for words in ledger.tried(found, "s").values())
            ledger.of_study(found, "s")
            (bundle.root / ledger.FILE).write_bytes(ledger.shared(store, "s", dict))
            assert len(ledger.entries(bundle)) == len(whole)
            assert ledger.damaged(bundle) == (
                [f"Line {n + 1} of the ledger was damaged when it was bundled."] * len(named)
            )
            if named:
                assert ledger.broken(bundle, was_shared=True)
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
    for use in (ledger.entries, ledger.head, ledger.broken, lambda one: ledger.append(one, "x")):
        with pytest.raises(UserError, match=ledger.FILE):
            use(store)


def test_many_append_at_once(store):
    def write(name):
        for n in range(20):
            ledger.append_all(store, [{"what": "a", "name": name, "count": n}, {"what": "b"}])

    threads = [threading.Thread(target=write, args=(str(name),)) for name in range(4)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    assert len(ledger.entries(store)) == 160 and ledger.broken(store) == []
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
    assert [entry["what"] for entry in ledger.entries(store)] == ["one", "three"] and not ledger.broken(store)


@pytest.mark.parametrize("text", ["a\nb", "a\x1b[2J", "a\x00", "a\u202eb", "a\u2028b", "x" * 1001])
def test_a_reason_is_one_printable_paragraph(text):
    assert ledger.reason(" a larger model? ") == "a larger model?"
    with pytest.raises(UserError, match="--because"):
        ledger.reason(text)


@pytest.mark.parametrize("text", ["", "1", "1:2", "x:" + "0" * 64, "1:" + "0" * 63])
def test_a_head_that_is_none(store, text):
    with pytest.raises(UserError, match="N:DIGEST"):
        ledger.broken(store, text)


def test_the_passphrase_is_needed_once_it_is_set(store):
    assert not secret.is_protected(store)
    secret.check_secret(store, None)
    with pytest.raises(UserError, match="empty"):
        secret.set_secret(store, "")
    secret.set_secret(store, "a horse")
    assert secret.is_protected(store) and "horse" not in "".join(p.read_text() for p in store.root.glob("*.json*"))
    assert (store.root / secret.FILE).stat().st_mode & 0o777 == 0o600
    secret.check_secret(store, "a horse")
    for wrong, why in ((None, "is protected"), ("", "not the passphrase"), ("a horse ", "not the passphrase")):
        with pytest.raises(UserError, match=why):
            secret.check_secret(store, wrong)
    with pytest.raises(UserError, match="already"):
        secret.set_secret(store, "mine")


def test_a_removed_or_replaced_passphrase_protects_still(store):
    secret.set_secret(store, "a horse")
    (store.root / secret.FILE).unlink()
    assert secret.is_protected(store)
    other = Store.open(store.root.parent / "other")
    secret.set_secret(other, "mine")
    for there in (False, True):
        if there:
            (store.root / secret.FILE).write_bytes((other.root / secret.FILE).read_bytes())
        for passphrase in ("a horse", "mine"):
            with pytest.raises(UserError, match="removed, replaced"):
                secret.check_secret(store, passphrase)
