"""Find the text files of a corpus by their names; does not read them. Imports no torch."""

from collections.abc import Sequence
from pathlib import Path

from experiments.data.corpora.text.settings import TextData
from experiments.errors import UserError

PATTERNS = {"train": ("train*.txt",), "dev": ("dev*.txt", "val*.txt"), "test": ("test*.txt",)}
SHOWN = 24  # names listed in a message

Files = tuple[Path, ...]


def find(folder: Path, data: TextData) -> tuple[Files, Files, dict[str, Files]]:
    """The files of train, of dev, and of each test set by its name. Raises UserError for missing ones."""
    if not folder.is_dir():
        what = "is no file of text" if folder.exists() else "does not exist"
        raise UserError(
            f'The corpus {folder} {what}. data.corpus (--corpus) is "builtin", a folder with train*.txt and dev*.txt, '
            "or one file of text, which is split."
        )
    train, dev = (_files(folder, name, getattr(data, name)) for name in ("train", "dev"))
    tests: dict[str, Files] = {}
    for path in _matching(folder, "test", data.test or PATTERNS["test"]):
        first = tests.setdefault(_stem(path), (path,))[0]
        if first != path:
            both = f"{first.relative_to(folder)} and {path.relative_to(folder)}"
            raise UserError(f"data.test: {both} are both the set {_stem(path)}. Rename one of them.")
    if data.test and not tests:
        raise _missing(folder, "test", data.test)
    if clash := {"train", "dev"} & set(tests):
        raise UserError(f"data.test names a file {clash.pop()}, which is the name of another set. Rename it.")
    return train, dev, tests


def _files(folder: Path, name: str, given: Sequence[str]) -> Files:
    for patterns in [given] if given else [(pattern,) for pattern in PATTERNS[name]]:
        if found := _matching(folder, name, patterns):
            return found
    raise _missing(folder, name, given or PATTERNS[name])


def _matching(folder: Path, name: str, patterns: Sequence[str]) -> Files:
    """Files by name, or by name without .gz; each once, in the order of patterns and names. Raises UserError."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        for one in (pattern, f"{pattern}.gz"):
            try:
                found |= dict.fromkeys(path for path in sorted(folder.glob(one)) if path.is_file())
            except (ValueError, NotImplementedError) as error:
                raise UserError(
                    f"data.{name} = {pattern!r} is no pattern of names in {folder} ({error}). Write a name such as "
                    "news.txt, or a pattern such as news*.txt."
                ) from None
    for path in found:
        if (packed := path.with_name(f"{path.name}.gz")) in found:
            raise UserError(f"Both {path} and {packed} exist. Remove one of them.")
    return tuple(found)


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".txt")


def _missing(folder: Path, name: str, patterns: Sequence[str]) -> UserError:
    there = sorted(path.name for path in folder.iterdir() if path.is_file())
    listed = ", ".join(there[:SHOWN]) + (f" and {len(there) - SHOWN} more" if len(there) > SHOWN else "")
    return UserError(
        f"{folder} has no {' or '.join(patterns)} (plain or .gz). Files there: {listed or 'none'}. Name others with "
        f"data.{name}, for instance --set data.{name}=NAME, or give one file of text as the corpus: it is split."
    )
