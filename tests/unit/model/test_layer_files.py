"""The files of options and cost do not import torch, and each names a computation that can be built."""

import runpy
import sys
from pathlib import Path

import pytest

import model.layers
from model.layers.contract import Sublayer
from model.layers.spec import kinds
from model.settings import ModelSettings

FOLDER = Path(model.layers.__file__).parent
FILES = sorted(FOLDER.rglob("*_spec.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_options_and_cost_need_no_torch(path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.setitem(sys.modules, name, None)  # an import of it raises ImportError
    assert runpy.run_path(str(path))


@pytest.mark.parametrize(("name", "kind"), kinds().items())
def test_every_kind_can_be_built_on_its_sides(name, kind):
    needed = {"width": 4} if name == "projection" else {}
    for side in kind.sides:
        options = kind(side=side, other_width=8, **needed)
        assert isinstance(options.build(ModelSettings(d_model=8, d_ff=12, num_heads=2, d_k=4, d_v=4)), Sublayer)
