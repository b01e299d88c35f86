"""Every row of the studies `modifications` and `how-much-attention` trains two steps and decodes."""

from pathlib import Path

import pytest

from ablations.planning.resolve import resolve
from ablations.study.selectors import selection
from ablations.study.study import load_study
from experiments.config.training import TrainingConfig
from experiments.device import Device
from experiments.device_spec import DeviceSpec
from experiments.evaluation.beam import SearchSettings
from experiments.evaluation.translate import translate
from experiments.tasks.translation import TASK
from tests import small_training
from tests.slow import OF_SEEDS, mostly_slow


def _rows() -> list[tuple[str, object]]:
    """Return the rows' networks at width 8. Rows with a setting that no earlier row has come first."""
    small = {"d_model": 8, "d_ff": 8, "d_k": 8, "d_v": 8}
    sets = [f"model.{name}={value}" for name, value in small.items()]
    found = {}
    for study in ("modifications", "how-much-attention"):
        rows = resolve(load_study(study), selection(profile="demo", sets=sets), TASK)
        found |= {f"{study}-{row.variation.key}": row.config.model for row in rows}
    new = ["factorised", "decoder-block-sharing", "SeLU", "Softplus", "switch"]
    first = [f"modifications-{key}" for key in new] + ["how-much-attention-cnn-relu"]
    return [(key, found[key]) for key in (*first, *(key for key in found if key not in first))]


@pytest.mark.parametrize(("key", "sizes"), mostly_slow(_rows(), 6, OF_SEEDS))
def test_a_row_trains_two_steps_and_decodes(key: str, sizes: object, tmp_path: Path) -> None:
    settings = TrainingConfig(train_steps=2, warmup_steps=2, learning_rate=0.01)
    model, facts, _ = small_training.run(tmp_path, settings=settings, sizes=sizes)
    assert facts is not None and all(parameter.isfinite().all() for parameter in model.parameters()), key
    found = translate(model.eval(), [[4, 5, 3], [6, 3]], SearchSettings(2, 0.6, 4), Device.open(DeviceSpec(), "fp32"))
    assert all(len(best[0].ids) <= length + 4 + 1 for best, length in zip(found, (3, 2), strict=True))
