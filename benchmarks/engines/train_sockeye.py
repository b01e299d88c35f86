"""Train Sockeye 3's traced model with its loss and Adam, in the order of its trainer."""

import logging

import serve
import sockeye
import torch
from sockeye import constants as C
from sockeye.loss import CrossEntropyLoss
from sockeye.training import ModelWithLoss
from sockeye_model import build

logging.disable(logging.INFO)
job = serve.job()
torch.set_num_threads(job["threads"])
torch.manual_seed(1)
model = build(job["model"], inference_only=False, dropout=job["dropout"]).train()


def inputs(batch: list[serve.Pair]) -> tuple[torch.Tensor, ...]:
    source, target, output = serve.sides(batch, C.PAD_ID, C.BOS_ID, C.EOS_ID)
    lengths = [[len(pair[side]) + 1 for pair in batch] for side in (0, 1)]
    return (
        torch.tensor(source, dtype=torch.int32).unsqueeze(-1),
        torch.tensor([[length, 0] for length in lengths[0]], dtype=torch.int32),
        torch.tensor(target, dtype=torch.int32).unsqueeze(-1),
        torch.tensor(lengths[1], dtype=torch.int32),
        torch.tensor(output, dtype=torch.int32),
    )


batches = [inputs(batch) for batch in job["batches"]]
bf16 = job["precision"] == "bf16"
losses = [CrossEntropyLoss(label_smoothing=job["smoothing"])]
with torch.autocast("cpu", torch.bfloat16, enabled=bf16, cache_enabled=False):
    traced = torch.jit.trace(model, batches[0][:4], strict=False)
trained = ModelWithLoss(traced, losses)
optimizer = torch.optim.Adam(model.parameters(), 1e-4, betas=(0.9, 0.98), eps=1e-9)


def step(index: int) -> None:
    *arguments, labels = batches[index]
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16, cache_enabled=False):
        total, values, _ = trained(*arguments, {C.TARGET_LABEL_NAME: labels})
    total.backward()
    values[0].item()  # Sockeye's trainer reads this metric at every step
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


serve.serve(job, step, model.parameters(), f"sockeye {sockeye.__version__}, torch {torch.__version__}")
