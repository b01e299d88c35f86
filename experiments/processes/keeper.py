"""Run a command that leaves no process behind: all it starts ends with it, and with the process that runs it.

A small process, the keeper, stands between the two. On Linux, orphans below the keeper become its children, even after
leaving the command's session, so it sees all of them. It ends them when the command has ended, or when its pipe
closes: the kernel closes the pipe when the process at the other end dies in any way.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from experiments.processes.identity import descendants

LEAVE_S = 2.0  # time between SIGTERM and SIGKILL for processes that outlive the command
KILLED_S = 10.0  # a process blocked by a dead disk cannot be killed: stop waiting for it
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_TERMINATE = b"T"
_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from experiments.processes.keeper import main; main(sys.argv[2:])"


class Kept:
    """A command under a keeper. `process` is the keeper; it ends like the command, after its descendants."""

    def __init__(self, argv: Sequence[str], **options: Any) -> None:
        theirs, self._ours = os.pipe()
        program = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(Path(__file__).parents[2]), str(theirs)]
        try:
            self.process = subprocess.Popen([*program, *argv], pass_fds=[theirs], process_group=0, **options)
        except BaseException:
            os.close(self._ours)
            raise
        finally:
            os.close(theirs)

    def terminate(self) -> None:
        """Send SIGTERM to the command and everything it started."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._ours, _TERMINATE)

    def close(self) -> None:
        """Kill what is left, and wait for the keeper."""
        os.close(self._ours)
        self.process.wait()


@contextlib.contextmanager
def kept(argv: Sequence[str], **options: Any) -> Iterator[Kept]:
    """Run a command; afterwards no process of it is left. `options`: those of Popen."""
    command = Kept(argv, **options)
    try:
        yield command
    finally:
        command.close()


def main(arguments: Sequence[str]) -> NoReturn:
    """The keeper's program: `PIPE ARGV…`."""
    pipe, argv = int(arguments[0]), arguments[1:]
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake)
    asked = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
    for number in (*asked, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)  # only the byte in `woken` matters
    command = subprocess.Popen(argv, process_group=0, preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL))
    while command.poll() is None:
        ready, _, _ = select.select([pipe, woken], [], [])
        signals = os.read(woken, 100) if woken in ready else b""
        word = os.read(pipe, 1) if pipe in ready else None
        if word == b"":
            break
        if word == _TERMINATE or set(signals) & {*asked}:
            _signal(command.pid, signal.SIGTERM)
    if command.poll() is not None:
        _signal(command.pid, signal.SIGTERM)
        _wait(LEAVE_S, lambda: _closed(pipe))
    _wait(KILLED_S, lambda: _signal(command.pid, signal.SIGKILL))
    _leave_like(command.poll())


def _signal(group: int, number: int) -> None:
    """Signal the command's group and all its descendants; without /proc only the group is known."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
    for pid in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _wait(seconds: float, each_time: Callable[[], object]) -> None:
    """Wait until no descendant is left, at most `seconds`, or until `each_time` returns true."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not each_time():
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not descendants(os.getpid()):
            return
        time.sleep(0.01)


def _closed(pipe: int) -> bool:
    return bool(select.select([pipe], [], [], 0)[0]) and os.read(pipe, 1) == b""


def _leave_like(code: int | None) -> NoReturn:
    """End with the command's exit code or signal."""
    if code is not None and code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command itself has dumped a core, if any
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(1 if code is None else code & 0xFF)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)
