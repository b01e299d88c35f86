"""Tests of claims: their grammar, their meaning in published numbers, and the test of them in runs."""

import math
from typing import Any

import numpy as np
import pytest

from ablations.study.study import Study
from reports.render.terminal import render
from reports.results import dunnett
from reports.results.table import CheckedClaim
from reports.spec.sentences import Comparison, parse
from tests.unit.reports.conftest import Bench


@pytest.mark.parametrize(
    ("sentence", "means"),
    [
        ("A is better than B in bleu", Comparison(("A",), ("B",), "bleu", strict=True)),
        ("A, B and C-1 are worse than D in f1", Comparison(("A", "B", "C-1"), ("D",), "f1", strict=True, worse=True)),
        ("A is worse than B in bleu by at least 0.5.", Comparison(("A",), ("B",), "bleu", 0.5, worse=True)),
        ("A is better than B in bleu by more than 2", Comparison(("A",), ("B",), "bleu", 2.0, True)),
        ("A is better than B in x by a factor of at least 4", Comparison(("A",), ("B",), "x", 4.0, factor=True)),
        ("A is within 0.2 of B in ppl", Comparison(("A",), ("B",), "ppl", 0.2, within=True)),
        ("A is at least as good as B in bleu", Comparison(("A",), ("B",), "bleu")),
        ("A is at least as good as B in bleu to within 0.2", Comparison(("A",), ("B",), "bleu", -0.2)),
        ("A is the best of A, B in bleu", Comparison(("A",), ("A", "B"), "bleu")),
        ("A,  B, C are monotone in bleu", Comparison(("A", "B", "C"), (), "bleu", strict=True)),
    ],
)  # fmt: skip
def test_the_forms_of_a_sentence(sentence: str, means: Comparison) -> None:
    assert parse(sentence) == means


@pytest.mark.parametrize(
    "sentence",
    [
        "A is great", "A is better than B", "A is worse than B in bleu by 0.5", "A is within of B in bleu",
        "A is monotone in bleu", "A is within 1 of B in bleu by at least 1", "A is better than B in bleu to within 1",
        "A, B are monotone in bleu by at least 1", "A is better than B in bleu by a factor of more than 0", "",
    ],
)  # fmt: skip
def test_what_has_none_of_the_forms_is_refused(sentence: str) -> None:
    with pytest.raises(ValueError, match=r"forms of a claim|more than 0"):
        parse(sentence)


def test_pairs() -> None:
    assert list(parse("A, B, C are monotone in x").pairs("ABC", "")) == [("B", "A"), ("C", "B")]
    assert list(parse("A is the best of A, B, C in x").pairs("A", "ABC")) == [("A", "B"), ("A", "C")]
    assert list(parse("A, B are worse than C in x").pairs("AB", "C")) == [("C", "A"), ("C", "B")]


def claimed(bench: Bench, *sentences: str, tests: str = "auto", **study: Any) -> list[CheckedClaim]:
    bench.study |= {"claim": [{"check": sentence} for sentence in sentences], **study}
    bench.paper_keys = ("perplexity", "bleu", "params", "flops")
    return list(bench.table(tests).claims)


def published(bench: Bench) -> Bench:
    bench.study["cited"] = [
        {"label": "GNMT", "group": "g", "values": {"bleu": 24.6, "flops": 1.4e20}},
        {"key": "conv", "label": "ConvS2S", "group": "g", "values": {"bleu": 25.2, "flops": 1.0e20}},
        {"label": "elsewhere", "group": "other", "values": {"bleu": 99.0}},
    ]
    bench.row("base", group="g", paper={"bleu": 27.3, "perplexity": 5.0, "flops": 3e18})
    bench.row("big", {"model.d_k": 8}, group="g", paper={"bleu": 28.4, "perplexity": 4.0, "flops": 2e19})
    return bench.row("conv", {"model.d_k": 16}, group="h", results=[None])


@pytest.mark.parametrize(
    ("sentence", "state", "words"),
    [
        ("big is better than base in bleu by at least 1.1", "holds", "28.4 (big) against 27.3 (base): better by 1.1"),
        ("big is better than base in bleu by more than 1.1", "does not hold", "better by 1.1"),
        (
            "base is worse than big in bleu by at least 1.2",
            "does not hold",
            "27.3 (base) against 28.4 (big): worse by 1.1",
        ),
        ("big is better than cited in bleu by more than 3", "holds", "against 25.2 (ConvS2S): better by 3.2 (of 2"),
        ("big is better than conv in bleu by more than 3.2", "does not hold", "against 25.2 (conv): better by 3.2"),
        ("base is the best of g in bleu", "does not hold", "27.3 (base) against 28.4 (big): worse by 1.1"),
        ("big is within 1.1 of base in bleu", "holds", "better by 1.1"),
        ("base is within 1 of big in bleu", "does not hold", "worse by 1.1"),
        ("conv, base, big are monotone in bleu", "holds", "(of 2 comparisons)"),
        ("big, base are monotone in bleu", "does not hold", "27.3 (base) against 28.4 (big): worse by 1.1"),
        ("base is at least as good as big in bleu to within 1.1", "holds", "worse by 1.1"),
        ("big is better than base in perplexity by at least 0.2", "holds", "better by 0.223 in ln"),  # ln(5/4)
        ("big is better than base in perplexity by a factor of at least 1.25", "holds", "by a factor of 1.25"),
        ("base is better than cited in flops by a factor of more than 33", "holds", "3.0e18 (base) against 1.0e20"),
        ("big is better than base in flops", "does not hold", "2.0e19 (big) against 3.0e18 (base): worse by 1.7e19"),
    ],
)
def test_a_sentence_in_the_published_numbers(bench: Bench, sentence: str, state: str, words: str) -> None:
    (claim,) = claimed(published(bench), sentence)
    assert claim.paper is not None and claim.paper.state == state and words in claim.paper.words


def test_what_cannot_be_checked_says_why(bench: Bench) -> None:
    published(bench).row("conv-2", {"model.d_k": 32}, results=[(5.0, 20.0)], inputs={"text": "another"})
    cited, missing, other, unpublished, hours = claimed(
        bench,
        "base is better than cited in bleu",
        "base is better than conv in bleu",
        "base is better than conv-2 in bleu",
        "base is better than conv-2 in perplexity",
        "base is better than big in hours",
    )
    assert cited.here.state == missing.here.state == other.here.state == hours.here.state == "cannot be checked"
    assert cited.here.words == missing.here.words == "there is no result of conv"  # GNMT is not run here
    assert other.here.words == "base and conv-2 were measured over different tokens or sentences"
    assert unpublished.paper is None
    assert hours.here.words == "there is no result of base, big"


SEEDS = {
    "base": [(5.0, 25.0), (5.1, 25.2), (4.9, 24.8)],
    "near": [(5.0, 25.1), (5.1, 25.3), (4.95, 24.9)],
    "worse": [(6.0, 22.0), (6.1, 22.1), (5.9, 21.9)],
    "worst": [(8.0, 12.0), (8.1, 12.3), (7.9, 11.8)],
}


def seeded(bench: Bench) -> Bench:
    for d_k, (key, results) in enumerate(SEEDS.items()):
        bench.row(key, {"model.d_k": 8 * d_k} if d_k else {}, results=list(results))
    return bench


def half_interval(control: list[float], rows: list[list[float]], place: int) -> float:
    """Return half the width of the wider of two intervals, of Dunnett's test and of T3."""
    families = dunnett.family(control, rows), dunnett.t3(control, rows[place], len(rows))
    return max(of.critical() * of.error(len(rows[place])) for of in families if of is not None)


def test_worse_than_base_holds_for_the_rows_that_the_table_marks(bench: Bench) -> None:
    claimed(seeded(bench), *(f"{key} is worse than base in bleu" for key in ("near", "worse", "worst")))
    table = bench.table()
    rows = {row.key: row for row in table.rows}
    for claim, key in zip(table.claims, ("near", "worse", "worst"), strict=True):
        test = rows[key].measures["bleu"].test
        assert test is not None and (claim.here.state == "holds") == test.marked
        assert f"95 % interval {-test.high:.3g} to {-test.low:.3g}".replace("-", "−") in claim.here.words
    assert [claim.here.state for claim in table.claims] == ["cannot be shown with 3 seeds", "holds", "holds"]


def test_a_claim_does_not_hold_as_a_whole_if_a_row_is_not_run(bench: Bench) -> None:
    bench.study["cited"] = [{"key": "gnmt", "label": "GNMT", "values": {"bleu": 20.0}}]
    whole, part, fails = claimed(
        seeded(bench),
        "base is better than worse, worst in bleu",
        "base is better than worse, worst, gnmt in bleu",
        "worse is better than base, gnmt in bleu",
    )
    assert (whole.here.state, part.here.state, fails.here.state) == ("holds", "cannot be checked", "does not hold")
    assert part.here.words == (
        f"1 of 3 comparisons need rows that the study does not run; in the other 2 the claim holds: {whole.here.words}"
    )


def test_bounds_are_those_of_the_interval(bench: Bench) -> None:
    test = next(row for row in seeded(bench).table().rows if row.key == "worse").measures["bleu"].test
    assert test is not None
    low, high = -test.high, -test.low
    states = [
        claim.here.state
        for claim in claimed(
            bench,
            f"worse is worse than base in bleu by at least {low - 0.01:.3f}",
            f"worse is worse than base in bleu by at least {low + 0.01:.3f}",
            f"worse is worse than base in bleu by at least {high + 0.01:.3f}",
            f"worse is within {high + 0.01:.3f} of base in bleu",
            f"worse is within {low - 0.01:.3f} of base in bleu",
            f"worse is at least as good as base in bleu to within {high + 0.01:.3f}",
            "worse is at least as good as base in bleu",
            "worse is better than base in bleu",
        )
    ]
    shown = "cannot be shown with 3 seeds"
    assert states == [
        "holds",
        shown,
        "does not hold",
        "holds",
        "does not hold",
        "holds",
        "does not hold",
        "does not hold",
    ]


def test_rows_are_compared_with_each_other_as_with_a_base(bench: Bench) -> None:
    """The table's test with the sentence's own control, over all rows of the table; the wider interval is printed."""
    worst, chain = claimed(
        seeded(bench), "worse is better than worst in bleu", "worst, worse, near are monotone in bleu"
    )
    assert worst.here.state == chain.here.state == "holds"
    control, *others = ([bleu for _, bleu in SEEDS[key]] for key in ("worst", "base", "near", "worse"))
    half, gap = half_interval(control, others, 2), float(np.mean(others[2]) - np.mean(control))
    assert f"95 % interval {gap - half:.3g} to {gap + half:.3g}" in worst.here.words


def test_a_factor_is_tested_in_logarithms(bench: Bench) -> None:
    (claim,) = claimed(seeded(bench), "base is better than worst in bleu by a factor of more than 1.9")
    logs = {key: [math.log(bleu) for _, bleu in values] for key, values in SEEDS.items()}
    half = half_interval(logs["base"], [logs[key] for key in ("near", "worse", "worst")], 2)
    gap = float(np.mean(logs["base"]) - np.mean(logs["worst"]))
    low, high = (math.exp(gap + sign * half) for sign in (-1, 1))
    assert claim.here.state == "holds" and f"95 % interval {low:.3g} to {high:.3g}" in claim.here.words


def test_one_seed_shows_nothing_and_says_so(bench: Bench) -> None:
    bench.row("base").row("worse", {"model.d_k": 8}, results=[(9.0, 5.0)])
    (claim,) = claimed(bench, "worse is worse than base in bleu")
    assert claim.here.state == "cannot be shown with 1 seed"
    assert claim.here.words == "5.0 (worse) against 25.0 (base): worse by 20; no significance test"


def test_claims_are_printed_with_their_verdicts(bench: Bench) -> None:
    seeded(bench).study["profile"] = {"exact": {"scale": {"width": 0.5}}}
    claimed(bench, "worse is worse than base in bleu")
    bench.study["claim"][0]["text"] = "it hurts (section 1)"
    table = bench.table()
    (line,) = [line for line in render(table).splitlines() if "worse is worse than base in bleu" in line]
    assert line.split()[-1] == "holds"
    about, note = [note for note, *_ in table.footnotes if note.startswith("Claim")]
    assert "3 seeds per row (profile exact, not the sizes of the paper, corpus builtin (0c0de0c0))" in about
    assert note.startswith(
        "Claim: “it hurts (section 1)”: worse is worse than base in bleu. "
        "Here it holds: 22.0 (worse) against 25.0 (base): worse by 3 "
    )


@pytest.mark.parametrize(
    ("claim", "says"),
    [
        ({"check": "bigg is better than base in bleu"}, 'no row, group or cited result "bigg". Nearest names: big'),
        ({"check": "big is better than GNMT in bleu"}, 'no row, group or cited result "GNMT"'),
        ({"check": "big is better than big in bleu"}, "it compares nothing"),
        ({"check": "big beats base"}, "none of the forms of a claim: A is better than B in bleu"),
        ({"text": "big is good"}, "check"),
    ],
)  # fmt: skip
def test_a_claim_about_what_is_not_there_is_refused(bench: Bench, claim: dict[str, str], says: str) -> None:
    published(bench)
    with pytest.raises(ValueError, match="claim") as refused:
        Study.model_validate({**bench.study, "claim": [claim]})
    assert says in str(refused.value)


def test_cited_results_have_keys_of_their_own(bench: Bench) -> None:
    published(bench).study["cited"][0]["key"] = "conv"
    with pytest.raises(ValueError, match=r"two \[\[cited\]\] have the key conv"):
        Study.model_validate(bench.study)


@pytest.mark.nightly
@pytest.mark.parametrize("noisy", ["base", "r1", ""])
def test_at_most_five_percent_of_tables_have_a_false_verdict(noisy: str) -> None:
    """400 tables of seven rows with three seeds; base, one row or none varies six times as much as the others.

    Every row is worse than base by exactly 1: "by at least 1" is true, and "by more than 1" is not.
    """
    chance, tables, false = np.random.default_rng(6), 400, 0
    keys = ["base", *(f"r{number}" for number in range(1, 8))]
    for _ in range(tables):
        bench = Bench()
        for place, key in enumerate(keys):
            values = 25 - (place > 0) + chance.normal(size=3) * (0.6 if key == noisy else 0.1)
            bench.row(key, {"model.d_k": 8 * place} if place else {}, results=[(5.0, value) for value in values])
        true = [f"{key} is worse than base in bleu by at least 1" for key in keys[1:]]
        untrue = [f"{key} is worse than base in bleu by more than 1" for key in keys[1:]]
        found = [claim.here.state for claim in claimed(bench, *true, *untrue)]
        false += "does not hold" in found[:7] or "holds" in found[7:]
    assert false / tables <= 0.05 + 2 * (0.05 * 0.95 / tables) ** 0.5
