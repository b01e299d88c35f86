"""The paper's BLEU equals sacrebleu's on the same tokens, and published scores of real systems."""

import csv
import gzip
import os
from pathlib import Path

import pytest
from sacrebleu.metrics import BLEU

from experiments.evaluation.scoring import PaperTokens, available, bleu, paper_bleu, score_text, split_compounds

WMT17 = os.environ.get("ABLATIONS_WMT17")  # a folder with expected-scores.tsv, systems/ and the reference

needs_moses = pytest.mark.skipif(not available(), reason="sacremoses is not installed")


def oracle(translations: list[str], references: list[str]) -> float:
    return float(BLEU(tokenize="none", smooth_method="none").corpus_score(translations, [references]).score)


@needs_moses
def test_text_is_scored_as_its_moses_tokens_with_compounds_split() -> None:
    references = ["Der Wert-Papier-Handel, sagt Dr. Weber, ruht.", 'Ein „Test" (sehr kurz) & gut.']
    translations = ["Der Wertpapier-Handel, sagt Dr. Weber, ruht nun.", 'Ein „Test" (kurz) & gut.']
    tokens = PaperTokens("de")
    lines = [[tokens(line) for line in side] for side in (translations, references)]
    assert lines[0][0] == "Der Wertpapier ##AT##-##AT## Handel , sagt Dr. Weber , ruht nun ."
    assert paper_bleu(translations, references, "de") == pytest.approx(oracle(*lines), abs=1e-9)
    scores = score_text(translations, references, "de")
    assert 0 < scores.metrics["bleu_paper"] < 100
    assert "tok:moses-de+split" in scores.signatures["bleu_paper"]


def test_hyphens_are_split_as_the_script_does() -> None:
    assert split_compounds("a-b - c-d-e -f") == "a ##AT##-##AT## b - c ##AT##-##AT## d-e -f"


@needs_moses
def test_nothing_in_common_is_zero() -> None:
    assert paper_bleu(["a b"], ["c d"], "en") == 0
    assert paper_bleu([""], ["c"], "en") == 0


@needs_moses
@pytest.mark.skipif(not WMT17, reason="ABLATIONS_WMT17 names no folder with the systems' outputs")
def test_published_scores_of_real_systems_come_out() -> None:
    assert WMT17
    folder = Path(WMT17)
    references = lines(folder / "newstest2017.ref.de.gz")
    with (folder / "expected-scores.tsv").open(encoding="utf-8") as file:
        expected = {row["system"]: row for row in csv.DictReader(file, delimiter="\t")}
    assert len(expected) == 16
    for system, row in expected.items():
        found = score_text(lines(folder / "systems" / f"{system}.txt.gz"), references, "de")
        assert found.metrics["bleu"] == pytest.approx(float(row["bleu_mteval-v13a"]), abs=0.006)
        assert bleu(found.statistics.sum(axis=0)) == pytest.approx(found.metrics["bleu"])
        if row["chrF"]:
            assert found.metrics["chrf"] == pytest.approx(float(row["chrF"]), abs=0.01)


def lines(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().removesuffix("\n").split("\n")
