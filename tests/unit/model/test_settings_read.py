"""A setting that is not in `settings_read` changes neither weights nor outputs."""

import pytest
import torch

from model.config import ModelConfig
from model.network import build_model
from tests.lines import SETTINGS, SIZES, random_config
from tests.slow import OF_SEEDS, mostly_slow

OTHERS = {
    **{name: values[0] for name, values in SETTINGS.items()},
    "d_ff": 9,
    "num_heads": 4,
    "d_k": 6,
    "num_layers": 3,
    "max_length": 4,  # the sentences are longer
}


def outputs(config: ModelConfig) -> torch.Tensor:
    torch.manual_seed(1)
    model = build_model(config, 20).eval()
    source, target = torch.randint(20, (2, 6)), torch.randint(20, (2, 5))
    return model.logits(model(source, None, target))


@pytest.mark.parametrize("seed", mostly_slow(range(40), 8, OF_SEEDS))
@torch.inference_mode()
def test_what_is_not_read_changes_nothing(seed: int) -> None:
    config = random_config(seed)
    for name in sorted(OTHERS.keys() - config.settings_read()):
        changed = ModelConfig(**{**SIZES, **config.model_dump(), name: OTHERS[name]})
        torch.testing.assert_close(outputs(changed), outputs(config), atol=0, rtol=0, msg=name)
