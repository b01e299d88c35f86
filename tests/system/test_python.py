"""Tests of `ablations.load`, `plan` and `run` in scripts without a main guard, in failing scripts and in a notebook."""

import json
import shutil
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

import ablations
from ablations.service.selected import Selectors, choose
from experiments.errors import UserError

from .conftest import Cli, environment

ROOT = Path(__file__).parents[2]
STUDY = """
name = "walk"
title = "A walk of <b>two</b> rows"
command = "python3 walk.py {lr} {seed} {metrics}"
seeds = 3

[base]
lr = 0.5

[[metric]]
name = "loss"
better = "lower"

[[variation]]
key = "base"

[[variation]]
key = "low"
group = "A"
label = "<i>lower</i> | rate"
set = {lr = 0.25}
"""
WALK = """
import json, pathlib, sys, time
lr, seed, out = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if lr == 7: raise SystemExit("no rate is seven")
while lr == 8: time.sleep(0.1)
for step in range(3): print(json.dumps({"step": step, "error": lr / (step + 1)}))
pathlib.Path(out).write_text(json.dumps({"loss": lr * seed}))
"""
SCRIPT = """
import sys, json, ablations
light = sorted(name for name in sys.modules if name.partition(".")[0] in
               ("torch", "pandas", "pydantic", "mlflow", "experiments", "reports", "typer"))
before = ablations.plan("walk.toml").states
t = ablations.run("walk.toml", devices="cpu:2")
print(json.dumps({"light": light, "before": before, "torch": "torch" in sys.modules, "shown": repr(t),
                  "loss": t.evaluations["value"].tolist()}))
"""


def script(folder: Path, text: str) -> subprocess.Popen[str]:
    """Start a program as `python script.py`, whose main module has no main guard."""
    (folder / "script.py").write_text(text, encoding="utf-8")
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "script.py"], cwd=folder, env=environment(), stdout=pipe, stderr=pipe, text=True
    )


def write(folder: Path) -> Path:
    (folder / "walk.toml").write_text(STUDY, encoding="utf-8")
    (folder / "walk.py").write_text(WALK, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write(tmp_path_factory.mktemp("walk"))
    program = script(folder, SCRIPT)
    output, errors = program.communicate(timeout=180)
    assert program.returncode == 0, errors
    said = json.loads(output.splitlines()[-1])
    assert said.pop("loss") == [0.5, 1.0, 1.5, 0.25, 0.5, 0.75]
    assert said == {
        "light": [], "before": {"missing": 6}, "torch": False, "shown": "<walk: 2 rows, 6 of 6 runs finished>"
    }  # fmt: skip
    return folder


@pytest.fixture
def loaded(walk: Path) -> "ablations.api.LoadedTable":
    return ablations.load(walk / "walk.toml", store=walk / "runs")


def test_the_table_has_the_cells_that_the_command_prints(walk: Path, loaded, cli: Cli) -> None:
    done = cli("report", walk / "walk.toml", "--store", walk / "runs", "--format", "markdown")
    lines = [line.split("|")[1:-1] for line in done.stdout.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines[2:]]
    unescaped = [[c.replace("&lt;", "<").replace("&gt;", ">").replace("**", "") for c in line] for line in cells]
    # The split has divided the cell that contains "\|".
    assert [len(line) for line in cells] == [len(loaded.table.columns), len(loaded.table.columns) + 1]
    assert loaded.table.iloc[0].tolist() == unescaped[0]
    assert list(loaded.table["loss (test)"]) == ["1.00 ± 0.50", "0.50 ± 0.25"]
    assert str(loaded) == done.stdout


def test_frames_have_a_line_for_each_run_score_and_point(loaded) -> None:
    assert loaded.runs[["row", "seed", "state"]].values.tolist() == [
        [row, seed, "finished"] for row in ("base", "low") for seed in (1, 2, 3)
    ]
    means = loaded.evaluations.groupby("row")["value"].mean()
    assert means.to_dict() == {"base": 1.0, "low": 0.5}
    curve = loaded.curves.query("row == 'low' and seed == 2")
    assert curve[["metric", "step", "value"]].values.tolist() == [
        ["error", 0, 0.25], ["error", 1, 0.125], ["error", 2, 0.25 / 3]
    ]  # fmt: skip
    assert len(loaded.curves) == 18


def test_selectors_are_those_of_the_command(walk: Path) -> None:
    one = ablations.load(walk / "walk.toml", store=walk / "runs", rows=["base"], seeds=2, columns=["loss_test"])
    assert one.runs["seed"].tolist() == [1, 2] and list(one.table.columns) == ["row", "loss (test)"]
    changed = ablations.plan(walk / "walk.toml", store=walk / "runs", rows="base", set={"lr": 0.125})
    typed = choose(str(walk / "walk.toml"), Selectors(rows="base", sets=["lr=0.125"], store=walk / "runs"))
    assert changed.runs["run_id"].tolist() == [run.run_id for run in typed.plan.runs]
    assert changed.states == {"missing": 3}


def test_a_notebook_shows_text_as_text(loaded) -> None:
    html = loaded._repr_html_()
    open_, words = [], []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            open_.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert open_.pop() == tag

        def handle_data(self, data: str) -> None:
            words.append(data)

    Reader().feed(html)
    assert not open_ and "<script" not in html
    assert "A walk of <b>two</b> rows" in words and "<i>lower</i> | rate" in words and "1.00 ± 0.50" in words


def test_the_figure_is_one_that_a_notebook_can_show(loaded) -> None:
    figure = loaded.plot_effects()
    assert figure._repr_png_().startswith(b"\x89PNG")
    words = " ".join(
        text for axes in figure.axes for text in (axes.get_title(), axes.get_title("left"), axes.get_xlabel())
    )
    assert "loss (test)" in words and "Δ" in words
    assert [mark.get_text() for mark in figure.axes[0].get_yticklabels()] == ["(A) low"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rows": "bsae"}, "bsae"),
        ({"seeds": "3"}, "seeds='3'"),
        ({"set": {"rl": 1}}, "rl"),
        ({"column": "loss"}, "no argument column"),
        ({"store": "nowhere/.."}, "store"),
    ],
)
def test_a_mistake_is_a_paragraph(walk: Path, given: dict[str, object], said: str, tmp_path: Path) -> None:
    if "store" in given:
        (tmp_path / "file").write_text("x", encoding="utf-8")
        given = {"store": tmp_path}
    arguments = {"store": walk / "runs", **given}
    with pytest.raises(UserError, match=said) as raised:
        if "store" in given:
            ablations.run(walk / "walk.toml", **arguments)
        else:
            ablations.load(walk / "walk.toml", **arguments)
    assert raised.value._render_traceback_() == [f"UserError: {raised.value}"]


def test_a_failed_run_is_an_error_with_its_reason_and_loses_nothing(tmp_path: Path) -> None:
    study = write(tmp_path) / "walk.toml"
    text = study.read_text(encoding="utf-8").replace("lr = 0.25", "lr = 7")
    study.write_text(text, encoding="utf-8")
    with pytest.raises(ablations.UserError, match=r"1 run failed\. low \(seed 1\): .*exit code 1") as raised:
        ablations.run(study, store=tmp_path / "runs", seeds=1, devices="cpu:1", progress=False)
    log = Path(str(raised.value).partition("Logs: ")[2].partition(". The other")[0])
    assert "no rate is seven" in log.read_text(encoding="utf-8")
    assert list(ablations.load(study, store=tmp_path / "runs", seeds=1).table["loss (test)"]) == ["0.50", "– (failed)"]


def test_an_interrupted_script_ends_its_runs_and_says_how_to_continue(tmp_path: Path) -> None:
    study = write(tmp_path) / "walk.toml"
    study.write_text(study.read_text(encoding="utf-8").replace("lr = 0.25", "lr = 8"), encoding="utf-8")
    program = script(tmp_path, "import ablations\nablations.run('walk.toml', rows='low', seeds=1, devices='cpu:1')\n")
    until = time.monotonic() + 120
    while not list(tmp_path.glob("runs/runs/*/attempts/*/events.jsonl")) and time.monotonic() < until:
        time.sleep(0.2)
    program.send_signal(signal.SIGINT)
    _, errors = program.communicate(timeout=120)
    assert "KeyboardInterrupt: stopped" in errors
    assert ablations.plan(study, store=tmp_path / "runs", rows="low", seeds=1).states.keys() <= {"missing", "waiting"}


def test_runs_that_were_not_started_are_an_error(tmp_path: Path, cli: Cli) -> None:
    """A script must not continue with a table that has gaps, just as the command's exit code is 1."""
    study = write(tmp_path) / "walk.toml"
    walk = (tmp_path / "walk.py").read_text(encoding="utf-8").replace("lr == 8", "not pathlib.Path('go').exists()")
    (tmp_path / "walk.py").write_text(walk, encoding="utf-8")
    program = script(tmp_path, "import ablations\nablations.run('walk.toml', seeds=1, devices='cpu:1')\n")
    until = time.monotonic() + 120
    while not list(tmp_path.glob("runs/runs/*/attempts/*/events.jsonl")) and time.monotonic() < until:
        time.sleep(0.2)
    cli("work", "--drain", "--store", tmp_path / "runs")
    time.sleep(1)  # the coordinator checks for requests several times a second
    (tmp_path / "go").touch()
    _, errors = program.communicate(timeout=120)
    assert program.returncode == 1
    assert "1 run stay" not in errors and "1 run was not started: " in errors and "`ablations work --drain`" in errors
    ablations.run(study, store=tmp_path / "runs", seeds=1, devices="cpu:1", progress=False)


@pytest.mark.nightly
def test_the_notebook_of_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("JUPYTER_PATH", str(kernel(tmp_path / "jupyter")))
    shutil.copy(ROOT / "examples" / "python" / "small.toml", tmp_path)
    notebook = nbformat.read(ROOT / "examples" / "python" / "table.ipynb", as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="this", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    kinds = {kind for output in outputs for kind in output.get("data", ())}
    assert not [output for output in outputs if output.output_type == "error"]
    assert {"text/html", "image/png"} <= kinds
    assert any("no row or group 'h2'" in str(output.get("text", "")) for output in outputs)


def kernel(folder: Path) -> Path:
    """Install a Jupyter kernel for the interpreter that runs the tests, and return the folder that contains it."""
    (folder / "kernels" / "this").mkdir(parents=True)
    spec = {"argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "this"}
    (folder / "kernels" / "this" / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
    return folder
