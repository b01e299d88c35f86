"""`training.compile = "auto"`: whether compiling the layers pays back for a table. Imports no torch."""

from collections.abc import Mapping
from typing import Literal

from experiments.config.network_change import changes_of
from experiments.config.run_config import RunConfig

COMPILE = "training.compile"

# One step of GPT-2 124M, 491,520 tokens of 854 MFLOP each, took 1.332 s, with compiled layers 1.116 s: an NVIDIA H100,
# torch 2.11, bf16, 2026-11-26 (`python -m benchmarks.gpu`, part language-model, rows "base even" and "base compiled").
SAVED_S_PER_FLOP = (1.33217 - 1.11634) / (491_520 * 854_438_400)
# Seconds until the layers of a row are compiled. Not measured on a GPU yet: several times what a processor takes.
COMPILE_S = 120.0
PAYS_FROM = COMPILE_S / SAVED_S_PER_FLOP  # floating-point operations of a training


def for_table(costs: Mapping[str, float], configs: Mapping[str, RunConfig]) -> tuple[Literal["cuda", False], str]:
    """Return the value of `auto` for the rows of a table, and the reason in a sentence.

    All rows get the same: a table must not compare compiled rows with others. On processors `auto` never compiles.

    costs: predicted operations of one training of each row; 0: unknown.
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
