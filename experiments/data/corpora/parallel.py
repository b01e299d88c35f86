"""The parallel corpus: sentence pairs in two languages, from files or generated. Imports no torch."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from experiments.config.data import DataConfig
from experiments.data.corpora.builtin import generate, recipe_digest
from experiments.data.corpora.corpus import DEV_NAMES, SHOWN, Corpus, Files, files_in, named_sets, refuse_no_folder
from experiments.data.corpora.files import LONGEST_LINE, Fingerprints, read_lines
from experiments.errors import UserError
from experiments.identity import digest
from experiments.messages import number, some_names


class FilePair(NamedTuple):
    """A source file and a target file. Line n of the target file is the translation of line n of the source file."""

    source: Path
    target: Path


@dataclass(frozen=True)
class ParallelCorpus(Corpus):
    """A corpus of sentence pairs in two languages. `train` and `dev` may consist of several pairs of files."""

    version: int = 1  # version of the generated pairs

    def read(self, set_name: str) -> Iterator[tuple[str, str]]:
        """Yield the (source, target) lines of "train", "dev" or a test set.

        Raises UserError for files that changed, and for lines of an evaluated set that are too long for a sentence.
        """
        if self.generated:
            pairs = generate(set_name, self.generated, self.version)
            yield from pairs if self.source == "en" else ((t, s) for s, t in pairs)
            return
        for pair in self.files(set_name):
            lines = zip_longest(*(read_lines(path, self.sha256(path)) for path in pair))
            for place, (source, target) in enumerate(lines, start=1):
                if source is None or target is None:
                    ended = pair.source if source is None else pair.target
                    raise UserError(
                        f"{ended} ends at line {place - 1}, but its other side continues: the files were changed "
                        "while they were read. Repeat the command when they are complete."
                    )
                if set_name != "train" and max(len(source), len(target)) > LONGEST_LINE:
                    path, line = max(zip(pair, (source, target), strict=True), key=lambda side: len(side[1]))
                    raise UserError(
                        f"{path}, line {place} has {len(line):,} characters, too many for a sentence. Split it, or "
                        "leave the pair out."
                    )
                yield source, target

    def paths(self, set_name: str) -> Files:
        return tuple(path for pair in self.files(set_name) for path in pair)

    def check(self, cache_dir: Path | None = None) -> dict[str, int]:
        """Check every file and return the number of pairs of each set.

        Raises UserError for unusable files, and for sides with different numbers of lines.
        """
        if self.generated:
            return {"train": self.generated, **{name: sum(1 for _ in self.read(name)) for name in self.sets}}
        with self.fingerprints(cache_dir) as known:
            sizes = {name: [_checked(pair, known)[2] for pair in self.files(name)] for name in ("train", *self.sets)}
        return {name: sum(lines) for name, lines in sizes.items()}

    def _digest(self, content: Mapping[str, Any]) -> str:
        return digest({"direction": [self.source, self.target], **content})

    def _recipe(self, set_name: str) -> list[Any]:
        return [[recipe_digest(self.generated, self.version), set_name]]

    def _content_of(self, file: FilePair, known: Fingerprints) -> list[str]:
        return list(_checked(file, known)[:2])


def _builtin(data: DataConfig) -> ParallelCorpus:
    """Return the generated corpus, in one of its two directions."""
    direction = (data.source or ("de" if data.target == "en" else "en"), data.target or "")
    direction = (direction[0], direction[1] or ("en" if direction[0] == "de" else "de"))
    if sorted(direction) != ["de", "en"]:
        raise UserError(
            f"The built-in corpus is English-German, but data.source and data.target request {direction[0]} to "
            f'{direction[1]}. Use "en" and "de" in either order, or your own folder as data.corpus.'
        )
    if data.train or data.dev or data.test not in ((), ("test",)):
        raise UserError(
            "data.train, data.dev and data.test name files of a corpus folder; the built-in corpus has its own "
            'sets ("dev", "test"). Leave them out, or name a folder as data.corpus (--corpus).'
        )
    return ParallelCorpus(
        "builtin", *direction, tests={"test": ()}, generated=data.builtin_pairs, version=data.builtin_version
    )


def _checked(pair: FilePair, fingerprints: Fingerprints) -> tuple[str, str, int]:
    """Return the hash of each file and the number of lines. Raises UserError if the files have different numbers."""
    source, target = fingerprints.facts(pair.source), fingerprints.facts(pair.target)
    if source.lines != target.lines:
        raise UserError(
            f"{pair.source} has {number(source.lines, 'line')} but {pair.target} has "
            f"{target.lines:,}. Line n of one must "
            'translate line n of the other; lines end at "\\n" only. Align them, or remove the extra lines.'
        )
    return source.sha256, target.sha256, source.lines


# The names of the files in a folder of parallel files:
#     train.<lang>   dev.<lang> (or val, valid)   test*.<lang>          each plain or .gz, one sentence per line
# `data.train`, `data.dev` and `data.test` set other names: "newstest2013" means newstest2013.en.gz and
# newstest2013.de.gz. Several files for train or dev are joined. Each name in `data.test` is a separate test set.


LANGUAGE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*")  # en, deu, pt-BR, zho_Hans


def resolve(data: DataConfig) -> ParallelCorpus:
    """Return the corpus of a configuration. Files are found by their names and not read.

    Raises UserError if a folder or file is missing, or if the file names do not determine the languages.
    """
    if data.corpus == "builtin":
        return _builtin(data)
    folder = Path(data.corpus).expanduser()
    refuse_no_folder(folder, "a folder with train.<lang> and dev.<lang> for two languages")
    sides = _languages(folder, data)
    dev_names = data.dev or (_dev_name(folder, sides),)
    test_names = data.test or _test_names(folder, sides)
    return ParallelCorpus(
        folder.resolve().name,
        *sides,
        train=tuple(_pair(folder, name, sides, "data.train") for name in data.train or ("train",)),
        dev=tuple(_pair(folder, name, sides, "data.dev") for name in dev_names),
        tests={key: (_pair(folder, name, sides, "data.test"),) for key, name in named_sets(test_names).items()},
    )


def _languages(folder: Path, data: DataConfig) -> tuple[str, str]:
    name = (data.train or ("train",))[0]
    languages = sorted(language for language in _sides(folder, name) if LANGUAGE.fullmatch(language))
    if data.source and data.target:
        if data.source == data.target:
            raise UserError(
                f'data.source and data.target are both "{data.source}". Choose two of: {", ".join(languages)}.'
            )
        return data.source, data.target
    if not languages:
        raise _missing(folder, name, ("<lang>",), "data.train")
    if given := data.source or data.target:
        others = [language for language in languages if language != given]
        if len(others) == 1:
            return (given, others[0]) if data.source else (others[0], given)
    elif len(languages) == 2 and sum(_is_english(language) for language in languages) == 1:
        first, second = languages
        return (first, second) if _is_english(first) else (second, first)
    raise UserError(
        f"{folder} has {name}.<lang> for {some_names(languages, SHOWN)}, so the names alone do not determine "
        "which language is translated into which. Set data.source and data.target, for instance "
        f"--set data.source={languages[0]} --set data.target={languages[1] if len(languages) > 1 else '…'}."
    )


def _is_english(language: str) -> bool:
    return re.split("[-_]", language)[0].lower() in ("en", "eng")


def _sides(folder: Path, name: str) -> dict[str, Path]:
    """Return the files named <name>.<suffix> or <name>.<suffix>.gz, by suffix. Raises UserError if both exist."""
    place = folder / name
    by_language: dict[str, Path] = {}
    for path in sorted(place.parent.glob("*")) if place.parent.is_dir() else []:
        stem, dot, language = path.name.removesuffix(".gz").rpartition(".")
        if not dot or stem != place.name or not path.is_file():
            continue
        if language in by_language:
            raise UserError(f"Both {by_language[language]} and {path} exist. Remove one of them.")
        by_language[language] = path
    return by_language


def _pair(folder: Path, name: str, sides: tuple[str, str], setting: str) -> FilePair:
    by_language = _sides(folder, name)
    if missing := tuple(language for language in sides if language not in by_language):
        raise _missing(folder, name, missing, setting)
    return FilePair(by_language[sides[0]], by_language[sides[1]])


def _missing(folder: Path, name: str, languages: Sequence[str], setting: str) -> UserError:
    files = (path.name.removesuffix(".gz") for path in folder.iterdir() if path.is_file())
    stems = sorted({name.rpartition(".")[0] for name in files} - {""})
    near = difflib.get_close_matches(name, stems, n=3)
    return UserError(
        f"{folder} has no {some_names([f'{name}.{language}' for language in languages], SHOWN)} (plain or .gz). "
        + (f"Near: {', '.join(near)}. " if near and name not in near else "")
        + f"Files there: {files_in(folder)}. "
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
