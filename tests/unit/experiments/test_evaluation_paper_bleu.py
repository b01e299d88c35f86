"""The paper's BLEU against sacrebleu on the same tokens, and published scores of real systems."""

import csv
import gzip
import os
import random
from pathlib import Path

import pytest
from sacrebleu.metrics import BLEU

from experiments.evaluation.bleu import PaperTokens, available, multi_bleu, paper_bleu, score_text, split_compounds
from experiments.evaluation.counts import bleu

WMT17 = os.environ.get("ABLATIONS_WMT17")  # a folder with expected-scores.tsv, systems/ and the reference

needs_moses = pytest.mark.skipif(not available(), reason="sacremoses is not installed")


def oracle(translations: list[str], references: list[str]) -> float:
    return float(BLEU(tokenize="none", smooth_method="none").corpus_score(translations, [references]).score)


@pytest.mark.parametrize("seed", range(20))
def test_is_sacrebleus_without_tokenizer_and_smoothing(seed: int) -> None:
    draw = random.Random(seed)
    words = [f"w{i}" for i in range(draw.choice([3, 8, 40]))]
    references = [" ".join(draw.choices(words, k=draw.randint(1, 15))) for _ in range(draw.randint(1, 12))]
    translations = [
        " ".join(word if draw.random() < 0.8 else draw.choice(words) for word in line.split()[: draw.randint(1, 15)])
        for line in references
    ]
    found = multi_bleu([line.split() for line in translations], [line.split() for line in references])
    assert found == pytest.approx(oracle(translations, references), abs=1e-9)


@needs_moses
def test_text_is_scored_as_its_moses_tokens_with_compounds_split() -> None:
    references = ["Der Wert-Papier-Handel, sagt Dr. Weber, ruht.", 'Ein „Test" (sehr kurz) & gut.']
    translations = ["Der Wertpapier-Handel, sagt Dr. Weber, ruht nun.", 'Ein „Test" (kurz) & gut.']
    tokens = PaperTokens("de")
    lines = [[" ".join(tokens(line)) for line in side] for side in (translations, references)]
    assert lines[0][0] == "Der Wertpapier ##AT##-##AT## Handel , sagt Dr. Weber , ruht nun ."
    assert paper_bleu(translations, references, "de") == pytest.approx(oracle(*lines), abs=1e-9)
    scores = score_text(translations, references, "de")
    assert 0 < scores.metrics["bleu_paper"] < 100
    assert "tok:moses-de+split" in scores.signatures["bleu_paper"]


def test_hyphens_are_split_as_the_script_does() -> None:
    assert split_compounds("a-b - c-d-e -f") == "a ##AT##-##AT## b - c ##AT##-##AT## d-e -f"


def test_nothing_in_common_is_zero() -> None:
    assert multi_bleu([["a", "b"]], [["c", "d"]]) == 0
    assert multi_bleu([[]], [["c"]]) == 0


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
