"""Write a decoder alone as a folder that Hugging Face's transformers load by themselves.

config.json, generation_config.json    the architecture, with the run under "ablations"
model.safetensors                      weights, fp32
tokenizer.json, tokenizer_config.json  the pieces
README.md                              how to use it
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch

from experiments.data.encoding.encoded import model_names
from experiments.data.encoding.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from experiments.errors import UserError, explain_os_errors
from experiments.evaluation.trained.export import loaded, millions
from experiments.evaluation.trained.huggingface.layouts import config_of, layout_of
from experiments.evaluation.trained.huggingface.tokenizer import tokenizer_json
from experiments.evaluation.trained.huggingface.weights import tensors_of, tied
from experiments.evaluation.trained.trained import model_sizes
from experiments.store.durable import whole_folder
from experiments.store.sealed import write_json
from model.cost import num_params
from model.network import EncoderDecoder

_README = """# {title}

A language model of {params} million parameters, {steps:,} steps of training, as {layout} for
Hugging Face's transformers.

    from transformers import AutoModelForCausalLM, AutoTokenizer
    model = AutoModelForCausalLM.from_pretrained("{title}")
    tokenizer = AutoTokenizer.from_pretrained("{title}")
    start = tokenizer("Text", return_tensors="pt")
    print(tokenizer.decode(model.generate(**start, max_new_tokens=50, do_sample=True)[0], skip_special_tokens=True))

It reads at most {positions} pieces, and was trained on windows of {window}. A text begins with the end of the document
before it, {end}, which the tokenizer puts there. Run {run_id}, checkpoint {choice}, seed {seed}, commit {commit}.
"""


def export(config: Any, attempt: Path, folder: Path, *, run_id: str, choice: str, facts: Mapping[str, Any]) -> str:
    """Write the model of an attempt to `folder`, which must be new or empty. The name of its architecture.

    config: a language model's. Raises UserError, also for a network that none of the architectures equals.
    """
    if config.needs_encoder:
        raise UserError(
            "--format huggingface writes language models, and this run has an encoder: leave the option out."
        )
    window = config.data.window
    positions = config.model.longest or max(window, config.model.max_length)
    layout = layout_of(config.model, positions)
    model = loaded(config, attempt, folder, choice)
    assert isinstance(model, EncoderDecoder)
    name = model_names(config.model.shared_vocabulary)[0]
    pieces = tokenizer_json((attempt / "final" / name).read_bytes(), config.data.units)
    described = config_of(layout, config.model, model.vocab_size, positions, tied=tied(model))
    run = {"run_id": run_id, "checkpoint": choice, "seed": config.seed, **facts}
    special = {"bos_token_id": EOS_ID, "eos_token_id": EOS_ID, "pad_token_id": PAD_ID}
    end = pieces["added_tokens"][EOS_ID]["content"]
    text = _README.format(
        title=folder.name,
        params=millions(num_params(config.model, *model_sizes(config, attempt))),
        steps=config.training.train_steps,
        layout=f"{layout.title} ({layout.architecture})",
        positions=positions,
        window=window,
        end=end,
        run_id=run_id,
        choice=choice,
        seed=config.seed,
        commit=facts.get("commit") or "unknown",
    )
    with explain_os_errors(f"write {folder}"), whole_folder(folder, replace=True) as aside:
        tensors = tensors_of(layout, model, positions)
        safetensors.torch.save_file(tensors, aside / "model.safetensors", {"format": "pt"})
        write_json(aside / "config.json", {**described, "ablations": run}, sealed=False)
        # no text has these three
        never = {"suppress_tokens": [PAD_ID, BOS_ID, UNK_ID]}
        write_json(aside / "generation_config.json", special | never, sealed=False)
        # not sorted, as tokenizers write it
        (aside / "tokenizer.json").write_text(json.dumps(pieces, ensure_ascii=False), encoding="utf-8")
        names = {"bos_token": end, "eos_token": end}
        names |= {f"{n}_token": pieces["added_tokens"][i]["content"] for n, i in (("pad", PAD_ID), ("unk", UNK_ID))}
        write_json(
            aside / "tokenizer_config.json",
            {
                "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": positions,
                "clean_up_tokenization_spaces": False, **names,
            },
            sealed=False,
        )  # fmt: skip
        (aside / "README.md").write_text(text, encoding="utf-8")
    return layout.title
