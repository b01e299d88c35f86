"""EVALB's own sample, sentence by sentence. It is not part of this project: EVALB_SAMPLE names its folder."""

import os
from pathlib import Path

import pytest

from ablations.extras.parsing.evalb import Status, summarise
from ablations.extras.parsing.tests.evalb_files import score_files

FOLDER = Path(os.environ.get("EVALB_SAMPLE", ""))
pytestmark = pytest.mark.skipif(
    not os.environ.get("EVALB_SAMPLE"), reason="set EVALB_SAMPLE to a folder with EVALB's sample.gld, .tst and .rsl"
)


def test_the_sample_line_by_line() -> None:
    scores = score_files(FOLDER / "sample.gld", FOLDER / "sample.tst")
    lines = [line.split() for line in (FOLDER / "sample.rsl").read_text().splitlines()]
    theirs = [[*map(int, fields[1:3]), *map(int, fields[5:11])] for fields in lines if len(fields) == 12]
    assert len(theirs) == len(scores)
    for score, (length, status, matched, gold, parsed, crossing, words, tags) in zip(scores, theirs, strict=True):
        assert (score.length, score.status) == (length, status)
        if status == Status.VALID:  # of others the sample's EVALB, of 1997, counts words
            found = (score.matched, score.gold, score.parsed, score.crossing, score.words, score.correct_tags)
            assert found == (matched, gold, parsed, crossing, words, tags)
    assert round(summarise(scores)["recall"], 2) == 87.76
