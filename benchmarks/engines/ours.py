"""Decode with this project's search. A test set is decoded by experiments.evaluation.translate, as in an evaluation."""

import measure
import torch

from experiments.data.encoding.tokenizer import EOS_ID
from experiments.device import Device
from experiments.device_spec import DeviceSpec
from experiments.evaluation.beam import SearchSettings, beam_search
from experiments.evaluation.likelihood import evaluating, pad_sources
from experiments.evaluation.translate import translate
from model.config import ModelConfig
from model.network import build_model

job = measure.job()
device = Device.open(DeviceSpec("cpu", job["threads"]), job["variant"])
torch.manual_seed(1)
sizes = dict(job["model"])
model = build_model(ModelConfig(**{k: v for k, v in sizes.items() if k != "vocab_size"}), sizes["vocab_size"]).eval()
with torch.no_grad():
    # The logit of EOS is then 0, far below the largest logit, so no output ends early.
    model.target_embedding.weight[EOS_ID] = 0
settings = SearchSettings(job["beam"], 0.6, job["extra"] - 1)


def decode_set() -> int:
    found = translate(model, job["sentences"], settings, device)
    assert all(not hypotheses[0].finished for hypotheses in found)
    return sum(len(hypotheses[0].ids) for hypotheses in found)


def decode_batches() -> int:
    pieces = 0
    for batch in measure.batches(job):
        steps = measure.steps(batch, job)
        with evaluating(model), device.autocast():
            found = beam_search(model, *pad_sources(batch, device), [steps] * len(batch), settings)
        assert all(len(hypotheses[0].ids) == steps for hypotheses in found)
        pieces += steps * len(batch)
    return pieces


measure.report(job, decode_set if job["sorted"] else decode_batches, f"torch {torch.__version__}")
