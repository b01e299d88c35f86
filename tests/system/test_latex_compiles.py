"""Compile printed LaTeX tables with real engines: pdfLaTeX (one- and two-column classes), XeLaTeX and LuaLaTeX."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ablations.planning.declare_table import table_spec
from ablations.planning.plan import Plan, PlannedRun, plan_study
from ablations.service.selected import task_of_study
from ablations.study.selectors import selection
from ablations.study.study import load_study
from ablations.study.study_file import builtin_studies
from experiments.run_state import RunState
from experiments.store.layout import Store
from experiments.store.results import EvaluationResult, TrainingResult
from reports.render.formats import render
from reports.results.table import Table
from reports.spec.choices import Choices, TableChoices
from reports.spec.table_spec import Note
from reports.table.build import build_table
from tests.planned_runs import described

from .conftest import Cli

pytestmark = pytest.mark.latex
NASTY = [
    r"\input{/etc/passwd}", r"\write18{id}", "100 % & #1 $x$ {y} ~z ^w _u", "\\\\[1cm]", "[opt]", "*", "a -- b --- c",
    "“quoted” ‘x’ …", "|pipe| <tag> \"q\" `t'", "±×·−≤≥≈→∞√αβΔδελμσ²³⁶†‡§τ", "x" * 10_000, "é ß Ł ı",
    "</script>", "=cmd|' /C calc'!A0",
]  # fmt: skip
CLASSES = {  # classes with one and two columns, and the options of a table across the page
    "article": (r"\documentclass{article}", {}),
    "twocolumn": (r"\documentclass[twocolumn]{article}", {"wide": True}),
    "IEEEtran": (r"\documentclass[conference]{IEEEtran}", {"wide": True}),
}
PACKAGES = r"\usepackage{booktabs,graphicx}"
KOREAN = "\\usepackage{fontspec}\n\\setmainfont{%s}\n"


def compiled(
    folder: Path, table: Table, engine: str = "pdflatex", preamble: str = "", head: str = r"\documentclass{article}"
) -> str:
    """Compile a document with the table and return the log.

    Skip the test if the engine or a package is missing. Fail for an error or a box that is too wide.
    """
    needed = ["IEEEtran.cls"] if "IEEEtran" in head else []
    if shutil.which(engine) is None or any(subprocess.run(["kpsewhich", name]).returncode for name in needed):
        pytest.skip(f"there is no {engine} with {needed}")
    (folder / "table.tex").write_text(render(table, "latex"), encoding="utf-8")
    body = "\\begin{document}\nText.\n\\input{table}\nText.\n\\end{document}\n"
    (folder / "doc.tex").write_text("\n".join([head, PACKAGES, preamble, body]), encoding="utf-8")
    command = [engine, "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "doc.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=300)
    log = (folder / "doc.log").read_text(encoding="utf-8", errors="replace")
    assert done.returncode == 0, log[-3000:]
    assert "Missing character" not in log
    return log


def text_of(folder: Path) -> str:
    """Return the text of the PDF, or "" if pdftotext is not installed."""
    if shutil.which("pdftotext") is None:
        return ""
    done = subprocess.run(["pdftotext", "-layout", "doc.pdf", "-"], cwd=folder, capture_output=True, check=True)
    return done.stdout.decode()


class Published(Store):
    """A store in which every run of a plan is close to the published numbers. The middle seed equals them."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(Path("nowhere"))
        self.plan = plan

    def run(self, run_id: str) -> PlannedRun:
        return next(run for run in [*self.plan.runs, *self.plan.members] if run.run_id == run_id)

    def result(self, run_id: str) -> TrainingResult:
        run = self.run(run_id)
        return TrainingResult.read(
            {"num_params": run.spec.num_params, "device": "a P100", "device_kind": "cuda", "precision": "fp32"}
        )

    def evaluation(self, run_id: str, eval_id: str) -> EvaluationResult:
        run = self.run(run_id)
        off = run.seed - 2
        bleu = run.variation.paper.get("bleu", run.variation.paper.get("bleu_test", 0.0))
        metrics = {"perplexity": run.variation.paper.get("perplexity", 5.0) + 0.02 * off, "bleu": bleu + 0.1 * off}
        signature = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
        return EvaluationResult.read({"metrics": metrics, "signature": {"bleu": signature}})


def planned(name: str, profile: str | None = None, seeds: int | None = 3) -> Table:
    """Return a built-in study's table with finished runs."""
    study = load_study(name)
    task = task_of_study(study)
    chosen = selection(profile or study.default_profile, None, seeds=seeds)
    plan = plan_study(study, chosen, task, Path("nowhere"), lambda *_: RunState("finished"))
    return build_table(table_spec(plan, task.columns), Published(plan))


def table3(title: str = "", note: str = "A note.") -> Table:
    """Return Table 3 at the paper's sizes with the paper's numbers."""
    table = planned("table3", "paper")
    warnings = (*table.warnings, "A warning: 5 % & more.")
    return replace(
        table, title=title or table.title, footnotes=(*table.footnotes, Note(note, "sign")), warnings=warnings
    )


def test_table3_compiles_and_reads_as_the_paper(tmp_path: Path) -> None:
    assert "Overfull \\hbox" not in compiled(tmp_path, table3())
    if text := text_of(tmp_path):
        lines = [line.split() for line in text.split("\n")]
        assert any(line[:1] == ["base"] for line in lines) and any(line[:1] == ["big"] for line in lines)
        assert "positional embedding instead of sinusoids" in text
        assert [line[0] for line in lines if line and line[0] in ("(A)", "(B)", "(C)", "(D)", "(E)")] == [
            "(A)", "(B)", "(C)", "(D)", "(E)",
        ]  # fmt: skip
        (base,) = [line for line in lines if line[:1] == ["base"]]
        assert " ".join(base) == "base 6 512 2048 8 64 64 0.1 0.1 100K 4.92 ± 0.02 25.8 ± 0.1 63.1"  # the 12 columns


STUDIES = [
    pytest.param(name, marks=[] if name in ("table2", "table3", "modifications") else pytest.mark.nightly)
    for name in builtin_studies()
]


@pytest.mark.parametrize("layout", CLASSES)
@pytest.mark.parametrize("study", STUDIES)
def test_every_study_fits_the_page(tmp_path: Path, study: str, layout: str) -> None:
    """Tables fit one-column classes by default, and two-column classes with --wide."""
    head, options = CLASSES[layout]
    table = replace(planned(study), chosen=Choices(**options))
    assert "Overfull \\hbox" not in compiled(tmp_path, table, head=head)


NATURAL = r"\renewcommand{\resizebox}[3]{\setbox0\hbox{#3}\typeout{WIDTH \the\wd0}\box0 }"  # not scaled


@pytest.mark.parametrize("study", STUDIES)
def test_no_study_is_scaled_down_until_nobody_can_read_it(tmp_path: Path, study: str) -> None:
    """Scaled to a column of 345 pt, \\small's 9 pt stay larger than \\tiny's 5 pt."""
    log = compiled(tmp_path, planned(study), preamble=NATURAL)
    (width,) = re.findall(r"^WIDTH ([\d.]+)pt", log, re.MULTILINE)
    assert 9 * 345 / float(width) > 5.5


@pytest.mark.parametrize(
    "options",
    [{"plain": False, "paper": True}, {"notes": "full"}, {"notes": "none"},
     {"columns": ("bleu", "d_k", "warmup_steps")}, {"hide": ("ppl",)}],
    ids=str,
)  # fmt: skip
def test_other_choices_compile(tmp_path: Path, options: dict[str, Any]) -> None:
    table = replace(table3(), chosen=Choices(**options))
    assert "Overfull \\hbox" not in compiled(tmp_path, table)


@pytest.mark.parametrize("layout", ["article", "twocolumn"])
def test_notes_that_are_longer_than_a_page_follow_the_table_and_none_is_lost(tmp_path: Path, layout: str) -> None:
    table = replace(planned("table2", "demo"), chosen=Choices(notes="full"))
    assert sum(map(len, (note.text for note in table.footnotes))) > 5000
    log = compiled(tmp_path, table, head=CLASSES[layout][0])
    assert "Float too large" not in log
    if text := text_of(tmp_path):
        words, end_of_last_note = " ".join(text.split()), " ".join(table.footnotes[-1].text.split()[-6:])
        assert "Notes on Table" in words and end_of_last_note in words


def test_one_column_of_two_scales_what_is_too_wide(tmp_path: Path) -> None:
    assert "Overfull \\hbox" not in compiled(tmp_path, table3(), head=CLASSES["twocolumn"][0])


def test_table2_compiles_with_the_language_pairs_as_columns(tmp_path: Path) -> None:
    """Headings of a language pair span its columns, and one cost spans both pairs, as in the paper."""
    assert "Overfull \\hbox" not in compiled(tmp_path, planned("table2", "demo"))
    if text := text_of(tmp_path):
        lines = text.split("\n")
        assert any("BLEU (test) EN-DE" in line and "BLEU (test) EN-FR" in line for line in lines)
        (big,) = [line.split() for line in lines if line.strip().startswith("big model")]
        assert {"28.4", "41.8"} <= set(big) and big.count("2.3e19") == 1


def test_hostile_names_compile_and_run_nothing(tmp_path: Path) -> None:
    for number, text in enumerate(NASTY):
        folder = tmp_path / str(number)
        folder.mkdir()
        table = table3(title=text, note=text)
        rows = (table.rows[0], described(replace(table.rows[1], settings={}), label=text), *table.rows[2:])
        heads, columns = dict.fromkeys(table.settings, text), tuple(replace(c, header=text) for c in table.columns)
        spec = replace(table.spec, choices=TableChoices())
        compiled(folder, replace(table, spec=spec, rows=rows, settings=heads, columns=columns))
        found = text_of(folder)
        assert "root:" not in found and "uid=" not in found


@pytest.mark.parametrize("engine", ["xelatex", "lualatex"])
def test_korean_compiles_where_its_note_says(tmp_path: Path, engine: str) -> None:
    listed = subprocess.run(["fc-list", ":lang=ko", "family"], capture_output=True, text=True).stdout.split("\n")
    names = sorted({line.split(",")[0] for line in listed if line})
    if not names:
        pytest.skip("there is no Korean font")
    preferred = next((name for name in names if name.startswith("Nanum")), names[0])
    table = table3(title="변형 실험", note="한국어 각주")
    compiled(tmp_path, table, engine, KOREAN % preferred)
    text = text_of(tmp_path)
    assert not text or ("변형 실험" in text and "한국어 각주" in text)


@pytest.mark.extra("imports")
def test_numbers_of_a_paper_print_and_an_unknown_one_is_an_error_that_names_it(tmp_path: Path, cli: Cli) -> None:
    """The paper has two pages with 20 numbers and 8 claims."""
    if shutil.which("pdflatex") is None:
        pytest.skip("there is no pdflatex")
    rows = {name: (90 + place, 91 + place, 92.5 + place) for place, name in enumerate(("base", "b", "c", "d", "e"))}
    lines = ["model,seed,acc", *(f"{row},{i},{v}" for row, values in rows.items() for i, v in enumerate(values, 1))]
    (tmp_path / "runs.csv").write_text("\n".join(lines) + "\n")
    study, store = tmp_path / "models.toml", tmp_path / "runs"
    cli("tabulate", tmp_path / "runs.csv", "--write", study)
    cli("import", study, "--from", tmp_path / "runs.csv", "--settings", "model", "--store", store)
    cli("report", study, "--store", store, "--macros", tmp_path / "numbers.tex")
    parts = ("acc", "acc.change", "acc.low", "acc.high", "acc.p")
    used = [rf"\abl{{{row}.{part}}}" for row in ("b", "c", "d", "e") for part in parts]
    claims = [f"{a} is {how} than {b} in acc" for a, b in ("bc", "bd", "be", "cd") for how in ("worse", "better")]
    comments = [f"% table: {study} --store {store}", *(f"% claim: {claim}" for claim in claims)]
    body = "\n\n".join([*comments, *(f"It is {number}." for number in used), r"\newpage The end."])
    paper = "\\documentclass{article}\n\\input{numbers}\n\\begin{document}\n%s\n\\end{document}\n"
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "doc.tex"]
    (tmp_path / "doc.tex").write_text(paper % body)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:]
    said = cli("verify", tmp_path / "doc.tex", code=1).stdout.splitlines()
    assert sum(" in acc: " in line for line in said) == 8 and "all equal to the store's" in said[-1]
    (tmp_path / "doc.tex").write_text(paper % r"\abl{b.acx}")
    failed = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=300)
    assert failed.returncode and b"there is no number `b.acx'" in failed.stdout
