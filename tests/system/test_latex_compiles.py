"""The LaTeX that reports print, through real engines: pdfLaTeX with a bare article class, XeLaTeX and LuaLaTeX."""

import shutil
import subprocess
from pathlib import Path

import pytest

from ablations.study import load_study
from reports.render.formats import render
from reports.table import Measure, Row, Table

pytestmark = pytest.mark.slow
NASTY = [
    r"\input{/etc/passwd}", r"\write18{id}", "100 % & #1 $x$ {y} ~z ^w _u", "\\\\[1cm]", "[opt]", "*", "a -- b --- c",
    "“quoted” ‘x’ …", "|pipe| <tag> \"q\" `t'", "±×·−≤≥≈→∞√αβΔδελμσ²³⁶†‡§τ", "x" * 300, "é ß Ł ı",
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


def table3(**changes: str) -> Table:
    """Table 3 with the paper's own numbers, as a finished reproduction prints it."""
    from experiments.tasks.translation import TASK

    columns, study = TASK.columns[:2], load_study("table3")
    rows = []
    for variation in study.variations:
        settings = {name: value for name, value in variation.set.items() if name in study.columns}
        measures = {
            column.key: Measure(
                values=(variation.paper[column.paper],), asked=1, reported=variation.paper[column.paper], change=0.1
            )
            for column in columns
        }
        rows.append(
            Row(
                key=variation.key,
                group=variation.group,
                label=variation.label,
                settings=settings,
                measures=measures,
                num_params=65_000_000,
                paper=variation.paper,
                outcomes=(),
            )
        )
    title = changes.get("title", study.title)
    notes = (*study.notes, changes.get("note", "A note."))
    return Table("table3", title, study.columns, columns, tuple(rows), "base", notes, ("A warning: 5 % & more.",))


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


def test_hostile_names_compile_and_run_nothing(tmp_path: Path) -> None:
    for number, text in enumerate(NASTY):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = compiled(folder, table3(title=text, note=text))
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
