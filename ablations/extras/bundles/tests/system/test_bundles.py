"""Bundles of real runs: readable anywhere, anonymous on request, refused if altered."""

import getpass
import json
import random
import shutil
import socket
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from ablations.cli import main as cli
from ablations.cli.report import page
from ablations.extras.bundles.read import read_bundle
from ablations.extras.bundles.tests.altered import altered, contents
from ablations.extras.bundles.write import write_bundle
from ablations.service import selected
from ablations.service.selected import StoreOptions
from ablations.service.tables import table_of
from experiments.errors import UserError
from experiments.exchange.redaction import NOTHING, identity, places
from experiments.store.checksummed import with_checksum
from model.extensions import load
from reports.render.formats import RENDERERS, render
from tests.small_tables import finish, write_study

KINDS = (
    "command",
    pytest.param("own", marks=pytest.mark.nightly),
    pytest.param("translation", marks=pytest.mark.slow),
)
FORMATS = list(RENDERERS)


@pytest.fixture(scope="session", params=KINDS)
def finished(request, tmp_path_factory):
    """A finished table: its selection and its kind of task."""
    folder = tmp_path_factory.mktemp(f"private-{request.param}-study")
    return finish(write_study(folder, request.param), folder / "store", seeds=2), request.param


def bundle_of(chosen, path, redaction=None, weights=False):
    plan = chosen.plan
    redaction = redaction or places(chosen.store, [run.run_id for run in plan.runs], chosen.study.folder)
    write_bundle(path, plan, chosen.store, chosen.columns, chosen.asked, redaction, weights)
    return path


def read(path):
    return selected.choose_table(str(path), selected.Selectors(store=Path("none")), print)


def printed(chosen, format_, word=""):
    return render(replace(table_of(chosen), bundle=chosen.bundle or word), format_)


def test_the_same_table_from_a_bundle_of_any_task(finished, tmp_path):
    """The study's file, code and folder are not accessible."""
    chosen, kind = finished
    path = bundle_of(chosen, tmp_path / "b.tar.gz")
    assert bundle_of(chosen, tmp_path / "again.tar.gz").read_bytes() == path.read_bytes()
    before = set(sys.modules)
    there = read(path)
    assert "walking_in_a_bundle" not in set(sys.modules) - before
    for format_ in FORMATS:
        assert printed(there, format_) == printed(chosen, format_, there.bundle), format_
    if kind == "translation":
        assert page(table_of(there), there) == page(replace(table_of(chosen), bundle=there.bundle), chosen)


def test_what_was_computed_again_is_said(finished, tmp_path):
    chosen, kind = finished
    runs, word = read_bundle(bundle_of(chosen, tmp_path / "b.tar.gz"), tmp_path / "in").checked
    assert runs == "4 runs as planned"
    again, _, recorded = word.partition("sender's")
    assert {"translation": "bleu (dev), parameters"}.get(kind, "0 cells recomputed: all numbers are the ") in again
    assert {"translation": "perplexity (dev)"}.get(kind, "") in recorded


def words_that_tell(chosen):
    places_ = {chosen.store.root, chosen.study.folder, Path.cwd(), Path.home(), Path(sys.prefix)}
    return [str(form) for place in places_ for form in (place, place.resolve()) if str(form) != "/"]


def test_no_host_and_no_path_in_any_file(finished, tmp_path):
    chosen, _ = finished
    kept = contents(bundle_of(chosen, tmp_path / "k.tar.gz", NOTHING))
    hosts = (socket.gethostname().encode(),)
    assert any(host in data for data in kept.values() for host in hosts)  # else this shows nothing
    assert any(str(chosen.store.root).encode() in data for data in kept.values())
    for name, data in contents(bundle_of(chosen, tmp_path / "b.tar.gz")).items():
        for place in words_that_tell(chosen):
            assert place.encode() not in data, (name, place)
        for host in hosts:
            assert f'"{host.decode()}"'.encode() not in data and b" " + host + b"\n" not in data, (name, host)
    assert {name for name in kept if name.endswith("log.txt")}  # logs go along, without those


def test_an_anonymous_bundle_tells_nobody(finished, tmp_path):
    """Every file, weights included, is searched for names of the machine, the user, the folders and the commit."""
    chosen, _ = finished
    path = bundle_of(chosen, tmp_path / "b.tar.gz", identity(chosen.store, chosen.study.folder), weights=True)
    files = contents(path)
    commit = chosen.store.result(chosen.plan.runs[0].run_id).tool.commit or "no commit"
    telling = [*words_that_tell(chosen), commit, "private-"]
    alone = [socket.gethostname(), getpass.getuser(), Path.cwd().name]
    for name, data in files.items():
        text = data.decode("utf-8", errors="replace")
        assert not [word for word in telling if word in text], name
        for word in alone:
            for mark in (f'"{word}"', f"/{word}/", f"/{word}\n", f" {word}\n", f"{word}@"):
                assert mark not in text, (name, mark)
    assert not [name for name in files if name.endswith(("log.txt", "uncommitted.diff"))]
    there = read(path)
    assert [row.measures for row in table_of(there).rows] == [row.measures for row in table_of(chosen).rows]
    with tarfile.open(path) as archive:
        assert {(e.uid, e.gid, e.uname, e.gname, e.mtime) for e in archive} == {(0, 0, "", "", 0)}


def test_a_setting_that_is_a_path_and_names_the_runs_is_left_out_and_said(tmp_path):
    chosen = finish(write_study(tmp_path / "study", "own", where=f"{Path.home()}/alice/corpus"), tmp_path / "store")
    path = bundle_of(chosen, tmp_path / "b.tar.gz")
    assert b"alice" not in b"".join(contents(path).values())
    bundle = read_bundle(path, tmp_path / "in")
    assert "by settings only" in bundle.checked.runs
    assert bundle.plan.runs[0].config.where == "corpus"


# --- what was altered, or made to harm


def records(files, last):
    """Records by name, without their seals."""
    for name in [name for name in files if name.endswith(last)]:
        record = json.loads(files[name])
        yield name, {key: value for key, value in record.items() if not key.startswith("record_")}


def settings_of_the_plan(head, files):
    row = head["plan"]["rows"][0]
    group, name, value = {"translation": ("model", "dropout", 0.9)}.get(
        head["plan"]["study"]["task"], (None, "size" if "size" in row["config"] else "rate", 9)
    )
    (row["config"][group] if group else row["config"])[name] = value


def a_shown_override(head, files):
    row = head["plan"]["rows"][1]
    name = next(iter(row["overrides"] or {"model.dropout": 0}))
    row["overrides"] = {name: 77}


def a_seed(head, files):
    head["plan"]["rows"][0]["seeds"] = [3, 4]
    for number, run in enumerate(r for r in head["plan"]["runs"] if r["row"] == head["plan"]["rows"][0]["key"]):
        run["seed"] = 3 + number


def a_state(head, files):
    head["plan"]["runs"][0]["state"] = "<b>"


def the_runs_settings(head, files):
    for name, record in records(files, "/result.json"):
        if "spec" in record:
            record["spec"]["config"]["seed"] = 99
            files[name] = json.dumps(with_checksum(record)).encode()


def swapped_runs(head, files):
    one, other = (head["plan"]["runs"][n]["run_id"] for n in (0, -1))
    files[f"runs/{one}/result.json"], files[f"runs/{other}/result.json"] = (
        files[f"runs/{other}/result.json"],
        files[f"runs/{one}/result.json"],
    )


def another_evaluation(head, files):
    for run in head["plan"]["runs"]:
        for evaluation in run["evaluations"]:
            evaluation["settings"] = {**evaluation["settings"], "beam_size": 77}


ALTERED = (settings_of_the_plan, a_shown_override, a_seed, a_state, the_runs_settings, swapped_runs, another_evaluation)


@pytest.mark.parametrize("change", ALTERED)
def test_plan_and_runs_agree_or_nothing_is_printed(finished, tmp_path, change):
    chosen, _ = finished
    path = bundle_of(chosen, tmp_path / "b.tar.gz")
    with pytest.raises(UserError, match=r"b2.tar.gz"):
        read(altered(path, tmp_path / "b2.tar.gz", change))


def test_a_score_that_its_counts_do_not_give_is_refused(finished, tmp_path):
    chosen, kind = finished
    metric = {"translation": "bleu"}.get(kind)
    if metric is None:
        pytest.skip("its metrics are as recorded, and said to be")

    def change(head, files):
        for name, record in records(files, "/result.json"):
            if "metrics" in record:
                record["metrics"][metric] = 99.9
                files[name] = json.dumps(with_checksum(record)).encode()

    with pytest.raises(UserError, match=f"{metric} is recorded as 99.9, but its counts give"):
        read(altered(bundle_of(chosen, tmp_path / "b.tar.gz"), tmp_path / "b2.tar.gz", change))


def test_no_code_that_a_bundle_names_is_loaded(finished, tmp_path, monkeypatch):
    chosen, _ = finished
    (tmp_path / "evil_of_a_bundle.py").write_text("raise SystemExit('executed')")
    monkeypatch.syspath_prepend(str(tmp_path))

    def change(head, files):
        head["plan"]["study"]["task"] = "evil_of_a_bundle:TASK"
        head["plan"]["study"].pop("command", None)
        for row in head["plan"]["rows"]:
            row["config"]["task"] = "evil_of_a_bundle:TASK"

    with pytest.raises(UserError):
        read(altered(bundle_of(chosen, tmp_path / "b.tar.gz"), tmp_path / "b2.tar.gz", change))
    assert "evil_of_a_bundle" not in sys.modules


def test_runs_that_no_plan_vouches_for_are_refused(finished, tmp_path):
    chosen, _ = finished

    def change(head, files):
        name = next(name for name in files if name.endswith("/result.json") and "attempts" not in name)
        files[f"runs/{'f' * 16}/result.json"] = files[name]

    with pytest.raises(UserError, match="of no run in its plan"):
        read(altered(bundle_of(chosen, tmp_path / "b.tar.gz"), tmp_path / "b2.tar.gz", change))


ODD = (
    None,
    True,
    -1,
    10**30,
    1e308,
    "",
    "x" * 5000,
    [],
    {},
    [[]],
    {"a": {}},
    "\x1b[31m",
    "<script>",
    "../../x",
    "\ud800",
    0.5,
)


@pytest.mark.nightly
def test_a_bundle_with_anything_at_any_place_is_printed_or_refused(finished, tmp_path):
    """Values of other types at random places of the head and of records, with new checksums, give no traceback."""
    chosen, _ = finished
    path = bundle_of(chosen, tmp_path / "b.tar.gz")
    chance = random.Random(11)
    refused = 0

    def change(head, files):
        names = [name for name in files if name.endswith(".json")]
        target = chance.choice(["head", *names])
        record = head if target == "head" else json.loads(files[target])
        inside, key = chance.choice(list(spots(record)))
        if key not in ("record_sha256", "record_format", "files"):
            inside[key] = chance.choice(ODD)
        if target != "head":
            kept = {k: v for k, v in record.items() if not k.startswith("record_")}
            files[target] = json.dumps(with_checksum(kept)).encode()

    for number in range(60):
        target = tmp_path / f"odd{number}.tar.gz"
        try:
            there = read(altered(path, target, change))
            for format_ in FORMATS:
                printed(there, format_)
        except UserError:
            refused += 1
        target.unlink()
    assert refused > 10


@pytest.mark.extra("imports")
def test_a_bundle_with_half_a_surrogate_pair_is_read_by_every_command_or_by_none(finished, tmp_path, capfd):
    """In each text of each record in turn: what `report` prints, `import` imports."""
    chosen, kind = finished
    if kind != "command":
        pytest.skip("the records of one task are enough")
    path, imported = bundle_of(chosen, tmp_path / "b.tar.gz"), 0

    def change(head, files):
        record = head if name == "bundle.json" else json.loads(files[name])
        for part, key in texts_of(record, wanted):
            part[key] += "\ud800"
        if name != "bundle.json":
            kept = {k: v for k, v in record.items() if not k.startswith("record_")}
            files[name] = json.dumps(with_checksum(kept)).encode()

    files = {name.rpartition("/")[2]: name for name in contents(path) if name.endswith(".json")}
    for name in files.values():
        # a name of a setting or field stands for all places that it has in the record
        keys = {key for part, key in spots(json.loads(contents(path)[name])) if isinstance(part[key], str)}
        for wanted in sorted(map(str, keys - {"sha256", "record_sha256"})):
            target, store = altered(path, tmp_path / "odd.tar.gz", change), StoreOptions(store=tmp_path / "mine")
            try:
                there = read(target)
                for format_ in ("json", "latex", "terminal"):
                    printed(there, format_)
            except UserError:
                continue
            load("ablations.extras.imports.import_command:import_stored")(target, store)
            imported += 1
            assert "Traceback" not in capfd.readouterr().err, (name, wanted)
            shutil.rmtree(tmp_path / "mine")
    assert imported > 5


def texts_of(record, wanted):
    """The places of the texts whose key, or whose place in a list, is `wanted`."""
    return [(part, key) for part, key in spots(record) if str(key) == wanted and isinstance(part[key], str)]


def test_the_index_of_a_bundle_may_be_large(finished, tmp_path):
    chosen, _ = finished
    notes = tuple(f"{number}: {'x' * 9_000}" for number in range(400))
    plan = replace(chosen.plan, notes=notes)
    there = replace(chosen, replan=lambda: plan)
    path = bundle_of(there, tmp_path / "b.tar.gz")
    assert len(contents(path)["bundle.json"]) > 3 << 20
    assert read(path).plan.notes == notes


def test_weights_of_a_trainer_may_have_any_name(finished, tmp_path):
    """Folders too; a file .json of a trainer may hold a list, or nothing."""
    chosen, kind = finished
    if kind not in ("own", "command"):
        pytest.skip("the program writes the weights of its own tasks")
    store = tmp_path / "store"
    shutil.copytree(chosen.store.root, store)
    there = selected.choose(
        str(chosen.study.folder / f"{kind}.toml"), selected.Selectors(store=store, seeds=2), there=True
    )
    run_id = there.plan.runs[0].run_id
    final = there.store.attempt_folder(run_id, there.store.result(run_id).attempt) / "final"
    added = {"my model.pt": b"1", "step-500/weights.bin": b"2", "été.txt": b"3", "vocab.json": b"[1]", ".hidden": b"",
             "a..b": b"4", "empty.json": b""}  # fmt: skip
    for name, data in added.items():
        (final / name).parent.mkdir(exist_ok=True)
        (final / name).write_bytes(data)
    for redaction in (None, NOTHING, identity(there.store)):
        bundle = read_bundle(bundle_of(there, tmp_path / "b.tar.gz", redaction, weights=True), tmp_path / "in")
        place = bundle.store.attempt_folder(run_id, bundle.store.result(run_id).attempt) / "final"
        assert {name: (place / name).read_bytes() for name in added} == added
        shutil.rmtree(tmp_path / "in")
    (final / "two\nlines").touch()
    with pytest.raises(UserError, match=r"file name .*two\\nlines"):
        bundle_of(there, tmp_path / "none.tar.gz", weights=True)
    assert [path.name for path in tmp_path.iterdir() if "none" in path.name] == []


@pytest.mark.parametrize("limit", ["LARGEST_HEAD", "LARGEST_RECORD", "MOST_FILES", "LARGEST", "DEEPEST"])
def test_what_no_reader_would_accept_is_not_written(finished, tmp_path, monkeypatch, limit):
    chosen, _ = finished
    monkeypatch.setattr(f"ablations.extras.bundles.archive.{limit}", 3)
    with pytest.raises(UserError, match=r"b\.tar\.gz was not written"):
        bundle_of(chosen, tmp_path / "b.tar.gz")
    assert list(tmp_path.iterdir()) == []


def spots(value):
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from spots(value[key])


def test_flipped_bits_are_refused_or_harmless(finished, tmp_path):
    chosen, _ = finished
    path = bundle_of(chosen, tmp_path / "b.tar.gz")
    data, chance, whole = path.read_bytes(), random.Random(5), 0
    expected = printed(read(path), "csv")
    for place in [*range(10), *(chance.randrange(len(data)) for _ in range(40)), *range(len(data) - 8, len(data))]:
        flipped = bytearray(data)
        flipped[place] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        try:
            assert printed(read(path), "csv") == expected
            whole += 1
        except UserError:
            pass
    assert whole <= 10  # gzip's own head: a date, a system


# --- the command


def call(monkeypatch, capfd, *words):
    """`ablations …` in this process: exit code, output and errors."""
    monkeypatch.setattr(sys, "argv", ["ablations", *map(str, words)])
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", sys.stdout)
        patched.setattr(sys, "stderr", sys.stderr)
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
    return code, *capfd.readouterr()


@pytest.mark.extra("imports")
def test_bundle_and_import_by_the_command(finished, tmp_path, monkeypatch, capfd):
    chosen, kind = finished
    study = [chosen.study.folder / f"{kind}.toml", "--seeds", "2", "--store", chosen.store.root]
    one, two = tmp_path / "one.tar.gz", tmp_path / "two.tar.gz"
    assert call(monkeypatch, capfd, "bundle", *study, "--out", one, "--anonymous")[2] == ""
    assert call(monkeypatch, capfd, "bundle", *study, "--out", two, "--as-recorded")[0] == 0
    assert "--as-recorded" in call(monkeypatch, capfd, "bundle", *study, "--anonymous", "--as-recorded")[2]
    assert socket.gethostname().encode() in b"".join(contents(two).values())
    code, said, _ = call(monkeypatch, capfd, "import", one, "--store", tmp_path / "mine")
    assert code == 0 and "4 runs imported" in said
    for again in (two, chosen.store.root):  # the same trainings, whatever was left out of the one that came first
        code, said, errors = call(monkeypatch, capfd, "import", again, "--store", tmp_path / "mine")
        assert code == 0
        assert "0 runs imported" in said and "4 already there" in said and "different results" not in errors


def test_what_an_anonymous_bundle_cannot_leave_out_is_named(finished, tmp_path, monkeypatch, capfd):
    chosen, kind = finished
    host = socket.gethostname()
    path = chosen.study.folder / f"titled-{kind}.toml"
    text = (chosen.study.folder / f"{kind}.toml").read_text()
    path.write_text(text.replace('title = "', f'title = "By {host}: '))
    words = [path, "--seeds", "2", "--store", chosen.store.root, "--out", tmp_path / "b.tar.gz", "--anonymous"]
    code, _, errors = call(monkeypatch, capfd, "bundle", *words)
    assert code == 0 and f"not anonymous: bundle.json holds {host!r}" in errors


def test_a_bundle_that_a_report_stumbles_over_is_no_bug_of_ours(finished, tmp_path, monkeypatch, capfd):
    chosen, _ = finished
    path = bundle_of(chosen, tmp_path / "b.tar.gz")

    def stumble(*_):
        raise TypeError("expected a number")

    monkeypatch.setattr("ablations.service.tables.build_table", stumble)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code, _, errors = call(monkeypatch, capfd, "report", path)
    assert code == 2 and "Traceback" not in errors and f"{path}: its records contain something" in errors
    assert list(tmp_path.glob("ablations-*.log"))
