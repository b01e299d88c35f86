"""A language model in the forms that Hugging Face's programs read: the same logits and the same pieces.

Read twice: by a plain reading of the files (tests/plain_huggingface.py), and by transformers where an interpreter has
it (ABLATIONS_TRAINERS_PYTHON names another one).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ablations.cli.main import verb
from experiments.config import DeviceSpec
from experiments.data.encoding.tokenizer import Tokenizer, train_tokenizer
from experiments.errors import UserError
from experiments.evaluation.export import export as export_own
from experiments.evaluation.huggingface import export
from experiments.evaluation.translator import Translator
from experiments.tasks.language_modelling import LanguageConfig
from experiments.tasks.sampler import Choice, Sampler
from experiments.training.checkpoint import add_file, model_tensors, save_weights
from model.network import build_model
from tests.plain_huggingface import Pieces, Reader

PYTHON = os.environ.get("ABLATIONS_TRAINERS_PYTHON", sys.executable)
SIZES = {"num_layers": 2, "d_model": 16, "d_ff": 64, "num_heads": 4, "d_k": 4, "d_v": 4, "max_length": 40}
LLAMA = {"norm": "pre", "norm_kind": "rms", "positions": "rotary", "activation": "swiglu", "bias": False}
ROWS = {
    "base": ("GPT-1", {}),
    "gpt2": ("GPT-2", {"norm": "pre", "positions": "learned", "activation": "gelu", "embedding_scale": 1.0}),
    "gpt2-scaled": ("GPT-2", {"norm": "pre", "positions": "learned", "activation": "relu2", "d_ff": 24}),
    "gpt2-without": ("GPT-2", {"norm": "pre", "positions": "none", "bias": False, "tying": "none", "fixnorm": True}),
    "shared": ("GPT-2", {"norm": "pre", "layer_groups": 1, "positions": "sinusoidal", "activation": "swish"}),
    "neox": ("GPT-NeoX", {"norm": "pre", "positions": "rotary", "rotary_share": 0.5, "activation": "gelu"}),
    "neox-bare": ("GPT-NeoX", {"norm": "pre", "positions": "rotary", "bias": False, "tying": "none"}),
    "llama": ("Llama", LLAMA),
    "llama-wide": ("Llama", {**LLAMA, "bias": True, "kv_heads": 2, "d_k": 6, "d_v": 6, "activation": "geglu"}),
    "llama-bilinear": ("Llama", {**LLAMA, "activation": "bilinear", "embedding_scale": 1.0}),
    "qwen": ("Qwen3", {**LLAMA, "qk_norm": True, "kv_heads": 1, "activation": "reglu"}),
}
TEXT = [
    "The old dog sleeps in the garden, and the man goes.",
    "Straße, Ärger",
    "  two spaces",
    "aaaa aaa ababab",
    "dog",
]
ODD = ["The old dog\nsleeps. Grüße 😀 \t«日本»", "", "aaaaabaaaa  aaab", "x\n\n y\n"]


def run(units: str = "byte", **model: object) -> LanguageConfig:
    return LanguageConfig.model_validate({
        "model": {**SIZES, **model}, "data": {"units": units, "vocab_size": 290, "window": 32}, "seed": 3,
    })  # fmt: skip


def trained(config: LanguageConfig, folder: Path) -> Path:
    """An attempt with drawn weights, none of which is at its first value."""
    torch.manual_seed(0)
    folder.mkdir(parents=True)
    train_tokenizer(TEXT * 20, config.data, folder / "final.model", "the text")
    content = (folder / "final.model").read_bytes()
    model = build_model(config.model, Tokenizer(content).vocab_size)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.2
    save_weights(folder / "final", model_tensors(model), {})
    add_file(folder / "final", "tokenizer.model", content)
    return folder


def ours(config: LanguageConfig, attempt: Path, ids: list[int]) -> torch.Tensor:
    sampler = Sampler.of_run(config, attempt, DeviceSpec())
    pieces = torch.tensor([ids])
    with torch.no_grad():
        memory = sampler.model.encode(torch.zeros(1, 0, dtype=torch.int64))
        return sampler.model.logits(sampler.model.decode(pieces, memory))[0]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Each row's folder, with a text's ids and our logits."""
    root = tmp_path_factory.mktemp("exported")
    for name, (_, model) in ROWS.items():
        config = run(**model)
        attempt = trained(config, root / f"{name}-attempt")
        ids = [2, *(4 + byte for byte in "The dog sleeps. Grüße".encode())]
        title = export(config, attempt, root / name, run_id="0" * 16, choice="last", facts={"commit": "abc"})
        (root / f"{name}.json").write_text(json.dumps({
            "folder": str(root / name), "title": title, "ids": ids, "logits": ours(config, attempt, ids).tolist(),
        }))  # fmt: skip
    return root


@pytest.mark.parametrize("name", ROWS)
def test_a_plain_reading_of_the_files_gives_the_same_logits(name, exported):
    known = json.loads((exported / f"{name}.json").read_text())
    assert known["title"] == ROWS[name][0]
    found, expected = Reader(exported / name).logits(known["ids"]), torch.tensor(known["logits"])
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    names = {path.name for path in (exported / name).iterdir()}
    assert names == {
        "README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip
    assert json.loads((exported / name / "config.json").read_text())["ablations"]["seed"] == 3


def has(libraries: str) -> bool:
    return subprocess.run([PYTHON, "-c", f"import {libraries}"], capture_output=True).returncode == 0


THEIRS = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
for path in sys.argv[1:]:
    known = json.load(open(path))
    model, about = AutoModelForCausalLM.from_pretrained(known["folder"], output_loading_info=True)
    assert not (about["missing_keys"] or about["unexpected_keys"] or about["mismatched_keys"]), about
    tokenizer = AutoTokenizer.from_pretrained(known["folder"])
    if "ids" in known:
        with torch.no_grad():
            found = model(torch.tensor([known["ids"]])).logits[0]
        torch.testing.assert_close(found, torch.tensor(known["logits"]), rtol=1e-4, atol=1e-4)
        assert type(model).__name__ == model.config.architectures[0]
        drawn = model.generate(torch.tensor([known["ids"]]), max_new_tokens=5, do_sample=True)
        assert not set(drawn[0, len(known["ids"]):].tolist()) & {0, 1, 3}
    for text, ids in known.get("texts", []):
        assert tokenizer(text)["input_ids"] == [2, *ids], (known["folder"], text, tokenizer(text)["input_ids"], ids)
        assert tokenizer.decode([2, *ids], skip_special_tokens=True) == text
"""


def read_by_transformers(*paths: Path) -> None:
    if not has("transformers"):
        pytest.skip(f"{PYTHON} has no transformers")
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    done = subprocess.run([PYTHON, "-c", THEIRS, *map(str, paths)], capture_output=True, text=True, env=offline)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.process
def test_transformers_give_the_same_logits(exported):
    read_by_transformers(*(exported / f"{name}.json" for name in ROWS))


@pytest.mark.parametrize("units", ["byte", "bpe", "unigram", "char"])
@pytest.mark.process
def test_text_becomes_the_same_pieces(units, tmp_path):
    config = run(units, norm="pre")
    attempt = trained(config, tmp_path / "attempt")
    export(config, attempt, tmp_path / "model", run_id="0" * 16, choice="last", facts={})
    tokenizer, theirs = Sampler.of_run(config, attempt, DeviceSpec()).tokenizer, Pieces(tmp_path / "model")
    texts = [(text, tokenizer.encode(text)) for text in [*TEXT, *ODD, *TEXT[0].split()]]
    for text, ids in texts:
        assert theirs.encode(text) == ids, text
    (tmp_path / "known.json").write_text(json.dumps({"folder": str(tmp_path / "model"), "texts": texts}))
    read_by_transformers(tmp_path / "known.json")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"norm": "sandwich"}, "model.norm = sandwich (it has pre)"),
        ({"norm": "pre", "activation": "softplus"}, "model.activation = softplus (it has relu, gelu"),
        ({"norm": "pre", "positions": "alibi"}, "model.positions = alibi (it has sinusoidal, learned, none)"),
        ({"norm": "pre", "window": 8}, "model.window = 8 (it has none)"),
        ({"norm": "pre", "d_v": 8}, "model.d_v = 8 (it has d_k = 4)"),
        ({"norm": "pre", "attention_gate": True}, "model.attention_gate = True (it has false)"),
        ({"norm": "pre", "decoder": "self_attention, 2 * feed_forward"}, "model.decoder = self_attention, 2 * feed"),
        ({"norm": "pre", "decoder": "N * (self_attention(num_heads=1), feed_forward)"}, "model.decoder = N * (self"),
        ({"norm": "none"}, "model.norm = none"),
        ({**LLAMA, "rotary_share": 0.5}, "The nearest is Llama; it has not: model.rotary_share = 0.5 (it has 1)."),
        ({**LLAMA, "residual_scale": "rezero"}, "model.residual_scale = rezero"),
    ],
)  # fmt: skip
def test_what_no_architecture_has_is_named(model, message, tmp_path):
    with pytest.raises(UserError) as refused:
        export(run(**model), tmp_path / "none", tmp_path / "model", run_id="0" * 16, choice="last", facts={})
    assert message in str(refused.value) and "Leave out --format huggingface" in str(refused.value)
    assert not (tmp_path / "model").exists()


def test_the_own_folder_continues_text_and_is_told_from_the_others(tmp_path, exported):
    config = run(norm="sandwich")
    attempt = trained(config, tmp_path / "attempt")
    export_own(config, attempt, tmp_path / "model", run_id="0" * 16, choice="last", facts={})
    choice = Choice(temperature=0)
    expected = Sampler.of_run(config, attempt, DeviceSpec()).sample("The", 20, choice)
    assert Sampler.load(tmp_path / "model").sample("The", 20, choice) == expected
    assert "Sampler.load" in (tmp_path / "model" / "README.md").read_text()
    with pytest.raises(UserError, match="language_modelling, not of translation"):
        Translator.load(tmp_path / "model")
    with pytest.raises(UserError, match="for Hugging Face"):
        Sampler.load(exported / "llama")


def test_the_command_refuses_another_format(tmp_path):
    with pytest.raises(UserError, match="own or huggingface"):
        verb("export").main(["glu", str(tmp_path / "x"), "--format", "onnx"], standalone_mode=False)
