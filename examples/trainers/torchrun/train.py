"""A script for torchrun: several processes train one model. Rank 0 saves checkpoints and prints the results.

If a checkpoint exists, the script resumes from it.
"""

import argparse
import json
from pathlib import Path

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, default=0.1)
parser.add_argument("--nesterov", action="store_true")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--folder", type=Path, default=Path())
given = parser.parse_args()
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(given.seed)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=given.rate, momentum=0.5, nesterov=given.nesterov)
wanted = torch.arange(8.0).unsqueeze(1) / 8
state, start = given.folder / "state.pt", 0
if state.exists():
    kept = torch.load(state, weights_only=True)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    start = kept["step"]
for step in range(start + 1, 41):
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(given.seed * 1_000_000 + step * 100 + rank))
    loss = torch.nn.functional.mse_loss(model(x), x @ wanted)
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= size
    optimizer.step()
    if rank == 0 and step % 10 == 0:
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, given.folder / "new"
        )
        (given.folder / "new").replace(state)
        print(json.dumps({"step": step, "loss": loss.item(), "checkpoint": True}))
if rank == 0:
    print(json.dumps({"error": (model.weight.detach().T - wanted).abs().mean().item()}))
dist.destroy_process_group()
