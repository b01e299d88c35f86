"""Tests of the study `attention`: comparisons, widths of one head, and windows on either side."""

import itertools

import pytest

from ablations.study.study import load_study
from experiments.errors import UserError

KINDS, WIDTHS, WINDOWS = ("scaled_dot", "dot", "additive", "bilinear"), (16, 64, 256), (4, 16, 64)


@pytest.mark.parametrize("profile", ["demo", "paper"])
def test_every_comparison_with_every_width_and_windows_on_either_side(profile, rows_of):
    models = {key: row.config.model for key, row in rows_of(load_study("attention"), profile=profile).items()}
    base = models["base"]
    full = [model for model in models.values() if (model.encoder, model.decoder) == (base.encoder, base.decoder)]
    compared = [(model.compatibility, model.d_k) for model in full]
    assert len(models) == 18 and sorted(compared) == sorted(itertools.product(KINDS, WIDTHS))
    assert all(model.num_heads == 1 and model.d_v == model.d_model for model in models.values())
    for key, model in models.items():
        kind, width = (base.compatibility, base.d_k) if "-dk" not in key else key.rsplit("-dk")
        assert (model.compatibility, model.d_k) == (kind.replace("-", "_"), int(width)), key
    windows = [
        tuple(f"window={r})" in getattr(models[f"{side}-window{r}"], other) for other in ("encoder", "decoder"))
        for side in ("encoder", "decoder")
        for r in WINDOWS
    ]
    assert windows == [(True, False)] * 3 + [(False, True)] * 3
    assert all("cross_attention(" not in model.decoder for model in models.values())


def test_a_column_that_no_training_measures_is_refused(rows_of):
    study = load_study("attention")
    study = study.model_copy(update={"columns": {**study.columns, "start.entropy_encodr": "entropy"}})
    with pytest.raises(UserError, match=r"\[columns\].*start.entropy_encodr.*start.entropy_encoder"):
        rows_of(study)
