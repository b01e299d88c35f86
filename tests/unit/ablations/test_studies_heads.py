"""The study `sixteen-heads` (Michel, Levy and Neubig 2019): one training, each head once, the paper's numbers."""

import re

import pytest

from ablations.planning.resolve import resolve
from ablations.study.selectors import selection
from ablations.study.study import load_study
from experiments.tasks.translation import TASK

# Table 1, changes of BLEU from 36.05 without one head of the encoder's layers 1 to 6; heads 1 to 16.
TABLE_1 = """
0.03 0.07 0.05 -0.06 0.03 -0.53 0.09 -0.33 0.06 0.03 0.11 0.04 0.01 -0.04 0.04 0.00
0.01 0.04 0.10 0.20 0.06 0.03 0.00 0.09 0.10 0.04 0.15 0.03 0.05 0.04 0.14 0.04
0.05 -0.01 0.08 0.09 0.11 0.02 0.03 0.03 0.00 0.13 0.09 0.09 -0.11 0.24 0.07 -0.04
-0.02 0.03 0.13 0.06 -0.05 0.13 0.14 0.05 0.02 0.14 0.05 0.06 0.03 -0.06 -0.10 -0.06
-0.31 -0.11 -0.04 0.12 0.10 0.02 0.09 0.08 0.04 0.21 -0.02 0.02 -0.03 -0.04 0.07 -0.02
0.06 0.07 -0.31 0.15 -0.19 0.15 0.11 0.05 0.01 -0.08 0.06 0.01 0.01 0.02 0.07 0.05
"""
# Table 2, with the best head of layers 1 to 6 alone: encoder, encoder-decoder, decoder.
TABLE_2 = {
    "e": [-1.31, -0.16, 0.12, -0.15, 0.02, -0.36],
    "c": [0.24, 0.06, 0.05, -0.24, -1.55, -13.56],
    "d": [-0.03, 0.12, 0.18, 0.17, -0.04, 0.24],
}
MODULES = {
    "e": "encoder.layers.{}.self_attention",
    "c": "decoder.layers.{}.cross_attention",
    "d": "decoder.layers.{}.self_attention",
}


def test_rows_and_published_numbers_are_the_papers():
    rows = {row.key: row for row in load_study("sixteen-heads").variations}
    changes = {key: round(row.paper["bleu"] - 36.05, 2) for key, row in rows.items()}
    heads = [f"e{layer}-h{head}" for layer in range(1, 7) for head in range(1, 17)]
    assert [changes.pop(key) for key in heads] == [float(change) for change in TABLE_1.split()]
    assert changes == {"base": 0.0} | {
        f"{of}{n}-one": c for of, cs in TABLE_2.items() for n, c in enumerate(cs, start=1)
    }


@pytest.mark.parametrize("profile", ["paper", "small", "demo"])
def test_rows_differ_from_base_in_one_line_of_their_own_at_evaluation(profile):
    rows = {r.variation.key: r.config for r in resolve(load_study("sixteen-heads"), selection(profile=profile), TASK)}
    base = rows.pop("base")
    assert (base.model.num_layers, base.model.num_heads) == (6, 16)
    for key, config in rows.items():
        of, layer, head = re.fullmatch(r"([ecd])(\d)-(?:h(\d+)|one)", key).groups()
        selector = f"head.{int(head) - 1}" if head else "head[1:]"
        line = f"{selector} of {MODULES[of].format(int(layer) - 1)} -> zero"
        assert list(config.evaluation.modules) == [line], key
        evaluation = config.evaluation.model_copy(update={"modules": base.evaluation.modules})
        assert config.model_copy(update={"evaluation": evaluation}) == base, key
