"""Train torch.nn.Transformer in a plain loop, with sinusoids, a tied softmax, cross_entropy and Adam."""

import math

import serve
import torch
import torch.nn.functional as F
from torch import nn

job = serve.job()
torch.set_num_threads(job["threads"])
torch.manual_seed(1)
sizes = job["model"]
D, V = sizes["d_model"], sizes["vocab_size"]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, D, padding_idx=serve.PAD)
        self.dropout = nn.Dropout(job["dropout"])
        layers = sizes["num_layers"]
        self.transformer = nn.Transformer(
            D, sizes["num_heads"], layers, layers, sizes["d_ff"], job["dropout"], batch_first=True
        )
        position, rate = torch.arange(256.0)[:, None], torch.exp(torch.arange(0, D, 2) * (-math.log(10000) / D))
        table = torch.stack(((position * rate).sin(), (position * rate).cos()), -1).flatten(1)
        self.register_buffer("positions", table, persistent=False)

    def embed(self, pieces: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.embedding(pieces) * D**0.5 + self.positions[: pieces.shape[1]])

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        padding = source == serve.PAD
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        hidden = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return F.linear(hidden, self.embedding.weight)


model = Model()
nn.init.normal_(model.embedding.weight, std=D**-0.5)
optimizer = torch.optim.Adam(model.parameters(), 1e-4, betas=(0.9, 0.98), eps=1e-9)
batches = [[torch.tensor(rows) for rows in serve.sides(batch)] for batch in job["batches"]]


def step(index: int) -> None:
    source, target, output = batches[index]
    with torch.autocast("cpu", torch.bfloat16, enabled=job["precision"] == "bf16"):
        logits = model(source, target)
    loss = F.cross_entropy(
        logits.float().flatten(0, 1), output.flatten(), ignore_index=serve.PAD, label_smoothing=job["smoothing"]
    )
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


serve.serve(job, step, model.parameters(), f"torch {torch.__version__}")
