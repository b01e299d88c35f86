"""A rendered sentence pair: English and German words, and which words decide which German word."""

from collections.abc import Iterator
from typing import NamedTuple

from experiments.data.corpora.phrases import Words


class Source(NamedTuple):
    """An English word, or several that stand together, of one slot."""

    text: str
    slot: str


class Target(NamedTuple):
    """A German word or punctuation mark."""

    text: str
    name: str  # unique in its sentence; "" of punctuation
    aligned: str = ""  # slot of the English word that it translates; "" of punctuation
    deciders: tuple[str, ...] = ()  # slots of other English words that decide it
    earlier: tuple[str, ...] = ()  # names of earlier German words with which it agrees or is one verb


class Dependency(NamedTuple):
    """A German word, and what decides it besides the English word that it translates."""

    word: int  # index in `target`
    decider: int  # index of a word in the English sentence, or in `target`
    distance: int  # in English words, from the translated word to the decider; or in German words


class Rendered(NamedTuple):
    source: tuple[Source, ...]
    target: tuple[Target, ...]

    @property
    def pair(self) -> Words:
        """English, German, as plain text."""
        en = " ".join(word.text for word in self.source).replace(" ,", ",").replace(" .", ".")
        de = " ".join(word.text for word in self.target).replace(" ,", ",").replace(",,", ",").replace(",.", ".")
        de = de.replace(" .", ".")
        return en[0].upper() + en[1:], de[0].upper() + de[1:]

    def places(self) -> dict[str, int]:
        """Slot → index of its last English word; punctuation is not counted."""
        found, count = dict[str, int](), 0
        for word in self.source:
            if word.slot:
                count += len(word.text.split())
                found[word.slot] = count - 1
        return found

    def on_source(self) -> Iterator[Dependency]:
        """What English words decide, other than the translated one."""
        places = self.places()
        for index, word in enumerate(self.target):
            for slot in word.deciders:
                yield Dependency(index, places[slot], abs(places[slot] - places[word.aligned]))

    def on_target(self) -> Iterator[Dependency]:
        """What earlier German words decide."""
        places = {word.name: index for index, word in enumerate(self.target) if word.name}
        for index, word in enumerate(self.target):
            for name in word.earlier:
                assert places[name] < index
                yield Dependency(index, places[name], index - places[name])
