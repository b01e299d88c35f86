"""The record in a folder of `ablations export`."""

from pathlib import Path
from typing import TypeVar

from experiments.config import RunConfig
from experiments.errors import UserError
from experiments.store.sealed import read_json

FORMAT = "transformer-ablations model 1"
Config = TypeVar("Config", bound=RunConfig)
_OF_HUGGINGFACE = "model_type"  # in every config.json of theirs


def exported_config(folder: Path, kind: type[Config], task: str) -> Config:
    """The configuration of an exported model of a task. Raises UserError."""
    try:
        found = read_json(folder / "config.json")
    except OSError as error:
        raise UserError(f"{folder} is not an exported model: config.json cannot be read ({error}).") from None
    if found is None:
        raise UserError(f"{folder} is not an exported model: it has no config.json.")
    if _OF_HUGGINGFACE in found:
        raise UserError(
            f"{folder} is a model for Hugging Face's programs. For this program export it again, without "
            "--format huggingface."
        )
    if found.get("format") != FORMAT:
        raise UserError(f"{folder} was exported by another version: its format is {found.get('format')!r}.")
    other = found["config"].get("task", task)
    if other != task:
        use = {"language_modelling": " Use `ablations sample`.", "translation": " Use `ablations translate`."}
        raise UserError(f"{folder} holds a model of the task {other}, not of {task}.{use.get(other, '')}")
    return kind.from_mapping(found["config"])
