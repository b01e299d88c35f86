"""Tests of a user's settings as a configuration, a trainer's files, and metrics from a command's output."""

import json
import os
import subprocess
from dataclasses import dataclass, field
from typing import Literal

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator

from experiments.attempt_context import AttemptContext
from experiments.client.ablations_task.errors import UserError as TrainersError
from experiments.client.ablations_task.values import by_set, described, made
from experiments.config.network_change import installed_changes
from experiments.config.run_config import RunConfig
from experiments.config.task_config import SettingRoles, total_steps
from experiments.device_spec import DeviceSpec
from experiments.dotted import flatten
from experiments.errors import Diverged, UserError
from experiments.identity import lineage, run_identity
from experiments.run_spec import RunSpec, TrainerSpec
from experiments.store.spec import AttemptSpec
from experiments.tasks.load import load_task
from experiments.tasks.own import settings_type
from experiments.tasks.own.context import new_checkpoint, of_set, open_folder, recorded
from experiments.tasks.own.function import column
from experiments.tasks.own.placeholders import expanded, filled, refuse_quoted
from experiments.tasks.own.trainer_output import Printed, metrics_in_file


@dataclass
class Optimizer:
    rate: float = 0.1
    betas: tuple[float, float] = (0.9, 0.99)


@dataclass
class Plain:
    steps: int = 5
    kind: Literal["a", "b"] = "a"
    optimizer: Optimizer = field(default_factory=Optimizer)

    def __post_init__(self):
        if self.steps > 100:
            raise ValueError("steps are at most 100")


class Model(BaseModel):
    rate: float = Field(0.1, gt=0)
    width: int = 3
    optimizer: Optimizer = Optimizer()

    @field_validator("width")
    @classmethod
    def _odd(cls, width):
        if width % 2 == 0:
            raise ValueError("width must be odd")
        return width


def config_type_of(settings, roles=None):
    """Return the configuration of settings, described and checked in this process."""
    return settings_type.config_type_of(described(settings), lambda values: made(settings, values) and None, roles)


def restore(config, settings):
    return made(settings, settings_type.settings_of(config))


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 10**30, "a\ud800", (1, 10**30)])
def test_a_default_that_no_run_can_have_is_refused(value):
    @dataclass
    class Odd:
        x: object = value

    with pytest.raises(UserError, match="The setting x has the default"):
        config_type_of(Odd)


@pytest.mark.parametrize("settings", [Plain, Model])
def test_there_and_back(settings):
    kind = config_type_of(settings)
    config = kind.model_validate_json(json.dumps({"optimizer": {"rate": 0.5, "betas": [0.1, 0.2]}, "task": "t"}))
    own = restore(config, settings)
    assert isinstance(own, settings) and own.optimizer == Optimizer(0.5, (0.1, 0.2))
    assert restore(kind(), settings) == settings()
    assert dict(flatten(kind()))["optimizer.betas"] == [0.9, 0.99]


@pytest.mark.parametrize(
    ("settings", "values", "words"),
    [
        (Plain, {"steps": 101}, "at most 100"),
        (Plain, {"steps": 1.5}, "steps"),
        (Plain, {"steps": "5"}, "steps"),
        (Plain, {"kind": "c"}, "kind"),
        (Plain, {"optimizer": {"rat": 1.0}}, "rat"),
        (Model, {"width": 4}, "must be odd"),
        (Model, {"rate": -1.0}, "rate"),
        (Model, {"deep": 1}, "deep"),
    ],
)
def test_the_users_own_checks_hold_while_planning(settings, values, words):
    with pytest.raises(ValidationError, match=words):
        config_type_of(settings).model_validate_json(json.dumps(values))


def refused(**annotations):
    settings = dataclass(type("Settings", (), {"__annotations__": annotations, **dict.fromkeys(annotations, 1)}))
    with pytest.raises((UserError, TrainersError)) as caught:
        config_type_of(settings)
    return str(caught.value)


def test_settings_that_no_study_can_hold():
    assert "the harness has this name" in refused(seed=int)
    assert "make it a separate dataclass" in refused(weights=dict[str, float])
    assert "no study file can hold" in refused(file=type("Handle", (), {}))
    required = dataclass(type("Settings", (), {"__annotations__": {"rate": float}}))
    with pytest.raises(TrainersError, match=r"Settings\.rate has no default"):
        config_type_of(required)
    with pytest.raises(TrainersError, match="dataclass or a pydantic model"):
        config_type_of(dict)
    with pytest.raises(UserError, match="names epochs"):
        config_type_of(Plain, SettingRoles(steps="epochs"))


def test_a_default_is_in_no_name_and_ours_are_frozen():
    before, after = (config_type_of(dataclass(type("S", (), {"__annotations__": {"a": int}, "a": a}))) for a in (1, 2))
    assert run_identity(before(), {}) == run_identity(after(), {})
    assert run_identity(before(a=2), {}) != run_identity(after(), {}) != run_identity(after(), {}, {"a": 2})
    assert RunConfig.setting_roles.frozen_defaults


def test_steps_are_known_and_only_on_request_continued():
    kind = config_type_of(Plain, SettingRoles(steps="steps"))
    longer = config_type_of(Plain, SettingRoles(steps="steps", not_in_lineage=("steps",)))
    assert total_steps(kind(steps=7)) == 7 and total_steps(config_type_of(Plain)()) is None
    assert lineage(kind(steps=7), {}) != lineage(kind(steps=8), {})
    assert lineage(longer(steps=7), {}) == lineage(longer(steps=8), {})


def test_names_of_settings_are_not_taken_for_prefixes():
    """`seed_words` is a setting, but `seed` is not."""
    kind = config_type_of(dataclass(type("S", (), {"__annotations__": {"seed_words": int}, "seed_words": 1})))
    assert run_identity(kind(seed_words=2), {}) != run_identity(kind(seed_words=3), {})


# --- files


@pytest.mark.process
def test_two_studies_may_call_their_modules_alike(tmp_path):
    text = (
        "from dataclasses import dataclass\nfrom ablations_task import column, task\n@dataclass\n"
        "class S:\n    {0}: int = 1\n@task(S, columns=[column('m')])\ndef TASK(settings, context): ...\n"
    )
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "trainer_of_the_same_name.py").write_text(text.format(name))
    found = [load_task("trainer_of_the_same_name:TASK", str(tmp_path / name)) for name in ("one", "two", "one")]
    given = {"task", "seed", *installed_changes()}
    assert [set(t.config_type.model_fields) - given for t in found] == [{"one"}, {"two"}, {"one"}]
    assert found[0].named != found[1].named == (tmp_path / "two/trainer_of_the_same_name.py",)


# --- metrics


def test_metrics_by_set_or_alone():
    assert of_set(by_set({"accuracy": 1}), "test", ["accuracy"]) == {"accuracy": 1.0}
    both = by_set({"dev": {"accuracy": 1}, "test": {"accuracy": 2}})
    assert of_set(both, "test", ["test.accuracy"]) == {"accuracy": 2.0}
    assert of_set(by_set({"accuracy": 1}), "test", ["test.accuracy"]) == {}  # of which of two sets it is nobody knows
    with pytest.raises(Diverged, match="accuracy = NaN"):
        recorded({"accuracy": float("nan")}, "test", ["accuracy"])
    assert recorded({"a": 1.0, "b": float("inf")}, "test", ["a"]) == {"a": 1.0}  # b is printed nowhere
    for wrong in (None, 3, {"a": "far"}, {"a": None}, {"a": True}, {"a": 10**400}, {"a": "x" * 10**6}):
        with pytest.raises(TrainersError, match="expected a") as refused:
            by_set(wrong)
        assert len(str(refused.value)) < 300


def test_columns():
    assert column("accuracy").key == "accuracy_test" == column("accuracy").paper
    with pytest.raises(UserError, match="higher"):
        column("accuracy", better="more")
    for name in ("", "a" * 251, "a\nb", "a\0", "a\ud800"):
        with pytest.raises(UserError, match="printable"):
            column(name)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (['{"accuracy": 90.5}'], {"accuracy": 90.5}),
        (['{"accuracy": 1}', '{"accuracy": 2}', "bye", '{"step": 3, "loss": 1}'], {"accuracy": 2}),
        (['{"dev": {"a": 1}, "note": "x", "done": true}'], {"dev": {"a": 1}}),
        (["{torn", '{"a": 1.0}', "{"], {"a": 1.0}),
    ],
)
def test_metrics_in_what_was_printed(lines, expected):
    assert ended(lines) == expected


def ended(lines):
    """Read the output of a command that printed these lines, a few bytes at a time."""
    printed = Printed(lambda point: None)
    for byte in "\n".join(lines).encode():
        printed.take(bytes([byte]))
    printed.take(b"", final=True)
    return printed.metrics


def test_metrics_in_a_file(tmp_path):
    (tmp_path / "m").write_text('{\n "accuracy": 1.5,\n "step": 4\n}\n')
    assert metrics_in_file(tmp_path / "m") == {"accuracy": 1.5}


@pytest.mark.parametrize("lines", [[], ["done"], ["a,b", "1,2"], ['{"step": 1, "loss": 2}']])
def test_no_metrics_are_none(lines):
    assert not ended(lines)


@pytest.mark.process
def test_placeholders_are_quoted_once_and_other_braces_left_alone():
    values = {"name": "it's; rm -rf /", "rate": 0.1, "flag": True, "optimizer.rate": 2, "sizes": [1, 2]}
    command = "run {name} {rate} {flag} {optimizer.rate} {sizes} {other} '{\"json\": 1}' ${HOME}"
    said = said_by_a_shell(command.replace("run", "printf '%s\\n'"), values)
    assert said == [
        *map(str, (values["name"], 0.1)),
        "true",
        "2",
        "[1, 2]",
        "{other}",
        '{"json": 1}',
        os.environ["HOME"],
    ]
    assert said_by_a_shell("echo {a}", {"a": "{b}", "b": "x"}) == ["{b}"]


HOSTILE = "$(touch OWNED) `touch OWNED` ; touch OWNED # ' \" \\ \n* ${HOME} && touch OWNED"


@pytest.mark.parametrize(
    "command",
    [
        "printf '%s|' {a}",
        "printf %s\\| --set={a}-end",
        'printf "%s|" "$(printf %s {a})"',
        "# it's a comment\nprintf '%s|' {a}",
        "(printf '%s|' {a})",
        'A={a}; printf "%s|" "$A"',
        "printf '%s|' \"$((1<<2))\" {a}",
    ],
)
@pytest.mark.process
def test_no_value_is_read_as_code(tmp_path, command):
    refuse_quoted(command)
    text, variables = filled(command, {"a": HOSTILE})
    done = subprocess.run(
        ["/bin/sh", "-c", text], cwd=tmp_path, env=os.environ | variables, capture_output=True, text=True
    )
    assert HOSTILE in done.stdout and not list(tmp_path.iterdir()), done


@pytest.mark.parametrize(
    ("command", "place"),
    [
        ("train '{a}'", "single quotes"),
        ('train "{a}"', "double quotes"),
        ('train "x\\"{a}"', "double quotes"),
        ("train 'it' 's {a}'", "single quotes"),
        ("train \\{a}", "a backslash"),
        ("train `cat {a}`", "backquotes"),
        ("# it's\ntrain '{a}'", "single quotes"),
        ('train "$(cat "{a}")"', "double quotes"),
        ("train <<END\n{a}\nEND", "a here-document"),
        ('sh -c "train {a}"', "double quotes"),
    ],
)
@pytest.mark.process
def test_a_quoted_placeholder_is_refused_and_executes_nothing_even_so(tmp_path, command, place):
    with pytest.raises(UserError, match=f"inside {place}"):
        load_task("command").with_settings({"a": "x"}, TrainerSpec(command))
    text, variables = filled(command.replace("train", "echo"), {"a": HOSTILE})
    if not command.startswith("sh"):  # which is to read its argument as code
        subprocess.run(
            ["/bin/sh", "-c", text], cwd=tmp_path, env=os.environ | variables, capture_output=True, text=True
        )
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("placeholder", "true", "false"),
    [
        ("{bn:--bn}", "--bn", ""),
        ("{bn:--no-bn}", "", "--no-bn"),
        ("{no_bn:--no-bn}", "--no-bn", ""),
        ("{bn:--norm}", "--norm", ""),
        ("{bn:--bn|--no-bn}", "--bn", "--no-bn"),
        ("{bn:|-p}", "", "-p"),
        ("{x.bn:--bn=1|--bn=0}", "--bn=1", "--bn=0"),
    ],
)
@pytest.mark.process
def test_a_flag_stands_where_its_setting_says(placeholder, true, false):
    name = placeholder[1:].partition(":")[0]
    for value, words in ((True, true), (False, false)):
        assert said_by_a_shell(f"echo a {placeholder} z", {name: value}) == [" ".join(f"a {words} z".split())]
        assert expanded(f"a {placeholder} z", {name: value}).split() == f"a {words} z".split()


def test_a_flag_of_what_is_not_true_or_false_is_refused(tmp_path):
    task = load_task("command", str(tmp_path))
    with pytest.raises(UserError, match=r"\{lr:--lr\}.*true or false"):
        task.with_settings({"lr": 0.1}, TrainerSpec("train {lr:--lr}"))
    assert task.with_settings({"bn": True}, TrainerSpec("train {bn:--no-bn}")).config_type().bn is True


def said_by_a_shell(command, values, cwd=None):
    text, variables = filled(command, values)
    environment = os.environ | variables
    done = subprocess.run(
        ["/bin/sh", "-c", text], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout if cwd else done.stdout.splitlines()


@pytest.mark.parametrize(
    ("command", "lr", "words"),
    [
        ("", 0.1, "no command"),
        ("train {rl}", 0.1, "{rl}"),
        ("train", 0.1, "changing it would change nothing"),
        ("train 'x {lr}", 0.1, "not valid in a shell"),
        ("train {lr} \0", 0.1, "contains a NUL"),
        ("train {lr} " + "x" * 131_000, 0.1, "put its text into a script"),
        ("train {lr}", "x" * 131_001, r"lr has 131,001 bytes.*\{settings\}, a JSON file"),
    ],
)
def test_commands_that_cannot_be_meant(command, lr, words, tmp_path):
    with pytest.raises(UserError, match=words):
        load_task("command", str(tmp_path)).with_settings({"lr": lr}, TrainerSpec(command))


def test_a_command_knows_types_and_its_script(tmp_path):
    (tmp_path / "train.py").write_text("import helper\n")
    (tmp_path / "helper.py").write_text("")
    task = load_task("command", str(tmp_path)).with_settings(
        {"n": 1, "x": {"lr": 0.1}}, TrainerSpec("python train.py {settings}")
    )
    assert [path.name for path in task.code_paths()] == ["train.py", "helper.py"]
    for values in ({"n": "1"}, {"x": {"lr": "fast"}}, {"m": 1}):
        with pytest.raises(ValidationError):
            task.config_type.model_validate_json(json.dumps(values))
    assert task.config_type.model_validate_json('{"n": 1.5}').n == 1.5


RUN_COMMAND = "experiments.tasks.own.command.run_command"


def _context(folder, emitted, *earlier):
    attempt = AttemptSpec(RunSpec("0" * 16, {}, {}), str(folder), 1, DeviceSpec(), earlier=tuple(map(str, earlier)))
    return AttemptContext(attempt, folder, lambda kind, **fields: emitted.append((kind, fields)), lambda: False)


@pytest.mark.parametrize("harmed", ["state.txt", ""], ids=["its state", "without its description"])
def test_a_damaged_checkpoint_of_a_users_trainer_is_skipped_and_named(tmp_path, harmed):
    emitted = []
    context = _context(tmp_path, emitted)
    open_folder(context)
    for step in (1, 2):
        with new_checkpoint(context, step) as folder:
            (folder / "state.txt").write_text(f"state {step}")
    if harmed:
        (tmp_path / "checkpoints/step-00000002" / harmed).write_text("state 3")
    else:
        (tmp_path / "checkpoints/.step-00000002.json").unlink()
    (tmp_path / "next").mkdir()
    resume = open_folder(_context(tmp_path / "next", emitted, tmp_path))
    assert (resume / "state.txt").read_text() == "state 1"
    assert [fields["path"][-8:] for kind, fields in emitted if kind == "checkpoint_skipped"] == ["00000002"]


def test_a_command_killed_while_its_old_files_are_copied_finds_all_of_them_at_the_next_attempt(tmp_path, monkeypatch):
    first, second, third = (tmp_path / str(number) for number in (1, 2, 3))
    for path in (first / "final/a", first / "final/b", second / "spec.json", third / "spec.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("state")
    task = load_task("command", str(tmp_path)).with_settings({}, TrainerSpec("train {folder}"))
    config = task.config_type()
    for killed_in, folder, *earlier in (("shutil.copyfile", second, first), (RUN_COMMAND, third, second, first)):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(killed_in, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            task.train(config, _context(folder, [], *earlier))
    assert (third / "final/b").read_text() == "state"
