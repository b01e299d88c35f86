"""Train GPT2LMHeadModel of Hugging Face transformers with the steps and the optimizer of its Trainer (fused AdamW)."""

import serve
import torch
import torch.nn.functional as F
import transformers
from transformers import GPT2Config, GPT2LMHeadModel

job = serve.job()
torch.set_num_threads(job["threads"])
torch.manual_seed(1)
sizes, window = job["model"], job["window"]
config = GPT2Config(
    vocab_size=sizes["vocab_size"], n_positions=window, n_embd=sizes["d_model"], n_layer=sizes["num_layers"],
    n_head=sizes["num_heads"], n_inner=sizes["d_ff"], resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
)  # fmt: skip
model = GPT2LMHeadModel(config).train()
optimizer = torch.optim.AdamW(model.parameters(), 6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
batches = [torch.tensor(batch) for batch in job["batches"]]


def step(index: int) -> None:
    rows = batches[index]
    with torch.autocast("cpu", torch.bfloat16, enabled=job["precision"] == "bf16"):
        logits = model(input_ids=rows[:, :-1]).logits
    loss = F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


version = f"transformers {transformers.__version__}, torch {torch.__version__}"
serve.serve_windows(job, step, model.parameters(), version)
