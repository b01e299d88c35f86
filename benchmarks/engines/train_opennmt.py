"""Train OpenNMT-py's recurrent, convolutional or Transformer model with its loss, its statistics and Adam."""

import logging
from importlib.metadata import version

import pyonmttok
import serve
import torch
from onmt import opts
from onmt.constants import DefaultTokens
from onmt.model_builder import build_model
from onmt.utils.loss import LossCompute
from onmt.utils.parse import ArgumentParser

logging.disable(logging.INFO)
job = serve.job()
torch.set_num_threads(job["threads"])
torch.manual_seed(1)
sizes = job["model"]
width, layers = str(sizes["d_model"]), str(sizes["num_layers"])
TYPES = {"lstm": "rnn", "convolution": "cnn", "relative": "transformer"}
kind = TYPES[job["layer"]]
own = {
    # Without input feeding, OpenNMT-py computes whole targets at once, which is faster.
    "rnn": ["-rnn_type", "LSTM", "-input_feed", "0", "-global_attention", "dot"],
    "cnn": ["-cnn_kernel_width", "3"],
    "transformer": [
        *("-heads", str(sizes["num_heads"]), "-transformer_ff", str(sizes["d_ff"])),
        *("-max_relative_positions", str(job["settings"].get("position_clip", 0)), "-add_qkvbias", "-add_ffnbias"),
    ],
}[kind]
parser = ArgumentParser()
opts.train_opts(parser)
chosen = parser.parse_args([
    *("-data", "{corpus: {path_src: none}}", "-src_vocab", "none", "-share_vocab", "-share_embeddings"),
    *("-share_decoder_embeddings", "-encoder_type", kind, "-decoder_type", kind, "-enc_layers", layers),
    *("-dec_layers", layers, "-word_vec_size", width, "-hidden_size", width, "-dropout", str(job["dropout"])),
    *("-attention_dropout", "0", "-label_smoothing", str(job["smoothing"]), "-param_init_glorot"),
    *own,
])  # fmt: skip
ArgumentParser.update_model_opts(chosen)
words = [DefaultTokens.PAD, DefaultTokens.BOS, DefaultTokens.EOS, DefaultTokens.UNK]
words += [f"w{i}" for i in range(4, sizes["vocab_size"])]
vocabulary = pyonmttok.build_vocab_from_tokens(words)  # equally frequent words keep their order
assert [vocabulary[word] for word in words[:3]] == [serve.PAD, serve.BOS, serve.EOS], "other ids of the special pieces"
model = build_model(chosen, chosen, {"src": vocabulary, "tgt": vocabulary, "data_task": "seq2seq"}, None, -1)
model.train()
loss_of = LossCompute.from_opts(chosen, model, vocabulary)
optimizer = torch.optim.Adam(model.parameters(), 1e-4, betas=(0.9, 0.98), eps=1e-9)


def prepared(batch: list[serve.Pair]) -> dict[str, torch.Tensor]:
    source, before, output = serve.sides(batch)
    target = [[row[0], *out] for row, out in zip(before, output, strict=True)]
    return {
        "src": torch.tensor(source).unsqueeze(-1),
        "tgt": torch.tensor(target).unsqueeze(-1),
        "srclen": torch.tensor([len(pair[0]) + 1 for pair in batch]),
    }


batches = [prepared(batch) for batch in job["batches"]]
tokens = [serve.target_tokens(batch) for batch in job["batches"]]


def step(index: int) -> None:
    batch = batches[index]
    with torch.autocast("cpu", torch.bfloat16, enabled=job["precision"] == "bf16"):
        output, attention = model(batch["src"], batch["tgt"], batch["srclen"])
        loss, _ = loss_of(batch, output, attention)
    (loss / tokens[index]).backward()
    optimizer.step()
    optimizer.zero_grad()


serve.serve(job, step, model.parameters(), f"OpenNMT-py {version('OpenNMT-py')}, torch {torch.__version__}")
