"""Train fairseq's LSTM with attention or its convolutional model with its smoothed loss, its statistics and Adam."""

from argparse import Namespace
from importlib.metadata import version
from types import SimpleNamespace

import serve
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.data import Dictionary
from fairseq.models import fconv, lstm

job = serve.job()
torch.set_num_threads(job["threads"])
torch.manual_seed(1)
sizes = job["model"]
width, layers = sizes["d_model"], sizes["num_layers"]
dictionary = Dictionary()  # <s> 0, <pad> 1, </s> 2, <unk> 3
for index in range(4, sizes["vocab_size"]):
    dictionary.add_symbol(f"w{index}")
PAD, EOS = dictionary.pad(), dictionary.eos()
task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
common = {
    "dropout": job["dropout"], "encoder_embed_dim": width, "decoder_embed_dim": width, "decoder_out_embed_dim": width,
    "max_source_positions": 256, "max_target_positions": 256, "criterion": "label_smoothed_cross_entropy",
}  # fmt: skip
if job["layer"] == "lstm":
    own = {"encoder_layers": layers, "decoder_layers": layers, "share_all_embeddings": True}
    model = lstm.LSTMModel.build_model(Namespace(**common, **own), task)
else:
    convolutions = f"[({width}, 3)] * {layers}"
    options = Namespace(
        **common, encoder_layers=convolutions, decoder_layers=convolutions, share_input_output_embed=True
    )
    fconv.base_architecture(options)
    model = fconv.FConvModel.build_model(options, task)
    model.decoder.embed_tokens = model.encoder.embed_tokens
    model.decoder.fc3.weight = model.encoder.embed_tokens.weight
model.train()
criterion = LabelSmoothedCrossEntropyCriterion(task, sentence_avg=False, label_smoothing=job["smoothing"])
optimizer = torch.optim.Adam(model.parameters(), 1e-4, betas=(0.9, 0.98), eps=1e-9)


def prepared(batch: list[serve.Pair]) -> dict[str, object]:
    """Prepare a batch like fairseq's collater: the longest source first, padding before sources and after targets."""
    batch = sorted(batch, key=lambda pair: -len(pair[0]))
    _, before, output = serve.sides(batch, PAD, EOS, EOS)
    longest = len(batch[0][0]) + 1
    source = [[*[PAD] * (longest - len(row) - 1), *row, EOS] for row, _ in batch]
    return {
        "net_input": {
            "src_tokens": torch.tensor(source),
            "src_lengths": torch.tensor([len(row) + 1 for row, _ in batch]),
            "prev_output_tokens": torch.tensor(before),
        },
        "target": torch.tensor(output),
        "ntokens": serve.target_tokens(batch),
    }


batches = [prepared(batch) for batch in job["batches"]]


def step(index: int) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=job["precision"] == "bf16"):
        loss, size, _ = criterion(model, batches[index])
    (loss / size).backward()
    optimizer.step()
    optimizer.zero_grad()


serve.serve(job, step, model.parameters(), f"fairseq {version('fairseq-fixed')}, torch {torch.__version__}")
