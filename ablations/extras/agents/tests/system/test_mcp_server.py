"""`ablations mcp` as a client sees it, over standard input and output, with the official SDK; `run --detach`."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.system.conftest import Cli, as_json, environment

ROOT = Path(__file__).parents[5]
STUDY = """
name = "toy"
title = "What pieces are worth"
command = "python3 train.py --rate {rate} --seed {seed} --sleep {sleep}"
seeds = 3
base = {rate = 0.5, sleep = 0.0}
metric = [{name = "acc", digits = 1}]
variation = [{key = "base"}, {key = "slow", set = {rate = 0.1}}, {key = "fast", set = {rate = 0.9}}]
"""
TRAIN = """
import argparse, json, random, time
parser = argparse.ArgumentParser()
for name in ("rate", "seed", "sleep"):
    parser.add_argument(f"--{name}", type=float)
given = parser.parse_args()
time.sleep(given.sleep)
print(json.dumps({"acc": 80 + 10 * given.rate + random.Random(given.seed).random()}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "toy.toml").write_text(STUDY)
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


Call = Callable[..., Coroutine[Any, Any, Any]]


@asynccontextmanager
async def door(folder: Path, *words: str, store: str = "store", log: Path | None = None) -> AsyncIterator[Any]:
    """A client of a server that stands in this folder."""
    from mcp.client.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    server = StdioServerParameters(
        command=sys.executable, args=["-m", "ablations", "mcp", "--store", store, *words], cwd=folder, env=environment()
    )
    with (log or folder / "server.log").open("a") as errors:
        async with Client(stdio_client(server, errlog=errors)) as client:
            yield client


async def ask(client: Any, tool: str, **arguments: Any) -> dict[str, Any]:
    """An answer that is no error."""
    done = await client.call_tool(tool, arguments)
    assert not done.is_error, done.content[0].text
    assert json.loads(done.content[0].text) == done.structured_content
    return dict(done.structured_content)


async def refused(client: Any, tool: str, **arguments: Any) -> str:
    done = await client.call_tool(tool, arguments)
    assert done.is_error, done.structured_content
    return str(done.content[0].text)


def coordinators(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        if "--in-turn" in (process.info["cmdline"] or []) and process.info["cwd"] == str(folder):
            found.append(process)
    return found


# --- From nothing to a verified table


def test_a_client_gets_from_nothing_to_a_verified_table_in_ten_calls(folder: Path) -> None:
    """It knows the instructions and what each answer calls the next sensible calls; no name of this test's study."""
    calls = []

    async def talk() -> dict[str, Any]:
        async with door(folder) as client:
            for word in ("studies", "plan", "start", "wait", "report", "verify"):
                assert f"`{word}" in client.instructions
            offered = {tool.name: tool for tool in (await client.list_tools()).tools}

            async def call(name: str, **arguments: Any) -> dict[str, Any]:
                assert {*offered[name].input_schema["required"]} <= {*arguments}
                calls.append((name, arguments))
                return await ask(client, name, **arguments)

            def next_(answer: dict[str, Any], name: str) -> dict[str, Any]:
                return next(one["arguments"] for one in answer["next"] if one["tool"] == name)

            studies = await call("studies")
            own = next(one["study"] for one in studies["value"] if one["study"].endswith(".toml"))
            plan = await call("plan", study=own)
            assert plan["price"]["runs"] == 9
            started = await call("start", **next_(plan, "start"), devices="cpu:2", because="does the rate matter?")
            waited = await call("wait", **next_(started, "wait"), until="end", seconds=120)
            while not set(waited["counts"]) <= {"finished", "failed", "cancelled"}:
                waited = await call("wait", **next_(waited, "wait"), until="end", seconds=120)
            table = await call("report", **next_(started, "report"), out=str(folder / "table.md"))
            assert [row["n"] for row in table["value"]] == [3, 3, 3]
            return await call("verify", **next_(table, "verify"))

    verified = asyncio.run(talk())
    assert verified["value"]["changed"] == [] and verified["value"]["cells"] > 0 and verified["exit"] == 0
    assert len(calls) <= 10
    entries = [json.loads(line) for line in (folder / "store" / "ledger.jsonl").read_text().splitlines()]
    [request] = [entry for entry in entries if entry["what"] == "request"]
    assert request["because"] == "does the rate matter?" and {*request["rows"]} == {"base", "slow", "fast"}
    assert "| base" in (folder / "table.md").read_text()


@pytest.mark.nightly
def test_a_changed_cell_is_seen(folder: Path, cli: Cli) -> None:
    cli("run", "toy.toml", "--store", "store", "--devices", "cpu:2", cwd=folder)
    table = cli("report", "toy.toml", "--store", "store", cwd=folder).stdout
    (folder / "table.md").write_text(table.replace("| base", "| BASE", 1).replace("89.", "99."))

    async def talk() -> dict[str, Any]:
        async with door(folder) as client:
            return await ask(client, "verify", file="table.md", study="toy.toml")

    answer = asyncio.run(talk())
    assert answer["exit"] == 1 and answer["value"]["changed"]


# --- Runs that are left to a process of their own


@pytest.mark.nightly
def test_two_detached_starts_at_once_train_all(folder: Path) -> None:
    words = [sys.executable, "-m", "ablations", "run", "toy.toml", "--store", "store", "--devices", "cpu:1", "--detach"]
    rows = ("base", "slow", "fast")
    both = [
        subprocess.Popen([*words, "--json", "--rows", row], cwd=folder, env=environment(), stdout=subprocess.PIPE)
        for row in rows
    ]
    told = [json.loads(one.communicate()[0]) for one in both]
    assert all(one.returncode == 0 for one in both)
    assert all(len(one["run_ids"]) == 3 and one["pid"] and Path(one["log"]).is_file() for one in told)
    assert all(f"ablations report toy.toml --rows {row}" in one["next"][1] for row, one in zip(rows, told, strict=True))
    until = time.monotonic() + 240
    while coordinators(folder) and time.monotonic() < until:
        time.sleep(0.3)
    assert len([*folder.glob("store/runs/*/result.json")]) == 9
    assert all("| base" in text for text in [Path(told[0]["log"]).read_text()])


@pytest.mark.nightly
def test_what_a_killed_coordinator_leaves_the_next_in_turn_trains(folder: Path, cli: Cli) -> None:
    store = ["--store", "store", "--devices", "cpu:1", "--detach", "--json"]
    first = as_json(cli("run", "toy.toml", *store, "--set", "sleep=2", "--rows", "base", cwd=folder))
    until = time.monotonic() + 60
    while not as_json(cli("run", "toy.toml", *store, "--rows", "slow", cwd=folder))["coordinator"]:
        assert time.monotonic() < until  # it plans first
    os.kill(first["pid"], signal.SIGKILL)
    until = time.monotonic() + 120
    while coordinators(folder) and time.monotonic() < until:
        time.sleep(0.3)
    jobs = as_json(cli("status", "--store", "store", "--json", cwd=folder))
    assert {job["state"] for job in jobs if job["members"][0]["row"] == "slow"} == {"finished"}


@pytest.mark.nightly
def test_what_is_cancelled_after_it_was_handed_over_is_not_queued_again(folder: Path, cli: Cli) -> None:
    store = ["--store", "store"]
    cli("run", "toy.toml", *store, "--devices", "cpu:1", "--set", "sleep=1", "--detach", cwd=folder)
    cli("cancel", "slow", "fast", *store, cwd=folder)  # before its process has planned
    until = time.monotonic() + 120
    while coordinators(folder) and time.monotonic() < until:
        time.sleep(0.3)
    jobs = as_json(cli("status", *store, "--json", cwd=folder))
    assert {(job["members"][0]["row"], job["state"]) for job in jobs} == {
        ("base", "finished"), ("slow", "cancelled"), ("fast", "cancelled")
    }  # fmt: skip


@pytest.mark.nightly
def test_drain_holds_for_those_in_turn(folder: Path, cli: Cli) -> None:
    store = ["--store", "store", "--devices", "cpu:1", "--detach", "--json"]
    cli("run", "toy.toml", *store, "--set", "sleep=60", "--rows", "base", "--seeds", "1", cwd=folder)
    until = time.monotonic() + 60
    running: list[str] = []
    while "running" not in running and time.monotonic() < until:
        running = [job["state"] for job in as_json(cli("status", "--store", "store", "--json", cwd=folder))]
    second = as_json(cli("run", "toy.toml", *store, "--rows", "slow", "--priority", "-1", cwd=folder))
    drained = cli("work", "--drain", "--store", "store", cwd=folder).stdout
    assert str(second["coordinator"]) in drained
    while psutil.pid_exists(second["pid"]) and time.monotonic() < until:
        time.sleep(0.2)
    assert not psutil.pid_exists(second["pid"])
    cli("cancel", "base", "--store", "store", cwd=folder)
    while coordinators(folder) and time.monotonic() < until + 60:
        time.sleep(0.2)
    jobs = as_json(cli("status", "--store", "store", "--json", cwd=folder))
    waiting = [job for job in jobs if job["state"] == "waiting"]
    assert {job["members"][0]["row"] for job in waiting} == {"slow"} and len(waiting) == 3
    assert all("continue with `ablations work" in job["why"] for job in waiting)


# --- Attacks


def test_nothing_outside_the_allowed_folders_is_named(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "theirs.toml").write_text(STUDY)
    (outside / "train.py").write_text(TRAIN)
    (outside / "table.md").write_text("| base |")
    (folder / "link.toml").symlink_to(outside / "theirs.toml")
    (folder / "linked").symlink_to(outside)
    row = '[[variation]]\nkey = "base"\n'
    (folder / "child.toml").write_text(f'extends = "{outside}/theirs.toml"\nname = "child"\ntitle = "x"\n' + row)
    (folder / "grandchild.toml").write_text('extends = "child.toml"\nname = "grandchild"\ntitle = "x"\n' + row)
    names = [str(outside / "theirs.toml"), f"../{outside.name}/theirs.toml", "link.toml", "linked/theirs.toml",
             "child.toml", "grandchild.toml"]  # fmt: skip

    async def talk() -> None:
        async with door(folder) as client:
            for tool in ("plan", "start", "settings", "report", "status"):
                for name in names:
                    assert "outside the allowed folders" in await refused(client, tool, study=name), name
            for tool, arguments in {
                "verify": {"file": str(outside / "table.md"), "study": "toy.toml"},
                "compare": {"study": "toy.toml", "other": str(outside)},
                "explain": {"study": "linked/theirs.toml", "cell": "base"},
                "report": {"study": "toy.toml", "out": str(outside / "new.md")},
            }.items():
                assert "outside the allowed folders" in await refused(client, tool, **arguments)
            assert "train.py" in await refused(client, "report", study="toy.toml", out="train.py")
            assert "toy.toml exists" in await refused(client, "report", study="toy.toml", out="toy.toml")
            assert "--store=/tmp/x" in await refused(client, "plan", study="--store=/tmp/x")
            assert "--store=/tmp/x" in await refused(client, "cancel", runs=["--store=/tmp/x"])
            listed = await ask(client, "studies")
            assert str(outside) not in json.dumps(listed) and "link.toml" not in json.dumps(listed)
        async with door(folder, "--allow", str(outside), "--allow", ".") as client:
            assert (await ask(client, "plan", study="grandchild.toml"))["price"]["runs"] == 3

    asyncio.run(talk())
    assert not (folder / "store").exists() and [*outside.glob("*")] == [*outside.glob("t*")]


def test_bad_arguments_are_paragraphs(folder: Path) -> None:
    async def talk() -> None:
        async with door(folder) as client:
            assert "There is no tool delete" in await refused(client, "delete", runs=["all"])
            assert "forget" not in {tool.name for tool in (await client.list_tools()).tools}
            assert "control characters" in await refused(client, "start", study="toy.toml", because="a\x1b[2Jb")
            assert "control characters" in await refused(client, "cancel", runs=["a\nb"])
            assert "seeds" in await refused(client, "plan", study="toy.toml", seeds="many")
            assert "'study' is a required" in await refused(client, "plan")
            assert "unexpected" in await refused(client, "plan", study="toy.toml", store="/tmp")
            assert "There is no study file nosuch.toml" in await refused(client, "plan", study="nosuch.toml")
            assert "does not exist" in await refused(client, "status")
            (folder / "broken.toml").write_text("name = ")
            assert "broken.toml, line" in await refused(client, "plan", study="broken.toml")
            assert (await ask(client, "plan", study="toy.toml"))["price"]["runs"] == 9  # it lives

    asyncio.run(talk())


def test_the_format_of_a_study_is_a_resource_and_rows_may_be_a_list(folder: Path) -> None:
    async def talk() -> None:
        async with door(folder) as client:
            [page] = (await client.list_resources()).resources
            [content] = (await client.read_resource(page.uri)).contents
            assert content.text == (ROOT / "docs" / "study-file.md").read_text(encoding="utf-8")
            plan = await ask(client, "plan", study="toy.toml", rows=["base", "slow"], seeds=2.0, cursor=1.0)
            assert [(run["row"], run["seed"]) for run in plan["value"]] == [("base", 2), ("slow", 1), ("slow", 2)]
            assert plan["price"]["slot_hours"] is None and plan["price"]["unknown"]["slot_hours"]

    asyncio.run(talk())


def test_every_request_has_an_answer(folder: Path) -> None:
    """Also one with half a surrogate pair, which the SDK's parser cannot read."""
    words = [sys.executable, "-m", "ablations", "mcp", "--store", "store"]
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    call = '{"jsonrpc": "2.0", "id": %d, "method": "tools/call", "params": {"name": "start", "arguments": {%s}}}'
    arguments = [r'"study": "\ud800"', r'"study": "toy.toml", "rows": "\udfff"', r'"\ud800": 1', '"study": ""',
                 '"study": "."', '"study": "toy.toml", "seeds": 1e400', '"study": "t", "max_hours": NaN']  # fmt: skip
    server = subprocess.Popen(words, cwd=folder, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin and server.stdout
    first = [json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}),
             json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"})]  # fmt: skip
    for line in [*first, *(call % (number, given) for number, given in enumerate(arguments, 2))]:
        server.stdin.write(line.encode() + b"\n")
    server.stdin.flush()
    answers = [json.loads(server.stdout.readline()) for _ in range(1 + len(arguments))]
    server.stdin.close()
    server.stdout.close()
    server.wait(60)
    results = {answer["id"]: answer["result"] for answer in answers}
    assert sorted(results) == [*range(1, 2 + len(arguments))]
    for number in range(2, 2 + len(arguments)):
        assert results[number]["isError"] and "Traceback" not in results[number]["content"][0]["text"]


@pytest.mark.nightly
def test_two_servers_share_a_store(folder: Path) -> None:
    async def talk() -> None:
        async with door(folder) as one, door(folder, log=folder / "other.log") as other:
            both = await asyncio.gather(
                ask(one, "start", study="toy.toml", rows="base,slow", devices="cpu:1"),
                ask(other, "start", study="toy.toml", rows="base,fast", devices="cpu:1"),
            )
            assert sum(answer["value"]["queued_now"] for answer in both) == 9
            ends = await asyncio.gather(*(ask(client, "wait", until="end", seconds=200) for client in (one, other)))
            assert [end["counts"] for end in ends] == [{"finished": 9}] * 2

    asyncio.run(talk())
    assert len([*folder.glob("store/runs/*/attempts/*")]) == 9


@pytest.mark.nightly
def test_a_client_that_leaves_in_the_middle_of_a_call(folder: Path) -> None:
    """What it has started is started; nothing else of it is left."""
    words = [sys.executable, "-m", "ablations", "mcp", "--store", "store"]
    server = subprocess.Popen(words, cwd=folder, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin and server.stdout
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "wait", "arguments": {"seconds": 900}}},
        {"jsonrpc": "2.0", "id": 3, "method": "tools/call",
         "params": {"name": "start", "arguments": {"study": "toy.toml", "devices": "cpu:1"}}},
    ]  # fmt: skip
    for line in lines[:2]:
        server.stdin.write(json.dumps(line).encode() + b"\n")
    server.stdin.flush()
    assert json.loads(server.stdout.readline())["result"]["serverInfo"]["name"] == "ablations"
    server.stdin.write(json.dumps(lines[3]).encode() + b"\n" + json.dumps(lines[2]).encode() + b"\n")
    server.stdin.flush()
    until = time.monotonic() + 60
    while not (folder / "store" / "queue.db").exists() and time.monotonic() < until:
        time.sleep(0.01)
    server.stdin.close()
    server.stdout.close()
    assert server.wait(60) is not None
    until = time.monotonic() + 240
    while len([*folder.glob("store/runs/*/result.json")]) < 9 and time.monotonic() < until:
        time.sleep(0.3)
    assert len([*folder.glob("store/runs/*/result.json")]) == 9
    while coordinators(folder) and time.monotonic() < until:
        time.sleep(0.3)
    assert not [p for p in psutil.process_iter(["cwd"]) if p.info["cwd"] == str(folder)]


def test_only_the_protocol_is_on_standard_output(folder: Path) -> None:
    words = [sys.executable, "-W", "always", "-m", "ablations", "mcp", "--store", "store"]
    call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "plan", "arguments": {"study": "x"}}}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    start = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    server = subprocess.Popen(words, cwd=folder, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin and server.stdout
    for text in (json.dumps(start), json.dumps(ready), "no JSON", json.dumps(call)):
        server.stdin.write(text.encode() + b"\n")
    server.stdin.flush()
    answers = []
    while not any(answer.get("id") == 7 for answer in answers):
        answers.append(json.loads(server.stdout.readline()))
    server.stdin.close()
    rest = server.stdout.read().decode().splitlines()
    server.stdout.close()
    server.wait(60)
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in rest)
    assert all(answer["jsonrpc"] == "2.0" for answer in answers)


def usage(server: psutil.Process) -> tuple[int, int]:
    """Resident bytes and open files of the server and of the process that it forks calls from."""
    every = [server, *server.children()]
    return sum(one.memory_info().rss for one in every), sum(one.num_fds() for one in every)


def many_calls(folder: Path, count: int, every: int = 2) -> None:
    """every: how often a verb is called; the other calls are refused by the server itself."""

    async def talk() -> None:
        async with door(folder) as client:
            await ask(client, "plan", study="toy.toml")
            [server] = [p for p in psutil.Process().children() if "mcp" in p.cmdline()]
            first: tuple[int, int] | None = None
            for number in range(count):
                if number % every == 0:
                    await ask(client, "status")
                else:
                    await refused(client, "plan", study="/etc/passwd.toml")
                if number == count // 5:
                    first = usage(server)
            last = usage(server)
            assert first is not None
            print(f"{count} calls: {first} then {last}")
            assert last[1] <= first[1] + 2 and last[0] < first[0] * 1.1 + 5e6
            assert not [child for child in server.children(recursive=True) if child.status() == psutil.STATUS_ZOMBIE]

    asyncio.run(talk())


@pytest.mark.nightly
def test_300_calls_leave_nothing_behind(folder: Path, cli: Cli) -> None:
    cli("queue", "toy.toml", "--store", "store", cwd=folder)
    many_calls(folder, 300)


@pytest.mark.nightly
def test_10_000_calls_leave_nothing_behind(folder: Path, cli: Cli) -> None:
    cli("queue", "toy.toml", "--store", "store", cwd=folder)
    many_calls(folder, 10_000)


# --- Long answers, and the form of all of them


@pytest.mark.nightly
def test_long_answers_come_in_pages(folder: Path, cli: Cli) -> None:
    from ablations.extras.agents.mcp import PAGE

    rows = ", ".join(f'{{key = "r{n}", set = {{rate = {2 + n / 1000}}}}}' for n in range(1, 200))
    (folder / "many.toml").write_text(
        STUDY.replace("variation = [", f"variation = [{rows}, ").replace('"toy"', '"many"')
    )

    async def talk() -> list[str]:
        async with door(folder) as client:
            answer, seen = await ask(client, "plan", study="many.toml"), list[str]()
            while True:
                assert len(json.dumps(answer["value"], ensure_ascii=False)) <= PAGE and answer["total"] == 202 * 3
                seen += [run["run_id"] for run in answer["value"]]
                if "cursor" not in answer:
                    return seen
                again = answer["next"][0]
                assert again == {"tool": "plan", "arguments": {"study": "many.toml", "cursor": answer["cursor"]}}
                answer = await ask(client, again["tool"], **again["arguments"])

    seen = asyncio.run(talk())
    assert len(seen) == len(set(seen)) == 202 * 3


def test_what_verbs_print_and_tools_answer_has_the_form_of_the_schema(folder: Path, cli: Cli) -> None:
    from jsonschema import Draft202012Validator

    forms = json.loads((ROOT / "docs" / "answers-1.schema.json").read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(forms)

    def holds(name: str, value: Any) -> None:
        Draft202012Validator({**forms, "$ref": f"#/$defs/{name}"}).validate(value)

    store = ["--store", "store"]
    holds("plan", as_json(cli("plan", "toy.toml", "--json", cwd=folder)))
    holds("queue", as_json(cli("queue", "toy.toml", "--rows", "slow", *store, "--json", cwd=folder)))
    holds("status", as_json(cli("status", *store, "--json", cwd=folder)))
    holds("cancel", as_json(cli("cancel", "slow:1", *store, "--json", cwd=folder)))
    holds("cancel", as_json(cli("retry", *store, "--json", cwd=folder)))
    holds("report", as_json(cli("run", "toy.toml", "--rows", "base,fast", *store, "--json", cwd=folder)))
    both = {
        "status": {"study": "toy.toml"}, "log": {"run": "base:1"}, "report": {"study": "toy.toml", "out": "table.csv"},
        "explain": {"study": "toy.toml", "cell": "base"}, "verify": {"study": "toy.toml", "file": "table.csv"},
        "compare": {"study": "toy.toml", "other": "store"}, "plan": {"study": "toy.toml"}, "studies": {},
        "settings": {"study": "toy.toml"}, "wait": {"seconds": 0}, "cancel": {"runs": ["slow"]},
        "start": {"study": "toy.toml", "rows": "base"},
    }  # fmt: skip
    forms_of = {"wait": "status", "start": "run --detach"}

    async def talk() -> None:
        async with door(folder) as client:
            assert {*both} == {tool.name for tool in (await client.list_tools()).tools}
            for tool, arguments in both.items():
                holds("answer", await ask(client, tool, **arguments))
                whole = await ask(client, tool, **{n: v for n, v in arguments.items() if n != "out"}, full=True)
                holds("answer", whole)
                if tool not in ("studies", "wait") and "value" in whole:  # studies: also files, by name and title
                    holds(forms_of.get(tool, tool), whole["value"])

    asyncio.run(talk())
    holds("studies", as_json(cli("studies", "--json", cwd=folder)))
    holds("tables", as_json(cli("tables", *store, "--json", cwd=folder)))
