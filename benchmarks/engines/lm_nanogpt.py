"""Train nanoGPT's network in nanoGPT's loop. Both are rewritten here from their description.

One matrix computes q, k and v. The network uses torch's fused attention, the loop uses fused AdamW.
"""

import serve
import torch
import torch.nn.functional as F
from torch import nn

job = serve.job()
torch.set_num_threads(job["threads"])
torch.manual_seed(1)
sizes, window = job["model"], job["window"]
D, H, V = sizes["d_model"], sizes["num_heads"], sizes["vocab_size"]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.output = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.wide, self.narrow = nn.Linear(D, sizes["d_ff"]), nn.Linear(sizes["d_ff"], D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        q, k, v = (
            part.view(rows, length, H, D // H).transpose(1, 2) for part in self.qkv(self.norm_1(x)).split(D, dim=2)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(attended.transpose(1, 2).reshape(rows, length, D))
        return x + self.narrow(F.gelu(self.wide(self.norm_2(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pieces, self.positions = nn.Embedding(V, D), nn.Embedding(window, D)
        self.blocks = nn.ModuleList(Block() for _ in range(sizes["num_layers"]))
        self.norm = nn.LayerNorm(D)

    def forward(self, read: torch.Tensor) -> torch.Tensor:
        x = self.pieces(read) + self.positions(torch.arange(read.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.pieces.weight)


model = Model()
nn.init.normal_(model.pieces.weight, std=0.02)
optimizer = torch.optim.AdamW(model.parameters(), 6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
batches = [torch.tensor(batch) for batch in job["batches"]]


def step(index: int) -> None:
    rows = batches[index]
    with torch.autocast("cpu", torch.bfloat16, enabled=job["precision"] == "bf16"):
        logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


serve.serve_windows(job, step, model.parameters(), f"torch {torch.__version__}")
