"""A trainer that is a shell command: `command = "python train.py --lr {lr}"` in the study.

The study declares the settings and their types in [base]; a row may set them. In the command, `{name}` is replaced by
the value of a setting. The value is quoted for the shell, so `'{name}'` is refused. Further placeholders:

    {bn:--no-bn}          a flag for a setting that is true or false; this flag is passed if the setting is false
    {seed}                the seed, which the environment variable ABLATIONS_SEED also contains
    {folder}              a folder that is stored with the results; a resumed run finds its files there
    {metrics}             a file to which the command writes its metrics as a JSON object instead of printing them
    {settings}            a JSON file with all settings by dotted name
    {settings.yaml}       a YAML file with all settings, nested
    {settings.yaml:FILE}  a copy of the YAML file FILE in which the run's settings replace the values
    {device} {threads}    "cpu" or "cuda", and the number of threads

The study's patterns find metrics in the output (patterns.py). Unless the command has the placeholder {metrics}, the
last JSON object that it prints on one line is also read as metrics. A JSON object with "step" is a point of the
training curve instead.

The command runs in the study's folder. If the study has `links`, it runs in a separate folder that contains links to
these entries. When the run must stop, the command receives SIGTERM.

This module does not import torch.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model, model_validator

from experiments.attempt_context import AttemptContext
from experiments.client.ablations_task.values import by_set
from experiments.command_words import names
from experiments.config.task_config import GIVEN_ELSEWHERE, SettingRoles, TaskConfig
from experiments.dotted import flatten, unstorable
from experiments.errors import Preempted, UserError, explain_os_errors
from experiments.run_spec import NO_TRAINER, TrainerSpec
from experiments.store.checksummed import write_json
from experiments.store.durable import read_regular, whole_folder
from experiments.tasks.own.command_files import Scripts, is_file, script_of
from experiments.tasks.own.context import FINAL, close_folder, keep_metrics, open_folder
from experiments.tasks.own.function import OwnTask
from experiments.tasks.own.kept import keep_readings
from experiments.tasks.own.patterns import Readings
from experiments.tasks.own.placeholders import expanded, flags, laid_over, refuse_quoted, word
from experiments.tasks.own.run_code import check_watched, imported, link_in, own_code
from experiments.tasks.own.shell import run_command
from experiments.tasks.own.trainer_output import metrics_in_file
from model.strict import StrictModel

LONGEST_WORD = 131_000  # maximum length of an argument in bytes; Linux allows 32 pages of 4,096 bytes
GIVEN = ("seed", "folder", "metrics", "settings", "settings.yaml", "device", "threads")
WORK = "work"  # name of the folder, inside {folder}, in which a command with `links` runs


ROLES = SettingRoles(
    given_elsewhere={**GIVEN_ELSEWHERE, "command": "the study's own `command` gives it"},
)


class CommandConfig(TaskConfig):
    """The base class of a command's configuration. A subclass with the settings of [base] is created for each study."""

    model_config = ConfigDict(serialize_by_alias=True)

    setting_roles = ROLES
    placed_in_command: ClassVar[tuple[str, ...]] = ()  # settings for which the study's command has a placeholder
    task: str = "command"

    @model_validator(mode="after")
    def _fits_into_a_command(self) -> Self:
        for name, value in flatten(self):
            if name in self.placed_in_command and (size := len(word(value).encode(errors="replace"))) > LONGEST_WORD:
                raise ValueError(
                    f"{name} has {size:,} bytes, and a word of a command may have {LONGEST_WORD:,}: let the trainer "
                    "read {settings}, a JSON file with all settings"
                )
        return self


class _Declared(OwnTask):
    """A task whose settings each study declares in its [base].

    base: the configuration type to which the declared settings are added.
    typed: whether the value of a setting in a row must have the type of its value in [base].
    """

    base: ClassVar[type[TaskConfig]]
    typed: ClassVar[bool] = True

    def __init__(self, name: str) -> None:
        super().__init__(name, self.base)

    def with_settings(self, settings: Mapping[str, Any], trainer: TrainerSpec = NO_TRAINER) -> Self:
        """Return a copy of this task with the settings of a study or of a run."""
        declared = {name: value for name, value in settings.items() if name not in GIVEN_ELSEWHERE}
        fields = fields_of(declared, self.base, self.typed)
        changed = self.with_trainer(trainer)
        changed.config_type = create_model(self.name.title(), __base__=self.base, __module__=__name__, **fields)
        return changed

    def packages(self) -> None:
        """Return None, because another interpreter, another language or another program computes the numbers."""


class CommandTask(_Declared):
    """The task whose trainer is a shell command."""

    base = CommandConfig

    def with_settings(self, settings: Mapping[str, Any], trainer: TrainerSpec = NO_TRAINER) -> Self:
        """Return a copy of this task with the settings and the command of a study or of a run.

        Raises UserError if a setting or the command is invalid.
        """
        changed, command = super().with_settings(settings, trainer), trainer.command
        made: Any = changed.config_type  # the type that super().with_settings has created
        made.placed_in_command = tuple(names(command))
        _check(command, made)
        named = Scripts(command, self.folder)
        changed.interpreter = named.interpreter
        changed.named, changed.script = tuple(named.files), named.script
        refuse_quoted(command)
        return changed

    def preflight(self, config: Any, store: Path) -> list[UserError]:
        named, home = laid_over(self.trainer.command), self.folder
        if home is None or self.trainer.tree:
            return []
        found = []
        if named and not is_file(home / named):
            found.append(UserError(f"The command merges the settings into {named}, which does not exist in {home}."))
        script = script_of(self.trainer.command)
        if script and not is_file(home / script):
            found.append(UserError(f"The command runs {script}, which does not exist in {home}. Correct `command`."))
        return found

    def train(self, config: Any, context: AttemptContext) -> dict[str, Any]:
        _copy_earlier(context)
        open_folder(context)
        folder, device = context.folder / FINAL, context.device
        elsewhere = config.setting_roles.given_elsewhere
        settings = {name: value for name, value in flatten(config) if name == "seed" or name not in elsewhere}
        files = {name: folder / name for name in ("settings.json", "settings.yaml", "metrics.out")}
        write_json(files["settings.json"], settings, checksummed=False)
        files["metrics.out"].unlink(missing_ok=True)
        given = {**settings, **{name.removesuffix(".json").removesuffix(".out"): file for name, file in files.items()}}
        given |= {"folder": folder, "device": device.kind, "threads": device.threads}
        command, patterns, links = self.trainer.command, self.trainer.patterns, self.trainer.links
        readings = Readings(patterns, self.trainer.progress, context.emit)
        home = self.folder or Path.cwd()
        self._refuse_changed(config, context, "after the run was planned")
        before = self.code_now(context.store)
        if self.trainer.tree:
            with own_code(self.trainer, context, home, folder / WORK) as where:
                write_yaml(files["settings.yaml"], config, command, where)
                ended = run_command(command, given, where, context, readings, look_for_python=True)
                if ended.is_python:
                    check_watched(context)
        else:
            where = link_in(folder / WORK, home, links) if links else home
            write_yaml(files["settings.yaml"], config, command, home)
            ended = run_command(command, given, where, context, readings, str(home) if links else "")
        self._refuse_changed(config, context, "while the run trained")
        wrote = files["metrics.out"] if "metrics" in names(command) else None
        reported = (ended.metrics if wrote is None else metrics_in_file(wrote)) or {}
        if ended.stopped and not (readings.complete if patterns else reported):
            raise Preempted(None)  # the command stopped on request, with exit code 0, before it printed its metrics
        keep_metrics(folder, by_set(reported))
        keep_readings(folder, readings)
        named: dict[str, Any] = {"interpreter": self.interpreter} if self.interpreter else {}
        named |= {"output": ended.output} | self.code_facts(config, context, before, folder / WORK)
        return close_folder(context, named | imported(context))

    def _not_reported(self, name: str, set_: str, reported: Mapping[str, Mapping[str, float]], config: Any) -> str:
        if any(reported.values()):
            return super()._not_reported(name, set_, reported, config)
        given = "metrics" in names(self.trainer.command)
        done = "wrote no metrics to the file for metrics" if given else "printed no metrics"
        return (
            f'The command succeeded but {done}. End with JSON: {{"{name}": 93.2}}, or give the [[metric]] of the study '
            rf"a pattern that finds it in what it printed, which is kept: pattern = '{name}: ([\d.]+)'. The command: "
            f"{expanded(self.trainer.command, dict(flatten(config)))}"
        )


class ImportedConfig(TaskConfig):
    """The base class of the configuration of imported rows.

    A subclass with the settings of [base] is created for each study. The value "" means that a run does not have the
    setting.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    task: str = "imported"


class ImportedTask(_Declared):
    """The task of a study whose rows were all trained elsewhere. The study declares the metrics in [[metric]]."""

    base, typed = ImportedConfig, False
    how = "Rows of this task are trained elsewhere: write imported = true in the row, and use `ablations import`."

    def preflight(self, config: Any, store: Path) -> list[UserError]:
        return [UserError(self.how)]

    def train(self, config: Any, context: AttemptContext) -> dict[str, Any]:
        raise UserError(self.how)


class _Group(StrictModel):
    """A group of declared settings."""

    model_config = ConfigDict(serialize_by_alias=True)


def _or_unset(given: Any) -> Any:
    return None if given == "" else given


_ANY = Annotated[Any, BeforeValidator(_or_unset)]  # the type of the settings of imported rows, which no code reads


def fields_of(declared: Mapping[str, Any], parent: type[BaseModel] = _Group, typed: bool = True) -> dict[str, Any]:
    """Return pydantic fields whose types are inferred from the values in [base].

    If [base] has an integer, a row may have a number with a fraction. A name that `parent` has already, or that begins
    with an underscore, becomes an alias of a field with another name.
    """
    fields: dict[str, Any] = {}
    for number, (name, value) in enumerate(declared.items()):
        if isinstance(value, Mapping):
            group = create_model(name, __base__=_Group, __module__=__name__, **fields_of(value, typed=typed))
            field: tuple[Any, Any] = (group, group())
        elif not typed:
            field = (_ANY, _or_unset(value))
        elif isinstance(value, bool) or not isinstance(value, int):
            field = (type(value) if not isinstance(value, list | tuple) else list[Any], value)
        else:
            field = (int | float, value)
        if hasattr(parent, name) or name.startswith("_"):
            fields[f"setting{number}_{name.strip('_')}"] = (field[0], Field(field[1], alias=name))
        else:
            fields[name] = field
    return fields


def _check(command: str, config_type: type[TaskConfig]) -> None:
    if not command.strip():
        raise UserError('The study has no command. Write command = "python train.py --lr {lr}" at its head.')
    if why := unstorable(command):
        raise UserError(f"The command cannot be run by a shell: {why}.")
    if len(command.encode()) > LONGEST_WORD:
        raise UserError(
            f"The command has {len(command.encode()):,} bytes, and the system starts none of more than "
            f"{LONGEST_WORD:,}: put its text into a script."
        )
    try:
        defaults = dict(flatten(config_type()))
    except ValidationError as error:
        raise UserError(f"[base]: {error.errors()[0]['ctx']['error']}.") from None
    settings = [name for name in defaults if name not in config_type.setting_roles.given_elsewhere]
    used = names(command)
    for name in used:
        if name not in settings and name not in GIVEN:
            raise UserError(
                f"The command has {{{name}}}, and [base] declares no such setting. Settings: "
                f"{', '.join(settings) or 'none'}. Always there: {', '.join(GIVEN)}."
            )
    for name, written in flags(command).items():
        if type(defaults.get(name)) is not bool:
            raise UserError(
                f"The command has the flag {{{name}:{written}}}, and {name} is "
                f"{'no setting of [base]' if name not in defaults else repr(defaults[name])}: a flag stands for a "
                f"setting that is true or false. For a value write --{name} {{{name}}}."
            )
    if not {"settings", "settings.yaml"} & set(used):
        for name in settings:
            if name not in used:
                raise UserError(
                    f"The setting {name} of [base] is not in the command, so changing it would change nothing. Write "
                    f"{{{name}}} where the trainer takes it, or {{settings}} for a JSON file with all of them."
                )


def write_yaml(file: Path, config: CommandConfig, command: str, home: Path) -> None:
    """Write the settings, nested, to a YAML file.

    If the command has {settings.yaml:FILE}, the settings replace values in a copy of FILE from the folder `home`. All
    other values of FILE remain, and the seed is written only if FILE has the key `seed`.
    """
    import yaml  # imported here because the import takes 10 ms and a plan does not need it

    nested = config.model_dump(mode="json", exclude={*config.setting_roles.given_elsewhere} - {"seed"})
    if named := laid_over(command):
        content = _read_yaml(home / named)
        if "seed" not in content:
            del nested["seed"]
        nested = _over(content, nested)
    file.write_text(yaml.safe_dump(nested, sort_keys=False, allow_unicode=True), encoding="utf-8")


def _read_yaml(file: Path) -> dict[Any, Any]:
    import yaml

    if not is_file(file):
        raise UserError(f"The command merges the settings into {file}, which does not exist.")
    with explain_os_errors(f"read {file}"):
        try:
            content = yaml.safe_load(read_regular(file).decode())
        except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
            raise UserError(f"{file} is not valid YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(content, dict):
        raise UserError(f"The command merges the settings into {file}, which is not a mapping of keys to values.")
    return content


def _over(below: Mapping[Any, Any], above: Mapping[str, Any]) -> dict[Any, Any]:
    """Return a copy of the nested table `below` in which the values of `above` replace the values of the same keys."""
    laid = dict(below)
    for name, value in above.items():
        old = laid.get(name)
        laid[name] = _over(old if isinstance(old, Mapping) else {}, value) if isinstance(value, Mapping) else value
    return laid


def _copy_earlier(context: AttemptContext) -> None:
    """Copy the folder of the previous attempt, so that the command finds its checkpoints in {folder}.

    The copy gets its name when it is complete, so that the next attempt never copies an incomplete folder. Symbolic
    links remain links. A link to a file inside the folder leads to the copy of the file. Pipes, sockets and devices are
    not copied.
    """
    source = next((left for one in context.earlier if (left := one / FINAL).is_dir()), None)
    if source is None:
        return
    home = os.path.realpath(source)
    with (
        explain_os_errors(f"copy the folder of the previous attempt, {source}"),
        whole_folder(context.folder / FINAL) as new,
    ):
        for place, folders, names in os.walk(source, onerror=_refuse):
            here = new / Path(place).relative_to(source)
            here.mkdir(exist_ok=True)
            for path in (Path(place, name) for name in (*folders, *names)):
                if path.is_symlink():
                    end = os.path.realpath(path)
                    inside = Path(end).is_relative_to(home)
                    to = os.path.relpath(end, os.path.realpath(place)) if inside else str(path.readlink())
                    (here / path.name).symlink_to(to)
                elif path.is_file():
                    shutil.copyfile(path, here / path.name)


def _refuse(error: OSError) -> None:
    raise error


TASK, IMPORTED = CommandTask("command"), ImportedTask("imported")
