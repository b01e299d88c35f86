"""Decode with Joey NMT's beam search, which does not cache keys and values, and random weights."""

from types import SimpleNamespace

import measure
import torch
from joeynmt import __version__
from joeynmt.decoders import TransformerDecoder
from joeynmt.embeddings import Embeddings
from joeynmt.encoders import TransformerEncoder
from joeynmt.model import Model
from joeynmt.search import beam_search
from joeynmt.vocabulary import Vocabulary

job = measure.job()
torch.set_num_threads(job["threads"])
torch.manual_seed(1)
sizes = job["model"]
names = ("unk", "pad", "bos", "eos")
special = {f"{name}_id": number for number, name in enumerate(names)} | {f"{n}_token": f"<{n}>" for n in names}
vocabulary = Vocabulary([], SimpleNamespace(**special, sep_token=None, sep_id=None, lang_tags=[]))
stack = {
    "hidden_size": sizes["d_model"],
    "ff_size": sizes["d_ff"],
    "num_layers": sizes["num_layers"],
    "num_heads": sizes["num_heads"],
    "dropout": 0.0,
    "emb_dropout": 0.0,
    "layer_norm": "post",
    "activation": "relu",
}
embedding = Embeddings(sizes["d_model"], scale=True, vocab_size=sizes["vocab_size"], padding_idx=1)
model = Model(
    encoder=TransformerEncoder(**stack),
    decoder=TransformerDecoder(**stack, vocab_size=sizes["vocab_size"]),
    src_embed=embedding,
    trg_embed=embedding,
    src_vocab=vocabulary,
    trg_vocab=vocabulary,
)
torch.nn.init.normal_(embedding.lut.weight, std=sizes["d_model"] ** -0.5)
model.decoder.output_layer.weight = embedding.lut.weight
model.eval()
batches = []
for batch in measure.batches(job):
    longest = max(map(len, batch)) + 1
    ids = torch.tensor([[*sentence, 3, *[1] * (longest - len(sentence) - 1)] for sentence in batch])
    lengths = torch.tensor([len(sentence) + 1 for sentence in batch])
    batches.append((ids, lengths, measure.steps(batch, job)))


def decode() -> int:
    pieces = 0
    for ids, lengths, limit in batches:
        mask = (ids != 1).unsqueeze(1)
        with torch.inference_mode():
            memory, hidden, _, _ = model("encode", src=ids, src_length=lengths, src_mask=mask)
            found, _, _ = beam_search(
                model, job["beam"], memory, hidden, mask, limit, alpha=0.6, min_output_length=limit
            )
        assert found.shape == (len(ids), limit)
        pieces += limit * len(ids)
    return pieces


measure.report(job, decode, f"joeynmt {__version__}, torch {torch.__version__}")
