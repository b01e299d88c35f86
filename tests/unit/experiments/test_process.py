"""The identity of a process does not depend on the clock. A reused process id identifies another process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.processes import process_identity as process
from experiments.processes.process_identity import descendants, identify, is_alive


@pytest.mark.process
def test_this_process_lives_and_an_ended_one_does_not_even_before_it_is_waited_for() -> None:
    assert is_alive(identify(os.getpid()))
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    known = identify(child.pid)
    assert is_alive(known)
    assert child.stdin is not None
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
    assert not is_alive(known)
    child.wait()
    assert not is_alive(known)
    assert not is_alive(identify(child.pid))


@pytest.mark.parametrize("name", ["python", "a (b) c", ") R 1 1", "x)"])
def test_a_name_with_parentheses_and_spaces_is_no_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    fields = "S 1 7 7 0 -1 4194560 10 0 0 0 5 6 0 0 20 0 1 0 987654 1000 200"
    (tmp_path / "7").write_text(f"7 ({name}) {fields}\n")
    monkeypatch.setattr(process, "STAT", f"{tmp_path}/{{}}")
    known = identify(7)
    assert known["start_ticks"] == 987654 and is_alive(known)
    (tmp_path / "7").write_text(f"7 ({name}) {fields.replace('987654', '987655')}\n")
    assert not is_alive(known)
    assert not is_alive({**known, "boot_id": "another boot's"})


@pytest.mark.process
@pytest.mark.parametrize("listed", [True, False])
def test_all_below_are_found_also_where_the_kernel_lists_no_children(
    monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    if not listed:
        monkeypatch.setattr(process, "CHILDREN", "/nonexistent/{}/{}")
    program = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True); input()"
    words = [sys.executable, "-c", program]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        below = int(child.stdout.readline())
        try:
            assert [one for one in descendants() if one in (child.pid, below)] == [child.pid, below]
        finally:
            os.kill(below, 9)
            child.kill()
    assert not {child.pid, below} & set(descendants())
