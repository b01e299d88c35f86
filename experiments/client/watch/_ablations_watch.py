"""Record which files of the user's code a Python process imports, and refuse those of other code than the run's.

The first line of $ABLATIONS_WATCH is the folder of the reports. Each other line is a place, after the word for what is
done with the files below it. "record" names each file in modules.txt as soon as it is imported. "refuse" names it in
imported-elsewhere.txt and raises ImportError. "ignore" does neither. The longest place counts. Each process begins its
report with a line "process ID python VERSION".

A module's file is the origin of its spec and the file name of its code, wherever its bytecode lies. An audit hook sees
both when the module's code is about to run, so a process that is killed loses nothing. The standard library and
installed packages are not recorded. Where imports are refused, a process reports the versions of the installed packages
at its end.

Every process of a run loads this file, of Python 3.8 too: it imports nothing that Python's start has not imported.
"""

from __future__ import annotations

import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_reports = ""
_places: list[tuple[str, str]] = []  # (real path with a separator at its end, what is done)
_folders: dict[str, str] = {}  # folder: its real path
_seen: set[str] = set()


def start() -> None:
    """Watch this process from now on. Raises nothing: a run whose watcher cannot report counts as not watched."""
    global _reports
    try:
        _reports, *lines = os.environ["ABLATIONS_WATCH"].split("\n")
        here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        ignored = [f"ignore {path}" for path in (sys.prefix, sys.base_prefix, here)]
        for line in (*lines, *ignored):
            what, _, path = line.partition(" ")
            _places.append((os.path.join(os.path.realpath(path), ""), what))
        sys.addaudithook(_hook)
        atexit.register(_end)
        _write("modules.txt", f"process {os.getpid()} python {'.'.join(map(str, sys.version_info[:3]))}")
    except Exception:
        return


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "exec":
        code = arguments[0]
        if getattr(code, "co_name", "") == "<module>":
            _see(code.co_filename)
            _see(_origin_of_newest())
    elif event == "import":
        _see(arguments[1])  # the file of an extension, otherwise None
    elif event == "cpython.run_file":
        _see(arguments[0])


def _see(path: Any) -> None:
    """Record or refuse the file of a module. Raises ImportError to refuse it."""
    if not isinstance(path, str) or not path or path in _seen or path.startswith("<"):
        return
    try:
        file = _file_of(path)
        what = _what(file) if file else ""
    except (OSError, ValueError):
        return
    if what == "refuse":
        _write("imported-elsewhere.txt", file)
        raise ImportError(f"{file} lies in the working copy, not in the tree of this run")
    _seen.add(path)
    if what == "record":
        _write("modules.txt", file)


def _file_of(path: str) -> str:
    """The real path of a module's source; of one in an archive, the archive's; "" for a name that is no file."""
    folder, name = os.path.split(os.path.abspath(path))
    if os.path.basename(folder) == "__pycache__":
        folder, name = os.path.dirname(folder), name.split(".")[0] + ".py"
    if folder not in _folders:
        _folders[folder] = os.path.realpath(folder)
    file = os.path.join(_folders[folder], name)
    if os.path.islink(file):
        file = os.path.realpath(file)
    while not os.path.exists(file):
        file = os.path.dirname(file)
    return file if os.path.isfile(file) else ""


def _what(file: str) -> str:
    longest, what = "", ""
    for place, its in _places:
        if len(place) > len(longest) and (file + os.sep).startswith(place):
            longest, what = place, its
    installed = {"site-packages", "dist-packages"} & set(file[len(longest) :].split(os.sep))
    return "" if installed else what


def _origin_of_newest() -> Any:
    """The origin of the module that was added last: at the begin of its code, the one that is being imported."""
    try:
        return _origin(sys.modules[next(reversed(sys.modules))])
    except (KeyError, RuntimeError, StopIteration):  # another thread imports too
        return None


def _origin(module: ModuleType) -> Any:
    try:  # not by getattr, which would load a lazy module
        names = object.__getattribute__(module, "__dict__")
        return getattr(names.get("__spec__"), "origin", None) or names.get("__file__")
    except Exception:
        return None


def _end() -> None:
    """Look once more at all modules: a file without code of its own, such as one that a loader of the user's makes."""
    for module in list(sys.modules.values()):
        try:
            _see(_origin(module))
        except ImportError:  # it is named in the report, so the run fails
            continue
    if any(what == "refuse" for _, what in _places):
        _report_versions()


def _report_versions() -> None:
    from importlib import metadata  # takes a while

    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name, module in list(sys.modules.items()):
        if "." not in name and "-packages" in (getattr(module, "__file__", None) or ""):
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:  # PIL is Pillow's
                found[name] = str(getattr(module, "__version__", ""))
    for name, version in found.items():
        if version:
            _write("packages.txt", f"{name} {version}")


_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def _write(name: str, line: str) -> None:
    """Append a line, in one call, so that lines of several processes do not mix."""
    try:
        file = os.open(os.path.join(_reports, name), _APPEND, 0o666)
        try:
            os.write(file, os.fsencode(line.replace("\n", "?")) + b"\n")
        finally:
            os.close(file)
    except (OSError, ValueError):
        return
