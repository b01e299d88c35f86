"""Tests of the engine contract (experiments/jobs/engines/engine.py), for every engine."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from ablations.service.coordination import WorkOptions
from experiments.errors import UserError
from experiments.jobs.devices.slots import Slot
from experiments.jobs.engines.by_name import ENGINES, engine_class, load_engine
from experiments.jobs.engines.engine import Exit, Handle, Launch, child_environment
from experiments.jobs.engines.local import LIGHT, LocalEngine

SLOT = Slot("cpu:0", "cpu", threads=2)
PATIENCE_S = 120.0  # long enough for a cluster that shares this machine with other work


def forked(_):
    return LocalEngine(("json",))


def spawned(_):
    return LocalEngine(fork=False)


def orphaned(_):
    """Return the local engine after its fork server was killed, as the out-of-memory killer does."""
    engine = LocalEngine(("json",))
    os.kill(engine._server._process.pid, signal.SIGKILL)
    engine._server._process.wait()
    return engine


def light(_):
    """Return the local engine as configured for commands and users' functions, whose server does not import torch."""
    return LocalEngine(LIGHT)


def on_slurm(request):
    request.getfixturevalue("slurm")
    from experiments.jobs.engines.slurm import SlurmEngine

    return SlurmEngine(request.getfixturevalue("tmp_path_factory").getbasetemp() / "submitit")


def on_ray(request):
    return engine_class("ray")({"address": request.getfixturevalue("ray_cluster").address})


LOCAL = [forked, light, spawned, pytest.param(orphaned, marks=pytest.mark.nightly)]
ALL = [
    *LOCAL,
    pytest.param(on_slurm, marks=pytest.mark.slurm),
    pytest.param(on_ray, marks=[pytest.mark.ray, pytest.mark.extra("ray")]),
]


@pytest.fixture(params=ALL, ids=lambda make: make.__name__)
def another(request):
    """Return a function that makes another engine of the same kind, as another coordinator would."""
    return lambda: request.param(request)


@pytest.fixture
def engine(another):
    engine = another()
    yield engine
    engine.close()


class Starting:
    """Helpers that start programs as children and wait for them."""

    def start(self, engine, tmp_path, program, *arguments):
        return engine.start(self.launch(tmp_path, program, *arguments))

    def launch(self, tmp_path, program, *arguments):
        script = tmp_path / "program.py"
        script.write_text(program)
        environment = child_environment(SLOT, SLOT.threads) | {"MARK": "yes"}
        return Launch([sys.executable, str(script), *map(str, arguments)], environment, tmp_path / "log.txt", SLOT)

    def ended(self, engine, handle):
        until = time.monotonic() + PATIENCE_S
        while (found := engine.poll(handle)) is None:
            assert time.monotonic() < until, "the child did not end"
            engine.wait(0.05)
        return found

    def told(self, path):
        """Wait until a child's file ends with a newline, and return its text."""
        until = time.monotonic() + PATIENCE_S
        while not (path.exists() and path.read_text().endswith("\n")):
            assert time.monotonic() < until, "the child said nothing"
            time.sleep(0.01)
        return path.read_text()


class TestEngine(Starting):
    @pytest.mark.parametrize("code", [0, 3, 255])
    def test_reports_the_exit_code_however_often_it_is_asked(self, engine, tmp_path, code):
        handle = self.start(engine, tmp_path, f"import sys; sys.exit({code})")
        assert self.ended(engine, handle) == Exit(code)
        assert engine.poll(handle) == Exit(code)

    def test_an_exception_is_exit_code_1_with_its_traceback_in_the_log(self, engine, tmp_path):
        handle = self.start(engine, tmp_path, "raise LookupError('out of ideas')")
        assert self.ended(engine, handle) == Exit(1)
        assert "LookupError: out of ideas" in (tmp_path / "log.txt").read_text()

    def test_the_child_sees_its_arguments_devices_threads_and_working_directory(self, engine, tmp_path):
        program = """
import json, os, sys
names = ("MARK", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
print(json.dumps([sys.argv[1:], os.getcwd(), [os.environ[n] for n in names], __name__]))
"""
        handle = self.start(engine, tmp_path, program, "a b", 7)
        assert self.ended(engine, handle) == Exit(0)
        arguments, folder, environment, name = json.loads((tmp_path / "log.txt").read_text())
        assert arguments == ["a b", "7"]
        assert folder == str(Path.cwd())
        assert environment == ["yes", "", "2"]
        assert name == "__main__"

    def test_the_environment_is_the_childs_own(self, engine, tmp_path, monkeypatch):
        monkeypatch.setenv("MLFLOW_RUN_ID", "of somebody else")
        handle = self.start(engine, tmp_path, "import os; print(os.environ.get('MLFLOW_RUN_ID'))")
        assert self.ended(engine, handle) == Exit(0)
        assert (tmp_path / "log.txt").read_text() == "None\n"

    def test_both_streams_are_appended_to_the_log(self, engine, tmp_path):
        (tmp_path / "log.txt").write_text("before\n")
        program = "import sys, os; print('out'); print('err', file=sys.stderr); os.system('echo below')"
        assert self.ended(engine, self.start(engine, tmp_path, program)) == Exit(0)
        assert (tmp_path / "log.txt").read_text().split() == ["before", "out", "err", "below"]

    def test_exit_handlers_run_and_threads_are_waited_for(self, engine, tmp_path):
        program = """
import atexit, threading, time
atexit.register(print, "last")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
"""
        assert self.ended(engine, self.start(engine, tmp_path, program)) == Exit(0)
        assert (tmp_path / "log.txt").read_text().split() == ["thread", "last"]

    def test_terminate_lets_the_child_finish_its_step(self, engine, tmp_path):
        program = """
import signal, sys, time
def note(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # clusters repeat themselves, also while a program is ending
    print("saved"); sys.exit(3)
signal.signal(signal.SIGTERM, note)
print("ready")
time.sleep(60)
"""
        handle = self.start(engine, tmp_path, program)
        self.told(tmp_path / "log.txt")
        assert engine.poll(handle) is None
        engine.terminate(handle)
        assert self.ended(engine, handle) == Exit(3)
        assert (tmp_path / "log.txt").read_text() == "ready\nsaved\n"

    def test_kill_ends_the_child_and_what_it_started(self, engine, tmp_path):
        program = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid)
time.sleep(60)
"""
        handle = self.start(engine, tmp_path, program)
        grandchild = psutil.Process(int(self.told(tmp_path / "log.txt")))
        engine.terminate(handle)
        time.sleep(0.5)
        assert engine.poll(handle) is None
        engine.kill(handle)
        assert self.ended(engine, handle).code in (-signal.SIGKILL, None)
        _, alive = psutil.wait_procs([grandchild], timeout=50)
        assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]

    def test_the_child_leads_a_group_of_its_own(self, engine, tmp_path):
        """Ctrl-C in a terminal signals the foreground process group, and must reach only the coordinator."""
        program = "import os; print(os.getpgid(0) == os.getpid() == os.getsid(0))"
        assert self.ended(engine, self.start(engine, tmp_path, program)) == Exit(0)
        assert (tmp_path / "log.txt").read_text() == "True\n"

    def test_another_coordinators_engine_adopts_the_living_by_plain_json(self, engine, another, tmp_path):
        program = "import signal, time; print('ready'); time.sleep(600)"
        handle = self.start(engine, tmp_path, program)
        self.told(tmp_path / "log.txt")
        other = another()
        adopted = other.adopt(json.loads(json.dumps(dict(handle.ref))))
        assert adopted is not None
        assert other.poll(adopted) is None
        other.kill(adopted)
        assert self.ended(other, adopted).code in (None, -signal.SIGTERM, -signal.SIGKILL)
        self.ended(engine, handle)
        left = other.adopt(handle.ref)
        assert left is None or other.poll(left) is not None, "what has ended is not taken for living"

    def test_another_engines_child_is_not_adopted(self, engine):
        assert (
            engine.adopt({"engine": "unheard of", "id": "7", "folder": "/", "pid": 1, "start_ticks": 0, "boot_id": ""})
            is None
        )

    def test_several_are_started_in_one_request(self, engine, tmp_path):
        for number in range(3):
            (tmp_path / str(number)).mkdir()
        handles = engine.start_all([self.launch(tmp_path / str(n), f"raise SystemExit({n})") for n in range(3)])
        assert [self.ended(engine, handle).code for handle in handles] == [0, 1, 2]
        assert engine.start_all([]) == []

    def test_wait_returns_in_time(self, engine, tmp_path):
        began = time.monotonic()
        engine.wait(0.05)
        assert time.monotonic() - began < 60

    def test_children_outlive_the_engine(self, engine, tmp_path):
        handle = self.start(engine, tmp_path, "import time; time.sleep(0.5); print('done')")
        engine.close()
        assert self.told(tmp_path / "log.txt") == "done\n"
        assert self.ended(engine, handle).code in (0, None)

    def test_many_at_once_keep_their_codes(self, engine, tmp_path):
        handles = []
        for code in range(8):
            (tmp_path / str(code)).mkdir()
            handles.append(self.start(engine, tmp_path / str(code), f"import sys; sys.exit({code})"))
        assert [self.ended(engine, handle).code for handle in handles] == list(range(8))


@pytest.mark.parametrize("another", LOCAL, indirect=True, ids=lambda make: make.__name__)
class TestLocalEngine(Starting):
    """Tests of engines whose children are processes of this machine."""

    def test_what_has_ended_is_never_signalled_though_its_id_comes_again(self, engine, tmp_path):
        handle = self.start(engine, tmp_path, "")
        self.ended(engine, handle)
        other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
        reused = Handle({**handle.ref, "pid": other.pid, "start_ticks": handle.ref["start_ticks"] - 100})
        try:
            for act in (engine.terminate, engine.kill):
                act(handle)
                act(reused)
            time.sleep(0.1)
            assert other.poll() is None
            assert engine.adopt(reused.ref) is None
        finally:
            other.kill()
            other.wait()

    def test_a_child_of_another_machine_is_out_of_sight(self, engine, tmp_path):
        handle = self.start(engine, tmp_path, "import time; time.sleep(60)")
        assert engine.adopt({**handle.ref, "host": "elsewhere"}) is None
        engine.kill(handle)
        self.ended(engine, handle)


STATE = """
import json, os, resource, signal, sys, threading, warnings
limits = [name for name in vars(resource) if name.startswith("RLIMIT_")]
os.umask(mask := os.umask(0))
handlers = {number: signal.getsignal(number) for number in signal.valid_signals() if number not in (9, 19)}
print(json.dumps({
    "limits": {name: resource.getrlimit(getattr(resource, name)) for name in limits},
    "umask": mask, "nice": os.nice(0), "folder": os.getcwd(), "affinity": sorted(os.sched_getaffinity(0)),
    "files": {one: os.readlink(f"/proc/self/fd/{one}") for one in range(100) if os.path.exists(f"/proc/self/fd/{one}")},
    "signals": {int(n): getattr(found, "__name__", str(found)) for n, found in handlers.items()},
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "threads": threading.active_count(),
    "flags": str(sys.flags), "path": sys.path[1:], "argv": sys.argv[1:], "reads": sys.stdin.read(), "main": __name__,
    "environment": {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "GLIBC_TUNABLES")},
    "torch": "torch" in sys.modules, "warnings": [str(one) for one in warnings.filters],
}, sort_keys=True))
"""


def test_a_forked_child_has_the_state_of_a_started_one(tmp_path, monkeypatch):
    """A forked child has the coordinator's limits, niceness, files, signals, folder and environment."""
    (tmp_path / "state.py").write_text(STATE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    starting, told = Starting(), {}
    for name, engine in {"forked": LocalEngine(LIGHT), "started": LocalEngine(fork=False)}.items():
        (folder := tmp_path / name).mkdir()
        launch = starting.launch(folder, "")
        handle = engine.start(replace(launch, argv=[sys.executable, "-P", "-m", "state", "one", "two"]))
        assert starting.ended(engine, handle) == Exit(0), launch.log.read_text()
        engine.close()
        told[name] = json.loads(launch.log.read_text().replace(str(folder), "FOLDER"))
    assert told["forked"] == told["started"]


def test_a_child_runs_the_code_that_is_on_disk_when_it_starts(tmp_path, monkeypatch):
    """This also holds for a module of this program that the server imported before it was edited."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "__init__.py").touch()
    (module := tmp_path / "model" / "edited.py").write_text("VALUE = 'as imported'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    starting, engine = Starting(), LocalEngine(("model.edited",))
    try:
        for said in ("as imported", "edited"):
            module.write_text(f"VALUE = {said!r}\n")
            (folder := tmp_path / said).mkdir()
            handle = starting.start(engine, folder, "import model.edited; print(model.edited.VALUE)")
            assert starting.ended(engine, handle) == Exit(0)
            assert (folder / "log.txt").read_text() == f"{said}\n"
    finally:
        engine.close()


def test_every_engine_of_the_dictionary_loads_without_its_extra():
    """Cluster libraries are imported only to submit a child or to reach a cluster."""
    classes = {name: engine_class(name) for name in ENGINES}
    assert {name: cls.name for name, cls in classes.items()} == dict(zip(ENGINES, ENGINES, strict=True))
    assert [name for name, cls in classes.items() if not cls.outlives] == ["local"]


def test_an_engine_by_name_is_the_same_one(tmp_path):
    engine = load_engine("local", {}, tmp_path, 1)
    try:
        assert isinstance(engine, LocalEngine)
    finally:
        engine.close()


@pytest.mark.parametrize(("name", "near"), [("slrum", "Nearest engines: slurm."), ("k8s", "engines are: local, slurm")])
def test_an_unknown_engine_is_refused_with_those_that_there_are(name, near):
    with pytest.raises(UserError, match=near):
        WorkOptions(engine=name)
