"""Every command line in README.md and docs/ is accepted by its command, and every study file can be planned."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from ablations.cli.main import verb
from ablations.cli.verbs import verbs
from ablations.service.selected import Selectors, choose
from ablations.study.parts import Metric, Tune
from ablations.study.study import Cited, Claim, Study, load_study
from ablations.study.variation import Profile, Variation
from reports.spec.choices import TableChoices

ROOT = Path(__file__).parents[2]
EXTRAS = ROOT / "ablations" / "extras"
EXTRAS_PAGES = sorted(EXTRAS.glob("*/*.md"))
PAGES = sorted(
    [ROOT / "README.md", *(page for folder in ("docs", "examples") for page in ROOT.glob(f"{folder}/**/*.md"))]
)
PAGES += EXTRAS_PAGES
VERBS = verbs()
OF_EXTRAS = {  # commands of extras that the core's pages name
    "attention", "budget", "bundle", "fill", "import", "ledger", "mcp", "modules", "paper", "tabulate",
}  # fmt: skip
INDENTED, INLINE = re.compile(r"^(?:    |\$ )ablations (.*)"), re.compile(r"`ablations ([^`]*)`")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def joined(page: Path) -> list[str]:
    """Return the page's lines. A line that ends in a backslash is joined with the next one."""
    return page.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()


def command_lines() -> Iterator[tuple[str, str, bool]]:
    """Yield (page, words after "ablations", whether the command is complete)."""
    for page in PAGES:
        name, fenced = str(page.relative_to(ROOT)), False
        for line in joined(page):
            fenced ^= line.startswith("```")
            if whole := INDENTED.match(line if not fenced else f"    {line.strip()}"):
                yield name, whole[1], True
            else:
                yield from ((name, inline, False) for inline in INLINE.findall(line))


LINES = list(command_lines())


@pytest.mark.parametrize(("page", "line", "whole"), LINES, ids=[f"{page}: {line}" for page, line, _ in LINES])
def test_a_command_line_is_accepted(page: str, line: str, whole: bool) -> None:
    command = re.split(r" [|<>;#&]", line)[0].translate(str.maketrans("[]", "  "))  # [--option]: may be left out
    words = [word for word in shlex.split(command) if word != "…"]
    if not words or words[0].startswith("-") or words[0].isupper():
        return
    name, *arguments = words
    if name not in VERBS and name in OF_EXTRAS:
        return  # its extra is not there
    assert name in VERBS
    try:
        verb(name).make_context(name, arguments)
    except Exception as error:  # of click, which typer brings under a name of its own
        if whole or type(error).__name__ != "MissingParameter":
            raise


def blocks(kind: str) -> list[tuple[str, str]]:
    found = [(str(page.relative_to(ROOT)), FENCE.findall(page.read_text(encoding="utf-8"))) for page in PAGES]
    return [(page, block) for page, all_ in found for language, block in all_ if language == kind]


TOML = blocks("toml")


@pytest.mark.parametrize(("page", "block"), TOML, ids=[f"{page}: {block[:30]!r}" for page, block in TOML])
@pytest.mark.process
def test_a_study_file_can_be_planned(page: str, block: str, tmp_path: Path) -> None:
    """Every study on a page can be planned.

    The trainer is taken from the page. Rows without a study get a name and base. Other examples must be valid TOML.
    Rows that change code are left out, because their patches and commits exist only in the reader's repository.
    """
    part = tomllib.loads(block)
    block = re.sub(r"^(?:\[\[ablate\]\]|.*\b(?:patch|commit) = ).*\n", "", block, flags=re.MULTILINE)
    if "name" not in part and set(part) != {"variation"}:
        return
    head = "" if "name" in part else 'name = "x"\ntitle = "X"\n'
    if "name" not in part and 'key = "base"' not in block:
        head += '[[variation]]\nkey = "base"\n'
    (tmp_path / "study.toml").write_text(head + block, encoding="utf-8")
    for other, code in blocks("python"):
        if other == page and (named := re.match(r"# (\w+\.py)", code)):
            (tmp_path / named[1]).write_text(code, encoding="utf-8")
    assert choose(str(tmp_path / "study.toml"), Selectors(store=tmp_path / "store")).plan.runs


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", FENCE.sub("", page.read_text(encoding="utf-8")))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not [link for link in missing if not of_removed_extra(page, link)]


def of_removed_extra(page: Path, link: str) -> bool:
    """Return whether a link leads to the folder of an extra that is missing. Core pages may link to extras."""
    target = (page.parent / link).resolve()
    return target.is_relative_to(EXTRAS) and not (EXTRAS / target.relative_to(EXTRAS).parts[0]).is_dir()


def test_the_index_has_every_page_once() -> None:
    index = ROOT / "docs" / "README.md"
    named = re.findall(r"^- \[[^]]*\]\(([^)]+\.md)\)", index.read_text(encoding="utf-8"), re.MULTILINE)
    named = [name for name in named if not of_removed_extra(index, name)]
    extras = [f"../{page.relative_to(ROOT)}" for page in EXTRAS_PAGES if page.name != "README.md"]
    pages = [str(page.relative_to(index.parent)) for page in index.parent.rglob("*.md") if page != index]
    assert sorted(named) == sorted(pages + extras)


def test_the_page_on_json_names_the_verbs_without_it() -> None:
    page = (ROOT / "docs" / "exit-codes-and-json.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", re.findall(r"Every command but (.*) has `--json`", page)[0]))
    assert named - (OF_EXTRAS - {*VERBS}) == {
        name for name in VERBS if all("--json" not in option.opts for option in verb(name).params)
    }


def test_the_tests_named_beside_retellings_exist() -> None:
    named = re.findall(r"\b(test_\w+)", (ROOT / "docs" / "paper-and-retellings.md").read_text(encoding="utf-8"))
    sources = list((ROOT / "tests").rglob("test_*.py"))
    known = {path.stem for path in sources}
    known |= {found for path in sources for found in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))}
    assert len(named) > 5 and set(named) <= known


def test_the_demo_has_the_paper_s_sign_where_the_paper_s_change_is_more_than_1_bleu() -> None:
    """table3's note names the right rows, and the demo in docs/demo.md prints the signs that it states."""
    study = load_study("table3")
    base = next(row.paper["bleu"] for row in study.variations if row.key == "base")
    far = {row.key: row.paper["bleu"] - base for row in study.variations if abs(row.paper["bleu"] - base) > 1}
    assert f"more than 1 BLEU ({', '.join(far)})" in study.profiles["demo"].notes[0]
    lines = (ROOT / "docs" / "demo.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.split("|")] for line in lines if line.startswith("|")]
    cells = [row for row in cells if len(row) == len(cells[0])]  # the first table, without the table of claims
    place = cells[0].index("BLEU (dev)") + 1
    changes = {row[2].partition(" ")[0]: row[place].replace("−", "-").replace("*", "") for row in cells[2:]}
    for key, change in far.items():
        assert (float(changes[key]) < 0) == (change < 0), key


PAGE = (ROOT / "docs" / "study-file.md").read_text(encoding="utf-8")
SECTIONS = {
    "## The study": Study, "## `[[variation]]`": Variation, "## `[profile.NAME]`": Profile,
    "## `[[metric]]`": Metric, "## `[table]`": TableChoices, "## `[tune]`": Tune,
    "## `[[cited]]`": Cited, "## `[[claim]]`": Claim,
}  # fmt: skip
OF_THE_READER = {
    "origin",
    "folder",
    "code_tree",
    "code_note",
    "trees_note",
    "sections",
    "code_change",
    "other_changes",
    "refused",
    "code_base",
    "code_lines",
}
WITH_A_SECTION = {"base", "profile", "variation", "metric", "table", "tune", "cited", "claim", "protected"}


@pytest.mark.parametrize(("head", "model"), SECTIONS.items(), ids=SECTIONS)
def test_the_page_on_study_files_has_every_name(head: str, model: type[BaseModel]) -> None:
    start = PAGE.index(head)
    section = PAGE[start : PAGE.find("\n## ", start + 1) if "\n## " in PAGE[start + 1 :] else None]
    names = {field.alias or name for name, field in model.model_fields.items()} - OF_THE_READER
    missing = {name for name in names if not re.search(rf"`(\w+\.)?{name}\b|`\[{name}|\[table\.{name}", section)}
    assert missing <= (WITH_A_SECTION if model is Study else set())
