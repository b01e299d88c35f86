"""A rendered sentence pair: English and German words, and for each German word the words that decide it."""

from collections.abc import Iterator
from typing import NamedTuple

from experiments.data.corpora.phrases import Words


class Source(NamedTuple):
    """One English word, or several adjacent English words, of one slot."""

    text: str
    slot: str


class Target(NamedTuple):
    """A German word or punctuation mark."""

    text: str
    name: str  # unique in its sentence; "" for punctuation
    aligned: str = ""  # slot of the English word that it translates; "" for punctuation
    deciders: tuple[str, ...] = ()  # slots of other English words that decide it
    earlier: tuple[str, ...] = ()  # names of earlier German words with which it agrees or forms one verb


class Dependency(NamedTuple):
    """A German word, and a word that decides it in addition to the English word that it translates."""

    word: int  # index of the German word in `target`
    decider: int  # index of the deciding word: in the English sentence, or in `target`
    distance: int  # words between the decider and the translated English word, or between decider and German word


class Rendered(NamedTuple):
    """A sentence in both languages."""

    source: tuple[Source, ...]
    target: tuple[Target, ...]

    @property
    def pair(self) -> Words:
        """The English and the German sentence as plain text."""
        en = " ".join(word.text for word in self.source).replace(" ,", ",").replace(" .", ".")
        de = " ".join(word.text for word in self.target).replace(" ,", ",").replace(",,", ",").replace(",.", ".")
        de = de.replace(" .", ".")
        return en[0].upper() + en[1:], de[0].upper() + de[1:]

    def places(self) -> dict[str, int]:
        """Return for each slot the index of its last English word. Punctuation is not counted."""
        found, count = dict[str, int](), 0
        for word in self.source:
            if word.slot:
                count += len(word.text.split())
                found[word.slot] = count - 1
        return found

    def on_source(self) -> Iterator[Dependency]:
        """Yield the dependencies of German words on English words other than the translated word."""
        places = self.places()
        for index, word in enumerate(self.target):
            for slot in word.deciders:
                yield Dependency(index, places[slot], abs(places[slot] - places[word.aligned]))

    def on_target(self) -> Iterator[Dependency]:
        """Yield the dependencies of German words on earlier German words."""
        places = {word.name: index for index, word in enumerate(self.target) if word.name}
        for index, word in enumerate(self.target):
            for name in word.earlier:
                assert places[name] < index
                yield Dependency(index, places[name], index - places[name])
