"""A printed table leads back to its runs, also in another store and for another user.

One tiny table is really trained.
"""

import json
import re
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from reports.audit.verify import lasting

from .conftest import Cli, as_json, command, environment

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("error")]


@pytest.fixture(scope="module")
def store(finished: Path) -> Path:
    return finished


@pytest.fixture(scope="module")
def bundle(cli: Cli, tiny: Path, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "tiny.tar.gz"
    said = cli("bundle", tiny, "--seeds", "2", "--store", store, "--out", path).stdout
    assert "6 runs" in said
    return path


AT_NIGHT = pytest.mark.nightly  # every format is also verified for branches (test_branches.py)


@pytest.mark.parametrize(
    ("name", "format_"),
    [
        ("t.tex", "latex"),
        pytest.param("t.md", "markdown", marks=AT_NIGHT),
        ("t.csv", "csv"),
        pytest.param("t.json", "json", marks=AT_NIGHT),
    ],
)
def test_verify_names_the_cells_that_changed(
    cli: Cli, tiny: Path, store: Path, tmp_path: Path, name: str, format_: str
) -> None:
    options = [tiny, "--seeds", "2", "--store", store]
    path = tmp_path / name
    cli("report", *options, "--format", format_, "--out", path)
    assert "all equal to the store's" in cli("verify", path, *options).stdout
    text = path.read_text(encoding="utf-8")
    number = re.search(r"\d\d\.\d\d", text.partition("h1")[2] if format_ in ("csv", "json") else text)
    assert number is not None
    path.write_text(text.replace(number[0], "9" + number[0]), encoding="utf-8")
    said = cli("verify", path, *options, code=1).stdout
    assert f"9{number[0]}" in said and "in the file" in said and "in the store" in said


def test_a_latex_table_says_how_it_was_made(cli: Cli, tiny: Path, store: Path, tmp_path: Path) -> None:
    path = tmp_path / "table.tex"
    shutil.copy(tiny, tmp_path / tiny.name)  # the study is in the paper's folder
    made = ["--rows", "base,A", "--seeds", "2", "--significance", "sentences"]
    said = cli("report", tiny, *made, "--store", store, "--format", "latex", "--out", path).stderr
    assert r"in the preamble: \usepackage{booktabs,graphicx}" in said and "made with" not in said
    assert str(tiny.parent) not in path.read_text(encoding="utf-8")
    assert "all equal to the store's" in cli("verify", path, "--store", store).stdout
    assert "rows were added or left out" in cli("verify", path, "--rows", "base", "--store", store, code=1).stdout


@pytest.mark.parametrize(
    "format_", ["latex", pytest.param("markdown", marks=AT_NIGHT), pytest.param("csv", marks=AT_NIGHT), "json", "html"]
)
def test_every_printed_table_names_its_study_and_selection(
    cli: Cli, tiny: Path, store: Path, tmp_path: Path, format_: str
) -> None:
    """Only the file and the store are needed. The study is found in the folder from which its runs were queued."""
    path = tmp_path / "paper" / f"table.{format_}"
    path.parent.mkdir()
    cli("report", tiny, "--seeds", "2", "--rows", "base,h1", "--store", store, "--format", format_, "--out", path)
    text = path.read_text(encoding="utf-8")
    assert str(tiny.parent) not in text and "tiny.toml --rows base,h1 --seeds 2" in text
    assert "all equal" in cli("verify", path, "--format", format_, "--store", store, cwd=path.parent).stdout
    earlier = _as_earlier_versions_wrote_it(text, format_)
    path.write_text(earlier, encoding="utf-8")
    made = ["--seeds", "2", "--rows", "base,h1", "--format", format_, "--store", store]
    assert "all equal" in cli("verify", path, tiny, *made).stdout
    assert "does not name its study" in cli("verify", path, "--format", format_, "--store", store, code=2).stderr


def _as_earlier_versions_wrote_it(text: str, format_: str) -> str:
    if format_ == "json":
        rows = [{name: value for name, value in row.items() if name != "made_with"} for row in json.loads(text)]
        return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
    if format_ == "csv":
        kept = [re.sub(r',made_with$|,"ablations report .*"$', "", line) for line in text.splitlines()]
        return "\n".join([*kept, ""])
    return "".join(line for line in text.splitlines(keepends=True) if "made with" not in line)


def test_explain_leads_to_the_files(cli: Cli, tiny: Path, store: Path) -> None:
    found = as_json(cli("explain", tiny, "h1.bleu", "--seeds", "2", "--store", store, "--json"))
    assert [run["seed"] for run in found["runs"]] == [1, 2]
    for run in found["runs"]:
        evaluation = run["evaluations"][0]
        scored = json.loads((store / evaluation["folder"] / "result.json").read_text(encoding="utf-8"))
        assert scored["metrics"]["bleu"] == evaluation["metrics"]["bleu"]
        assert (store / run["folder"] / "result.json").is_file()
        assert run["inputs"] and run["tokenizer"] and run["command"]
    assert found["changes_from_base"] == {"model.num_heads": 1, "model.d_k": 8, "model.d_v": 8}
    text = cli("explain", tiny, "h1.bleu", "--seeds", "2", "--store", store).stdout
    assert all(run["run_id"] in text for run in found["runs"])
    assert "signature" in text
    assert "has no column 'blue'" in cli("explain", tiny, "h1.blue", "--store", store, code=2).stderr
    assert "has no row 'h2'" in cli("explain", tiny, "h2.bleu", "--store", store, code=2).stderr


@pytest.mark.extra("bundles")
def test_a_bundle_gives_the_same_bytes_anywhere(
    cli: Cli, tiny: Path, store: Path, bundle: Path, tmp_path: Path
) -> None:
    for format_ in ("latex", "markdown", "csv", "json", "html"):
        here = cli("report", tiny, "--seeds", "2", "--store", store, "--format", format_).stdout
        there = cli("report", bundle, "--format", format_, "--store", tmp_path / "none", cwd=tmp_path).stdout
        assert lasting(here, format_) == lasting(there, format_) and "From a bundle." in there, format_
    again = tmp_path / "again.tar.gz"
    cli("bundle", tiny, "--seeds", "2", "--store", store, "--out", again)
    assert again.read_bytes() == bundle.read_bytes()
    assert as_json(cli("explain", bundle, "h1", "--json"))["runs"]
    sentences = cli("report", bundle, "--significance", "sentences").stdout
    assert "between sentences" in sentences
    assert "Leave out the selectors" in cli("report", bundle, "--seeds", "1", code=2).stderr


@pytest.mark.extra("bundles")
def test_a_bundle_holds_no_weights_unless_asked(
    cli: Cli, tiny: Path, store: Path, bundle: Path, tmp_path: Path
) -> None:
    with tarfile.open(bundle) as archive:
        assert not [name for name in archive.getnames() if "safetensors" in name]
    heavy = tmp_path / "heavy.tar.gz"
    cli("bundle", tiny, "--rows", "base", "--store", store, "--out", heavy, "--weights")
    with tarfile.open(heavy) as archive:
        assert [name for name in archive.getnames() if name.endswith("final/model.safetensors")]
    assert "Not finished" in cli("bundle", tiny, "--seeds", "3", "--store", store, "--out", heavy, code=2).stderr


@pytest.mark.extra("bundles")
@pytest.mark.extra("imports")
def test_import_takes_what_is_not_there(cli: Cli, tiny: Path, store: Path, bundle: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    assert "6 runs imported" in cli("import", bundle, "--store", mine).stdout
    assert "0 runs imported" in cli("import", bundle, "--store", mine).stdout
    options = ["report", tiny, "--seeds", "2", "--format", "latex", "--store"]
    assert cli(*options, mine).stdout == cli(*options, store).stdout
    assert "nothing to train" in cli("run", tiny, "--seeds", "2", "--store", mine).stderr
    theirs = tmp_path / "theirs"
    cli("import", store, "--store", theirs)
    assert cli(*options, theirs).stdout == cli(*options, store).stdout
    assert "is not a bundle" in cli("import", tmp_path, "--store", mine, code=2).stderr


@pytest.mark.extra("bundles")
def test_compare_stores_and_bundles(cli: Cli, tiny: Path, store: Path, bundle: Path) -> None:
    options = [tiny, "--seeds", "2", "--store", store, "--json"]
    for other in (bundle, store):
        cells = {cell["over"] for cell in as_json(cli("compare", options[0], other, *options[1:]))}
        assert cells == {"the same runs"}


def test_figures_are_files_of_the_same_bytes(cli: Cli, tiny: Path, store: Path, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        options = ["--seeds", "2", "--store", store, "--out", tmp_path / folder]
        cli("report", tiny, "--figures", "pdf,svg,png", *options)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert {"effects.pdf", "effects.svg", "curves.png", "lengths.pdf"} <= set(names)
    for name in names:
        one, two = ((tmp_path / folder / name).read_bytes() for folder in ("one", "two"))
        assert one == two and len(one) > 1000, name


@pytest.mark.nightly
def test_tables_while_the_store_is_written(cli: Cli, tiny: Path, finished: Path, tmp_path: Path) -> None:
    """In a report during training, each cell has its final number or none."""
    store, options = tmp_path / "store", ["--seeds", "2", "--json"]
    final = as_json(cli("report", tiny, *options, "--store", finished))
    words = command("run", tiny, "--seeds", "2", "--store", store, "--devices", "cpu:1")
    seen: list[int] = []
    with (
        (tmp_path / "log.txt").open("w") as log,
        subprocess.Popen(words, stdout=log, stderr=log, env=environment()) as run,
    ):
        while not (store / "store.json").is_file():  # until then there is no store to read
            time.sleep(0.05)
        while run.poll() is None:
            rows = as_json(cli("report", tiny, *options, "--store", store))
            for row, whole in zip(rows, final, strict=True):
                assert row["ppl"] in (None, whole["ppl"]) and row["bleu"] in (None, whole["bleu"])
            seen.append(sum(row["n"] for row in rows))
            assert "</html>" in cli("report", tiny, "--seeds", "2", "--store", store, "--format", "html").stdout
    assert run.returncode == 0, (tmp_path / "log.txt").read_text()
    assert seen == sorted(seen) and seen[0] < 6
    again = as_json(cli("report", tiny, *options, "--store", store))
    assert lasting(json.dumps(again, indent=1, ensure_ascii=False), "json") == lasting(
        json.dumps(final, indent=1, ensure_ascii=False), "json"
    )


def test_a_store_that_was_left_half_written(cli: Cli, tiny: Path, store: Path, tmp_path: Path) -> None:
    """Incomplete folders, an incomplete line and a missing MLflow database give gaps, not errors."""
    copy = tmp_path / "copy"
    shutil.copytree(store, copy)
    (copy / "mlflow.db").unlink()
    run = next(copy.glob("runs/*/result.json"))
    run.unlink()
    evaluation = next(path for path in copy.glob("runs/*/evaluations/*") if run.parent not in path.parents)
    (evaluation / "result.json").unlink()
    (evaluation / "statistics.npy").write_bytes(b"\x93NUMPY torn")
    events = next(copy.glob("runs/*/attempts/*/events.jsonl"))
    events.write_bytes(events.read_bytes()[:-20])
    for format_ in ("markdown", "html", "json"):
        options = ["--seeds", "2", "--store", copy, "--significance", "sentences", "--format", format_]
        assert cli("report", tiny, *options).stdout
    assert "(1/2" in cli("report", tiny, "--seeds", "2", "--store", copy).stdout
