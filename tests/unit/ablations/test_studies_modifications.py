"""The study `modifications` is Table 1 of Narang et al. 2021 and has the paper's numbers of parameters."""

import pytest

from ablations.study.study import load_study
from experiments.tasks.translation import TASK
from model.cost import active_params, num_params
from model.settings import SIDES

PROFILES = ["paper", "small", "demo"]
# Millions as counted, where they round to another number than the paper prints (24 layers: 224, untied: 273, …).
ROUND_OTHERWISE = {
    "24-layers": 223.0, "block-sharing": 65.9, "block-sharing-factorised-shared": 20.8, "factorised-shared": 202.6,
    "untied": 272.3, "switch": 1100.8,
}  # fmt: skip


@pytest.fixture(scope="module")
def study():
    return load_study("modifications")


def counts(rows):
    return {key: num_params(row.config.model, row.config.data.vocab_size) for key, row in rows.items()}


def test_parameters_are_the_printed_ones(study, rows_of):
    rows = rows_of(study, profile="paper")
    printed = {key: row.variation.paper["params"] for key, row in rows.items()}
    millions = {key: count / 1e6 for key, count in counts(rows).items()}
    assert {key: round(n, 1) for key, n in millions.items() if round(n) != printed[key]} == ROUND_OTHERWISE
    assert all(abs(n - printed[key]) < 1 for key, n in millions.items())
    (note,) = study.profiles["paper"].notes
    assert all(f"{n:,.1f} for {key}" in note for key, n in ROUND_OTHERWISE.items())


def test_every_row_has_the_four_published_numbers(study):
    assert len(study.variations) == 32
    assert {tuple(sorted(row.paper)) for row in study.variations} == {("bleu", "early_loss", "final_loss", "params")}
    assert all(row.paper["early_loss"] > row.paper["final_loss"] for row in study.variations)


@pytest.mark.parametrize("profile", PROFILES)
def test_activations_and_depths_keep_the_parameters(study, profile, rows_of):
    rows = rows_of(study, profile=profile)
    found = counts(rows)
    for key, row in rows.items():
        if row.variation.group in ("activations", "norm", "depth"):
            assert found[key] == pytest.approx(found["vanilla"], rel=0.006), key
    heads = {key: row.config.model.num_layers * row.config.model.num_heads for key, row in rows.items()}
    assert all(heads[key] == heads["vanilla"] for key in rows if key.endswith("-layers"))


@pytest.mark.parametrize("profile", PROFILES)
def test_what_is_shared_is_counted_once(study, profile, rows_of):
    """Each row with sharing has the parameters of the whole network minus those of the copies."""
    found = counts(rows_of(study, profile=profile))
    embedding = found["tied-inputs"] - found["vanilla"]
    assert found["tied-decoder"] == found["tied-inputs"] and found["untied"] == found["vanilla"] + 2 * embedding
    of_encoder = found["tied-inputs"] - found["encoder-block-sharing"]
    of_decoder = found["tied-inputs"] - found["decoder-block-sharing"]
    assert 0 < of_encoder < of_decoder
    assert found["block-sharing"] == found["tied-inputs"] - of_encoder - of_decoder
    saved = found["tied-inputs"] - found["factorised"]
    assert found["block-sharing-factorised"] == found["block-sharing"] - saved


@pytest.mark.parametrize("profile", PROFILES)
def test_a_token_pays_for_experts_as_for_one_network(study, profile, rows_of):
    rows = rows_of(study, profile=profile)
    vanilla = rows["vanilla"].config
    for key in ("mixture-of-experts", "switch"):
        config = rows[key].config
        kinds = [part.kind for side in SIDES for layer in config.model.layers(side)
                 for part in layer]  # fmt: skip
        networks = 2 * config.model.num_layers
        assert kinds.count("experts") + kinds.count("feed_forward") == networks
        assert kinds.count("experts") == {"paper": 6, "small": 4, "demo": 2}[profile]
        size = vanilla.data.vocab_size
        assert active_params(config.model, size) == pytest.approx(active_params(vanilla.model, size), rel=0.01), key


def test_the_demo_plans_on_the_generated_corpus_with_three_trainings_of_vanilla(study, plan_of):
    runs = plan_of(study).runs
    assert len({run.run_id for run in runs}) == len(runs) == 34
    assert [run.seed for run in runs if run.row == "vanilla"] == [1, 2, 3]
    assert TASK.vocab_sizes(runs[0].config) == (500, 500)
