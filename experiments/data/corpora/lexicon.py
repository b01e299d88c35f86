"""The words of the built-in corpora, as tables a reader can extend, and the chance that chooses among them.

A noun's classes are letters: h human, a animal, t thing, p place (the first letter is its main class), e edible,
u stands upright, l lies flat, c can be opened, o can be run (an organisation), k takes part in compounds.
English words are chosen so that the German is always decided by the sentence: either one word has one meaning,
or its neighbours settle it (eat: essen | fressen, know: kennen | wissen, light: leicht | hell, when: wenn | als).
An English verb's past differs from its base form, and a noun's plural from its singular, for the same reason.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple, TypeVar


class Noun(NamedTuple):
    singular: str
    plural: str
    nominative: str
    genitive: str
    plural_de: str
    gender: str  # grammatical gender of the German word: m, f, n
    pronoun: str  # English pronoun of the singular: he, she, it
    classes: str


class Verb(NamedTuple):
    base: str
    third: str
    past: str
    prefix: str  # separable prefix, "" if none
    singular_de: str  # third person singular, without the prefix
    plural_de: str  # third person plural and infinitive, without the prefix
    participle: str
    auxiliary: str  # haben or sein
    subjects: str  # classes of nouns that may do it
    objects: str  # classes of its object


_NOUNS = """
man men            Mann Mannes Männer m he h
woman women        Frau Frau Frauen f she h
child children     Kind Kindes Kinder n it h
teacher teachers   Lehrer Lehrers Lehrer m he h
boy boys           Junge Jungen Jungen m he h
queen queens       Königin Königin Königinnen f she h
dog dogs           Hund Hundes Hunde m it a
cat cats           Katze Katze Katzen f it a
horse horses       Pferd Pferdes Pferde n it a
table tables       Tisch Tisches Tische m it tuk
lamp lamps         Lampe Lampe Lampen f it tuk
book books         Buch Buches Bücher n it tl
door doors         Tür Tür Türen f it tck
letter letters     Brief Briefes Briefe m it tl
apple apples       Apfel Apfels Äpfel m it te
window windows     Fenster Fensters Fenster n it tck
soup soups         Suppe Suppe Suppen f it te
house houses       Haus Hauses Häuser n it p
garden gardens     Garten Gartens Gärten m it p
school schools     Schule Schule Schulen f it po
town towns         Stadt Stadt Städte f it p
"""

# English modifier and the German stem that joins the head (with its linking letters).
MODIFIERS = (("kitchen", "Küchen"), ("garden", "Garten"), ("winter", "Winter"))

# German stem by class of the noun described: human, animal, thing, place.
_ADJECTIVES = """
old    alt   alt    alt    alt
young  jung  jung   -      -
new    neu   -      neu    neu
big    groß  groß   groß   groß
bright klug  klug   hell   hell
light  -     -      leicht hell
short  klein klein  kurz   -
poor   arm   arm    schlecht -
"""

# base third past | prefix singular plural participle auxiliary | subjects objects
_VERBS = """
sleep sleeps slept          - schläft schlafen geschlafen haben     ha -
work works worked           - arbeitet arbeiten gearbeitet haben    h  -
run runs ran                - läuft laufen gelaufen sein            ha -
leave leaves left           weg geht gehen weggegangen sein         ha -
see sees saw                - sieht sehen gesehen haben             ha hatp
look_for looks_for looked_for - sucht suchen gesucht haben          ha hat
open opens opened           auf macht machen aufgemacht haben       h  c
find finds found            - findet finden gefunden haben          ha hatp
buy buys bought             - kauft kaufen gekauft haben            h  t
call calls called           an ruft rufen angerufen haben           h  h
eat eats ate                - isst essen gegessen haben             h  e
eat eats ate                - frisst fressen gefressen haben        a  e
know knows knew             - kennt kennen gekannt haben            h  hp
close closes closed         zu macht machen zugemacht haben         h  c
leave leaves left           - verlässt verlassen verlassen haben    ha p
run runs ran                - leitet leiten geleitet haben          h  o
"""

_DATIVE = """
help helps helped           - hilft helfen geholfen haben           h  ha
follow follows followed     - folgt folgen gefolgt sein             ha ha
"""

_GIVING = """
give gives gave             - gibt geben gegeben haben              h  at
show shows showed           - zeigt zeigen gezeigt haben            h  atp
"""

# Movement to a place: the preposition then governs the accusative.
_PLACING = """
place places placed         - stellt stellen gestellt haben         h  u
place places placed         - legt legen gelegt haben               h  l
"""
_GOING = """
go goes went                - geht gehen gegangen sein              ha -
"""

_SAYING = """
know knows knew             - weiß wissen gewusst haben             h  -
say says said               - sagt sagen gesagt haben               h  -
hope hopes hoped            - hofft hoffen gehofft haben            h  -
"""

NAMES = (  # given name and its gender
    ("Anna", "f"), ("Maria", "f"), ("Lena", "f"), ("Peter", "m"), ("Paul", "m"), ("David", "m"),
)  # fmt: skip
SURNAME_STARTS = ("Berg", "Stein", "Lind", "Rosen", "Kel", "Mar")
SURNAME_ENDS = ("mann", "feld", "bach", "ton")

NUMBERS = (("two", "zwei"), ("three", "drei"), ("four", "vier"), ("five", "fünf"), ("six", "sechs"))
TENS = (("twenty", "zwanzig"), ("thirty", "dreißig"))

DAYS = (("Monday", "Montag"), ("Tuesday", "Dienstag"), ("Friday", "Freitag"), ("Sunday", "Sonntag"))
FREQUENCIES = (("often", "oft"), ("always", "immer"), ("never", "nie"))
TIMES = {  # adverbs of time by the tense they go with
    "present": (("today", "heute"), ("now", "jetzt")),
    "past": (("yesterday", "gestern"), ("today", "heute")),
    "future": (("tomorrow", "morgen"), ("today", "heute")),
}
MODALS = (  # English, German singular, German plural; after "not" must becomes may (see NOT_MODALS)
    ("can", "kann", "können"),
    ("must", "muss", "müssen"),
    ("may", "darf", "dürfen"),
)
NOT_MODALS = {"must": ("darf", "dürfen")}
PLACE_PREPOSITIONS = {  # at a place (dative) or to it (accusative), by class of the noun that follows
    "t": (("on", "auf"), ("under", "unter"), ("behind", "hinter")),
    "p": (("in", "in"), ("behind", "hinter")),
}
INTO = {"in": "into", "on": "onto"}  # English marks some directions
CONJUNCTIONS = (("because", "weil"), ("although", "obwohl"), ("if", "wenn"))


def _rows(table: str) -> list[list[str]]:
    return [line.split() for line in table.strip().split("\n")]


def _verbs(table: str) -> tuple[Verb, ...]:
    return tuple(Verb(*("" if cell == "-" else cell.replace("_", " ") for cell in row)) for row in _rows(table))


NOUNS = tuple(Noun(*row) for row in _rows(_NOUNS))
VERBS = _verbs(_VERBS)
DATIVE_VERBS = _verbs(_DATIVE)
GIVING_VERBS = _verbs(_GIVING)
PLACING_VERBS = _verbs(_PLACING)
GOING_VERBS = _verbs(_GOING)
SAYING_VERBS = _verbs(_SAYING)
ADJECTIVES = {
    letter: tuple((row[0], row[column]) for row in _rows(_ADJECTIVES) if row[column] != "-")
    for column, letter in enumerate("hatp", 1)
}


# --- Chance for the grammars: a few integer rules over Mersenne Twister bits, the same on every Python and platform


T = TypeVar("T")


class Dice:
    """Every draw takes 32 random bits and only integer arithmetic; no method of `random` whose recipe may change."""

    def __init__(self, seed: int) -> None:
        self._bits = random.Random(seed).getrandbits

    def below(self, count: int) -> int:
        """0 … count − 1, evenly."""
        return (self._bits(32) * count) >> 32

    def chance(self, percent: int) -> bool:
        return self._bits(32) * 100 < percent << 32

    def pick(self, options: Sequence[T]) -> T:
        return options[(self._bits(32) * len(options)) >> 32]

    def pick_early(self, options: Sequence[T]) -> T:
        """Early options more often than late ones, as words of a text are: P(among the first i of n) = √(i / n)."""
        bits = self._bits(32)
        return options[(bits * bits * len(options)) >> 64]
