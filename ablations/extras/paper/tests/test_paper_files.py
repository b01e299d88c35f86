"""What is read of a paper in several files, and what is named because it was not."""

import os

import pytest

from ablations.extras.paper.read import LARGEST, read_paper
from experiments.errors import UserError

TABLE = "% table: t.toml --store runs\n"
CLAIM = "a is worse than b in acc"


def read(folder, **files):
    """The paper of main.tex; other files by their names, with / as __ and without .tex."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.tex"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    main = folder / "main.tex"
    return read_paper(main, main.read_text())


def claims(paper):
    return [
        (table.words[0], paper.shown(one.file), one.line, one.text) for table in paper.tables for one in table.claims
    ]


def test_files_are_read_where_they_are_named(tmp_path):
    main = f"{TABLE}% claim: a is better than b in acc\n\\input{{sections/one}} \\include {{two.tex}}\n% claim: {CLAIM}"
    paper = read(tmp_path, main=main, sections__one=f"\n% claim: {CLAIM}\n\\subfile{{sections/three}}",
                 two=f"% table: u.toml\n% claim: {CLAIM}\n", sections__three=f"% claim: {CLAIM}")  # fmt: skip
    assert claims(paper) == [
        ("t.toml", str(tmp_path / "main.tex"), 2, "a is better than b in acc"),
        ("t.toml", "sections/one.tex", 2, CLAIM),
        ("t.toml", "sections/three.tex", 1, CLAIM), ("u.toml", "two.tex", 2, CLAIM),
        ("u.toml", str(tmp_path / "main.tex"), 4, CLAIM),
    ]  # fmt: skip
    assert paper.unread == []


@pytest.mark.parametrize(
    "inclusion",
    [r"\input{s/x}", r"\input s/x", r"\include{s/x.tex}", r"\subfile{s/x}", r"\import{s/}{x}", r"\subimport{s}{x.tex}",
     r"\InputIfFileExists{s/x}{}{}", "\\input{ s/x }", r'\input{"s/x"}'],
)  # fmt: skip
def test_every_way_to_include_a_file(tmp_path, inclusion):
    paper = read(tmp_path, main=TABLE + inclusion, s__x=f"% claim: {CLAIM}")
    assert [claim[3] for claim in claims(paper)] == [CLAIM] and paper.unread == []


@pytest.mark.parametrize(
    ("name", "text"),
    [("p.md", '<!-- table: t.toml -->\n{{< include x.md >}}'), ("p.typ", '// table: t.toml\n#include "x.md"')],
)  # fmt: skip
def test_other_languages_include_too(tmp_path, name, text):
    (tmp_path / "x.md").write_text(f"Text <!--\nclaim:\n{CLAIM}\n--> and\n")
    paper = read_paper(tmp_path / name, text)
    assert [claim[1:] for claim in claims(paper)] == [("x.md", 1, CLAIM)]


@pytest.mark.parametrize(
    "comment",
    [f"% claim: {CLAIM}", f"%claim : {CLAIM}", f"%%%% claim: {CLAIM}.", f"Text. % Claim: {CLAIM}",
     f"\\\\% claim: {CLAIM}",
     f"50\\% of it % claim:   {CLAIM}"],
)  # fmt: skip
def test_a_claim_is_read_wherever_a_comment_is(tmp_path, comment):
    paper = read(tmp_path, main=TABLE + comment)
    assert [claim[3].rstrip(".") for claim in claims(paper)] == [CLAIM] and paper.unread == []


@pytest.mark.parametrize(
    "comment",
    [f"% claims: {CLAIM}", f"% cliam: {CLAIM}", f"% {CLAIM}", f"% claim {CLAIM}", "% CLAIM - it is better",
     "% Claim: it is nicer"],
)  # fmt: skip
def test_what_looks_like_a_claim_and_is_none_is_named(tmp_path, comment):
    paper = read(tmp_path, main=TABLE + comment)
    assert claims(paper) == [] and len(paper.unread_claims) == 1 and "main.tex, line 2" in paper.unread_claims[0]


@pytest.mark.parametrize(
    "text",
    [f"50\\% claim: {CLAIM}", "% Table: the results of table 3", "% to do: is this better than before in all rows?",
     "% \\input{nothing}", "Text about the claim: it is better.", "% we claimed this already"],
)  # fmt: skip
def test_other_text_is_no_claim(tmp_path, text):
    paper = read(tmp_path, main=TABLE + text)
    assert claims(paper) == [] and paper.unread == [] and len(paper.tables) == 1


def test_a_file_that_is_not_read_is_named_and_nothing_waits(tmp_path):
    os.mkfifo(tmp_path / "pipe.tex")
    (tmp_path / "image.tex").write_bytes(b"\0\1")
    with (tmp_path / "huge.tex").open("wb") as file:
        file.truncate(LARGEST + 1)
    (tmp_path / "latin.tex").write_bytes(b"Gr\xf6\xdfer. % claim: " + CLAIM.encode())
    names = ["none", "pipe", "image", "huge", r"\jobname", "x" * 300, "main", "loop", ""]
    main = TABLE + "\n".join(f"\\input{{{name}}}" for name in [*names, "latin"])
    paper = read(tmp_path, main=main, loop=r"\input{loop}")
    assert len(paper.unread_files) == len(names) and paper.unread_claims == []
    assert all(f"line {n}" in text for n, text in enumerate(paper.unread_files, 2) if "loop" not in text)
    assert [claim[1] for claim in claims(paper)] == ["latin.tex"]


def test_numbers_are_looked_for_in_all_files(tmp_path):
    defined = r"\expandafter\def\csname abl@a.acc\endcsname{5}"
    paper = read(tmp_path, main=r"\input{sections/numbers}\input{text}", sections__numbers=defined, text=r"\abl{a.acc}")
    [table] = paper.tables
    assert table.file.name == "numbers.tex"
    with pytest.raises(UserError, match=r"b\.acc"):
        read(tmp_path, text=r"\abl{b.acc}")


@pytest.mark.parametrize("text", [f"% claim: {CLAIM}\n{TABLE}", '% table: "t.toml\n'])
def test_what_cannot_be_read_is_one_sentence_with_its_place(tmp_path, text):
    with pytest.raises(UserError, match=r"part\.tex, line 1"):
        read(tmp_path, main=r"\input{part}", part=text)
