"""The LaTeX that reports print, through real engines: pdfLaTeX with a bare article class, XeLaTeX and LuaLaTeX."""

import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ablations.plan.plan import Plan, RunState, plan_study
from ablations.study.selectors import selection
from ablations.study.study import load_study
from experiments.store.results import EvaluationResult, TrainingResult
from experiments.tasks.load import load_task
from reports.render.formats import render
from reports.results.table import Table
from reports.table.build import build_table

pytestmark = pytest.mark.latex
NASTY = [
    r"\input{/etc/passwd}", r"\write18{id}", "100 % & #1 $x$ {y} ~z ^w _u", "\\\\[1cm]", "[opt]", "*", "a -- b --- c",
    "“quoted” ‘x’ …", "|pipe| <tag> \"q\" `t'", "±×·−≤≥≈→∞√αβΔδελμσ²³⁶†‡§τ", "x" * 10_000, "é ß Ł ı",
    "</script>", "=cmd|' /C calc'!A0",
]  # fmt: skip
DOCUMENT = "\\documentclass{article}\n\\usepackage{booktabs}\n%s\\begin{document}\n\\input{table}\n\\end{document}\n"
KOREAN = "\\usepackage{fontspec}\n\\setmainfont{%s}\n"


def compiled(folder: Path, table: Table, engine: str = "pdflatex", preamble: str = "") -> str:
    """The text of the PDF. Skips without the engine; fails on any error and on a box wider than the page."""
    if shutil.which(engine) is None:
        pytest.skip(f"there is no {engine}")
    (folder / "table.tex").write_text(render(table, "latex"), encoding="utf-8")
    (folder / "doc.tex").write_text(DOCUMENT % preamble, encoding="utf-8")
    command = [engine, "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "doc.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=300)
    log = (folder / "doc.log").read_text(encoding="utf-8", errors="replace")
    assert done.returncode == 0, log[-3000:]
    assert "Missing character" not in log
    if shutil.which("pdftotext") is None:
        return ""
    done = subprocess.run(["pdftotext", "-layout", "doc.pdf", "-"], cwd=folder, capture_output=True, check=True)
    return done.stdout.decode()


@dataclass
class Published:
    """A store in which every run of a plan has about the published numbers; the middle seed has exactly these."""

    plan: Plan

    def result(self, run_id: str) -> TrainingResult:
        run = next(run for run in self.plan.runs if run.run_id == run_id)
        return TrainingResult.read(
            {"num_params": run.num_params, "device": "a P100", "device_kind": "cuda", "precision": "fp32"}
        )

    def evaluation(self, run_id: str, eval_id: str) -> EvaluationResult:
        run = next(run for run in self.plan.runs if run.run_id == run_id)
        off = run.seed - 2
        bleu = run.paper.get("bleu", run.paper.get("bleu_test", 0.0))
        metrics = {"perplexity": run.paper.get("perplexity", 5.0) + 0.02 * off, "bleu": bleu + 0.1 * off}
        signature = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
        return EvaluationResult.read({"metrics": metrics, "signature": {"bleu": signature}})


def table3(title: str = "", note: str = "A note.", seeds: int = 3) -> Table:
    """Table 3 at the paper's sizes with the paper's own numbers, as a finished reproduction prints it."""
    task, study = load_task("translation"), load_study("table3")
    plan = plan_study(
        study, selection("paper", "builtin", seeds=seeds), task, Path("nowhere"), lambda *_: RunState("finished")
    )
    table = build_table(plan, Published(plan), task.columns)
    warnings = (*table.warnings, "A warning: 5 % & more.")
    return replace(table, title=title or table.title, footnotes=(*table.footnotes, note), warnings=warnings)


def test_table3_compiles_and_reads_as_the_paper(tmp_path: Path) -> None:
    text = compiled(tmp_path, table3())
    assert "Overfull \\hbox" not in (tmp_path / "doc.log").read_text(encoding="utf-8", errors="replace")
    if text:
        lines = [line.split() for line in text.split("\n")]
        assert any(line[:1] == ["base"] for line in lines) and any(line[:1] == ["big"] for line in lines)
        assert "positional embedding instead of sinusoids" in text
        assert [line[0] for line in lines if line and line[0] in ("(A)", "(B)", "(C)", "(D)", "(E)")] == [
            "(A)", "(B)", "(C)", "(D)", "(E)",
        ]  # fmt: skip


def test_table2_compiles_with_the_language_pairs_as_columns(tmp_path: Path) -> None:
    """The heads of a pair span its columns, and one cost stands across both, as the paper prints it."""
    task, study = load_task("translation"), load_study("table2")
    plan = plan_study(study, selection("demo", seeds=3), task, Path("nowhere"), lambda *_: RunState("finished"))
    text = compiled(tmp_path, build_table(plan, Published(plan), task.columns))
    assert "Overfull \\hbox" not in (tmp_path / "doc.log").read_text(encoding="utf-8", errors="replace")
    if text:
        lines = text.split("\n")
        assert any("BLEU (test) EN-DE" in line and "BLEU (test) EN-FR" in line for line in lines)
        (big,) = [line.split() for line in lines if line.strip().startswith("big model")]
        assert {"28.4", "41.8"} <= set(big) and big.count("2.3e19") == 1


def test_hostile_names_compile_and_run_nothing(tmp_path: Path) -> None:
    for number, text in enumerate(NASTY):
        folder = tmp_path / str(number)
        folder.mkdir()
        table = table3(title=text, note=text)
        rows = (table.rows[0], replace(table.rows[1], label=text, settings={}), *table.rows[2:])
        heads, columns = dict.fromkeys(table.settings, text), tuple(replace(c, header=text) for c in table.columns)
        found = compiled(folder, replace(table, rows=rows, settings=heads, columns=columns))
        assert "root:" not in found and "uid=" not in found


@pytest.mark.parametrize("engine", ["xelatex", "lualatex"])
def test_korean_compiles_where_its_note_says(tmp_path: Path, engine: str) -> None:
    listed = subprocess.run(["fc-list", ":lang=ko", "family"], capture_output=True, text=True).stdout.split("\n")
    names = sorted({line.split(",")[0] for line in listed if line})
    if not names:
        pytest.skip("there is no Korean font")
    preferred = next((name for name in names if name.startswith("Nanum")), names[0])
    text = compiled(tmp_path, table3(title="변형 실험", note="한국어 각주"), engine, KOREAN % preferred)
    assert not text or ("변형 실험" in text and "한국어 각주" in text)
