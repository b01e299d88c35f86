"""The versions of the numeric code of built-in tasks.

If an edit changes the numbers that the code computes, increment its version by hand. The program then marks earlier
results as stale. An edit that changes no number needs no new version. tests/unit/experiments/test_versions.py fails if
numbers have changed and the version has not.
"""

from collections.abc import Mapping

TRAINING = 2  # code on which the trained weights depend: data, network, loss, optimizer
DECODING = 1  # code of the search for outputs
SCORING = 1  # code of metrics and likelihoods

# part of an evaluation → name and version of its code
PARTS: Mapping[str, tuple[str, int]] = {
    "likelihood": ("scoring", SCORING),
    "decode": ("decoding", DECODING),
    "score": ("scoring", SCORING),
    "evaluate": ("scoring", SCORING),
}
