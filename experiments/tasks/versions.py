"""The versions of the numeric parts of this program's own tasks.

Increment a version by hand when the numbers of its part change: finished results then count as made by other code and
are marked. A change that leaves all numbers as they are needs no new version. tests/unit/experiments/test_versions.py
fails if numbers have changed without one.
"""

from collections.abc import Mapping

TRAINING = 1  # data, network, loss, optimizer: whatever the weights depend on
DECODING = 1  # the search for outputs from given weights
SCORING = 1  # metrics of outputs, and likelihoods from given weights

# The version that a part of an evaluation has.
PARTS: Mapping[str, tuple[str, int]] = {
    "likelihood": ("scoring", SCORING),
    "decode": ("decoding", DECODING),
    "score": ("scoring", SCORING),
    "evaluate": ("scoring", SCORING),
}
