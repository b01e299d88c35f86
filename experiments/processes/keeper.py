"""Run a command so that all of its processes end when the command ends, or when the process that runs it ends.

A small process, the keeper, is the parent of the command and a child of this process. Orphaned descendants become
children of the keeper, even if they have left the command's session, so the keeper finds all of them. The keeper ends
all descendants when the command has ended, or when the pipe to this process closes. The kernel closes the pipe when
this process dies for any reason.

The keeper is a fork of this process and not a new program, because starting another interpreter would take longer than
all its work. The keeper does no computation and imports nothing, so it never waits for a lock that a thread of this
process held at the fork.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NoReturn

from experiments.processes.process_identity import descendants

LEAVE_S = 2.0  # seconds between SIGTERM and SIGKILL for processes that outlive the command
KILLED_S = 10.0  # longest wait in seconds after SIGKILL; a process that is blocked by a failed disk cannot be killed
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_TERMINATE = b"T"
_LIBRARY = ctypes.CDLL(None)
_ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class KeeperProcess:
    """A command under a keeper.

    `process` is the keeper. It ends after all descendants, with the command's exit code.
    """

    def __init__(self, argv: Sequence[str], **options: Any) -> None:
        theirs, self._ours = os.pipe()
        try:
            self.process = subprocess.Popen(list(argv), preexec_fn=lambda: _stand_between(theirs), **options)
        except BaseException:
            os.close(self._ours)
            raise
        finally:
            os.close(theirs)

    def terminate(self) -> None:
        """Send SIGTERM to the command and to all processes that it started."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._ours, _TERMINATE)

    def close(self) -> None:
        """Kill the remaining processes, and wait for the keeper."""
        os.close(self._ours)
        self.process.wait()


@contextlib.contextmanager
def kept(argv: Sequence[str], **options: Any) -> Iterator[KeeperProcess]:
    """Run a command for a `with` block. At the end of the block, all of its processes are ended.

    options: options of Popen.
    """
    command = KeeperProcess(argv, **options)
    try:
        yield command
    finally:
        command.close()


def _stand_between(pipe: int) -> None:
    """Fork this process. The function returns in the new process, which becomes the command.

    The present process becomes the keeper of the command, and the function never returns in it.
    """
    os.setpgid(0, 0)
    _LIBRARY.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake)
    for number in (*_ASKED, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)  # a handler must exist, so that a byte arrives in `woken`
    command = os.fork()
    if command == 0:
        signal.set_wakeup_fd(-1)
        for number in (*_ASKED, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.setpgid(0, 0)
        _LIBRARY.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    try:
        _keep(command, pipe, woken, wake)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _keep(command: int, pipe: int, woken: int, wake: int) -> NoReturn:
    """Act as the keeper: wait until the command ends or the pipe closes, then end all remaining descendants."""
    needed = [2, *sorted((pipe, woken, wake)), os.sysconf("SC_OPEN_MAX")]
    for below, above in pairwise(needed):  # close all other files, such as locks and sockets of the first process
        os.closerange(below + 1, above)
    while (code := _ended(command)) is None:
        ready, _, _ = select.select([pipe, woken], [], [])
        signals = os.read(woken, 100) if woken in ready else b""
        word = os.read(pipe, 1) if pipe in ready else None
        if word == b"":
            break
        if word == _TERMINATE or set(signals) & {*_ASKED}:
            _signal(command, signal.SIGTERM)
    if code is not None:
        _signal(command, signal.SIGTERM)
        _wait(LEAVE_S, lambda: _closed(pipe))
    _wait(KILLED_S, lambda: _signal(command, signal.SIGKILL))
    _leave_like(code)


def _ended(command: int) -> int | None:
    """Return the command's exit code, negative for a signal; None while it lives. Also reap other ended children."""
    while (found := os.waitpid(-1, os.WNOHANG))[0]:
        if found[0] == command:
            return os.waitstatus_to_exitcode(found[1])
    return None


def _childless() -> bool:
    """Return whether this process has no descendants.

    Every living descendant is a child, or a descendant of a child.
    """
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def _signal(group: int, number: int) -> None:
    """Send a signal to the command's process group and to all descendants of this process."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
    for pid in descendants():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _wait(seconds: float, each_time: Callable[[], object]) -> None:
    """Wait until no descendant is left, until `each_time` returns true, or for at most `seconds`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not each_time():
        if _childless():
            return
        time.sleep(0.01)


def _closed(pipe: int) -> bool:
    return bool(select.select([pipe], [], [], 0)[0]) and os.read(pipe, 1) == b""


def _leave_like(code: int | None) -> NoReturn:
    """End this process with the command's exit code or signal."""
    if code is not None and code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # only the command may dump a core
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(1 if code is None else code & 0xFF)
