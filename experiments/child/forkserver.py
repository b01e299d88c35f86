"""A process that imports torch, or the child's program, once and forks: children start in milliseconds, not seconds.

    python -P -m experiments.child.forkserver FD MODULE…

On the socket FD it sends {ready} once all modules are imported, reads one JSON object per line, {argv, environment,
log, out}, and answers {pid} or {error}; when a child ends it sends {pid, code}. It ends when the socket closes;
children continue.

It only imports and never computes: after one parallel operation of torch a forked child hangs, because the threads of
the pool are not copied. Children set their own number of threads. A child always runs the code that is on disk when it
starts: if a module of this project that the server has imported was edited since, the child starts from nothing.
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
    """Serve until the socket closes. A forked child also ends here, after its program."""
    for name in arguments[1:]:
        with contextlib.suppress(ImportError), warnings.catch_warnings(action="ignore"):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # then a child's garbage collection does not copy the shared pages
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
    """Answer requests. Returns None when the socket closes and, in a child, the program to run."""
    # the handler does nothing; the byte written for every signal wakes the loop
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
    """The available bytes; None if there are none yet, b"" if the other end has closed."""
    try:
        return bytes(source.recv(1 << 20))
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _fork(connection: socket.socket) -> bool:
    """Fork; True in the child."""
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
    with contextlib.suppress(OSError):  # the coordinator is gone; the next read notices it
        connection.sendall(json.dumps(message).encode() + b"\n")
    connection.setblocking(False)


def become(request: dict[str, Any]) -> None:
    """Make the forked process equal to one started by itself."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the server has changed no other
    for descriptor, name in ((1, request["out"]), (2, request["log"])):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(file, descriptor)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])


def run(argv: list[str]) -> int:
    """Run `-P -m MODULE argument…` or `SCRIPT argument…` like the interpreter's command line; returns the exit code."""
    try:
        if argv[:2] == ["-P", "-m"]:
            sys.argv = argv[2:]
            sys.modules.pop(argv[2], None)  # imported by the server: runpy would warn
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
    """End like the interpreter, but without freeing torch's modules, which takes a second or more."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()  # as multiprocessing does in its forked children
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main(sys.argv[1:])
