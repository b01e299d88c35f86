"""Train eole's encoder-decoder Transformer with its loss, its statistics and Adam, in the order of its trainer."""

import logging
from importlib.metadata import version
from types import SimpleNamespace

import serve
import torch
from eole.config.models import TransformerModelConfig
from eole.models.model import EncoderDecoderModel
from eole.utils.loss import LossCompute

logging.disable(logging.INFO)
job = serve.job()
torch.set_num_threads(job["threads"])
torch.manual_seed(1)
sizes = job["model"]
specials = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
words = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(4, sizes["vocab_size"]))]
ids = {word: index for index, word in enumerate(words)}
vocabularies = {"src": ids, "tgt": ids, "specials": specials}
width = sizes["d_model"]
config = TransformerModelConfig(
    layers=sizes["num_layers"],
    hidden_size=width,
    heads=sizes["num_heads"],
    transformer_ff=sizes["d_ff"],
    word_vec_size=width,
    embeddings={"word_vec_size": width, "position_encoding_type": "SinusoidalInterleaved"},
    add_qkvbias=True,
    add_ffnbias=True,
    share_embeddings=True,
    share_decoder_embeddings=True,
    generator_bias=False,
)
running = SimpleNamespace(dropout=[job["dropout"]], attention_dropout=[0.0], self_attn_backend="pytorch")
model = EncoderDecoderModel.build_blocks(config, vocabularies, running_config=running)
model.share_decoder_embeddings = True
model.build_generator(config, running, vocabularies)
for parameter in model.parameters():
    if parameter.dim() > 1:
        torch.nn.init.normal_(parameter, std=width**-0.5)
model.train()
criterion = torch.nn.CrossEntropyLoss(ignore_index=serve.PAD, reduction="sum", label_smoothing=job["smoothing"])
loss_of = LossCompute(criterion, model.generator, vocabs=vocabularies)
loss_of.log_attention_entropy = False
optimizer = torch.optim.Adam(model.parameters(), 1e-4, betas=(0.9, 0.98), eps=1e-9)


def prepared(batch: list[serve.Pair]) -> dict[str, object]:
    source, before, output = serve.sides(batch)
    target = [[row[0], *out] for row, out in zip(before, output, strict=True)]
    lengths = torch.tensor([len(pair[0]) + 1 for pair in batch])
    return {
        "src": torch.tensor(source),
        "tgt": torch.tensor(target),
        "srclen": lengths,
        "cid": ["corpus"] * len(batch),
        "cid_line_number": list(range(len(batch))),
    }


batches = [prepared(batch) for batch in job["batches"]]
tokens = [serve.target_tokens(batch) for batch in job["batches"]]


def step(index: int) -> None:
    batch = batches[index]
    with torch.autocast("cpu", torch.bfloat16, enabled=job["precision"] == "bf16"):
        output = model(batch["src"], batch["tgt"], batch["srclen"])
        loss, _, _ = loss_of(batch, output.dec_out, output.attns)
    (loss / tokens[index]).backward()
    optimizer.step()
    optimizer.zero_grad()


serve.serve(job, step, model.parameters(), f"eole {version('eole')}, torch {torch.__version__}")
