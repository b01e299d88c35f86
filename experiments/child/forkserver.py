"""A server process that imports modules once and forks children, which then start in milliseconds instead of seconds.

    python -P -m experiments.child.forkserver FD MODULE…

The server imports each MODULE, such as torch, and then sends {ready} on the socket FD. A request is one line of JSON,
{argv, environment, log, out}. The server answers it with {pid} or {error}. When a child ends, the server sends
{pid, code}. The server ends when the socket closes; its children continue.

The server must not compute anything with torch. After a parallel operation, torch has a pool of threads. A fork does
not copy threads, so a forked child would wait for the threads forever. Each child sets its number of threads itself.

A child always runs the code that is on disk when the child starts. If an imported module of this project was edited
after the import, the child executes a new interpreter instead of using the imported modules.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from experiments.store.durable import states_of


def main(arguments: Sequence[str]) -> None:
    """Serve until the socket closes. In a forked child, this function runs the requested program and exits."""
    for name in arguments[1:]:
        with contextlib.suppress(ImportError), warnings.catch_warnings(action="ignore"):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # the garbage collection of a child then does not copy the shared memory pages
    ours = [one for name, one in [*sys.modules.items()] if name.partition(".")[0] in ("experiments", "model")]
    files = [Path(one.__file__) for one in ours if one.__file__]
    states = states_of(files)
    connection = socket.socket(fileno=int(arguments[0]))
    _say(connection, {"ready": True})
    program = serve(connection)
    if program is None:
        return
    if states_of(files) != states:
        os.execve(sys.executable, [sys.executable, *program], os.environ)
    finish(run(program))


def serve(connection: socket.socket) -> list[str] | None:
    """Answer requests. Return None when the socket closes. In a forked child, return the program to run."""
    # The handler does nothing. Python writes a byte to `wake` for every signal, and this byte wakes the loop.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    woken, wake = socket.socketpair()
    for end in (woken, wake, connection):
        end.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    selector = selectors.DefaultSelector()
    selector.register(connection, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    buffer = b""
    while True:
        for key, _ in selector.select():
            data = _receive(key.fileobj)
            if key.fileobj is woken:
                _reap(connection)
                continue
            if data is None:
                continue
            if not data:
                return None
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                request = json.loads(line)
                if _fork(connection):
                    signal.set_wakeup_fd(-1)
                    selector.close()
                    for end in (woken, wake, connection):
                        end.close()
                    become(request)
                    return list(request["argv"])


def _receive(source: Any) -> bytes | None:
    """Return the available bytes, None if there are none yet, or b"" if the other end is closed."""
    try:
        return bytes(source.recv(1 << 20))
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _fork(connection: socket.socket) -> bool:
    """Fork the process and report the child's pid. Return True in the child and False in the server."""
    try:
        pid = os.fork()
    except OSError as error:
        _say(connection, {"error": str(error)})
        return False
    if pid == 0:
        return True
    _say(connection, {"pid": pid})
    return False


def _reap(connection: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _say(connection, {"pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _say(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.setblocking(True)
    with contextlib.suppress(OSError):  # the coordinator has ended; the next read returns b""
        connection.sendall(json.dumps(message).encode() + b"\n")
    connection.setblocking(False)


def become(request: dict[str, Any]) -> None:
    """Give the forked process the session, output files and environment of a process that was started directly."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the server changed the handler of SIGCHLD only
    for descriptor, name in ((1, request["out"]), (2, request["log"])):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(file, descriptor)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])


def run(argv: list[str]) -> int:
    """Run `-P -m MODULE argument…` or `SCRIPT argument…` as `python` would do. Return the exit code."""
    try:
        if argv[:2] == ["-P", "-m"]:
            sys.argv = argv[2:]
            sys.modules.pop(argv[2], None)  # runpy warns about a module that is imported already
            runpy.run_module(argv[2], run_name="__main__", alter_sys=True)
        else:
            sys.argv = argv
            sys.path.insert(0, str(Path(argv[0]).absolute().parent))
            runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as leave:
        if leave.code is None or isinstance(leave.code, int):
            return leave.code or 0
        print(leave.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def finish(code: int) -> NoReturn:
    """End the process as the interpreter does, but without freeing torch's modules, which takes a second or more."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()  # multiprocessing calls the same function in its forked children
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main(sys.argv[1:])
