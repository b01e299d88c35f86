"""Record which files of the user's code a Python process imports, and refuse imports from outside the run's code.

The environment variable ABLATIONS_WATCH configures the watcher. Its first line is the folder of the reports. Each other
line is "ACTION FOLDER". The action applies to the files below the folder:

    record   write the file's name to modules.txt as soon as the file is imported
    refuse   write the file's name to imported-elsewhere.txt and raise ImportError
    ignore   do nothing

If a file is below several of these folders, the action of the innermost folder applies. Each process first writes a
line "process ID python VERSION" to modules.txt.

The file of a module is the origin of its spec, and also the file name of its code object. Both names are the path of
the source, even if Python loads bytecode from another folder. An audit hook reads both before the module's code runs,
so the report is complete even if the process is killed. The standard library and installed packages are not recorded.
If a folder has the action "refuse", each process writes the versions of the packages that it imported to packages.txt
when it ends.

Every Python process of a run loads this file, if its version is 3.8 or newer. The file imports only modules that Python
has already imported when it starts.
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
_places: list[tuple[str, str]] = []  # (real path of a folder with a separator at its end, action)
_folders: dict[str, str] = {}  # folder → its real path
_seen: set[str] = set()


def start() -> None:
    """Watch this process from now on.

    This function raises no error. If the watcher cannot write its report, the run counts as not watched.
    """
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
        _see(arguments[1])  # the file of an extension module; None for other modules
    elif event == "cpython.run_file":
        _see(arguments[0])


def _see(path: Any) -> None:
    """Apply the action for a module's file: record it, or raise ImportError."""
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
    """Return the real path of a module's source.

    For a module in an archive, this is the path of the archive. The result is "" if `path` is not a file.
    """
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
    """Return the origin of the newest module in `sys.modules`.

    When a module's code is about to run, the newest module is the one that is being imported.
    """
    try:
        return _origin(sys.modules[next(reversed(sys.modules))])
    except (KeyError, RuntimeError, StopIteration):  # another thread changed `sys.modules` at the same time
        return None


def _origin(module: ModuleType) -> Any:
    try:  # getattr would load a lazy module
        names = object.__getattribute__(module, "__dict__")
        return getattr(names.get("__spec__"), "origin", None) or names.get("__file__")
    except Exception:
        return None


def _end() -> None:
    """Apply the action for all modules again, when the process ends.

    The audit hook does not see a module without a code object, such as a module of a user's loader.
    """
    for module in list(sys.modules.values()):
        try:
            _see(_origin(module))
        except ImportError:  # imported-elsewhere.txt now names the module, so the run fails
            continue
    if any(what == "refuse" for _, what in _places):
        _report_versions()


def _report_versions() -> None:
    from importlib import metadata  # this import is slow

    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name, module in list(sys.modules.items()):
        if "." not in name and "-packages" in (getattr(module, "__file__", None) or ""):
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:  # the names of package and module differ (Pillow, PIL)
                found[name] = str(getattr(module, "__version__", ""))
    for name, version in found.items():
        if version:
            _write("packages.txt", f"{name} {version}")


_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def _write(name: str, line: str) -> None:
    """Append a line to a report in one system call, so that lines of several processes do not mix."""
    try:
        file = os.open(os.path.join(_reports, name), _APPEND, 0o666)
        try:
            os.write(file, os.fsencode(line.replace("\n", "?")) + b"\n")
        finally:
            os.close(file)
    except (OSError, ValueError):
        return
