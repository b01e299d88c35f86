"""Decode with MarianMTModel.generate of Hugging Face transformers, with its cache and random weights."""

import marian_sizes
import measure
import torch
import transformers
from transformers import MarianMTModel

job = measure.job()
torch.set_num_threads(job["threads"])
torch.manual_seed(1)
config = marian_sizes.config(
    job["model"],
    pad_token_id=0,
    eos_token_id=2,
    decoder_start_token_id=1,
    forced_eos_token_id=None,
)
model = MarianMTModel(config).eval()
batches = []
for batch in measure.batches(job):
    longest = max(map(len, batch)) + 1
    ids = torch.tensor([[*sentence, 2, *[0] * (longest - len(sentence) - 1)] for sentence in batch])
    batches.append((ids, (torch.arange(longest) < torch.tensor([[len(s) + 1] for s in batch])).long()))
limits = [measure.steps(batch, job) for batch in measure.batches(job)]


def decode() -> int:
    pieces = 0
    for (ids, mask), limit in zip(batches, limits, strict=True):
        with torch.inference_mode():
            found = model.generate(
                input_ids=ids,
                attention_mask=mask,
                num_beams=job["beam"],
                do_sample=False,
                max_new_tokens=limit,
                min_new_tokens=limit,
                length_penalty=0.6,
            )
        assert found.shape[1] == limit + 1
        pieces += limit * len(ids)
    return pieces


measure.report(job, decode, f"transformers {transformers.__version__}, torch {torch.__version__}")
