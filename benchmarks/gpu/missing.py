"""Find the packages and files that this machine lacks for benchmarks.gpu. Imports only the standard library."""

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.machine import cards

ESSENTIAL = ("torch", "numpy", "pydantic", "safetensors", "sentencepiece", "sacrebleu")
COMMAND = ("typer", "mlflow", "optuna", "pandas")  # further packages that `ablations run` needs
FILES = {
    "--nanogpt": "the path of nanoGPT's model.py (nanoGPT is left out)",
    "--corpus": "a folder such as multi30k's (table3 is left out)",
}
WHEELS = (
    "To bring packages to a machine without internet, run `pip download --dest wheels NAME …` elsewhere for its "
    "platform and Python, and here `pip install --no-index --find-links wheels NAME …`."
)


def absent(*names: str) -> list[str]:
    """Return the names of the modules that are not installed."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def no_card(device: str) -> str:
    """Return the reason why `device` cannot be used, or "" if it can be used."""
    if device != "cuda" or cards() or Path("/dev/nvidiactl").exists():
        return ""
    return (
        "Nothing was measured: nvidia-smi lists no GPU. Run this on a machine with one, or rehearse it on a processor "
        "with --device cpu --tiny."
    )


def paragraph(files: Mapping[str, Path | None]) -> str:
    """Return a paragraph about missing packages and files and the benchmarks that are left out for this reason.

    Returns "" if nothing is missing. files: option (--nanogpt, --corpus) → path, for the options that the part uses.
    """
    found = list(_missing(files))
    if not found:
        return ""
    said = f"Missing on this machine: {'; '.join(found)}."
    return f"{said} {WHEELS}" if absent(*ESSENTIAL, *COMMAND, "transformers", "pytest") else said


def _missing(files: Mapping[str, Path | None]) -> Iterator[str]:
    if lacking := absent(*ESSENTIAL):
        yield f"{', '.join(lacking)} (nothing can be measured without)"
    if lacking := absent(*COMMAND):
        yield f"{', '.join(lacking)} (command and table3 are left out)"
    if absent("pytest"):
        yield "pytest (tests is left out)"
    if absent("transformers"):
        yield "transformers (Hugging Face's Marian and generate are left out)"
    for option, path in files.items():
        if path is None or not path.exists():
            yield f"{path or option}, {FILES[option]}"
