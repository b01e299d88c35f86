"""Train MarianMTModel of Hugging Face transformers with the steps and the optimizer of its Trainer (fused AdamW)."""

import marian_sizes
import serve
import torch
import torch.nn.functional as F
import transformers
from transformers import MarianMTModel

job = serve.job()
torch.set_num_threads(job["threads"])
torch.manual_seed(1)
config = marian_sizes.config(
    job["model"],
    dropout=job["dropout"],
    attention_dropout=0.0,
    activation_dropout=0.0,
    pad_token_id=serve.PAD,
    eos_token_id=serve.EOS,
    decoder_start_token_id=serve.BOS,
    use_cache=False,
)
model = MarianMTModel(config).train()
optimizer = torch.optim.AdamW(model.parameters(), 1e-4, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0, fused=True)
batches = [[torch.tensor(rows) for rows in serve.sides(batch)] for batch in job["batches"]]


def step(index: int) -> None:
    source, target, output = batches[index]
    with torch.autocast("cpu", torch.bfloat16, enabled=job["precision"] == "bf16"):
        logits = model(input_ids=source, attention_mask=(source != serve.PAD).long(), decoder_input_ids=target).logits
    loss = F.cross_entropy(
        logits.float().flatten(0, 1), output.flatten(), ignore_index=serve.PAD, label_smoothing=job["smoothing"]
    )
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


serve.serve(job, step, model.parameters(), f"transformers {transformers.__version__}, torch {torch.__version__}")
