"""Export a trained model to a folder that can be used without the store. The folder contains these files:

config.json                     the run's configuration, its identity, and the version of its code
final/model.safetensors         the weights
final/meta.json                 the hashes of the weights and of the tokenizers
final/tokenizer.model           the tokenizer, or source.model and target.model if the vocabularies are not shared
README.md                       instructions for the use of the model
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from experiments.config.network_change import recorded_settings, with_changes
from experiments.config.run_config import RunConfig
from experiments.data.encoding.encoded import model_names
from experiments.device import Device
from experiments.device_spec import DeviceSpec
from experiments.errors import UserError, explain_os_errors
from experiments.evaluation.load_network import load_model, load_tokenizers, spacing
from experiments.store.checksummed import read_json, write_json
from experiments.training import checkpoint
from model.network import num_params


def readme(page: str, **values: object) -> str:
    """Return the text of a page for an exported model. page: the name of a template in readmes/."""
    return (Path(__file__).parent / "readmes" / f"{page}.md").read_text(encoding="utf-8").format(**values)


def export(
    config: RunConfig, attempt: Path, folder: Path, *, run_id: str, choice: str, facts: Mapping[str, Any], use: str
) -> None:
    """Write the model of an attempt to `folder`. Raises UserError if `folder` is not empty or a file is damaged.

    choice: the checkpoint to export, as in `load_model`.
    facts: further entries of config.json.
    use: instructions for the README. "{name}" is replaced by the name of the folder.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not empty. Name a new folder.")
    load_tokenizers(config, attempt)  # raise an error now if a tokenizer is damaged
    model = load_model(config, choice, spacing(config, choice), attempt, Device.open(DeviceSpec(), "fp32"))
    tokenizers = list(dict.fromkeys(model_names(config.model.shared_vocabulary)))
    with explain_os_errors(f"write {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint.save_weights(folder / "final", checkpoint.model_tensors(model), {"run_id": run_id})
        for name in tokenizers:
            checkpoint.add_file(folder / "final", name, (attempt / "final" / name).read_bytes())
        write_json(
            folder / "config.json",
            {
                "format": FORMAT,
                "run_id": run_id,
                "config": config.model_dump(mode="json"),
                "checkpoint": choice,
                **facts,
            },
        )
        text = readme(
            "export",
            title=folder.name,
            use=use.replace("{name}", folder.name),
            params=f"{num_params(model) / 1e6:.3g}",
            steps=config.training.train_steps,
            choice=choice,
            units="bytes of UTF-8" if config.data.units == "byte" else f"SentencePiece, {config.data.units}",
            tokenizers=", ".join(f"final/{name}" for name in tokenizers),
            run_id=run_id,
            seed=config.seed,
            commit=facts.get("commit") or "unknown",
        )
        (folder / "README.md").write_text(text, encoding="utf-8")


FORMAT = "transformer-ablations model 1"
Config = TypeVar("Config", bound=RunConfig)


def exported_config(folder: Path, kind: type[Config], task: str) -> Config:
    """Return the configuration of an exported model.

    Raises UserError if `folder` is not an exported model, or if its model belongs to another task.
    """
    path = folder / "config.json"
    exported = read_json(path)
    if exported is None:
        raise UserError(f"{folder} is not an exported model: it has no config.json.")
    if exported.get("format") != FORMAT:
        raise UserError(f"{folder} was exported by another version: its format is {exported.get('format')!r}.")
    other = exported["config"].get("task", task)
    if other != task:
        raise UserError(f"{folder} contains a model of the task {other}, not of {task}.")
    return recorded_settings(with_changes(kind), exported["config"], f"The exported model {folder}")
