"""The HTML page shows any name as text, runs only its own script, fetches nothing and has all numbers."""

import base64
import hashlib
import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from reports.render import html
from reports.render.html import Drawn
from reports.results.run_outcomes import Ended
from reports.spec.table_spec import Note
from tests.planned_runs import described, with_spec

NASTY = [
    "</script><img src=x onerror=alert(1)>", "<!-- x --> <b>", "'\"><svg/onload=alert(1)>", "&lt;b&gt;", "--><script>",
    "]]>", "javascript:alert(1)", "한국어", "\u202egnp.exe", "\x00\x1b[31m", "\ud800", "x" * 10_000, "{{7*7}}",
]  # fmt: skip
VOID = {"meta"}


class Page(HTMLParser):
    """Collects elements with their attributes, and text outside scripts and styles. It reports unclosed elements."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.text, self.comments, self.scripts = [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif self.open and self.open[-1] != "style":
            self.text.append(data)

    def handle_comment(self, data):
        self.comments.append(data)


def hostile(bench, text):
    bench.row("base", results=[(5.0, 25.0), (5.1, 25.5)]).row("B", {"model.d_k": 16}, group="G", results=[None, None])
    table = bench.table()
    rows = (table.rows[0], described(table.rows[1], key=text, group=text[:5], label=text))
    columns = tuple(replace(column, header=text) for column in table.columns)
    return replace(
        table, spec=replace(table.spec, name=text), title=text, rows=rows, columns=columns,
        settings={"model.d_k": text}, footnotes=(Note(text),), warnings=(text,), asked=text,
    )  # fmt: skip


@pytest.mark.parametrize("text", NASTY)
def test_names_are_text(bench, text):
    outcome = bench.row("failed").table().rows[0].outcomes[0]
    run = replace(with_spec(outcome.run, run_id=text), row=text)
    failed = [(replace(outcome, run=run), Ended(1, text, text))]
    drawing = b'<?xml version="1.0"?><svg viewBox="0 0 1 1"><path d="M0"/></svg>'
    page = Page(html.render(hostile(bench, text), {"f": Drawn(text, drawing, drawing)}, failed))
    tags = [tag for tag, _ in page.elements]
    assert tags.count("script") == 2 and not {"img", "iframe", "object", "link", "b", "form"} & set(tags)
    assert next(attrs for tag, attrs in page.elements if tag == "script")["type"] == "application/json"
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("href", "src", "style")], tag
    assert len(page.comments) == 1


def test_it_forbids_itself_the_network_and_any_script_but_its_own(bench):
    page = Page(html.render(bench.row("base").table()))
    policy = next(a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    _, own = page.scripts  # after the table's data
    assert rules["default-src"] == "'none'" and "connect-src" not in rules
    assert rules["script-src"] == f"'sha256-{base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()}'"


def test_a_blank_setting_can_be_sorted_and_a_blank_group_read(bench):
    bench.row("base").row("C1", {"model.d_k": 16}, group="C").row("C2", {"model.d_v": 16}, group="C")
    text = html.render(bench.table())
    assert text.count('data-base="64"') == 2  # d_v of C1, d_k of C2
    assert text.count("<span class=again>(C)</span>") == 1


def test_a_cell_tells_its_seeds_and_runs(bench):
    bench.row("base", results=[(5.0, 25.0), (5.1, 25.5), (5.2, 26.0)])
    bench.row("B", {"model.d_k": 16}, results=[(6.0, 20.0), (6.1, 20.5), None], paper={"bleu": 25.1})
    text = "".join(Page(html.render(bench.table())).text)
    assert "seed 2: 25.500   run base#2" in text
    assert "seed 3: – (missing)   run B#3" in text
    assert "published: 25.1" in text


def test_a_label_stands_across_the_settings_it_replaces(bench):
    bench.row("base").row("B", {"model.num_heads": 4, "model.d_k": 16}).row("E", label="in words", group="E")
    table = bench.table()
    rows = (*table.rows[:2], replace(table.rows[2], settings={}))
    text = html.render(replace(table, rows=rows))
    assert '<td class="words setting" colspan="2">in words</td>' in text
    heads, *lines = json.loads(text.partition('id="table">')[2].partition("</script>")[0])
    assert all(len(line) == len(heads) for line in lines)
    labelled = (table.rows[0], described(table.rows[1], label="both"), rows[2])
    assert 'colspan="2">in words' not in html.render(replace(table, rows=labelled))  # a column of its own then


def test_the_table_is_there_as_data(bench):
    text = html.render(bench.row("base").row("B", {"model.d_k": 16}, label="</script>").table())
    data = text.partition('id="table">')[2].partition("</script>")[0]
    lines = json.loads(data)
    assert len(lines) == 3 and {len(line) for line in lines} == {len(lines[0])}
    assert "</script>" in lines[2]


def test_the_same_table_gives_the_same_bytes(new_bench):
    one, two = (html.render(new_bench().row("base").row("B", {"model.d_k": 16}).table()) for _ in range(2))
    assert one == two
