"""`relative-positions` (Shaw 2018) and `norms` (Nguyen & Salazar 2019) have the sizes of their papers."""

import functools

import pytest

from ablations.planning.resolve import resolve
from ablations.study.selectors import selection
from ablations.study.study import load_study
from experiments.tasks.translation import TASK
from model.cost import num_params
from model.settings import SIDES

PROFILES = ("paper", "small", "demo")


@functools.cache
def rows_of(name, **options):
    return {row.variation.key: row for row in resolve(load_study(name), selection(**options), TASK)}


def sizes(rows):
    return {key: num_params(row.config.model, row.config.data.vocab_size) for key, row in rows.items()}


@pytest.mark.parametrize("profile", PROFILES)
def test_a_vector_for_each_distance_up_to_k_in_keys_and_in_values(profile):
    """Section 3.2: 2k + 1 vectors of d_z, here one table a layer with self-attention; the rest of the rows is equal."""
    rows = rows_of("relative-positions", profile=profile)
    counts, model = sizes(rows), rows["k16"].config.model
    stack = sum(part.kind == "self_attention" for side in SIDES for layer in model.layers(side) for part in layer)
    for key, row in rows.items():
        k, kinds = row.config.model.position_clip, 1 if key in ("keys", "values") else 2
        vectors = 0 if key == "neither" else (2 * k + 1) * kinds
        assert counts[key] - counts["neither"] == stack * vectors * model.d_k, key
    assert {int(key[1:]) for key in rows if key[1:].isdigit()} == {
        row.config.model.position_clip for key, row in rows.items() if key[1:].isdigit()
    }


@pytest.mark.parametrize("profile", PROFILES)
def test_scale_norm_has_one_number_where_layer_norm_has_two_vectors(profile):
    """Section 2.3. Pre-norm has one more norm at the end of each stack (section 2.1), and FixNorm no weights."""
    rows = rows_of("norms", profile=profile)
    counts, model = sizes(rows), rows["post"].config.model
    width, norms = 2 * model.d_model, 5 * model.num_layers  # two in a layer of the encoder, three in the decoder's
    assert counts["post"] - counts["post-scale"] == norms * (width - 1)
    assert counts["pre"] - counts["post"] == 2 * width
    assert counts["pre"] - counts["pre-scale"] == (norms + 2) * (width - 1)
    for key in counts:
        if key.endswith("-fix"):
            assert counts[key] == counts[key.removesuffix("-fix")], key


@pytest.mark.parametrize("profile", PROFILES)
def test_rows_of_one_depth_differ_in_the_place_of_the_norm_alone(profile):
    rows = rows_of("norms", profile=profile)
    for depth in (4, 5, 6):
        post, pre = (rows[f"{place}-{depth}"].config for place in ("post", "pre"))
        assert post.model.num_layers == depth and post.training.warmup_steps == 1
        assert pre == post.model_copy(update={"model": post.model.model_copy(update={"norm": "pre"})})
