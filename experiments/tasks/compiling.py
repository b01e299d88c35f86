"""Decide for `training.compile = "auto"` whether compiled layers save time for a table.

This module does not import torch.
"""

from collections.abc import Mapping
from typing import Literal

from experiments.config.network_change import changes_of
from experiments.config.run_config import RunConfig

COMPILE = "training.compile"

# One step of GPT-2 124M, with 491,520 tokens of 854 MFLOP each, took 1.332 s without and 1.116 s with compiled layers.
# This was measured on an NVIDIA H100 with torch 2.11 and bf16 on 2026-11-26 (`python -m benchmarks.gpu`, part
# language-model, rows "base even" and "base compiled").
SAVED_S_PER_FLOP = (1.33217 - 1.11634) / (491_520 * 854_438_400)
# Seconds that it takes to compile the layers of a row. This is an estimate (several times the time that was measured on
# a processor), and not a measurement on a GPU.
COMPILE_S = 120.0
PAYS_FROM = COMPILE_S / SAVED_S_PER_FLOP  # compiling saves time in trainings with at least this number of operations


def for_table(costs: Mapping[str, float], configs: Mapping[str, RunConfig]) -> tuple[Literal["cuda", False], str]:
    """Return the value that replaces "auto" in all rows of a table, and a sentence with the reason.

    All rows get the same value, because a table must not compare compiled rows with rows that are not compiled. The
    value is "cuda" (compile on GPUs only) or False.

    costs: row → predicted floating-point operations of one training; 0 if unknown.
    """
    for row, config in configs.items():
        if kinds := config.model.not_compiled():
            return False, f"{COMPILE} = auto: no row is compiled, because torch cannot compile {kinds[0]} of {row}."
        if changes := changes_of(config):
            why = f"{row} changes the network by {' and '.join(changes)}"
            return False, f"{COMPILE} = auto: no row is compiled, because {why}."
        if config.training.gleu_samples:
            return False, f"{COMPILE} = auto: no row is compiled, because {row} has training.gleu_samples."
    mean = sum(costs.values()) / max(1, len(costs))
    reason = f"a training has {mean:.1e} FLOP on average, but compiling saves time from {PAYS_FROM:.1e} FLOP on (H100)"
    if mean < PAYS_FROM:
        return False, f"{COMPILE} = auto: no row is compiled: {reason}."
    return "cuda", f"{COMPILE} = auto: every row is compiled on a GPU, and none on a processor: {reason}."
