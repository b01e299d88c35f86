"""Tests of the search for the demo's settings: its objective, its study file, and its behaviour when repeated."""

from pathlib import Path

import pytest

from ablations.study.study import load_study
from benchmarks import search_demo
from benchmarks.search_demo import CHOICES, CONTROLS, TINY, best, candidates, measured, study_text


def row(key: str, ppl: float, bleu: float, paper: tuple[float, float] | None) -> dict[str, object]:
    published = {"perplexity": paper[0], "bleu": paper[1]} if paper else {"perplexity": None, "bleu": None}
    return {"row": key, "ppl": ppl, "bleu": bleu, "paper": published}


def test_the_agreement_of_a_table() -> None:
    rows = [
        row("base", 2.0, 60.0, (4.92, 25.8)),
        row("A", 2.1, 61.0, (5.0, 24.0)),  # 1.8 BLEU worse in the paper, better here
        row("B", 2.2, 55.0, (5.1, 25.5)),
        row("C", 1.9, 58.0, (5.2, 25.7)),
        row("zeroed-encoder", 3.0, 48.5, None),
    ]
    found = measured({str(each["row"]): each for each in rows})
    assert found["wrong_signs"] == ["A"] and found["zeroed_encoder"] == 11.5
    assert found["tau_perplexity"] == pytest.approx(-1 / 3, abs=1e-3)  # of three pairs A B agrees alone
    assert found["tau_bleu"] == pytest.approx(-1 / 3, abs=1e-3)  # B C agrees alone


def test_a_candidate_is_table3_with_another_demo(tmp_path: Path) -> None:
    known = load_study("table3")
    for choices in (candidates(CHOICES)[0], *candidates(TINY)):
        place = tmp_path / "table3.toml"
        place.write_text(study_text(choices))
        study = load_study(str(place))
        assert study.base == known.base
        assert [each.key for each in study.variations] == [*(each.key for each in known.variations), *CONTROLS]
        assert study.profiles["demo"].set["data.builtin_pairs"] == choices["data.builtin_pairs"]
        assert study.profiles["demo"].set["evaluation.sets"] == ["dev"]


def test_a_finished_candidate_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[str] = []

    def tried(choices: object, folder: Path, devices: str, rows: str) -> dict[str, object]:
        tries.append(folder.name)
        if len(tries) == 2:
            raise KeyboardInterrupt
        return {"tau_perplexity": 0.1 * len(tries), "tau_bleu": 0.5, "wrong_signs": ["A"] * (len(tries) - 1)}

    monkeypatch.setattr(search_demo, "tried", tried)
    monkeypatch.setattr("sys.argv", ["search_demo", str(tmp_path), "--tiny"])
    with pytest.raises(KeyboardInterrupt):
        search_demo.main()
    assert search_demo.main() == 0
    assert len(tries) == 3 and tries[1] == tries[2] != tries[0]
    lines = search_demo._results(tmp_path / "results.jsonl")
    assert [line["candidate"] for line in best(lines)] == [tries[0], tries[2]], "fewer wrong signs come first"
