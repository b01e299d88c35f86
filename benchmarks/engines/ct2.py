"""Decode with CTranslate2 in fp32 and random weights."""

import tempfile

import ctranslate2
import measure
import numpy as np
from ctranslate2.specs import TransformerSpec

job = measure.job()
sizes = job["model"]
D, F, V, layers = (sizes[name] for name in ("d_model", "d_ff", "vocab_size", "num_layers"))
random = np.random.default_rng(1)


def fill(linear, outputs: int, inputs: int) -> None:
    limit = (6 / (inputs + outputs)) ** 0.5
    linear.weight = random.uniform(-limit, limit, (outputs, inputs)).astype(np.float32)
    linear.bias = np.zeros(outputs, np.float32)


def norm(layer_norm) -> None:
    layer_norm.gamma, layer_norm.beta = np.ones(D, np.float32), np.zeros(D, np.float32)


def feed_forward(ffn) -> None:
    fill(ffn.linear_0, F, D)
    fill(ffn.linear_1, D, F)
    norm(ffn.layer_norm)


def attention(part, shapes: list[tuple[int, int]]) -> None:
    for linear, shape in zip(part.linear, shapes, strict=True):
        fill(linear, *shape)
    norm(part.layer_norm)


spec = TransformerSpec.from_config((layers, layers), sizes["num_heads"], pre_norm=False)
embedding = random.normal(0, D**-0.5, (V, D)).astype(np.float32)
spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = spec.decoder.projection.weight = embedding
for layer in spec.encoder.layer:
    attention(layer.self_attention, [(3 * D, D), (D, D)])
    feed_forward(layer.ffn)
for layer in spec.decoder.layer:
    attention(layer.self_attention, [(3 * D, D), (D, D)])
    attention(layer.attention, [(D, D), (2 * D, D), (D, D)])
    feed_forward(layer.ffn)
words = ["<blank>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(4, V))]
spec.register_source_vocabulary(words)
spec.register_target_vocabulary(words)
spec.config.add_source_eos = True
sorted_batches = [[[words[i] for i in sentence] for sentence in batch] for batch in measure.batches(job)]
limits = [measure.steps(batch, job) for batch in measure.batches(job)]

with tempfile.TemporaryDirectory() as folder:
    spec.validate()
    spec.optimize(quantization=None)
    spec.save(folder)
    # The documentation of CTranslate2 recommends one worker per thread for a test set.
    workers = job["threads"] if job["sorted"] else 1
    translator = ctranslate2.Translator(
        folder,
        device="cpu",
        compute_type="float32",
        inter_threads=workers,
        intra_threads=job["threads"] // workers,
    )

    def decode() -> int:
        running = [
            translator.translate_batch(
                batch,
                beam_size=job["beam"],
                length_penalty=0.6,
                max_decoding_length=limit,
                min_decoding_length=limit,
                asynchronous=True,
            )
            for batch, limit in zip(sorted_batches, limits, strict=True)
        ]
        found = [one.result().hypotheses[0] for batch in running for one in batch]
        expected = [limit for batch, limit in zip(sorted_batches, limits, strict=True) for _ in batch]
        assert [len(words) for words in found] == expected
        return sum(expected)

    measure.report(job, decode, f"ctranslate2 {ctranslate2.__version__}")
