"""The study `sixteen-heads` (Michel, Levy and Neubig 2019): one training, each head once, the paper's numbers."""

import re

import pytest

from ablations.planning.resolve import resolve
from ablations.study.selectors import selection
from ablations.study.study import load_study
from experiments.tasks.load import load_task

MODULES = {
    "e": "encoder.layers.{}.self_attention",
    "c": "decoder.layers.{}.cross_attention",
    "d": "decoder.layers.{}.self_attention",
}


@pytest.mark.parametrize("profile", ["paper", "small", "demo"])
def test_rows_differ_from_base_in_one_line_of_their_own_at_evaluation(profile):
    planned = resolve(load_study("sixteen-heads"), selection(profile=profile), load_task("translation"))
    rows = {row.variation.key: row.config for row in planned}
    base = rows.pop("base")
    assert (base.model.num_layers, base.model.num_heads) == (6, 16)
    for key, config in rows.items():
        of, layer, head = re.fullmatch(r"([ecd])(\d)-(?:h(\d+)|one)", key).groups()
        selector = f"head.{int(head) - 1}" if head else "head[1:]"
        line = f"{selector} of {MODULES[of].format(int(layer) - 1)} -> zero"
        assert list(config.evaluation.modules) == [line], key
        evaluation = config.evaluation.model_copy(update={"modules": base.evaluation.modules})
        assert config.model_copy(update={"evaluation": evaluation}) == base, key
