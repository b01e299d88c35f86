"""Every format prints any name, label or title as text."""

import csv
import io
import json
import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from reports.render import latex_text, markdown
from reports.render import records as csv_format
from reports.render.cells import plain
from reports.render.formats import RENDERERS, render
from reports.spec.table_spec import Note
from tests.planned_runs import described

NASTY = [
    "</script><img src=x onerror=alert(1)>", r"\input{/etc/passwd}", "=cmd|' /C calc'!A0", "@SUM(1)", "+1", "-1+2",
    "a|b`c`*d*_e_", "100 % & #1 $x$ {y} ~z ^w", "line\nbreak\r\n| a | b |", "한국어 label", "\u202egnp.exe",
    "[link](javascript:alert(1))", "*", "[opt]", "\ud800", "tab\there", "\x00\x1b[31m", "% comment", "\\\\",
    "“quoted” – dash", "x" * 10_000,
]  # fmt: skip
ANY_TEXT = st.text(st.characters(), max_size=60) | st.sampled_from(NASTY)


def hostile_table(new_bench, text):
    """Return a table with `text` in place of every text from outside the program."""
    table = new_bench().row("base", sets=("dev", "test")).row("B", {"model.d_k": 16}, group="G").table()
    rows = (table.rows[0], described(table.rows[1], key=text, group=text[:5], label=text))
    columns = tuple(replace(c, header=text) for c in table.columns)
    heads = {"model.d_k": text}
    return replace(
        table, title=text, rows=rows, columns=columns, settings=heads, footnotes=(Note(text),), warnings=(text,)
    )


def balanced(latex):
    """Return whether braces are balanced. Escaped braces do not count."""
    depth = 0
    for brace in re.findall(r"(?<!\\)(?:\\\\)*([{}])", re.sub(r"\\[{}]", "", latex)):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            return False
    return depth == 0


# What `escape` may print: ordinary signs, or one of these commands; nothing else that LaTeX would act on.
_ALLOWED = re.compile(
    r"\\textbackslash\{\}|\\[{}%&#$_]|\\textasciicircum\{\}|\\textasciitilde\{\}|\\textless\{\}|\\textgreater\{\}"
    r"|\\textbar\{\}\\allowbreak\{\}|\\`\{\}|\{\[\}|\{\]\}|\{\*\}|\\ldots\{\}|\\dag\{\}|\\ddag\{\}|\\S\{\}"
    r"|\$\\(?:pm|times|cdot|leq|geq|approx|rightarrow|infty|surd|alpha|beta|Delta|delta|epsilon|lambda|mu|sigma|tau)\$"
    r"|\$-\$|\$\^[236]\$|---?\{\}|``?\{\}|''?\{\}|[-',?!]\{\}|~|[^\\{}%&#$^_~\[\]*<>|\"]"
)


@given(ANY_TEXT)
def test_latex_prints_no_sign_that_latex_would_act_on(text):
    out = latex_text.escape(text)
    assert _ALLOWED.sub("", out) == ""
    assert "~" not in out.replace("~", "", text.count("\u00a0"))
    assert balanced(out)


@given(ANY_TEXT)
def test_markdown_leaves_no_sign_that_makes_markup(text):
    out = markdown.escape(text)
    assert not re.search(r"<(?!\s)|>", out)
    assert not re.search(r"(?<!\\)(?:\\\\)*[`*\[\]~$]", out)
    assert "\n" not in out
    assert not re.match(r"(?:\d+[.)]|[-+]|#+)(?:\s|$)", out)


@given(ANY_TEXT)
def test_csv_text_is_no_formula_and_parses_back(text):
    guarded = csv_format.text(text)
    assert not guarded.startswith(("=", "+", "-", "@", "\t", "\r"))
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerow([guarded, "x"])
    assert next(csv.reader(io.StringIO(stream.getvalue()))) == [guarded, "x"]
    assert guarded.removeprefix("'") == plain(text).removeprefix("'")


@given(text=ANY_TEXT)
# the fixture is a class, not a state; a name of 10,000 signs takes its time on a busy machine
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_hostile_tables_come_out_whole(new_bench, text):
    table = hostile_table(new_bench, text)
    for name in RENDERERS:
        render(table, name).encode()  # no lone surrogate is left
    lines = list(csv.reader(io.StringIO(render(table, "csv"))))
    assert len(lines) == 3
    assert {len(line) for line in lines} == {len(lines[0])}
    assert json.loads(render(table, "json"))[1]["label"] == text
    body = [line for line in render(table, "markdown").split("\n") if line.startswith("|")]
    assert len(body) == 4
    assert len({len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in body}) == 1
    check_latex(render(table, "latex"))


def check_latex(text):
    """Comments may contain any text that stays on their lines."""
    text = "\n".join(line for line in text.split("\n") if not re.match("%( |$)", line))
    assert balanced(text)
    below = [] if "Notes on " in text else ["minipage"]  # long notes follow the table
    assert re.findall(r"\\begin\{(\w+)\}", text) == ["table", "tabular", *below]
    assert re.findall(r"\\end\{(\w+)\}", text) == ["tabular", *below, "table"]
    kinds = re.sub(r"p\{\d+em\}", "p", re.search(r"\\begin\{tabular\}\{@\{\}(.+)@\{\}\}", text)[1])
    assert not kinds.strip("lcrp")
    inside = text.split(r"\toprule", 1)[1].split(r"\bottomrule", 1)[0]
    rows = [line for line in inside.strip().split("\n") if line.endswith(r"\\")]
    for row in rows:
        spans = [int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", row)]
        assert len(re.findall(r"(?<!\\)&", row)) + 1 - len(spans) + sum(spans) == len(kinds)
    for first, last in re.findall(r"\\cmidrule\(lr\)\{(\d+)-(\d+)\}", text):
        assert 1 < int(first) < int(last) <= len(kinds)
    for line in text.split("\n"):
        assert not re.search(r"(?<!\\)%(?!$)", line)


@pytest.mark.parametrize("text", NASTY)
def test_known_attacks(new_bench, text):
    table = hostile_table(new_bench, text)
    latex = render(table, "latex")
    check_latex(latex)
    assert r"\input" not in "\n".join(line for line in latex.split("\n") if not line.startswith("% "))
    assert "<img" not in render(table, "markdown")
    assert "\x1b" not in "".join(render(table, name) for name in ("markdown", "latex", "csv"))
    assert not re.search(r"(?:^|,)\"?[=@]", render(table, "csv"), re.MULTILINE)


def test_signs_beyond_pdflatex_are_named_and_others_are_not():
    assert latex_text.unprintable("Größe, naïve Øre, Łódź – ± Δ “x” æ") == ""
    assert latex_text.unprintable("한국 ok Ð ą 😀") == "한국Ðą😀"


def test_a_table_with_korean_says_what_compiles_it(new_bench):
    text = render(hostile_table(new_bench, "한국어"), "latex")
    assert "% compile with XeLaTeX or LuaLaTeX and a font that has U+AD6D U+C5B4 U+D55C\n" in text
    assert "한국어" in text


def test_ligatures_are_kept_apart():
    assert latex_text.escape("--set x") == "-{}-set x"
    assert latex_text.escape("1–3") == "1--{}3"
    assert latex_text.escape("a'' ?`") == r"a'{}' ?\`{}"


def test_wide_and_combining_signs_count_as_a_terminal_shows_them():
    assert [cell_len(text) for text in ("abc", "한국", "e\u0301", "±")] == [3, 4, 1, 1]


def test_a_very_long_name_widens_its_own_line_only(new_bench):
    table = new_bench().row("base").row("B", {"model.d_k": 16}, label="x" * 10_000).table()
    lengths = [len(line) for line in render(table, "markdown").split("\n") if line.startswith("|")]
    assert sorted(lengths)[-1] > 10_000 > 1_000 > sorted(lengths)[-2]
