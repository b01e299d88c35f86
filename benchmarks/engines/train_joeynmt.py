"""Train Joey NMT's model, which also computes the loss, with Adam, in the order of its trainer."""

import logging
from importlib.metadata import version
from types import SimpleNamespace

import serve
import torch
from joeynmt.model import build_model
from joeynmt.vocabulary import Vocabulary

logging.disable(logging.INFO)
job = serve.job()
torch.set_num_threads(job["threads"])
torch.manual_seed(1)
sizes = job["model"]
specials = {"pad": serve.PAD, "bos": serve.BOS, "eos": serve.EOS, "unk": 3}
vocabulary = Vocabulary.__new__(Vocabulary)  # skip the constructor, which takes minutes: it searches a list per word
vocabulary.specials, vocabulary.lang_tags = [f"<{name}>" for name in specials], []
vocabulary._itos = [*vocabulary.specials, *(f"w{i}" for i in range(4, sizes["vocab_size"]))]
vocabulary._stoi = {word: index for index, word in enumerate(vocabulary._itos)}
vocabulary.sep_index = None
for name, index in specials.items():
    setattr(vocabulary, f"{name}_index", index)
stack = {
    "type": "transformer", "num_layers": sizes["num_layers"], "num_heads": sizes["num_heads"],
    "hidden_size": sizes["d_model"], "ff_size": sizes["d_ff"], "dropout": job["dropout"], "layer_norm": "post",
    "embeddings": {"embedding_dim": sizes["d_model"], "scale": True, "dropout": job["dropout"]},
}  # fmt: skip
model = build_model(
    {"encoder": dict(stack), "decoder": dict(stack), "tied_embeddings": True, "tied_softmax": True},
    vocabulary,
    vocabulary,
)
model.loss_function = ("crossentropy", job["smoothing"])
model.train()
optimizer = torch.optim.Adam(model.parameters(), 1e-4, betas=(0.9, 0.98), eps=1e-9)


def prepared(batch: list[serve.Pair]) -> SimpleNamespace:
    source, before, output = (torch.tensor(rows) for rows in serve.sides(batch))
    return SimpleNamespace(
        src=source,
        trg_input=before,
        trg=output,
        src_mask=(source != serve.PAD).unsqueeze(1),
        trg_mask=(before != serve.PAD).unsqueeze(1),
        src_length=torch.tensor([len(pair[0]) + 1 for pair in batch]),
    )


batches = [prepared(batch) for batch in job["batches"]]
tokens = [serve.target_tokens(batch) for batch in job["batches"]]


def step(index: int) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=job["precision"] == "bf16"):
        loss, _, _, correct = model(return_type="loss", **vars(batches[index]))
    loss = loss / tokens[index]
    loss.backward()
    loss.item(), correct.item()  # Joey NMT's trainer reads these metrics at every step
    optimizer.step()
    optimizer.zero_grad()


serve.serve(job, step, model.parameters(), f"joeynmt {version('joeynmt')}, torch {torch.__version__}")
