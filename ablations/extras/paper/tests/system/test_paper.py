"""A paper's numbers and sentences: `report --macros`, `fill`, `verify paper.tex` and `paper`, on imported runs."""

import json
import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ablations.cli.main import app
from experiments.errors import UserError
from reports.render.numbers import defined, used

pytestmark = pytest.mark.extra("imports")

VALUES = {"base": (50.0, 51.0, 52.0), "wide": (60.0, 61.0, 62.5), "thin": (50.5, 51.5, 51.0)}
PAPER = r"""\documentclass{article}
\input{numbers}
\begin{document}
% table: optimizers.toml --store runs
% claim: wide is better than base in acc by at least 5
Wide is better by \abl{wide.acc.change}, thin by \abl{thin.acc.change} (p = \abl{thin.acc.p}). % \abl{not.there}
% claim: thin is worse than wide in acc
% claim: thin is better than base in acc
\end{document}
"""


def csv_of(values: dict[str, tuple[float, ...]]) -> str:
    lines = ["model,seed,acc", *(f"{row},{i},{v}" for row, of in values.items() for i, v in enumerate(of, 1))]
    return "\n".join(lines) + "\n"


def ablations(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*map(str, words)])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("runs.csv").write_text(csv_of(VALUES))
    ablations("tabulate", "runs.csv", "--write", "optimizers.toml")
    ablations("import", "optimizers.toml", "--from", "runs.csv", "--settings", "model")
    ablations("report", "optimizers.toml", "--macros", "numbers.tex")
    Path("paper.tex").write_text(PAPER)
    return tmp_path


def test_macros_have_the_digits_of_the_table(folder: Path) -> None:
    known = defined(Path("numbers.tex").read_text())
    printed = ablations("report", "optimizers.toml", "--format", "markdown")
    row = next(line for line in printed.splitlines() if line.startswith("| wide"))
    mean, change = re.findall(r"(\d+\.\d+) ±.*?\+(\d+\.\d+)", row)[0]
    assert known["wide.acc"] == mean == known["wide.acc_test"] and known["wide.acc.change"] == f"+{change}"
    assert float(known["wide.acc.low"]) < float(change) < float(known["wide.acc.high"]) and known["wide.n"] == "3"
    assert used(PAPER) == ["wide.acc.change", "thin.acc.change", "thin.acc.p"]  # not those of comments


def test_sentences_are_checked_and_a_row_trained_again_makes_some_false(folder: Path) -> None:
    said = ablations("verify", "paper.tex", code=1).splitlines()
    assert [re.search(r": (holds|does not hold|cannot be shown)", line)[1] for line in said[:3]] == [  # type: ignore[index]
        "holds", "holds", "cannot be shown",
    ]  # fmt: skip
    assert "all equal" in said[3]
    shown = PAPER.replace("% claim: thin is better than base in acc\n", "")
    Path("paper.tex").write_text(shown)
    ablations("verify", "paper.tex")
    Path("runs.csv").write_text(csv_of({**VALUES, "wide": (50.0, 51.5, 52.0)}))
    ablations("import", "optimizers.toml", "--from", "runs.csv", "--settings", "model", "--replace")
    after = ablations("verify", "paper.tex", code=1)
    assert "wide is better than base in acc by at least 5: does not hold" in after
    assert "thin is worse than wide in acc: cannot be shown" in after
    assert re.search(r"wide\.acc\.change: \S+ in numbers.tex, \S+ in the store", after)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("% claim: a is better than b in acc\n", "table: STUDY"),
        ("% table: optimizers.toml\n% claim: wid is better than base in acc\n", "wide"),
        ("% table: optimizers.toml\n% claim: wide is nicer than base\n", "forms"),
        ("% table: optimizers.toml\n\\abl{base.bleu}\n", r"base\.bleu"),
        ("% table: optimizers.toml --sore runs\n% claim: wide is better than base in acc\n", "--sore"),
        ("% table: optimizers.toml --seeds x\n% claim: wide is better than base in acc\n", "--seeds"),
        ("% table: --store runs\n% claim: a is better than b in acc\n", "names no study"),
    ],
)
def test_what_cannot_be_checked_is_one_sentence(folder: Path, text: str, named: str) -> None:
    Path("paper.tex").write_text(text)
    with pytest.raises(UserError, match=named):
        ablations("verify", "paper.tex")


def test_the_other_sentences_and_numbers_are_checked_beside_a_wrong_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("paper.tex").write_text(
        PAPER.replace("wide is better", "wdie is better").replace("thin is worse", "thin beats")
    )
    with pytest.raises(UserError, match=r"paper\.tex, line 5.*wdie") as caught:
        app(["verify", "paper.tex", "--json"], standalone_mode=False)
    assert len(str(caught.value).splitlines()) == 2 and "thin beats" in str(caught.value)
    found = json.loads(capsys.readouterr().out)
    assert len(found["wrong"]) == 2 and ["holds" in one for one in found["found"]] == [True, True]
    assert "all equal" in found["found"][1]["text"]


def test_claims_in_other_files_decide_too_and_nothing_checked_is_a_mistake(folder: Path) -> None:
    Path("sections").mkdir()
    Path("sections/results.tex").write_text("% claim: wide is worse than base in acc\n")
    Path("main.tex").write_text("% table: optimizers.toml --store runs\n\\input{sections/results}\n")
    said = ablations("verify", "main.tex", code=1)
    assert said.startswith("sections/results.tex: wide is worse than base in acc: does not hold")
    Path("sections/results.tex").write_text("% claim: wide is better than base in acc\n% claims: thin is better\n")
    said = ablations("verify", "main.tex")
    assert "holds" in said and "sections/results.tex, line 2" in said
    done = json.loads(ablations("verify", "main.tex", "--json"))
    assert [one["holds"] for one in done["found"]] == [True] and len(done["unread"]) == 1
    with pytest.raises(UserError, match=r"has no table\. Name the table above it"):
        ablations("verify", "sections")
    for text in ("", "% cliam: wide is better than base in acc\n", "% claims: many\n\\input{../numbers}"):
        Path("sections/results.tex").write_text(text)
        with pytest.raises(UserError, match="no claim was found"):
            ablations("verify", "main.tex")
    Path("empty").mkdir()
    with pytest.raises(UserError, match="no claim was found"):
        ablations("verify", "empty")
    os.mkfifo("pipe.tex")
    with pytest.raises(UserError, match="not a regular file"):
        ablations("verify", "pipe.tex")


def test_the_page_of_the_documentation_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "paper.md").read_text(encoding="utf-8")
    page = page.partition("## In the paper's")[0]
    blocks = re.findall(r"```(?:latex|markdown)\n(.*?)```", page, re.DOTALL)
    for name, text in zip(("paper.tex", "draft.md", "results.tex"), blocks, strict=True):
        Path(name).write_text(text)
    lines = re.findall(r"^    ablations (.*)$", page, re.MULTILINE)
    said = {line: ablations(*line.split()) for line in lines}
    verdicts = said["verify paper.tex"].splitlines()
    assert len(verdicts) == 3 and all(": holds (" in line for line in verdicts[:2]) and "all equal" in verdicts[2]
    change = defined(Path("numbers.tex").read_text())["without-bias.accuracy.change"]
    assert f"by {change.replace('$-$', '−')} points" in Path("filled.md").read_text()
    for inline in re.findall(r"`ablations ((?:verify|fill) [^`]*)`", page):
        ablations(*inline.split())


def test_only_changes_have_a_sign(folder: Path) -> None:
    """Published values and means have none, whatever the number of digits of a change."""
    text = Path("optimizers.toml").read_text()
    head, row = text.split("[[variation]]\n", 1)
    Path("optimizers.toml").write_text(f"{head}[[variation]]\npaper = {{acc_test = 25.8}}\n{row}")
    ablations("report", "optimizers.toml", "--macros", "numbers.tex")
    known = defined(Path("numbers.tex").read_text())
    assert float(known["base.acc.paper"]) == 25.8
    for name, number in known.items():
        is_change = name.rpartition(".")[2] in ("change", "low", "high")
        assert (number.lstrip("$")[0] in "+-−") == (is_change and number not in ("0.0", "0.00")), name
    Path("draft.md").write_text("{{base.acc.paper}}")
    assert ablations("fill", "draft.md", "optimizers.toml") in ("25.8", "25.80")


def test_fill_replaces_names_and_refuses_unknown_ones(folder: Path) -> None:
    Path("draft.md").write_text("<!-- table: optimizers.toml -->\nWide: {{wide.acc}} ({{wide.acc.change}}).\n")
    known = defined(Path("numbers.tex").read_text())
    ablations("fill", "draft.md", "--out", "paper.md")
    assert Path("paper.md").read_text().endswith(f"Wide: {known['wide.acc']} ({known['wide.acc.change']}).\n")
    Path("draft.md").write_text("{{wide.acd}}")
    with pytest.raises(UserError, match=r"wide\.acc"):
        ablations("fill", "draft.md", "optimizers.toml")


def test_a_papers_folder_is_whole_and_verified(folder: Path) -> None:
    ablations("paper", "optimizers.toml", "--out", "out")
    names = {path.name for path in Path("out").iterdir()}
    assert {"runs.tex", "runs-numbers.tex", "runs-setup.md", "runs.tar.gz", "README.md"} <= names
    assert "ablations bundle optimizers.toml" in Path("out/README.md").read_text()
    ablations("verify", "out")
    table = Path("out/runs.tex")
    table.write_text(re.sub(r"61\.\d+", "61.9", table.read_text()))
    ablations("verify", "out", code=1)
