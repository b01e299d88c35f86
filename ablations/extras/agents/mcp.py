"""The command `ablations mcp`: serve commands as tools for an agent over MCP, on standard input and output.

Each call runs the command with --json in a separate process, so a failure does not affect other calls. A fork server
that has imported the modules starts these processes quickly. The answer contains the command's JSON, shortened and
split into pages, and suggests the next calls (docs/exit-codes-and-json.md). templates/mcp.toml defines the tools.
"""

import contextlib
import itertools
import json
import math
import os
import re
import signal
import sys
import tempfile
import time
import tomllib
import unicodedata
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from ablations.cli.terminal import unguarded
from ablations.service.choose_run import NOT_TRAINING
from ablations.service.selected import StoreOptions, holds_table
from ablations.study.selectors import CORPUS
from ablations.study.study_file import builtin_studies
from experiments.errors import UserError
from experiments.jobs.engines.engine import import_path
from experiments.jobs.engines.fork_server import ForkServer
from experiments.messages import either
from experiments.store.layout import MARKER
from experiments.tasks.load import named_tasks
from reports.audit.verify import SUFFIXES

HERE = Path(__file__).parent
_TABLE = tomllib.loads((HERE / "templates" / "mcp.toml").read_text(encoding="utf-8"))
TOOLS: dict[str, dict[str, Any]] = _TABLE["tool"]
NO_OPTIONS = ("study", "cell", "other", "run", "runs", "prefix", "file")  # positional arguments on the command line
OURS = ("out", "seconds", "until")  # arguments that the server handles itself
STUDY_FORMAT = "ablations://study-format"  # URI of the resource that describes the study file


def schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of the arguments of a tool."""
    takes = tool.get("takes", [])
    known = {name: _TABLE["arguments"][name] for name in (*takes, "full", "cursor")}
    required = takes[: tool.get("required", 0)]
    return {"type": "object", "properties": known, "required": required, "additionalProperties": False}


def as_declared(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with the types that the schema declares. Raises UserError for NaN or infinity.

    JSON may write an integer as 2.0. A list of rows becomes one text with commas, as on the command line.
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{name}: {value} is not a finite number.")
        if _TABLE["arguments"].get(name, {}).get("type") == "integer" and isinstance(value, float):
            value = int(value)
        if name == "rows" and isinstance(value, list):
            value = ",".join(value)
        found[name] = value
    return found


_URL = re.compile(r"\b(?!file:)[A-Za-z][A-Za-z0-9+.-]*://\S*")  # URLs except file:, which names a local file
_BETWEEN = re.compile(r"""[\s=,:;|<>()\[\]{}"'`@&!]+""")  # signs that separate paths in the text of a setting


class Allowed:
    """The allowed folders: a caller may name only studies, tables, bundles and corpora inside them.

    Links are resolved. The check covers all arguments, including the values of settings. It does not restrict what
    studies do. A study inside the folders may run any command and read any file.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = [folder.resolve() for folder in folders]

    def check(self, tool: str, given: Mapping[str, Any]) -> None:
        """Raise UserError for arguments that name a path outside the folders, or are not plain text."""
        for name, value in given.items():
            for text in value if isinstance(value, list) else [str(value)]:
                if any(unicodedata.category(sign) in ("Cc", "Cs") for sign in text):
                    raise UserError(f"{name} contains control characters. Write one line of plain text.")
                if REPLACEMENT in text:
                    raise UserError(f"{name} contains a character that is not Unicode. Write plain text.")
                if name in NO_OPTIONS and text.startswith("-"):
                    raise UserError(f"{name}: {text} would be read as an option. Write a name, or ./{text} for a file.")
        if "study" in given and not (tool == "settings" and given["study"] in named_tasks()):
            self._study(given["study"], Path())
        if given.get("corpus", "builtin") != "builtin":
            self.inside(Path(given["corpus"]))
        for setting in given.get("set", ()):
            self._setting(setting, given.get("study"))
        if "other" in given and not (self.inside(Path(given["other"])) / MARKER).is_file():
            self._study(given["other"], Path())
        if "file" in given and not self.inside(Path(given["file"])).is_file():
            raise UserError(f"{given['file']} does not exist.")
        if "file" in given and "study" not in given and not holds_table(given["file"]):
            raise UserError("verify: the file does not name its study. Give study too.")
        if "out" in given:
            out = self.inside(Path(given["out"]))
            if os.path.lexists(out):
                raise UserError(f"out: {given['out']} exists; choose a new name.")
            if out.suffix not in SUFFIXES:
                raise UserError(f"out: {given['out']} must end in {either(SUFFIXES)}.")

    def studies(self) -> Iterator[dict[str, str]]:
        """Yield the path and title of each study file in the folders."""
        for path in (path for folder in self._folders for path in sorted(folder.glob("*.toml"))):
            table = _toml(path)
            if {"variation", "extends", "ablate"} & {*table} and self._holds(path.resolve()):
                yield {"study": str(path), "title": str(table.get("title", ""))}

    def _setting(self, setting: str, study: str | None) -> None:
        """Raise UserError for a KEY=VALUE whose value names a path outside the folders.

        The server does not know which settings of a trainer are paths. Absolute paths and paths that start with `~`
        must lie inside the folders. A relative path is checked in the study's folder, where trainers run, because it
        may be a link.
        """
        name, _, value = (part.strip() for part in setting.partition("="))
        if name == CORPUS:
            if value not in ("", "builtin"):
                self.inside(Path(value))
            return
        folder = Path(study).parent if study and study.endswith(".toml") else Path()
        for part in {value, *_BETWEEN.split(_URL.sub(" ", value))} - {""}:
            if ".." in part.split("/"):
                raise UserError(f"set: {name} has the path {part} with `..`. Write a path without it.")
            if part.startswith(("/", "~")):
                self.inside(Path(part))
            elif self._holds(folder.resolve()) or os.path.lexists(folder / part):
                self.inside(folder / part)

    def _study(self, name: str, beside: Path, chain: int = 9) -> None:
        """Raise UserError if a study, or a study that it extends, is outside the folders.

        The command itself reports other mistakes in these files.
        """
        if name not in builtin_studies() and chain:
            path = self.inside(beside / name)
            if isinstance(parent := _toml(path).get("extends"), str):
                self._study(parent, path.parent, chain - 1)

    def inside(self, path: Path) -> Path:
        """Return the path with links resolved. Raises UserError if it lies outside the folders.

        A leading `~` is checked both as a file name and as the home folder.
        """
        try:
            places = [Path(os.path.realpath(one)) for one in (path, path.expanduser())]
        except (RuntimeError, ValueError):  # ~ with an unknown user; a NUL character
            places = []
        if not places or not all(self._holds(place) for place in places):
            raise UserError(
                f"{path} lies outside the allowed folders ({', '.join(map(str, self._folders))}). Name a file in "
                "them. To allow another folder, start the server with `ablations mcp --allow DIR`."
            )
        return places[0]

    def _holds(self, path: Path) -> bool:
        return any(path.is_relative_to(folder) for folder in self._folders)


def _toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file, or {} if the file cannot be read as TOML."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        return tomllib.loads(path.read_text(encoding="utf-8-sig")) if path.suffix == ".toml" and path.is_file() else {}
    return {}


VERSION = 1  # version of the answer format (docs/exit-codes-and-json.md)
PAGE, LONGEST = 12_000, 2_000  # maximum numbers of characters: of the value of an answer; of one text in it


def short(value: Any, drop: Sequence[str], longest: int = LONGEST) -> Any:
    """Return the value without the keys `drop`. Texts longer than `longest` lose their middle."""
    if isinstance(value, dict):
        return {name: short(one, drop, longest) for name, one in value.items() if name not in drop}
    if isinstance(value, list):
        return [short(one, drop, longest) for one in value]
    if isinstance(value, str) and len(value) > longest:
        half = longest // 2
        return f"{value[:half]} … {len(value) - 2 * half} characters left out … {value[-half:]}"
    return value


def page(value: Any, cursor: int) -> dict[str, Any]:
    """Return one page of a value: entries of a list, or a part of the JSON text if one entry exceeds a page.

    cursor: where the page begins, an entry of the list or a character of the JSON text.
    """
    shown: dict[str, Any]
    whole = json.dumps(value, ensure_ascii=False)
    sizes = [len(json.dumps(one, ensure_ascii=False)) + 2 for one in value] if isinstance(value, list) else [len(whole)]
    if max(sizes, default=0) > PAGE:
        total, end, shown = len(whole), cursor + PAGE, {"part": whole[cursor : cursor + PAGE]}
    elif isinstance(value, list):
        sums = [*itertools.accumulate(sizes[cursor:])]
        total, end = len(value), cursor + sum(size <= PAGE for size in sums)
        shown = {"value": value[cursor:end]}
    else:
        return {"value": value}
    return {**shown, "total": total, **({"cursor": end} if end < total else {})}


NOT_MEASURED = "unknown; measure it: `plan` with measure = true trains a few steps"
NOT_RUN = "unknown until a run has finished; `start` one row with seeds = 1, then call `plan` again"
NOT_PREDICTED = "the needs of a user's trainer are not predicted"


def price(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the needs of the missing runs of a plan: slot hours, the largest memory, and disk space.

    Slot hours are the predicted hours of all runs together. Unknown values are None, and the key `unknown` then has the
    reasons.
    """
    left = {run["run_id"]: run for run in runs if run["state"] not in ("finished", "stale")}.values()
    seconds = [run["seconds"] for run in left]
    found: dict[str, Any] = {
        "runs": len(left),
        "slot_hours": None if None in seconds else round(sum(seconds) / 3600, 3),
        "memory_bytes": max((run["memory_bytes"] or 0 for run in left), default=0) or None,
        "disk_bytes": sum(run["disk_bytes"] or 0 for run in left) or None,
    }
    unknown = [run for run in left if run["seconds"] is None]
    why = {"slot_hours": NOT_MEASURED if any(run.get("cost") for run in unknown) else NOT_RUN}
    why |= {"memory_bytes": NOT_PREDICTED, "disk_bytes": NOT_PREDICTED}
    if left and (missing := {name: text for name, text in why.items() if found[name] is None}):
        found["unknown"] = missing
    return found


_OF_VERBS = ("describe", "inspect", "options", "plan", "report", "run", "status")
MODULES = ["scipy.stats", *(f"ablations.cli.{name}" for name in _OF_VERBS)]
AT_ONCE, LIMIT_S = 4, 600.0  # maximum number of simultaneous calls; maximum seconds of one call
IDLE_S = 15.0  # seconds that `wait` waits for a coordinator to start training


class McpSession:
    """A session that answers the calls of tools for one store."""

    def __init__(self, store: StoreOptions, allowed: Allowed) -> None:
        import anyio

        self._store, self._allowed = store, allowed
        self._server: ForkServer | None = None
        self._free, self._sleep = anyio.Semaphore(AT_ONCE), anyio.sleep

    async def answer(self, name: str, given: dict[str, Any]) -> tuple[dict[str, Any] | str, bool]:
        """Return the answer or an error message, and whether the call failed (an error, or an exit code above 1)."""
        from jsonschema import Draft202012Validator

        if name not in TOOLS:
            return f"There is no tool {name}. The tools are: {', '.join(TOOLS)}.", True
        tool, full = TOOLS[name], bool(given.get("full"))
        for error in Draft202012Validator(schema(tool)).iter_errors(given):
            return short(f"{name}{error.json_path[1:]}: {error.message}", ()), True
        try:
            given = as_declared(given)
            self._allowed.check(name, given)
            value, more = await (self._wait(given) if name == "wait" else self._value(name, given))
        except (UserError, OSError) as error:
            return short(str(error), ()), True
        value = short(value, () if full else tool.get("drop", ()), 4 * LONGEST if full else LONGEST)
        shown = page(value, given.get("cursor", 0))
        known = {**given, "file": given["out"]} if "out" in given else given
        calls = [(name, {**given, "cursor": shown["cursor"]})] if "cursor" in shown else []
        calls += [(n, {k: known[k] for k in TOOLS[n].get("takes", ()) if k in known}) for n in tool.get("next", ())]
        then = [{"tool": n, "arguments": a} for n, a in calls if {*schema(TOOLS[n])["required"]} <= {*a}]
        return {"schema": VERSION, "tool": name, **more, **shown, "next": then}, more.get("exit", 0) > 1

    async def _value(self, name: str, given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Run the command of a tool. Return its JSON and the extra fields of the answer, such as `exit` and `notes`."""
        words = self._words(name, given)
        code, text, said = await self._call(name, [*words, "--json"])
        if not text:
            raise UserError(said or f"`ablations {words[0]}` ended with exit code {code} and printed nothing.")
        value, more = json.loads(text), {"exit": code} | ({"notes": short(said, ())} if said else {})
        if name == "studies":
            value = [*self._allowed.studies(), *value]
        if name == "plan":
            more["price"] = price(value)
            _, text, _ = await self._call(name, ["budget", *self._store.store_words, "--json"])
            more |= {"budget": json.loads(text)} if text else {}
        if "out" in given:
            form = f"--format={SUFFIXES[Path(given['out']).suffix]}"
            code, _, said = await self._call(name, [*words, form, f"--out={given['out']}"])
            if code:
                raise UserError(said)
            more["file"] = given["out"]
        return value, more

    async def _wait(self, given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Wait. Then return the unfinished runs, those that finished during the wait, and the number of runs per state.

        The wait ends when a run changes its state (unless `until` is "end"), no run is training or about to start, or
        the time is over.
        """
        began = moved = time.monotonic()
        before: dict[str, Any] | None = None
        while True:
            asked = time.monotonic()
            jobs, _ = await self._value("wait", {})
            now = time.monotonic()
            states = {job["run_id"]: job["state"] for job in jobs}
            before = before or states
            waiting = [job["why"] for job in jobs if job["state"] == "waiting" and not job["held"]]
            running = "running" in states.values()
            if running or any(NOT_TRAINING not in why for why in waiting):
                moved = now
            idle = not (waiting or running) or now - moved > IDLE_S
            if idle or now - began >= given.get("seconds", 50) or (states != before and given.get("until") != "end"):
                counts = {state: [*states.values()].count(state) for state in dict.fromkeys(states.values())}
                shown = [j for j in jobs if j["state"] != "finished" or before.get(j["run_id"]) != "finished"]
                return shown, {"counts": counts}
            await self._sleep(max(1.0, 10 * (now - asked)))

    def _words(self, name: str, given: Mapping[str, Any]) -> list[str]:
        """Return the command line of a call. `Allowed.check` has refused values that would be read as options."""
        words = [*TOOLS[name]["verb"].split(), *(() if name in ("studies", "settings") else self._store.store_words)]
        for one in [one for one in TOOLS[name].get("takes", ()) if one in given and one not in OURS]:
            option = "" if one in NO_OPTIONS else f"--{one.replace('_', '-')}="
            values = given[one] if isinstance(given[one], list) else [given[one]]
            words += [option[:-1] if value is True else f"{option}{value}" for value in values if value is not False]
        return words

    async def _call(self, name: str, words: Sequence[str]) -> tuple[int, str, str]:
        """Run a command. Return its exit code, its output and its messages.

        If the call is cancelled or takes too long, a command that only reads is killed. A command that changes the
        store continues.
        """
        async with self._free:
            if self._server is None or not self._server.alive:
                self._server = ForkServer(MODULES)
            with tempfile.TemporaryDirectory(prefix="ablations-call-") as folder:
                out, log, code, began = Path(folder, "out"), Path(folder, "log"), None, time.monotonic()
                environment = {**os.environ, "PYTHONPATH": os.pathsep.join(import_path())}
                pid = self._server.fork(["-P", "-m", "ablations.cli.main", *words], environment, log, out)
                try:
                    while code is None and pid and self._server.alive and time.monotonic() - began < LIMIT_S:
                        await self._sleep(0.01)
                        code = self._server.exit_code(pid) if self._server.has_ended(pid) else None
                finally:
                    if code is None and pid and not TOOLS[name].get("changes"):
                        with contextlib.suppress(ProcessLookupError):
                            os.killpg(pid, signal.SIGKILL)
                if code is None:
                    raise UserError(f"`ablations {words[0]}` was killed, or took longer than {LIMIT_S:.0f} s.")
                texts = [path.read_text(encoding="utf-8", errors="replace").strip() for path in (out, log)]
                return code, texts[0], texts[1].removeprefix("ablations: ")


REPLACEMENT = "\ufffd"  # replaces characters that are not Unicode


def readable(line: str) -> str:
    """Replace unpaired surrogates in a line of the protocol, because the SDK does not answer a line that has one."""
    if "\\ud" not in line.lower():
        return line
    try:
        text = json.dumps(json.loads(line), ensure_ascii=False)
    except (ValueError, RecursionError):
        return line
    return re.sub("[\ud800-\udfff]", REPLACEMENT, text)


class Requests:
    """The lines of standard input, without unpaired surrogates. Child processes get an empty standard input."""

    def __init__(self) -> None:
        self._wire = os.dup(sys.stdin.fileno())
        os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0)

    async def __aiter__(self) -> AsyncIterator[str]:
        import anyio

        with os.fdopen(self._wire, encoding="utf-8", errors="replace", closefd=False) as stream:
            async for line in anyio.wrap_file(stream):
                yield readable(line)


def mcp(
    store_options: StoreOptions,
    allow: Annotated[
        list[Path] | None,
        typer.Option(
            "--allow", metavar="DIR", help="Folder of studies and tables; repeatable; the current folder if unset."
        ),
    ] = None,
) -> None:
    """Serve plan, start, status, report … as tools for an agent, over MCP (ablations/extras/agents/agents.md).

    The agent starts this command as a server of the Model Context Protocol. The server does not listen on a network. No
    tool deletes or edits a result.
    """
    try:
        import anyio
        import mcp_types as types
        from mcp import MCPError
        from mcp.server.lowlevel import Server
        from mcp.server.stdio import stdio_server
    except ImportError:
        raise UserError("`ablations mcp` needs the extra [mcp]: pip install 'transformer-ablations[mcp]'.") from None
    session = McpSession(store_options, Allowed(allow or [Path()]))

    async def tools(*_: Any) -> types.ListToolsResult:
        found = []
        for name, tool in TOOLS.items():
            hint = types.ToolAnnotations(read_only_hint=not tool.get("changes"))
            found.append(types.Tool(name=name, description=tool["about"], input_schema=schema(tool), annotations=hint))
        return types.ListToolsResult(tools=found)

    async def call(_: Any, asked: types.CallToolRequestParams) -> types.CallToolResult:
        found, wrong = await session.answer(asked.name, asked.arguments or {})
        text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
        content = [types.TextContent(type="text", text=text)]
        structured = None if isinstance(found, str) else found
        return types.CallToolResult(content=content, structured_content=structured, is_error=wrong)

    async def resources(*_: Any) -> types.ListResourcesResult:
        about = "Format of a study file: tables, names, designs, metrics."
        page = types.Resource(name="study-format", uri=STUDY_FORMAT, description=about, mime_type="text/markdown")
        return types.ListResourcesResult(resources=[page])

    async def read(_: Any, asked: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        if str(asked.uri) != STUDY_FORMAT:
            raise MCPError(
                types.INVALID_PARAMS, f"There is no resource {asked.uri}. The only resource is {STUDY_FORMAT}."
            )
        text = (HERE / "templates" / "study-file.md").read_text(encoding="utf-8")
        page = types.TextResourceContents(uri=STUDY_FORMAT, mime_type="text/markdown", text=text)
        return types.ReadResourceResult(contents=[page])

    async def serve() -> None:
        instructions = (HERE / "agents.md").read_text(encoding="utf-8")
        server = Server(
            "ablations",
            version=version("transformer-ablations"),
            instructions=instructions,
            on_list_tools=tools,
            on_call_tool=call,
            on_list_resources=resources,
            on_read_resource=read,
        )
        async with stdio_server(stdin=cast(Any, Requests())) as (reader, writer):
            await server.run(reader, writer, server.create_initialization_options())

    sys.stdout = unguarded(sys.stdout)  # no guard is needed: JSON text has no control characters
    try:
        anyio.run(serve)
    except* (BrokenPipeError, KeyboardInterrupt):  # the client has closed the connection
        pass
