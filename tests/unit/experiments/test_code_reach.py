"""Which definitions of this program the parts of its tasks reach, held against real runs."""

import ast
import contextlib
import importlib
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ablations.study.overrides import nested
from experiments.client import ablations_task
from experiments.config import DeviceSpec
from experiments.store import code, syntax
from experiments.store.code import code_digests, root_at
from experiments.tasks.base import Context, EvaluationSpec
from experiments.tasks.load import load_task
from tests.slow import mostly_slow

TASKS = ("translation", "parsing", "algorithmic", "language_modelling")
EVERY, NETWORK = {"training", "likelihood", "decode", "score"}, {"training", "likelihood", "decode"}
CONFIG, MODEL = "experiments/config.py", "model/settings.py"
TASK = "experiments/tasks/sequence.py"
EDITS = {  # file, what is edited, the parts of a translation that become stale, those of a parser
    "a metric": ("experiments/evaluation/bleu.py", "CHRF()", "CHRF(word_order=2)", {"score"}, set()),
    "EVALB": ("experiments/evaluation/evalb.py", "100 * ", "99 * ", set(), {"score"}),
    "the search": ("experiments/evaluation/beam.py", "(5 +", "(6 +", {"decode"}, {"decode"}),
    "the loss": ("experiments/training/loss.py", "1 - ", "2 - ", {"training"}, {"training"}),
    "the network": ("model/parts/positions.py", "10000", "9999", NETWORK, NETWORK),
    "a kind of layer": ("model/stack.py", '"gru": Recurrent', '"gru": Average', NETWORK, NETWORK),
    "a default of the network": (MODEL, "num_layers: int = Field(6", "num_layers: int = Field(5", EVERY, EVERY),
    "a default": (CONFIG, "adam_beta2: float = Field(0.98", "adam_beta2: float = Field(0.5", EVERY, EVERY),
    "what a task hands on": (TASK, "or target, source", "or target, target", NETWORK, NETWORK),
    "a column": ("experiments/tasks/translation.py", '"perplexity", "PPL (dev)"', '"perplexity", "PPL"', set(), set()),
    "an event": ("experiments/events/lines.py", "LAST_STEP = ", "LAST_STEP = 1 + ", set(), set()),
    "the queue": ("experiments/jobs/queue/job.py", "waiting", "queued", set(), set()),
    "the child": ("experiments/child/run.py", "time.sleep(0.5)", "time.sleep(0.6)", set(), set()),
    "the table": ("reports/render/grid.py", '"†"', '"‡"', set(), set()),
}  # fmt: skip


@pytest.fixture
def overlay(monkeypatch: pytest.MonkeyPatch) -> dict[Path, bytes]:
    """Contents of files in place of those on disk."""
    contents: dict[Path, bytes] = {}
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: contents[path] if path in contents else read(path))
    return contents


@pytest.fixture(scope="module")
def before() -> list[dict[str, str]]:
    return [code_digests(load_task(task).code) for task in ("translation", "parsing")]


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edit_marks_the_parts_that_it_can_change(
    before: list[dict[str, str]], overlay: dict[Path, bytes], edit: tuple[Any, ...]
) -> None:
    name, old, new, *expected = edit
    text = (code.ROOT / name).read_text("utf-8")
    assert old in text
    overlay[code.ROOT / name] = text.replace(old, new).encode()
    after = [code_digests(load_task(task).code) for task in ("translation", "parsing")]
    assert [{p for p in one if one[p] != two[p]} for one, two in zip(before, after, strict=True)] == expected


def test_no_part_reaches_what_computes_no_number() -> None:
    """Over-inclusion has a limit: whole packages of this program make no result stale."""
    packages = ("ablations", "reports", "experiments.child", "experiments.events", "experiments.exchange",
                "experiments.jobs", "experiments.processes", "experiments.tracking")  # fmt: skip
    for task in TASKS:
        with code._Code() as found:
            for part, roots in load_task(task).code.items():
                nodes = found.reach(roots).nodes
                modules = {file.module for file, _ in nodes} - {"experiments.processes.processor"}  # it allows int8
                assert not {each for each in modules if f"{each}.".startswith(tuple(f"{p}." for p in packages))}, part
                assert not [key for file, key in nodes if file.pieces[key].open], part


def test_our_code_registers_nothing_with_other_packages() -> None:
    """Of the user's code, what another package's decorator may register counts; of ours nothing is registered."""
    harmless = {"torch.no_grad", "torch.inference_mode", "numpy.iinfo", "torch.autograd.function.once_differentiable"}
    with code._Code() as found:
        for task in TASKS:
            for file in found.reach(load_task(task).code["training"]).files:
                for piece in file.pieces.values():
                    for call in piece.calls:
                        text, nodes = found._target(file, call.lstrip("@"))
                        top = text.partition(".")[0]
                        assert nodes or top in (*sys.stdlib_module_names, "pydantic") or text in harmless, (
                            file.path,
                            text,
                        )


# --- what runs is reached

SMALL: dict[str, Any] = {
    "model.num_layers": 1, "model.d_model": 8, "model.d_ff": 16, "model.num_heads": 2, "model.d_k": 4, "model.d_v": 4,
    "data.builtin_pairs": 300, "training.train_steps": 4, "training.tokens_per_batch": 400,
    "training.checkpoint_steps": 2, "training.precision": "fp32",
}  # fmt: skip
SEARCH = {"evaluation.beam_size": 2, "evaluation.max_extra_length": 3}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {  # task, settings
    "language model": ("language_modelling", {**SMALL, "data.units": "byte", "data.window": 16}),
    "parser": ("parsing", {**SMALL, **SEARCH, "data.vocab_size": 120, "data.target_vocab_size": 64}),
    "algorithm": ("algorithmic", {**SMALL, **SEARCH, "data.algorithm": "dyck", "data.set_pairs": 20}),
    "every kind of layer": ("translation", {
        **SMALL, **SEARCH, "data.units": "char", "model.shared_vocabulary": False, "model.positions": "relative",
        "model.encoder": "lstm(bidirectional=true), convolution(gated=true), self_attention(window=4), experts, rnn",
        "model.decoder": "gru, attentional_lstm(compatibility=additive), average, self_attention, cross_attention, "
        "experts(gate=noisy_top_k), feed_forward(activation=swiglu)",
        "training.optimizer": "lion", "training.schedule": "linear", "training.eval_steps": 2,
        "evaluation.checkpoint": "best",
    }),
    "base": ("translation", {**SMALL, **SEARCH, "data.vocab_size": 200}),
}  # fmt: skip


class Trace:
    """Which functions of some folders are called: file and first line."""

    def __init__(self, *folders: Path) -> None:
        self.called: set[tuple[str, int]] = set()
        self._folders = tuple(f"{folder}/" for folder in folders)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Of this thread, and of those that begin meanwhile."""
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _see(self, frame: Any, event: str, _: Any) -> None:
        made = frame.f_code
        if (
            event == "call" and made.co_filename.startswith(self._folders) and made.co_flags & 1
        ):  # no module, no class body
            self.called.add((made.co_filename, made.co_firstlineno))


def definition_at(file: str, line: int) -> str:
    """The name of the definition at the top of a file, or of the class's member, in which a line is."""
    name, body = "", _tree(file).body
    while True:
        at = next((n for n in body if _first(n) <= line <= (n.end_lineno or 0)), None)
        if at is None:
            return name
        named = getattr(at, "name", "") or next((n.id for n in ast.walk(at) if isinstance(n, ast.Name)), "")
        name = f"{name}.{named}" if name else named
        if name.count(".") or not isinstance(at, ast.ClassDef):
            return name
        body = at.body


def _first(node: Any) -> int:
    return min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])


@cache
def _tree(file: str) -> ast.Module:
    return ast.parse(Path(file).read_text("utf-8"))


@pytest.mark.parametrize("run", mostly_slow(RUNS, quick=1))
def test_whatever_is_called_is_reached(run: str, tmp_path: Path) -> None:
    """Without exceptions: what the run's process hands to its task, and takes from it, is called by nothing here."""
    name, settings = RUNS[run]
    task, traced = (
        load_task(name),
        {part: Trace(*(code.ROOT / each for each in code.OURS)) for part in load_task(name).code},
    )
    config = task.config_type.model_validate_json(json.dumps({**nested(settings), "task": name, "seed": 1}))
    (tmp_path / "run" / "evaluations").mkdir(parents=True)
    inputs = task.inputs(config, tmp_path)
    context = Context(
        tmp_path, "0" * 16, tmp_path / "run", inputs, DeviceSpec("cpu"), lambda *_, **__: None, lambda: False,
        keeps=task.keeps(config),
    )  # fmt: skip
    specs: list[EvaluationSpec] = task.evaluations(config, tmp_path)
    with traced["training"].watching():
        task.prepare(config, tmp_path, lambda *_: None)
        task.train(config, context)
        (tmp_path / "again").mkdir()
        task.train(config, replace(context, folder=tmp_path / "again", earlier=[tmp_path / "run"]))
    for part in task.evaluation_parts:
        with traced[part].watching():
            getattr(task, part)(config, specs[0], tmp_path / "run", tmp_path / "run" / "evaluations", context)
    with code._Code() as found:
        for part, trace in traced.items():
            reached = {(str(file.path), re.sub(r"#\d+", "", key)) for file, key in found.reach(task.code[part]).nodes}
            called = {(file, definition_at(file, line)) for file, line in trace.called}
            assert len(called) > 10
            assert called <= reached, (part, sorted(called - reached))


OWN = {
    "own_of_reach.py": """
from dataclasses import dataclass
from ablations_task import column, task
from parts_of_reach import MODELS, Averaged
import tools_of_reach as tools

@dataclass
class Settings:
    kind: str = "deep"

def report(step, loss):
    return f"{step} {loss}"

@task(Settings, columns=[column("loss")])
def TASK(settings, context):
    model = MODELS[settings.kind](width=2)
    losses = [model.step(x) for x in tools.batches(3)]
    return {"loss": tools.summed(losses, then=report), "mean": Averaged(losses).value}
""",
    "parts_of_reach.py": """
class Model:
    def __init__(self, width):
        self.width = width
    def step(self, x):
        return self.forward(x) / self.width
class Deep(Model):
    def forward(self, x):
        return activation(x)
def activation(x):
    return x * 2
class Averaged:
    def __init__(self, values):
        self.values = values
    @property
    def value(self):
        return sum(self.values) / len(self)
    def __len__(self):
        return len(self.values)
MODELS = {"deep": Deep}
""",
    "tools_of_reach.py": """
def batches(count):
    yield from (float(number) for number in range(count))
def summed(values, then):
    then(1, 2.0)
    return sum(values)
def not_called():
    pass
""",
}


def test_whatever_an_own_function_calls_is_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in OWN.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(Path(ablations_task.__file__).parents[1]))
    module, trace = importlib.import_module("own_of_reach"), Trace(tmp_path)
    with trace.watching():
        module.TASK(module.Settings(), None)
    with code._Code() as found:
        nodes = found.reach((root_at(tmp_path / "own_of_reach.py", "TASK", module="own_of_reach"),)).nodes
    reached = {(str(file.path), re.sub(r"#\d+", "", key)) for file, key in nodes}
    called = {(file, definition_at(file, line)) for file, line in trace.called}
    assert len(called) > 8 and called <= reached
    assert not {name for _, name in reached if name == "not_called"}


# --- whatever is reached counts


def sites(node: ast.AST) -> Iterator[Callable[[], Callable[[], None]]]:
    """Changes of what a statement computes: each is done by a call, and undone by the result's."""
    match node:
        case ast.FunctionDef() | ast.ClassDef():
            yield lambda: _inserted(node.body, 0, ast.Assert(ast.Constant(1)))
            for place in range(len(node.decorator_list)):
                yield lambda place=place: _removed(node.decorator_list, place)
        case ast.Dict(keys=keys, values=values):
            for place in range(len(keys)):
                yield lambda place=place: _both(_removed(keys, place), _removed(values, place))
        case ast.Constant(value=value) if value is not Ellipsis:
            yield lambda: _set(node, "value", _other(value))
        case ast.BinOp(op=op):
            yield lambda: _set(node, "op", ast.Sub() if isinstance(op, ast.Add) else ast.Add())
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns") and not any(
            isinstance(each, ast.Call) for each in ast.walk(value or node)
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            if isinstance(child, ast.AST) and not text:
                yield from sites(child)


def _other(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return not value
    return value + ("~" if isinstance(value, str) else b"~" if isinstance(value, bytes) else abs(value) + 1)


def _set(node: Any, name: str, value: Any) -> Callable[[], None]:
    old = getattr(node, name)
    setattr(node, name, value)
    return lambda: setattr(node, name, old)


def _inserted(nodes: list[Any], place: int, node: Any) -> Callable[[], None]:
    nodes.insert(place, node)
    return lambda: nodes.remove(node)


def _removed(nodes: list[Any], place: int) -> Callable[[], None]:
    node = nodes.pop(place)
    return lambda: nodes.insert(place, node)


def _both(*undo: Callable[[], None]) -> Callable[[], None]:
    return lambda: [each() for each in undo] and None


@pytest.mark.slow
def test_every_definition_constant_decorator_and_entry_that_is_reached_counts() -> None:
    """Each is changed in the tree of its file, and then a piece that is reached has another text."""
    reached: dict[Path, set[str]] = {}
    with code._Code() as found:
        for roots in [roots for task in TASKS for roots in load_task(task).code.values()]:
            for file, key in found.reach(roots).nodes:
                reached.setdefault(file.path, set()).add(re.sub(r"#\d+", "", key))
    changed, unchanged = 0, []
    for path, names in reached.items():
        file = syntax._File(_tree(str(path)), prose=True)
        file.syntax()
        for statement in [each for whole in file.tree.body for each in members(whole)]:
            before = pieces(file, statement)
            for change in sites(statement) if names & before.keys() and not syntax._is_type_checking(statement) else ():
                undo = change()
                after = pieces(file, statement)
                undo()
                other = {name for name in {**before, **after} if before.get(name) != after.get(name)}
                changed += not other.isdisjoint(names)
                unchanged += [] if other else [(path.name, ast.unparse(statement)[:80])]
    assert changed > 10_000 and not unchanged, unchanged[:9]


def members(statement: ast.stmt) -> list[ast.stmt]:
    """A class with each of its members alone; any other statement as it is."""
    if not isinstance(statement, ast.ClassDef):
        return [statement]
    head = (statement.name, statement.bases, statement.keywords)
    return [ast.ClassDef(*head, [member], statement.decorator_list) for member in statement.body]


def pieces(file: syntax._File, statement: ast.stmt) -> dict[str, syntax.Piece]:
    """The pieces of one statement of a file, by name."""
    alone = syntax._File(ast.Module([statement], []), prose=True)
    alone.names = {name: list(targets) for name, targets in file.names.items()}
    return {re.sub(r"#\d+", "", key): piece for key, piece in alone.syntax().pieces.items() if key}


@pytest.mark.parametrize("task", mostly_slow(TASKS, quick=1))
def test_the_digest_depends_on_each_piece_that_is_reached(task: str) -> None:
    with code._Code() as found:
        for roots in load_task(task).code.values():
            before, nodes = found.digest(roots), sorted(found.reach(roots).nodes, key=found._content)
            for file, key in nodes[::80]:
                piece = file.pieces[key]
                file.pieces[key] = piece._replace(text="another")
                assert found.digest(roots) != before, (file.path, key)
                file.pieces[key] = piece
            assert found.digest(roots) == before
