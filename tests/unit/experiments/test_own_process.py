"""Tests of the process of a user's trainer: its imports, its interpreter, its failures and its end."""

import ast
import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.attempt_context import AttemptContext
from experiments.client import ablations_task
from experiments.client.ablations_task.process import device_name
from experiments.device_spec import DeviceSpec
from experiments.errors import OutOfMemory, Preempted, TrainerFailed, UserError
from experiments.identity import run_identity
from experiments.run_spec import RunSpec, TrainerSpec
from experiments.store.checksummed import read_json
from experiments.store.layout import LOG
from experiments.store.spec import AttemptSpec
from experiments.tasks.load import load_task

HEAD = """
import os, shutil, sys, time
from dataclasses import dataclass
from ablations_task import column, task

@dataclass
class Settings:
    does: str = "nothing"

"""
BODY = """
@task(Settings, columns=[column("a")])
def TASK(settings, context):
    return {name: found(settings, context) for name, found in DOES.items() if name == settings.does} or {"a": 1.0}
"""
DOES = """
def fails(settings, context):
    raise KeyError("the user's line")

def takes_all_memory(settings, context):
    raise MemoryError("all of it")

def waits(settings, context):
    for step in range(1, 100_000):
        context.log(step, loss=1.0 / step)
        time.sleep(0.01)
        if context.should_stop():
            with context.checkpoint(step) as folder:
                (folder / "state").write_text(str(step))

def fails_in_a_checkpoint(settings, context):
    with context.checkpoint(1) as folder:
        (folder / "half").write_text("")
        raise RuntimeError("no disk")

def dies(settings, context):
    os._exit(7)

def fails_without_words(settings, context):
    raise type("Mute", (Exception,), {"__str__": lambda self: 1 / 0})

def tidies(settings, context):
    context.facts(mine=3, file="half \\udc80", num_params=7, step="last", run_id=2, imported="from there")
    context.examples("test", [{"file": "half \\udc80"}])
    shutil.rmtree(context.folder)
    return 2.5

def shouts(settings, context):
    for data in (b"begin\\n", *[b"x" * (1 << 20)] * 26, b"\\nthe end\\n"):
        os.write(1, data)
    raise ValueError("long " * (1_000_000 if settings else 1))

DOES = (shouts, fails, takes_all_memory, waits, fails_in_a_checkpoint, dies, fails_without_words, tidies)
DOES = {f.__name__: f for f in DOES}
"""
SHOUTED = len("begin\n\nthe end\n") + (26 << 20)


def loaded(folder: Path, text: str, name: str = "trainer", python: str = ""):
    (folder / f"{name}.py").write_text(text)
    return load_task(f"{name}:TASK", str(folder), python)


def attempt(task, folder: Path, does: str | None, should_stop=lambda: False):
    config = task.config_type.from_mapping({"does": does, "task": "trainer:TASK"} if does else {})
    events: list[str] = []
    order = AttemptSpec(RunSpec("0" * 16, {}, {}), str(folder), 1, DeviceSpec())
    context = AttemptContext(order, folder, lambda kind, **fields: events.append(kind), should_stop)
    return events, lambda: task.train(config, context)


@pytest.mark.process
def test_errors_and_ends(tmp_path: Path) -> None:
    task = loaded(tmp_path, HEAD + DOES + BODY)
    with pytest.raises(TrainerFailed, match=r"KeyError.*the user's line.*trainer\.py, line") as failed:
        attempt(task, tmp_path, "fails")[1]()
    assert "in fails" in failed.value.traceback and "ablations_task" not in failed.value.traceback
    with pytest.raises(OutOfMemory, match="all of it"):
        attempt(task, tmp_path, "takes_all_memory")[1]()
    with pytest.raises(TrainerFailed, match="no disk"):
        attempt(task, tmp_path, "fails_in_a_checkpoint")[1]()
    assert not list((tmp_path / "checkpoints").glob("step-*"))
    with pytest.raises(TrainerFailed, match="exit code 7"):
        attempt(task, tmp_path, "dies")[1]()
    with pytest.raises(TrainerFailed, match=r"Mute.*trainer\.py, line"):
        attempt(task, tmp_path, "fails_without_words")[1]()
    events, train = attempt(task, tmp_path, "waits", lambda: "metrics" in events)
    with pytest.raises(Preempted):
        train()
    assert set(events) == {"metrics", "checkpoint"}
    [kept] = (tmp_path / "checkpoints").glob("step-*")
    assert int((kept / "state").read_text()) == int(kept.name[5:])


@contextlib.contextmanager
def logged(folder: Path) -> Iterator[None]:
    """Redirect this process's output to the log of an attempt, as in a child."""
    was = os.dup(1), os.dup(2)
    with (folder / LOG).open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        for number, former in enumerate(was, 1):
            os.dup2(former, number)
            os.close(former)


@pytest.mark.process
@pytest.mark.parametrize("kind", ["function", "command"])
def test_of_a_long_log_the_begin_and_the_end_are_kept(tmp_path: Path, kind: str) -> None:
    """Printed as one line. Of a function's failure too."""
    if kind == "function":
        _, train = attempt(loaded(tmp_path, HEAD + DOES + BODY), tmp_path, "shouts")
    else:
        code = f"import os, sys\n{DOES}\nDOES['shouts'](None, None)"
        (tmp_path / "shout.py").write_text(code)
        task = load_task("command", str(tmp_path)).with_settings({}, TrainerSpec(f"{sys.executable} shout.py"))
        _, train = attempt(task, tmp_path, None)
    with pytest.raises(TrainerFailed) as failed, logged(tmp_path):
        train()
    assert len(str(failed.value)) < 20_000 and 100 < len(failed.value.traceback) < 110_000
    text = (tmp_path / LOG).read_text()
    begin, left_out, end = re.split(r"\n… ([\d,]+) bytes left out …\n", text)
    assert begin.startswith("begin\nxxx") and "ValueError: long " in end and len(begin) + len(end) < 7 << 20
    if kind == "function":
        printed = end[: end.rindex("the end\n") + len("the end\n")]
        assert len(begin) + len(printed) + int(left_out.replace(",", "")) == SHOUTED


@pytest.mark.process
def test_a_trainer_that_tidies_its_folder_and_calls_facts_like_ours_has_finished(tmp_path: Path) -> None:
    facts = attempt(loaded(tmp_path, HEAD + DOES + BODY), tmp_path, "tidies")[1]()
    assert read_json(tmp_path / "final" / "metrics.json") == {"": {"tidies": 2.5}}
    assert (facts["mine"], facts["num_params"], facts["step"]) == (3, 7, None)
    assert facts["file"] == "half \\udc80"
    assert "imported" not in facts and "run_id" not in facts, "these are the record's own"


@pytest.mark.parametrize("name", ["model", "reports", "ablations", "experiments.training"])
@pytest.mark.process
def test_no_package_of_this_program_is_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="A trainer runs in a separate process") as refused:
        loaded(tmp_path, f"import {name}\n{HEAD}{BODY}")
    assert "trainer.py, line 1" in str(refused.value) and f"import {name}" in str(refused.value)


@pytest.mark.process
def test_another_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to the study's folder; its versions are recorded; what cannot run a trainer is refused."""
    (tmp_path / "env").mkdir()
    (tmp_path / "study").mkdir()
    link = tmp_path / "env" / "python"
    link.write_text(f'#!/bin/sh\nexport MARK=yes\nexec "{sys.executable}" "$@"\n')
    link.chmod(0o755)
    text = HEAD + "assert os.environ['MARK'] == 'yes'\nDOES = {}\n" + BODY
    task = loaded(tmp_path / "study", text, python="../env/python")
    assert task.versions()["python"] == ".".join(map(str, sys.version_info[:3]))
    _, train = attempt(task, tmp_path, "nothing")
    assert train()["interpreter"] == "../env/python"
    for wrong, why in {"../env/nothing": "does not exist", "trainer.py": "can be executed"}.items():
        with pytest.raises(UserError, match=why):
            load_task("trainer:TASK", str(tmp_path / "study"), wrong)
    for program, why in {
        "exit 3": "not a Python interpreter",
        "echo version=2.7": "is Python 2.7",
        "echo version=3.9": "ended with",
        "yes": "not a Python interpreter",
        "cat /dev/zero": "not a Python interpreter",
        "sleep 300 & wait": "not answered within 0.2 s",
    }.items():
        link.write_text(f"#!/bin/sh\n{program}\n")
        if program.startswith("sleep"):
            monkeypatch.setattr("experiments.tasks.own.interpreter.ANSWER_S", 0.2)
        with pytest.raises(UserError, match=why):
            load_task("trainer:TASK", str(tmp_path / "study"), "../env/./python")
    monkeypatch.undo()
    for wrong in ("x" * 300, "~nobody at all/python", "a\0b"):
        with pytest.raises(UserError, match="does not exist"):
            load_task("trainer:TASK", str(tmp_path / "study"), wrong)
    with pytest.raises(UserError, match="could not be imported"):
        load_task(f"{'x' * 300}:TASK", str(tmp_path / "study"))
    with pytest.raises(UserError, match="Leave `python` out"):
        load_task("translation", "", "../env/python")


@pytest.mark.process
def test_counts_need_numpy_in_the_trainers_interpreter(tmp_path: Path) -> None:
    """Known before anything is trained; a banner that the interpreter's start prints is no matter."""
    link = tmp_path / "python"
    link.write_text(f'#!/bin/sh\necho welcome\nexec "{sys.executable}" -S "$@"\n')  # -S: without packages
    link.chmod(0o755)
    text = HEAD.replace("import column", "import Counts, column") + "DOES = {}\n"
    assert loaded(tmp_path, text + BODY, python="python").columns[0].counts is None
    counted = BODY.replace('column("a")', 'column("a", counts=Counts(("n",), lambda sums: sums[..., 0]))')
    with pytest.raises(UserError, match=r"a_test has counts.*No module named 'numpy'.*Install numpy there"):
        loaded(tmp_path, text + counted, "other", python="python")


def test_the_client_is_of_python_3_8_and_of_its_library_alone() -> None:
    files = list(Path(ablations_task.__file__).parent.glob("*.py"))
    assert len(files) > 5
    for file in files:
        tree = ast.parse(file.read_text(), feature_version=(3, 8))
        for node in ast.walk(tree):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            assert {name.partition(".")[0] for name in names} <= {*sys.stdlib_module_names, "ablations_task"}


@pytest.mark.process
def test_a_refused_setting_and_a_failing_function_name_the_users_line(tmp_path: Path) -> None:
    checks = HEAD.replace(
        'does: str = "nothing"\n', 'does: str = "nothing"\n    def __post_init__(self):\n        {}[self.does]\n'
    )
    task_text = checks.replace("{}[self.does]", "{'nothing': 1}[self.does]") + "DOES = {}\n"
    task = loaded(tmp_path, task_text + BODY.replace("columns=", "num_params=lambda settings: 1 / 0, columns="))
    with pytest.raises(UserError, match=r"KeyError.*'other'") as refused:
        task.config_type.from_mapping(json.loads('{"does": "other"}'))
    assert "trainer.py" in str(refused.value)
    with pytest.raises(UserError, match=r"num_params= of the task.*ZeroDivisionError"):
        task.num_params(task.config_type())
    odd = BODY.replace("columns=", "num_params=lambda settings: 10**30, cost=lambda settings: float('nan'), columns=")
    task = loaded(tmp_path, task_text + odd, "odd")
    with pytest.raises(UserError, match=r"num_params= of the task .* returned '1000"):
        task.num_params(task.config_type())
    with pytest.raises(UserError, match=r"cost= of the task .* returned 'nan'"):
        task.cost(task.config_type())


NAMED = """
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Optional
from ablations_task import column, task
@dataclass
class Opt:
    rate: float = 1
    betas: tuple[float, float] = (0.9, 0.99)
@dataclass
class Settings:
    a: int = 1
    b: float = 2
    c: Optional[float] = None
    d: Literal["x", "y"] = "x"
    p: Path = Path("data/x")
    names: tuple[str, ...] = ("u", "v")
    many: list[int] = field(default_factory=lambda: [1, 2])
    either: int | str = "auto"
    opt: Opt = field(default_factory=Opt)
@task(Settings, columns=[column("m")], reads=lambda s: [])
def TASK(settings, context):
    return {"m": 1}
"""


@pytest.mark.process
def test_runs_keep_their_names(tmp_path: Path) -> None:
    """The names of runs with defaults, and with values of every kind of setting, do not change."""
    kind = loaded(tmp_path, NAMED, "t_task").config_type
    changed = {
        "task": "t_task:TASK", "seed": 2, "b": 3, "c": 1, "p": "q", "names": ["n"], "either": 4, "many": [],
        "opt": {"rate": 2, "betas": [0.1, 0.2]},
    }  # fmt: skip
    named = [run_identity(kind.from_mapping(values), {}) for values in ({"task": "t_task:TASK"}, changed)]
    assert named == ["a8a5ff0e9cc00f03", "0e32d1aa9defd474"]


@pytest.mark.parametrize(
    ("system", "name"),
    [
        ("model name\t: AMD EPYC 7763 64-Core Processor\n", "AMD EPYC 7763 (1 thread)"),
        ("model name\t: Intel(R) Xeon(R) Platinum 8488C\n", "Intel Xeon Platinum 8488C (1 thread)"),
        ("model name\t: Intel(R) Core(TM) i7-8700 CPU @ 3.20GHz\n", "Intel Core i7-8700 (1 thread)"),
        ("processor\t: 0\n", ""),
    ],
)
def test_a_processor_has_torchs_name_also_where_torch_is_not_imported(
    monkeypatch: pytest.MonkeyPatch, system: str, name: str
) -> None:
    """If the name differed, one machine would appear as two devices of a table."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: system)
    assert device_name("cpu", 1) == name
