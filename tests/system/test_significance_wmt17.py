"""Scores and p-values of 16 real systems of WMT17 equal the published ones.

The data is not part of the project. It is sacrebleu's test data: one folder with systems/, the reference and
expected-scores.tsv. The environment variable ABLATIONS_WMT17 names the folder.
"""

import csv
import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

from experiments.evaluation.scoring import bleu
from reports.results.resampling import bootstrap, randomise

FOLDER = Path(os.environ.get("ABLATIONS_WMT17", ""))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("ABLATIONS_WMT17" not in os.environ, reason="ABLATIONS_WMT17 names no folder"),
]
BASE = "newstest2017.LIUM-NMT.4900.en-de"


def lines(path):
    return gzip.decompress(path.read_bytes()).decode().split("\n")[:-1]


@pytest.fixture(scope="module")
def expected():
    with (FOLDER / "expected-scores.tsv").open(encoding="utf-8") as file:
        return {row["system"]: row for row in csv.DictReader(file, delimiter="\t")}


@pytest.fixture(scope="module")
def texts(expected):
    return {name: lines(FOLDER / "systems" / f"{name}.txt.gz") for name in expected}


@pytest.fixture(scope="module")
def reference():
    return lines(FOLDER / "newstest2017.ref.de.gz")


def counts(texts, reference, tokenize):
    metric = BLEU(tokenize=tokenize)
    return {name: np.array(metric._extract_corpus_statistics(text, [reference])) for name, text in texts.items()}


def test_scores_are_the_published_ones(texts, reference, expected):
    for name, found in counts(texts, reference, "13a").items():
        assert round(float(bleu(found.sum(axis=0))), 2) == float(expected[name]["bleu_mteval-v13a"])


def test_p_values_are_the_published_ones(texts, reference, expected):
    """Moses drew 2,000 other resamples and multeval 10,000 other swaps, so the values are equal up to chance."""
    found = counts(texts, reference, "none")
    others = [name for name in texts if name != BASE]
    rows = [found[name] for name in others]
    for name, swapped, drawn in zip(
        others, randomise(found[BASE], rows, bleu), bootstrap(found[BASE], rows, bleu, 2000), strict=True
    ):
        for p, published, draws in (
            (swapped.p, float(expected[name]["p_AR_multeval_BLEU_vs_LIUM"]), 10_000),
            (drawn.p, float(expected[name]["p_bootstrap_moses_vs_LIUM"]), 2000),
        ):
            assert p == pytest.approx(published, abs=1e-3 + 5 * (max(published, 1 / draws) / draws) ** 0.5), name


@pytest.mark.nightly
def test_p_values_are_sacrebleus(texts, reference):
    names = [BASE, *(name for name in texts if name != BASE)][:3]
    found = counts({name: texts[name] for name in names}, reference, "13a")
    rows = [found[name] for name in names[1:]]
    for kind, test in (("ar", randomise), ("bs", bootstrap)):
        _, oracle = PairedTest([(n, texts[n]) for n in names], {"BLEU": BLEU()}, [reference], test_type=kind)()
        assert [r.p for r in test(found[BASE], rows, bleu)] == [result.p_value for result in oracle["BLEU"][1:]]
