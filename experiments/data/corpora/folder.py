"""A folder of parallel files: find its languages and its train, dev and test files. Imports no torch.

    train.<lang>   dev.<lang> (or val, valid)   test*.<lang>          each plain or .gz, one sentence per line

`data.train`, `data.dev` and `data.test` give other names ("newstest2013" for newstest2013.en.gz and
newstest2013.de.gz). Several for train and dev are joined; each for test is its own test set.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.config import DataConfig
from experiments.data.corpora.files import FilePair
from experiments.errors import UserError

LANGUAGE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*")  # en, deu, pt-BR, zho_Hans
DEV_NAMES = ("dev", "val", "valid")
SHOWN = 24  # names listed in a message


@dataclass(frozen=True)
class Found:
    """The languages and files of a folder."""

    source: str
    target: str
    train: tuple[FilePair, ...]
    dev: tuple[FilePair, ...]
    tests: dict[str, tuple[FilePair, ...]]


def find(folder: Path, data: DataConfig) -> Found:
    """Find the files by their names; does not read them.

    Raises UserError for missing folders or files, and for languages that the names do not determine.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise UserError(
            f'The corpus folder {folder} {what}. data.corpus (--corpus) is "builtin" or a folder with train.<lang> '
            "and dev.<lang> for two languages."
        )
    sides = _languages(folder, data)
    dev_names = data.dev or (_dev_name(folder, sides),)
    test_names = data.test or _test_names(folder, sides)
    return Found(
        *sides,
        train=tuple(_pair(folder, name, sides, "data.train") for name in data.train or ("train",)),
        dev=tuple(_pair(folder, name, sides, "data.dev") for name in dev_names),
        tests={key: (_pair(folder, name, sides, "data.test"),) for key, name in named_sets(test_names).items()},
    )


def _languages(folder: Path, data: DataConfig) -> tuple[str, str]:
    name = (data.train or ("train",))[0]
    found = sorted(language for language in _sides(folder, name) if LANGUAGE.fullmatch(language))
    if data.source and data.target:
        if data.source == data.target:
            raise UserError(f'data.source and data.target are both "{data.source}". Choose two of: {", ".join(found)}.')
        return data.source, data.target
    if not found:
        raise _missing(folder, name, ("<lang>",), "data.train")
    if given := data.source or data.target:
        others = [language for language in found if language != given]
        if len(others) == 1:
            return (given, others[0]) if data.source else (others[0], given)
    elif len(found) == 2 and sum(_is_english(language) for language in found) == 1:
        first, second = found
        return (first, second) if _is_english(first) else (second, first)
    raise UserError(
        f"{folder} has {name}.<lang> for {_listed(found)}, so the names alone do not determine which language is "
        "translated into which. Set data.source and data.target, for instance "
        f"--set data.source={found[0]} --set data.target={found[1] if len(found) > 1 else '…'}."
    )


def _is_english(language: str) -> bool:
    return re.split("[-_]", language)[0].lower() in ("en", "eng")


def _sides(folder: Path, name: str) -> dict[str, Path]:
    """The files <name>.<suffix>[.gz] by suffix."""
    place = folder / name
    found: dict[str, Path] = {}
    for path in sorted(place.parent.glob("*")) if place.parent.is_dir() else []:
        stem, dot, language = path.name.removesuffix(".gz").rpartition(".")
        if not dot or stem != place.name or not path.is_file():
            continue
        if language in found:
            raise UserError(f"Both {found[language]} and {path} exist. Remove one of them.")
        found[language] = path
    return found


def _pair(folder: Path, name: str, sides: tuple[str, str], setting: str) -> FilePair:
    found = _sides(folder, name)
    if missing := tuple(language for language in sides if language not in found):
        raise _missing(folder, name, missing, setting)
    return FilePair(found[sides[0]], found[sides[1]])


def _missing(folder: Path, name: str, languages: Sequence[str], setting: str) -> UserError:
    there = sorted(path.name for path in folder.iterdir() if path.is_file())
    stems = sorted({there_name.removesuffix(".gz").rpartition(".")[0] for there_name in there} - {""})
    near = difflib.get_close_matches(name, stems, n=3)
    return UserError(
        f"{folder} has no {_listed([f'{name}.{language}' for language in languages])} (plain or .gz). "
        + (f"Near: {', '.join(near)}. " if near and name not in near else "")
        + f"Files there: {_listed(there) if there else 'none'}. "
        f"Name others with {setting} (without the language), or the languages with data.source and data.target."
    )


def _dev_name(folder: Path, sides: tuple[str, str]) -> str:
    there = [name for name in DEV_NAMES if any(side in _sides(folder, name) for side in sides)]
    if len(there) > 1:
        raise UserError(f"{folder} has {' and '.join(there)}. Set data.dev to the development set.")
    return there[0] if there else "dev"


def _test_names(folder: Path, sides: tuple[str, str]) -> list[str]:
    names = {}
    for path in sorted(folder.glob("test*")):
        stem, _, language = path.name.removesuffix(".gz").rpartition(".")
        if language in sides and path.is_file():
            names[stem] = True
    return list(names)


def named_sets(names: Sequence[str]) -> dict[str, str]:
    """Each test set's own name → what `data.test` calls it. Raises UserError for two sets of one name."""
    found: dict[str, str] = {}
    for name in names:
        key = Path(name).name
        if key in ("dev", "train"):
            raise UserError(f'data.test names "{name}", but "{key}" is the name of another set. Rename the files.')
        if found.setdefault(key, name) != name:
            raise UserError(f"data.test: {found[key]} and {name} are both the set {key}. Rename the files of one.")
    return found


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
