"""Crates of real runs: an RO-Crate that other programs read, and a bundle that ours verifies in an empty folder."""

import getpass
import hashlib
import json
import os
import random
import socket
import stat
import subprocess
import sys
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from rocrate.rocrate import ROCrate

from ablations.service import selected
from ablations.service.tables import table_of
from experiments.errors import UserError
from experiments.exchange.redaction import identity, places
from experiments.store.checksummed import with_checksum
from reports.audit.bundle_archive import TABLES
from reports.audit.bundle_read import read_bundle
from reports.audit.bundle_write import write_bundle
from reports.render.formats import RENDERERS, render
from tests.small_tables import finish, write_study
from tests.system.test_bundles import ODD, call, spots

METADATA = "ro-crate-metadata.json"
KINDS = ("own", pytest.param("translation", marks=pytest.mark.slow), pytest.param("parsing", marks=pytest.mark.slow))


@pytest.fixture(scope="session", params=KINDS)
def finished(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"private-{request.param}-crate")
    return finish(write_study(folder, request.param), folder / "store", seeds=2), request.param


def crate_of(chosen, path, redaction=None, weights=False):
    plan = chosen.plan
    redaction = redaction or places(chosen.store, [run.run_id for run in plan.runs], chosen.study.folder)
    write_bundle(path, plan, chosen.store, chosen.columns, chosen.asked, redaction, weights, True)
    return path


@pytest.fixture(scope="session")
def crate(finished, tmp_path_factory):
    return crate_of(finished[0], tmp_path_factory.mktemp("crate") / "c.zip")


def contents(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(path, files, folders=()):
    with zipfile.ZipFile(path, "w") as archive:
        for name in folders:
            archive.mkdir(name)
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def graph_of(path):
    return {entity["@id"]: entity for entity in json.loads(contents(path)[METADATA])["@graph"]}


def refs(value):
    """Every reference within an entity."""
    if isinstance(value, dict):
        yield from [value["@id"]] if set(value) == {"@id"} else [r for part in value.values() for r in refs(part)]
    elif isinstance(value, list):
        yield from (r for part in value for r in refs(part))


# --- what a crate says


def test_the_same_table_gives_the_same_crate_and_the_crate_the_same_table(finished, crate, tmp_path):
    chosen, _ = finished
    assert crate_of(chosen, tmp_path / "again.zip").read_bytes() == crate.read_bytes()
    there = selected.choose_table(str(crate), selected.Selectors(store=Path("none")), print)
    here = replace(table_of(chosen), bundle=there.bundle)
    for format_ in RENDERERS:
        assert render(table_of(there), format_) == render(here, format_), format_
    for name, format_ in TABLES.items():  # a crate's table is of the crate itself
        assert contents(crate)[name].decode() == render(replace(here, asked=""), format_)


def test_another_library_reads_every_file_and_every_action(finished, crate):
    chosen, _ = finished
    opened = ROCrate(crate)
    files = contents(crate)
    described = {entity.id: entity for entity in opened.data_entities if "File" in entity.type}
    assert set(described) == set(files) - {METADATA}
    for name, entity in described.items():
        assert entity["sha256"] == hashlib.sha256(files[name]).hexdigest()
        assert entity["contentSize"] == str(len(files[name]))
    plan = chosen.plan
    actions = {entity.id: entity for entity in opened.get_entities() if "CreateAction" in entity.type}
    evaluations = {f"#evaluation-{e}" for run in plan.runs for e in run.eval_ids}
    assert set(actions) == evaluations | {f"#run-{run.run_id}" for run in plan.runs}
    for run in plan.runs:
        training, record = actions[f"#run-{run.run_id}"], chosen.store.result(run.run_id)
        assert f"runs/{run.run_id}/attempts/0001/result.json" in refs(training.properties()["result"])
        assert record.code_digest in training["instrument"]["softwareVersion"]
        assert training["startTime"] < training["endTime"] <= opened.datePublished.isoformat()
        for eval_id in run.eval_ids:
            scored = actions[f"#evaluation-{eval_id}"].properties()
            assert list(refs(scored["object"])) == [f"runs/{run.run_id}/result.json"]
            assert f"runs/{run.run_id}/evaluations/{eval_id}/result.json" in refs(scored["result"])


def test_every_reference_leads_to_an_entity(crate):
    graph = graph_of(crate)
    dangling = {ref for entity in graph.values() for ref in refs(list(entity.values())) if ref not in graph}
    assert {ref for ref in dangling if not ref.startswith("https://w3id.org/ro/crate/")} == set()


def test_an_anonymous_crate_tells_nobody(finished, tmp_path):
    chosen, _ = finished
    path = crate_of(chosen, tmp_path / "c.zip", identity(chosen.store, chosen.study.folder), weights=True)
    commit = chosen.store.result(chosen.plan.runs[0].run_id).tool.commit or "no commit"
    telling = [str(p) for p in (chosen.store.root, chosen.study.folder, Path.cwd(), Path.home()) if str(p) != "/"]
    for name, data in contents(path).items():
        text = data.decode("utf-8", errors="replace")
        assert not [word for word in (*telling, commit, "private-") if word in text], name
        for word in (socket.gethostname(), getpass.getuser()):
            assert f'"{word}"' not in text and f" {word}\n" not in text, name
    assert read_bundle(path, tmp_path / "in").crate


# --- verified by someone else


def test_a_crate_is_verified_in_an_empty_folder(finished, crate, tmp_path, monkeypatch, capfd):
    _, kind = finished
    monkeypatch.chdir(tmp_path)
    code, said, errors = call(monkeypatch, capfd, "verify", crate)
    assert code == 0 and "Traceback" not in errors and list(tmp_path.iterdir()) == []
    [line] = [line for line in said.splitlines() if "The sender's word" in line]
    computed, _, word = line.partition("The sender's word")
    if kind == "own":
        assert "Recomputed: nothing." in computed
    else:
        metrics = {"translation": ("bleu (dev", "perplexity (dev"), "parsing": ("f1 (dev", "malformed (dev")}[kind]
        assert metrics[0] in computed and metrics[1] in word
    assert "table.csv" in said


def redone(crate, target, change):
    """The crate with `change(head, files)` applied, and new checksums everywhere."""
    files = contents(crate)
    described, head = json.loads(files.pop(METADATA)), json.loads(files.pop("bundle.json"))
    for name in ("record_sha256", "record_format"):
        head.pop(name, None)
    change(head, files, described)
    for name, data in files.items():
        head["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    text = json.dumps(with_checksum(head)).encode()
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in {"bundle.json": text, **files}.items()}
    for entity in described["@graph"]:
        if isinstance(entity, dict) and entity.get("@id") in sums and "sha256" in entity:
            entity["sha256"] = sums[entity["@id"]]
    return packed(target, {METADATA: json.dumps(described).encode(), "bundle.json": text, **files})


def test_a_printed_table_that_does_not_follow_is_named(crate, tmp_path, monkeypatch, capfd):
    def change(head, files, described):
        files["table.csv"] = files["table.csv"].replace(b"2,", b"7,")

    code, said, _ = call(monkeypatch, capfd, "verify", redone(crate, tmp_path / "c.zip", change))
    assert code == 1 and "table.csv: " in said and "in the file" in said


def test_authors_a_licence_and_a_preview_may_be_added(crate, tmp_path, monkeypatch, capfd):
    files = contents(crate)
    described = json.loads(files[METADATA])
    root = next(e for e in described["@graph"] if e["@id"] == "./")
    root |= {"license": {"@id": "https://spdx.org/licenses/CC-BY-4.0"}, "author": {"@id": "#me"}}
    described["@graph"].append({"@id": "#me", "@type": "Person", "name": "Ada"})
    files[METADATA] = json.dumps(described).encode()
    files["ro-crate-preview.html"] = b"<html></html>"
    shuffled = dict(sorted(files.items(), reverse=True))  # as another program packs it: with folders, uncompressed
    path = packed(tmp_path / "c.zip", shuffled, folders=("runs", "runs/empty"))
    assert call(monkeypatch, capfd, "verify", path)[0] == 0


def test_a_crate_is_imported_into_a_store(crate, tmp_path, monkeypatch, capfd):
    code, said, _ = call(monkeypatch, capfd, "import", crate, "--store", tmp_path / "mine")
    assert code == 0 and "4 runs imported" in said


# --- bad input


def refused(path, folder, match):
    with pytest.raises(UserError, match=match) as caught:
        read_bundle(path, folder / f"in-{path.stem}")
    return str(caught.value)


def test_zips_that_are_no_crate_of_ours_are_named(crate, tmp_path, monkeypatch, capfd):
    plain = packed(tmp_path / "plain.zip", {"a.txt": b"x"})
    refused(plain, tmp_path, "is a zip, but no RO-Crate")
    other = ROCrate()
    other.name = "Galaxy run"
    other.write_zip(tmp_path / "other.zip")
    refused(tmp_path / "other.zip", tmp_path, r'RO-Crate of another program \("Galaxy run"\): it has no bundle.json')
    (tmp_path / "text.zip").write_bytes(b"no zip at all")
    (tmp_path / "begins.zip").write_bytes(b"PK but no zip")
    for name in ("text.zip", "begins.zip", "none.zip"):
        refused(tmp_path / name, tmp_path, "is not a bundle|cannot be read")
    for verb in ("verify", "report", "import"):
        for path in (plain, tmp_path / "other.zip", tmp_path / "begins.zip"):
            code, _, errors = call(monkeypatch, capfd, verb, path, *(("--store", tmp_path / "s") * (verb == "import")))
            assert code == 2 and "Traceback" not in errors and errors.count("\n") == 1, (verb, errors)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "runs/../../evil", "C:\\evil", "runs\\..\\evil", "queue.db"])
def test_no_file_leaves_the_folder(crate, tmp_path, name):
    path = packed(tmp_path / "c.zip", {**contents(crate), name: b"x"})
    refused(path, tmp_path, "has no place in a bundle")
    assert not list(tmp_path.rglob("*evil*")) and not Path("/etc/evil").exists()


def test_damaged_doubled_and_missing_files_are_named(crate, tmp_path):
    files = contents(crate)
    name = next(n for n in files if n.endswith("events.jsonl"))
    changed = packed(tmp_path / "a.zip", {**files, name: files[name][:-2] + b"#\n"})
    refused(changed, tmp_path, f"{name} is not the file that was packed")
    longer = packed(tmp_path / "b.zip", {**files, name: files[name] + b"#"})
    refused(longer, tmp_path, f"{name} is not the file that was packed")
    refused(packed(tmp_path / "c.zip", {n: d for n, d in files.items() if n != name}), tmp_path, "1 file is missing")
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(tmp_path / "d.zip", "w") as archive:
        for each, data in [*files.items(), (name, files[name])]:
            archive.writestr(each, data)
    refused(tmp_path / "d.zip", tmp_path, "there twice")
    described = json.loads(files[METADATA])
    next(e for e in described["@graph"] if e["@id"] == name)["sha256"] = "0" * 64
    other = packed(tmp_path / "e.zip", {**files, METADATA: json.dumps(described).encode()})
    refused(other, tmp_path, f"give different checksums of {name}")


def test_links_and_encrypted_files_are_refused(crate, tmp_path):
    files = contents(crate)
    name = next(n for n in files if n.endswith("log.txt") or n.endswith("events.jsonl"))
    for title, attributes, flags in (("link", stat.S_IFLNK, 0), ("device", stat.S_IFCHR, 0), ("secret", 0, 1)):
        with zipfile.ZipFile(tmp_path / f"{title}.zip", "w") as archive:
            for each, data in files.items():
                entry = zipfile.ZipInfo(each)
                if each == name:
                    entry.external_attr = (attributes | 0o644) << 16
                archive.writestr(entry, data)
            if flags:
                archive.getinfo(name).flag_bits |= flags
        refused(tmp_path / f"{title}.zip", tmp_path, "has no place in a bundle")


def test_what_a_crate_claims_is_read_before_it_is_unpacked(crate, tmp_path):
    files = contents(crate)
    head = json.loads(files["bundle.json"])
    head = {name: value for name, value in head.items() if not name.startswith("record_")}
    head["files"]["runs/" + "0" * 16 + "/attempts/0001/log.txt"] = {"sha256": "0" * 64, "bytes": 1 << 50}
    described = json.loads(files[METADATA])
    described["@graph"] = [e for e in described["@graph"] if e["@id"] != "bundle.json"]
    new = {**files, METADATA: json.dumps(described).encode(), "bundle.json": json.dumps(with_checksum(head)).encode()}
    refused(packed(tmp_path / "c.zip", new), tmp_path, "of no run in its plan|claims to unpack to")
    deep = b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}"
    refused(packed(tmp_path / "d.zip", {**files, METADATA: deep}), tmp_path, "nested")


def test_a_crate_with_anything_at_any_place_is_verified_or_refused(crate, tmp_path, monkeypatch, capfd):
    """Odd values in the description give no traceback and no control characters."""
    chance = random.Random(7)
    codes = Counter()

    def change(head, files, described):
        inside, key = chance.choice(list(spots(described)))
        inside[key] = chance.choice(ODD)

    for _ in range(60):
        try:
            path = redone(crate, tmp_path / "odd.zip", change)
        except (TypeError, KeyError, AttributeError):  # the change broke this test's own tools
            continue
        code, said, errors = call(monkeypatch, capfd, "verify", path)
        codes[code] += 1
        assert code in (0, 1, 2) and "Traceback" not in errors and "\x1b" not in said + errors, errors
    assert codes[2] and codes[0] > 3


def test_flipped_bits_are_refused_or_harmless(finished, crate, tmp_path):
    data, chance, whole = crate.read_bytes(), random.Random(5), 0
    expected = render(table_of(selected.choose_table(str(crate), selected.Selectors(store=Path("none")), print)), "csv")
    path = tmp_path / "c.zip"
    for place in [*range(10), *(chance.randrange(len(data)) for _ in range(60))]:
        flipped = bytearray(data)
        flipped[place] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        try:
            there = selected.choose_table(str(path), selected.Selectors(store=Path("none")), print)
            assert render(table_of(there), "csv") == expected
            whole += 1
        except UserError:
            pass
    assert whole <= 20  # dates, attributes and versions of the zip's own heads


def test_out_and_crate_fit_together(finished, tmp_path, monkeypatch, capfd):
    chosen, kind = finished
    study = [chosen.study.folder / f"{kind}.toml", "--seeds", "2", "--store", chosen.store.root]
    code, _, errors = call(monkeypatch, capfd, "bundle", *study, "--crate", "--out", tmp_path / "c.tar.gz")
    assert code == 2 and "a crate's name ends with .zip" in errors
    code, _, errors = call(monkeypatch, capfd, "bundle", *study, "--out", tmp_path / "c.zip")
    assert code == 2 and "add --crate" in errors
    assert not list(tmp_path.iterdir())
    code, said, _ = call(monkeypatch, capfd, "bundle", *study, "--crate", "--out", tmp_path / "c.zip", "--anonymous")
    assert code == 0 and "4 runs" in said and (tmp_path / "c.zip").is_file()


def test_without_its_library_a_crate_is_read_and_not_written(finished, crate, tmp_path, monkeypatch, capfd):
    chosen, kind = finished
    monkeypatch.setitem(sys.modules, "rocrate.rocrate", None)
    study = [chosen.study.folder / f"{kind}.toml", "--seeds", "2", "--store", chosen.store.root]
    code, _, errors = call(monkeypatch, capfd, "bundle", *study, "--crate", "--out", tmp_path / "c.zip")
    assert code == 2 and "pip install 'transformer-ablations[crate]'" in errors and errors.count("\n") == 1
    assert not list(tmp_path.iterdir())
    assert call(monkeypatch, capfd, "verify", crate)[0] == 0


# --- the validator of RO-Crate

PYTHON = Path(os.environ.get("VALIDATOR", Path(__file__).parents[2] / ".venv-validator")) / "bin" / "python"


def validated(path):
    """What roc-validator finds: issues, and the profiles that it checked."""
    if not PYTHON.exists():
        pytest.skip("roc-validator is not installed: `make test-extras` installs it")
    script = Path(__file__).parents[1] / "crates" / "validate.py"
    done = subprocess.run([PYTHON, script, path], capture_output=True, text=True, timeout=300)
    *issues, summary = [json.loads(line) for line in done.stdout.splitlines()] or [{}]
    assert summary and done.returncode == bool(issues), done.stderr
    return issues, summary


@pytest.mark.crates
def test_roc_validator_finds_a_process_run_crate(crate):
    issues, summary = validated(crate)
    assert issues == [] and summary["checks"] > 40
    assert {"ro-crate-1.1", "process-run-crate-0.5"} <= set(summary["profiles"])


@pytest.mark.crates
def test_roc_validator_would_find_a_fault(crate, tmp_path):
    def change(head, files, described):
        for entity in described["@graph"]:
            entity.pop("instrument", None)

    issues, _ = validated(redone(crate, tmp_path / "c.zip", change))
    assert "process-run-crate-0.5" in {issue["check"].rpartition("_")[0] for issue in issues}
