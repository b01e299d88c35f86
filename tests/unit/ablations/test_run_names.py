"""Names of runs of a user's trainer after new settings, changed defaults and changed commands, and by recorded facts.

The kept store is one of 0.1.0's formats, which every later version reads: of two studies with own
tasks, all runs, one of them interrupted after a checkpoint; their queue; a table of each, and a bundle. It was made in
/srv/study by `run`, `report --out` and `bundle`, without MLflow's files.
"""

import json
import re
import shutil
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ablations.cli.main import app
from ablations.cli.verbs import verbs
from ablations.planning.plan import Plan
from ablations.service.selected import Selectors, choose
from experiments.identity import identity_of
from experiments.run_spec import NO_TRAINER, TrainerSpec, recorded_spec
from experiments.store import run_names
from experiments.store.checksummed import write_json
from experiments.store.layout import Store
from experiments.store.run_names import RunNames, differing
from experiments.tasks.load import load_task
from tests.small_tables import finish, write_study

KEPT = Path(__file__).parent / "stores" / "own-0.1.0.tar.gz"
TRAINER = """
from dataclasses import dataclass
from ablations_task import column, task

@dataclass
class Settings:
    size: float = 2.0

@task(Settings, columns=[column("distance", digits=1)])
def TASK(settings, context):
    return {"distance": settings.size * context.seed}
"""
STUDY = """
name = "walk"
title = "A walk"
task = "walking_here:TASK"
[[variation]]
key = "base"
[[variation]]
key = "long"
set = {size = 4.0}
"""


def call(store: Path, *words: str | Path, code: int = 0) -> Result:
    done = CliRunner().invoke(app, [*map(str, words), "--store", str(store)])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done


def states(study: Path, store: Path, **options: object) -> list[str]:
    """By row; runs are kept that are stale, because their trainer was edited, or whose numbers are to be read only."""
    runs = choose(str(study), Selectors(store=store, **options)).plan.runs  # type: ignore[arg-type]
    return ["finished" if run.state == "stale" or run.store_state.to_make else run.state for run in runs]


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    with tarfile.open(KEPT) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with both kinds of a user's task, and a store with their runs."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "walking_here.py").write_text(TRAINER)
    (folder / "walk.toml").write_text(STUDY)
    finish(folder / "walk.toml", folder / "store")
    finish(write_study(folder, "command"), folder / "store")
    return folder


@pytest.fixture
def mine(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "mine")


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    sys.modules.pop(path.stem, None)  # the next command is a process of its own
    shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)


class TestTheKeptStore:
    @pytest.mark.process
    def test_is_reported_and_verified(self, kept: Path) -> None:
        store = kept / "store"
        assert states(kept / "walk.toml", store, seeds=1) == states(kept / "said.toml", store) == ["finished"] * 2
        for file, study in (("walk.csv", "walk.toml"), ("said.json", "said.toml")):
            done = CliRunner().invoke(app, ["verify", str(kept / file), str(kept / study), "--store", str(store)])
            differing = re.findall(r"^  \S+, (\w+): (.*)", done.output, re.MULTILINE)  # scores are read again by `run`
            assert {*differing} <= {("state", "finished in the file, missing in the store")}, done.output

    def test_its_queue_is_read(self, kept: Path) -> None:
        listed = json.loads(call(kept / "store", "status", "--json").stdout)
        assert sorted(run["state"] for run in listed) == ["failed", *["finished"] * 4]

    @pytest.mark.extra("bundles")
    def test_its_bundle_is_read_without_the_store(self, kept: Path) -> None:
        assert "all equal" in call(kept / "elsewhere", "verify", kept / "walk.csv", kept / "walk.tar.gz").stdout

    @pytest.mark.process
    def test_keeps_its_runs_when_a_setting_is_added(self, kept: Path) -> None:
        edit(kept / "walking_long_ago.py", "    steps: int = 6\n", "    steps: int = 6\n    decay: float = 0.0\n")
        table = call(kept / "store", "report", kept / "walk.toml", "--format", "json").stdout
        assert [row["distance_test"] for row in json.loads(table)] == [12.0, 24.0]
        assert [row["stale"] for row in json.loads(table)] == [True] * 2, "its code was edited; kept, and marked"

    @pytest.mark.process
    def test_begins_a_failed_run_again_under_its_name(self, kept: Path) -> None:
        edit(kept / "walking_long_ago.py", "    steps: int = 6\n", "    steps: int = 6\n    decay: float = 0.0\n")
        edit(kept / "walking_long_ago.py", "if context.seed == 2 and", "if False and")
        study, store = kept / "walk.toml", kept / "store"
        before = sorted(path.name for path in (store / "runs").iterdir())
        call(store, "run", study, "--rows", "base", "--seeds", "2", "--devices", "cpu:1", "--stale", "keep")
        assert sorted(path.name for path in (store / "runs").iterdir()) == before, "no run was begun anew"
        logs = [path.read_text() for path in store.glob("runs/*/attempts/0002/events.jsonl")]
        assert logs and not any('"resumed"' in events for events in logs), "never with other code"
        assert states(study, store, rows="base", seeds=2) == ["finished"] * 2
        runs = choose(str(study), Selectors(store=store, rows="base", seeds=2)).plan.runs
        assert [run.added for run in runs] == [{"decay": 0.0}, {}], "the second was trained with it"


class TestASettingOfATrainer:
    @pytest.mark.process
    def test_that_is_new_discards_nothing(self, mine: Path) -> None:
        study, store = mine / "walk.toml", mine / "store"
        edit(mine / "walking_here.py", "    size: float = 2.0\n", "    size: float = 2.0\n    decay: float = 0.0\n")
        assert states(study, store) == ["finished"] * 2
        assert "nothing to train" in call(store, "run", study, "--devices", "cpu:1").stderr
        assert states(study, store, sets=["decay=0.1"]) == ["missing"] * 2, "another value is another run"

    @pytest.mark.process
    def test_whose_default_changes_makes_new_runs(self, mine: Path) -> None:
        study, store = mine / "walk.toml", mine / "store"
        edit(mine / "walking_here.py", "size: float = 2.0", "size: float = 3.0")
        assert states(study, store) == ["missing", "finished"], "the row that sets it is what it was"
        said = call(store, "plan", study).stdout
        assert "1 finished run of base is not used: default size changed from 2.0 to 3.0 since 20" in said
        finish(study, store)
        assert states(study, store) == ["finished"] * 2
        edit(mine / "walking_here.py", "size: float = 3.0", "size: float = 2.0")
        assert states(study, store) == ["finished"] * 2

    @pytest.mark.process
    def test_that_is_set_by_a_row_to_the_new_default_keeps_its_own_results(self, mine: Path) -> None:
        """A default that moves from 2 to 4 gives no row with 4 the results of 2, and base those of 4."""
        study, store = mine / "walk.toml", mine / "store"
        edit(mine / "walking_here.py", "size: float = 2.0", "size: float = 4.0")
        rows = {"base": 'key = "base"', "long": 'key = "long"\nset = {size = 4.0}'}
        found = {}
        for key, row in rows.items():
            study.write_text(STUDY[: STUDY.index("[[variation]]")] + f"[[variation]]\n{row}\n")
            (found[key],) = choose(str(study), Selectors(store=store)).plan.runs
        assert [run.state for run in found.values()] == ["stale"] * 2
        assert found["base"].run_id == found["long"].run_id
        table = json.loads(call(store, "report", study, "--format", "json").stdout)
        assert [row["distance_test"] for row in table] == [4.0]

    @pytest.mark.process
    def test_that_is_new_and_then_changes_is_followed(self, mine: Path) -> None:
        """Each run is found by its record, whatever the default was when it was named."""
        study, store, trainer = mine / "walk.toml", mine / "store", mine / "walking_here.py"
        edit(trainer, "size: float = 2.0", "size: float = 3.0")
        finish(study, store)
        edit(trainer, "size: float = 3.0\n", "size: float = 3.0\n    decay: float = 0.0\n")
        assert states(study, store) == ["finished"] * 2
        edit(trainer, "size: float = 3.0", "size: float = 2.0")
        assert states(study, store) == ["finished"] * 2
        edit(trainer, "decay: float = 0.0", "decay: float = 0.5")
        assert states(study, store) == ["finished"] * 2, "none of the runs has recorded another value of it"

    @pytest.mark.process
    def test_that_is_new_and_was_printed_keeps_its_runs_from_another_default(self, mine: Path) -> None:
        study, store, trainer = mine / "walk.toml", mine / "store", mine / "walking_here.py"
        edit(trainer, "size: float = 2.0\n", "size: float = 2.0\n    decay: float = 0.0\n")
        said = "base, long: trained before decay existed; counted as decay = "
        assert f"{said}0.0." in call(store, "report", study).stdout
        edit(trainer, "decay: float = 0.0", "decay: float = 0.5")
        assert states(study, store) == ["missing"] * 2, "their numbers were printed as those of another value"
        assert "default decay 0.5 was added since" in call(store, "plan", study).stdout
        assert states(study, store, sets=["decay=0.0"]) == ["finished"] * 2
        if "bundle" in verbs():
            call(store, "bundle", study, "--set", "decay=0.0", "--out", mine / "walk.tar.gz")
            assert f"{said}0.0." in call(mine / "none", "report", mine / "walk.tar.gz").stdout
        edit(trainer, "decay: float = 0.5", "decay: float = 0.0")
        assert states(study, store) == ["finished"] * 2
        edit(trainer, "    decay: float = 0.0\n", "")
        assert states(study, store) == ["finished"] * 2, "as they were trained: they never had the setting"

    @pytest.mark.process
    def test_that_is_new_and_never_was_printed_is_said(self, mine: Path) -> None:
        """No record shows whether the setting's first default was the present one."""
        study, store = mine / "walk.toml", mine / "store"
        edit(mine / "walking_here.py", "size: float = 2.0\n", "size: float = 2.0\n    decay: float = 0.5\n")
        for verb in ("plan", "report"):
            said = call(store, verb, study).stdout
            assert "base, long: trained before decay existed; counted as decay = 0.5." in said

    @pytest.mark.process
    def test_a_trainer_of_the_same_name_in_another_project_is_another(self, mine: Path, tmp_path: Path) -> None:
        other = tmp_path / "other"
        other.mkdir()
        (other / "walking_here.py").write_text(TRAINER.replace("2.0\n", "2.0\n    decay: float = 0.0\n"))
        (other / "walk.toml").write_text(STUDY.replace('name = "walk"', 'name = "theirs"'))
        sys.modules.pop("walking_here", None)
        assert states(other / "walk.toml", mine / "store") == ["missing"] * 2

    @pytest.mark.extra("bundles")
    @pytest.mark.process
    def test_a_bundle_of_such_runs_is_read(self, mine: Path) -> None:
        edit(mine / "walking_here.py", "    size: float = 2.0\n", "    size: float = 2.0\n    decay: float = 0.0\n")
        packed = mine / "walk.tar.gz"
        call(mine / "store", "bundle", mine / "walk.toml", "--out", packed)
        there = call(mine / "none", "report", packed).stdout.partition("\n\n")[2]
        here = call(mine / "store", "report", mine / "walk.toml").stdout
        assert there == here.replace(" (walking_here.py)", ""), "a bundle does not have the present code to compare"


class TestTheCommand:
    OLD, NEW = "in $PWD on", "in the folder $PWD on"

    @pytest.mark.process
    def test_whose_fixed_words_change_makes_new_runs(self, mine: Path) -> None:
        study, store = mine / "command.toml", mine / "store"
        edit(study, self.OLD, self.NEW)
        assert states(study, store) == ["missing"] * 2
        line = "2 finished runs of base, fast are not used: the command changed from "
        assert line in call(store, "plan", study).stdout
        assert line in call(store, "queue", study).stderr
        edit(study, self.NEW, self.OLD)
        assert states(study, store) == ["finished"] * 2

    def test_a_new_metric_setting_and_option_discard_nothing(self, mine: Path) -> None:
        study, store = mine / "command.toml", mine / "store"
        before = [run.run_id for run in choose(str(study), Selectors(store=store)).plan.runs]
        edit(study, "'''echo ", "'''true --decay {decay} {quick:--quick} && echo ")
        edit(study, "rate = 3", "rate = 3\ndecay = 0.5\nquick = false")
        assert states(study, store) == ["missing"] * 2, "another program in front is no option"
        edit(study, "'''true --decay {decay} {quick:--quick} && echo ", "'''echo --decay {decay} {quick:--quick} ")
        edit(study, "[[metric]]", "[[metric]]\nname = \"loss\"\npattern = 'loss=(.*)'\n[[metric]]")
        runs = choose(str(study), Selectors(store=store)).plan.runs
        assert [run.run_id for run in runs] == before and {run.state for run in runs} <= {"finished", "stale"}
        assert [dict(run.added) for run in runs] == [{"decay": 0.5, "quick": False}] * 2
        edit(study, "--decay {decay}", "--weight-decay {decay}")
        assert [run.run_id for run in choose(str(study), Selectors(store=store)).plan.runs] == before
        edit(study, "name = \"loss\"\npattern = 'loss=(.*)'\n[[metric]]\n", "")
        edit(study, "set = {rate = 5}", "set = {decay = 0.1}")
        assert states(study, store) == ["finished", "missing"]


@pytest.mark.process
def test_an_edit_makes_stale_what_used_the_file_and_undone_nothing(mine: Path) -> None:
    study, store, trainer = mine / "walk.toml", mine / "store", mine / "walking_here.py"

    def real() -> list[str]:
        return [run.state for run in choose(str(study), Selectors(store=store)).plan.runs]

    text = trainer.read_text()
    assert real() == ["finished"] * 2
    (mine / "other.py").write_text("x = 1")
    study.write_text(study.read_text().replace('title = "A walk"', 'title = "Another title"'))
    assert real() == ["finished"] * 2
    edit(trainer, "settings.size * context.seed", "settings.size * context.seed + 1")
    assert real() == ["stale"] * 2
    edit(trainer, trainer.read_text(), text)
    assert real() == ["finished"] * 2


@pytest.mark.process
def test_no_run_is_compared_with_all_others(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 10,000 runs, `queue` once took minutes and `status` a quarter of an hour."""
    study, store, compared, listed = mine / "walk.toml", mine / "store", list[object](), list[object]()
    sizes = [size / 4 for size in range(16, 76)]
    edit(study, "set = {size = 4.0}", f"vary = {{size = {sizes}}}")
    trainings = Plan.trainings.fget
    monkeypatch.setattr(Plan, "trainings", property(lambda plan: listed.append(plan) or trainings(plan)))
    monkeypatch.setattr(run_names, "differing", lambda *given: compared.append(given) or differing(*given))
    call(store, "queue", study)
    call(store, "status", study)
    edit(study, str(sizes), str([size + 100 for size in sizes]))
    assert "no longer in the study" in call(store, "tables").stdout
    assert 0 < len(compared) <= 8 * 61 and 0 < len(listed) <= 40, "each run a few times, not as often as there are runs"


class TestRunsOfCodeIn010:
    """Version 0.1.0 recorded the tree of every row of a study with patches, and no change of code."""

    CONFIG = {"command": "python train.py {lr}", "lr": 0.1, "folder_links": []}  # noqa: RUF012

    def record(self, store: Store, tree: str, lines: int, trained_now: bool) -> str:
        settings = {**self.CONFIG, "code_tree": tree}
        del settings["folder_links"]
        run_id = identity_of("command", 1, settings, {})
        config = {**self.CONFIG, "code_tree": tree, "code_lines": lines, "task": "command", "seed": 1}
        spec = {"run_id": run_id, "config": config, "inputs": {}}
        result = {**spec, "attempt": 1}
        if trained_now:
            spec = replace(recorded_spec(spec), named_by={"settings": settings}).to_json()
            result = {"spec": spec, "attempt": 1}
        store.new_attempt(run_id)
        write_json(store.run_folder(run_id) / "config.json", spec)
        write_json(store.run_folder(run_id) / "result.json", result)
        return run_id

    @pytest.mark.parametrize("trained_now", [False, True], ids=["trained by 0.1.0", "from the queue of 0.1.0"])
    def test_base_has_its_own_of_the_present_tree_and_never_a_patched_one(
        self, tmp_path: Path, trained_now: bool
    ) -> None:
        store = Store.open(tmp_path / "store")
        trees = [letter * 40 for letter in "abcdef"]
        base = TrainerSpec(self.CONFIG["command"], tree=trees[0])
        config = load_task("command", str(tmp_path)).with_settings({"lr": 0.1}, base).config_type(seed=1)

        def found(tree: str) -> str:
            return RunNames(store).find(config, {}, replace(base, tree=tree)).run_id

        nothing = found(trees[0])
        patched = {self.record(store, tree, 2, trained_now) for tree in trees}
        assert found(trees[0]) == nothing and nothing not in patched
        bases = {tree: self.record(store, tree, 0, trained_now) for tree in trees[:-1]}
        assert {tree: found(tree) for tree in bases} == bases
        assert found(trees[-1]) in bases.values()
        patch = RunNames(store).find(config, {"code change": "1" * 16}, base).run_id
        assert patch not in {*patched, *bases.values()}


def test_a_run_of_010_is_found_whatever_its_study_says_of_its_output_and_its_folder(tmp_path: Path) -> None:
    """Version 0.1.0 recorded patterns, progress and links among the settings, and named the run by the patterns too."""
    store = Store.open(tmp_path / "store")
    settings = {"command": "python train.py {lr}", "lr": 0.1, "output_patterns": [["test", "acc", "acc=(.*)", "last"]]}
    run_id = identity_of("command", 1, settings, {})
    config = {**settings, "output_progress": "step (.*)", "folder_links": ["data"], "task": "command", "seed": 1}
    record = {"run_id": run_id, "config": config, "inputs": {}}
    store.new_attempt(run_id)
    write_json(store.run_folder(run_id) / "config.json", record)
    write_json(store.run_folder(run_id) / "result.json", {**record, "attempt": 1})
    trainer = TrainerSpec(settings["command"], (("test", "acc", "acc=(.*)", "last"),), "step (.*)", ("data",))
    assert store.result(run_id).spec.trainer == trainer
    task = load_task("command", str(tmp_path)).with_settings({"lr": 0.1}, trainer)
    assert RunNames(store).find(task.config_type(seed=1), {}, trainer).run_id == run_id
    (known,) = RunNames(store).finished()
    assert known.settings == {"command": "train.py {lr}", "lr": 0.1}


class TestWhatARecordSays:
    """Records against planned settings, without a store of runs."""

    USUAL = {"size": 2.0, "deep.lr": 0.1, "words": ["a"]}  # noqa: RUF012

    @pytest.mark.parametrize(
        ("recorded", "planned", "differ"),
        [
            ({"size": 2.0}, {"size": 2.0}, {}),
            ({"size": 2.0}, {"size": 2.0, "deep.lr": 0.1}, {}),  # added since, with its default
            ({"size": 2.0}, {"size": 2.0, "deep.lr": 0.2}, {"deep.lr": None}),
            ({"size": 3.0, "gone": 1}, {"size": 2.0}, {"size": 3.0, "gone": 1}),
            ({}, {"new": None}, {}),  # without a default, as if it were null
            ({}, {"new": 0}, {"new": None}),
            ({"size": 2}, {"size": 2.0}, {}),  # one number
            ({"size": 1}, {"size": True}, {"size": 1}),  # a number is no flag
        ],
    )
    def test_it_agrees_in_what_it_has_and_the_rest_are_defaults(self, recorded, planned, differ) -> None:
        assert differing(recorded, planned, self.USUAL) == differ

    def test_runs_of_one_task_seed_and_data_are_of_one_kind(self) -> None:
        kind = run_names.kind_of("t:TASK", 1, {"text": "a"})
        assert kind == run_names.kind_of("t:TASK", 1, {"text": "a"})
        others = [("t:OTHER", 1, {"text": "a"}), ("t:TASK", 2, {"text": "a"}), ("t:TASK", 1, {"text": "b"})]
        assert len({kind, *(run_names.kind_of(*other) for other in others)}) == 4

    def test_what_was_counted_is_kept_and_added_to(self, tmp_path: Path) -> None:
        store, run_id = Store.open(tmp_path / "store"), "a" * 16
        run_names.keep_counted(store, run_id, {"x": 1})  # no folder: nothing to note it in
        assert run_names.counted_as(store, run_id) == {} and not store.run_folder(run_id).exists()
        store.new_attempt(run_id)
        run_names.keep_counted(store, run_id, {})
        assert not (store.run_folder(run_id) / run_names.COUNTED).exists()
        run_names.keep_counted(store, run_id, {"x": 1})
        run_names.keep_counted(store, run_id, {"x": 2, "y": None})
        assert run_names.counted_as(store, run_id) == {"x": 1, "y": None}, "what was printed once stays"
        file = store.run_folder(run_id) / run_names.COUNTED
        for damage in ("{", "[]"):
            file.write_text(damage)
            assert run_names.counted_as(store, run_id) == {}
        for other in ({"version": 2, "settings": {"x": 1}}, {"version": 1, "settings": [1]}, {"version": 1}):
            write_json(file, other)
            assert run_names.counted_as(store, run_id) == {}


@pytest.mark.process
def test_settings_may_have_the_names_of_facts_of_a_trainer(tmp_path: Path) -> None:
    named = '    size: float = 2.0\n    command: str = "walk"\n    code_tree: str = "o"\n    output_patterns: int = 1\n'
    (tmp_path / "walking_about.py").write_text(TRAINER.replace("    size: float = 2.0\n", named))
    given = 'set = {command = "run", code_tree = "../elm", output_patterns = 2}'
    study = STUDY.replace("walking_here", "walking_about").replace("set = {size = 4.0}", given)
    (tmp_path / "walk.toml").write_text(study)
    _, run = choose(str(tmp_path / "walk.toml"), Selectors(store=tmp_path / "store", seeds=1)).plan.runs
    settings = {"command": "run", "code_tree": "../elm", "output_patterns": 2}
    assert run.planned_row.overrides == settings and run.spec.trainer == NO_TRAINER
    assert run.spec.config == {"task": "walking_about:TASK", "seed": 1, "size": 2.0, **settings}
    assert run.run_id == identity_of("walking_about:TASK", 1, settings, {})
