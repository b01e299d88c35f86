"""The record in a folder of `ablations export`."""

from pathlib import Path
from typing import TypeVar

from experiments.config import RunConfig
from experiments.errors import UserError
from experiments.store.sealed import read_json

FORMAT = "transformer-ablations model 1"
Config = TypeVar("Config", bound=RunConfig)
_OF_HUGGINGFACE = b'"model_type"'  # in every config.json of theirs


def exported_config(folder: Path, kind: type[Config], task: str) -> Config:
    """The configuration of an exported model of a task. Raises UserError."""
    path = folder / "config.json"
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UserError(f"{folder} is not an exported model: config.json cannot be read ({error.strerror}).") from None
    if _OF_HUGGINGFACE in text:
        raise UserError(
            f"{folder} is a model for Hugging Face's programs. For this program export it again, without "
            "--format huggingface."
        )
    found = read_json(path) or {}
    if found.get("format") != FORMAT:
        raise UserError(f"{folder} was exported by another version: its format is {found.get('format')!r}.")
    other = found["config"].get("task", task)
    if other != task:
        use = {"language_modelling": " Use `ablations sample`.", "translation": " Use `ablations translate`."}
        raise UserError(f"{folder} holds a model of the task {other}, not of {task}.{use.get(other, '')}")
    return kind.from_mapping(found["config"])
