"""Random English sentences with trees: labels of the Penn Treebank, words of the built-in translation corpus.

Most functions return bracketed text. The trees contain prepositional phrases attached to nouns and to verbs, noun
phrases within noun phrases, particles, questions and subordinate clauses. The parameter `letters` has the classes of
nouns that fit, such as "h" for human (experiments/data/corpora/lexicon.py). This module does not import torch.
"""

from ablations.extras.parsing.tree import Tree
from ablations.extras.parsing.treebank import parse_line
from experiments.data.corpora import lexicon
from experiments.data.corpora.lexicon import Dice, Noun, Verb

MIN_WORDS, MAX_WORDS = 4, 24
_NAMES = tuple(name for name, _ in lexicon.NAMES)
_INTRANSITIVE = tuple(verb for verb in lexicon.VERBS if not verb.objects)
_TRANSITIVE = tuple(verb for verb in lexicon.VERBS if verb.objects) + lexicon.DATIVE_VERBS
_VOWELS = tuple("aeiou")


def sentence(dice: Dice) -> Tree:
    """Return a sentence of MIN_WORDS to MAX_WORDS words that begins with a capital letter."""
    while True:
        tree = parse_line(dice.pick(_SENTENCES)(dice))
        if MIN_WORDS <= len(tree) <= MAX_WORDS:
            first = tree.words[0]
            return Tree((first[0].upper() + first[1:], *tree.words[1:]), tree.tags, tree.brackets)


def _fits(verb_or_noun: str, letters: str) -> bool:
    return bool(set(verb_or_noun) & set(letters))


def _noun(dice: Dice, letters: str, plural: bool) -> tuple[str, str]:
    """Return a noun, possibly with a modifier before it, and the first word of this text."""
    noun: Noun = dice.pick_early([n for n in lexicon.NOUNS if _fits(n.classes, letters)])
    text = f"(NNS {noun.plural})" if plural else f"(NN {noun.singular})"
    if "k" in noun.classes and dice.chance(20):
        modifier = dice.pick(lexicon.MODIFIERS)[0]
        return f"(NN {modifier}) {text}", modifier
    adjectives = lexicon.ADJECTIVES[noun.classes[0]]
    if adjectives and dice.chance(30):
        adjective = dice.pick_early(adjectives)[0]
        return f"(JJ {adjective}) {text}", adjective
    return text, noun.plural if plural else noun.singular


def _plain(dice: Dice, letters: str) -> tuple[str, bool]:
    """Return the content of a simple noun phrase, and whether it is plural."""
    if "h" in letters and dice.chance(25):
        return f"(NNP {dice.pick(_NAMES)})", False
    plural = dice.chance(25)
    noun, first = _noun(dice, letters, plural)
    roll = dice.below(100)
    if roll < 50:
        return f"(DT the) {noun}", plural
    if roll < 70:
        article = "" if plural else "(DT an) " if first.startswith(_VOWELS) else "(DT a) "
        return f"{article}{noun}", plural
    if roll < 85:
        return f"(PRP$ {dice.pick(('his', 'her', 'its', 'our'))}) {noun}", plural
    if plural:
        return f"(CD {dice.pick(lexicon.NUMBERS)[0]}) {noun}", True
    return f"(DT {dice.pick(('this', 'every'))}) {noun}", False


def _phrase(dice: Dice, letters: str, depth: int = 0) -> tuple[str, bool]:
    """Return a noun phrase, and whether it is plural.

    At a depth of less than 2, a coordination, possessive, prepositional phrase or relative clause may be added.
    """
    inside, plural = _plain(dice, letters)
    roll = dice.below(100) if depth < 2 else 100
    if roll < 8:
        other, _ = _plain(dice, letters)
        return f"(NP (NP {inside}) (CC and) (NP {other}))", True
    if roll < 15:
        owned, _ = _noun(dice, letters, False)
        return f"(NP (NP {inside} (POS 's)) {owned})", False
    if roll < 25:
        return f"(NP (NP {inside}) {_place(dice, depth + 1)})", plural
    if roll < 34:
        return f"(NP (NP {inside}) {_relative(dice, letters, plural, depth + 1)})", plural
    return f"(NP {inside})", plural


def _place(dice: Dice, depth: int, to: bool = False) -> str:
    letter = dice.pick("pt")
    preposition = dice.pick_early(lexicon.PLACE_PREPOSITIONS[letter])[0]
    where, _ = _phrase(dice, letter, depth)
    return f"(PP (IN {lexicon.INTO.get(preposition, preposition) if to else preposition}) {where})"


def _relative(dice: Dice, letters: str, plural: bool, depth: int) -> str:
    pronoun = "(WP who)" if letters[0] == "h" else "(WDT which)"
    if dice.chance(60):
        return f"(SBAR (WHNP {pronoun}) (S {_predicate(dice, letters[0], plural, depth)}))"
    subject, many = _phrase(dice, "h", depth + 1)
    verb: Verb = dice.pick_early([v for v in _TRANSITIVE if " " not in v.base])
    return f"(SBAR (WHNP {pronoun}) (S {subject} (VP {_finite(dice, verb, many)})))"


def _finite(dice: Dice, verb: Verb, plural: bool) -> str:
    word, *particle = (verb.past if dice.chance(45) else verb.base if plural else verb.third).split(" ")
    tag = "VBD" if word == verb.past.split(" ")[0] else "VBP" if plural else "VBZ"
    return _verb(tag, word, particle)


def _verb(tag: str, word: str, particle: list[str]) -> str:
    """Return a verb with its particle, without the preposition "for", which belongs to the object ("look for")."""
    ends = f" (PRT (RP {particle[0]}))" if particle and particle[0] != "for" else ""
    return f"({tag} {word}){ends}"


def _predicate(dice: Dice, letter: str, plural: bool, depth: int) -> str:
    """Return a verb phrase: a verb with its complements, or a form of "be" with a state.

    letter: the class of the subject. plural: whether the subject is plural.
    """
    if dice.chance(18):
        return _state(dice, letter, plural)
    verb, after = _verb_and_complements(dice, letter, depth)
    roll = dice.below(100)
    adverb = f"(ADVP (RB {dice.pick(lexicon.FREQUENCIES)[0]})) " if dice.chance(10) else ""
    if roll < 66:
        return f"(VP {adverb}{_finite(dice, verb, plural)}{after})"
    word, *particle = verb.base.split(" ")
    inner = f"(VP {_verb('VB', word, particle)}{after})"
    if roll < 84:
        return f"(VP (MD {dice.pick(('will', 'can', 'must', 'may'))}) {adverb}{inner})"
    auxiliary = dice.pick(("(VBD did)", "(VBP do)" if plural else "(VBZ does)"))
    return f"(VP {auxiliary} (RB not) {inner})"


def _verb_and_complements(dice: Dice, letter: str, depth: int) -> tuple[Verb, str]:
    kind = dice.below(100)
    if kind < 22 or letter not in "ha":
        verb: Verb = dice.pick_early([v for v in _INTRANSITIVE if _fits(v.subjects, letter)] or _INTRANSITIVE)
        parts = [_place(dice, depth + 1)] if dice.chance(50) else []
    elif kind < 70 or letter != "h":
        verb = dice.pick_early([v for v in _TRANSITIVE if _fits(v.subjects, letter)])
        thing, _ = _phrase(dice, verb.objects, depth + 1)
        parts = [f"(PP (IN for) {thing})" if verb.base.endswith(" for") else thing]
        parts += [_place(dice, depth + 1)] if dice.chance(20) else []
    elif kind < 82:
        verb = dice.pick(lexicon.GIVING_VERBS)
        thing, person = _phrase(dice, verb.objects, depth + 1)[0], _phrase(dice, "h", 2)[0]
        parts = [person, thing] if dice.chance(50) else [thing, f"(PP (TO to) {person})"]
    elif kind < 92:
        verb = dice.pick(lexicon.PLACING_VERBS)
        parts = [_phrase(dice, verb.objects, 2)[0], _place(dice, 2, to=True)]
    else:
        verb = dice.pick(lexicon.GOING_VERBS)
        parts = [_place(dice, depth + 1, to=True)]
    if depth == 0 and dice.chance(22):
        parts.append(_time(dice))
    return verb, "".join(f" {part}" for part in parts)


def _state(dice: Dice, letter: str, plural: bool) -> str:
    verb = dice.pick(("(VBD were)", "(VBP are)") if plural else ("(VBD was)", "(VBZ is)"))
    negation = " (RB not)" if dice.chance(20) else ""
    if dice.chance(25):
        return f"(VP {verb}{negation} {_place(dice, 1)})"
    adjective = dice.pick_early(lexicon.ADJECTIVES.get(letter, lexicon.ADJECTIVES["t"]))[0]
    return f"(VP {verb}{negation} (ADJP (JJ {adjective})))"


def _time(dice: Dice) -> str:
    if dice.chance(50):
        return f"(PP (IN on) (NP (NNP {dice.pick(lexicon.DAYS)[0]})))"
    return dice.pick(("(NP (NN today))", "(NP (NN yesterday))", "(ADVP (RB now))"))


def _clause(dice: Dice, depth: int = 0) -> str:
    """Return a subject and a predicate, without the bracket around them."""
    if dice.chance(12):
        pronoun = dice.pick(("he", "she", "we", "they"))
        return f"(NP (PRP {pronoun})) {_predicate(dice, 'h', pronoun in ('we', 'they'), depth)}"
    letter = "h" if dice.chance(75) else "a"
    subject, plural = _phrase(dice, letter, depth)
    return f"{subject} {_predicate(dice, letter, plural, depth)}"


def _statement(dice: Dice) -> str:
    front = f"{_time(dice)} (, ,) " if dice.chance(12) else ""
    return f"(S {front}{_clause(dice)} (. .))"


def _complex(dice: Dice) -> str:
    conjunction = dice.pick(lexicon.CONJUNCTIONS)[0]
    subordinate = f"(SBAR (IN {conjunction}) (S {_clause(dice, 1)}))"
    if dice.chance(40):
        return f"(S {subordinate} (, ,) {_clause(dice, 1)} (. .))"
    subject, plural = _phrase(dice, "h", 1)
    verb, after = _verb_and_complements(dice, "h", 1)
    return f"(S {subject} (VP {_finite(dice, verb, plural)}{after} {subordinate}) (. .))"


def _report(dice: Dice) -> str:
    subject, plural = _phrase(dice, "h", 1)
    verb = _finite(dice, dice.pick(lexicon.SAYING_VERBS), plural)
    return f"(S {subject} (VP {verb} (SBAR (IN that) (S {_clause(dice, 1)}))) (. .))"


def _question(dice: Dice) -> str:
    subject, plural = _phrase(dice, "h", 1)
    verb, after = _verb_and_complements(dice, "h", 1)
    word, *particle = verb.base.split(" ")
    auxiliary = dice.pick(("(VBD did)", "(VBP do)" if plural else "(VBZ does)", "(MD can)"))
    return f"(SQ {auxiliary} {subject} (VP {_verb('VB', word, particle)}{after}) (. ?))"


def _contrast(dice: Dice) -> str:
    conjunction = dice.pick(("but", "and"))
    return f"(S (S {_clause(dice, 1)}) (, ,) (CC {conjunction}) (S {_clause(dice, 1)}) (. .))"


_SENTENCES = (_statement,) * 9 + (_complex,) * 4 + (_report,) * 3 + (_question,) * 3 + (_contrast,) * 2
