"""Random sentences: statements, questions, subordinate clauses before and after, reported speech.

What a pronoun refers to is decided by the sentence: the subject or the direct object of the clause before it; where
both would take the same English pronoun, the subject.
"""

from experiments.data.builtin import lexicon
from experiments.data.builtin.clauses import Clause, Content, Words, build
from experiments.data.builtin.dice import Dice
from experiments.data.builtin.phrases import pronoun_for
from experiments.data.builtin.predicates import actor, content, phrase, state

MIN_WORDS, MAX_WORDS = 5, 22  # of the English side


def sentence(dice: Dice) -> Words:
    """One pair of sentences in plain text: (English, German)."""
    while True:
        en, de = dice.pick(_SENTENCES)(dice)
        if MIN_WORDS <= en.count(" ") + 1 <= MAX_WORDS:
            # A relative clause brings its closing comma, which gives way to what follows it.
            de = de.replace(" ,", ",").replace(",,", ",").replace(",.", ".").replace(",?", "?")
            return en[0].upper() + en[1:], de[0].upper() + de[1:]


def _statement(dice: Dice) -> Words:
    made = state(dice) if dice.chance(22) else build(content(dice, actor(dice)))
    if made.time and dice.chance(45):
        front, rest = made.time, made._replace(time=None)
        return f"{front[0]} {rest.english()}.", f"{front[1]} {rest.inverted()}."
    return f"{made.english()}.", f"{made.main()}."


def _question(dice: Dice) -> Words:
    if dice.chance(25):
        made = state(dice, question=True)
    else:
        made = build(content(dice, actor(dice, 1), question=True))
    en, de = made.english_question(), made.inverted()
    return (f"why {en}?", f"warum {de}?") if dice.chance(35) else (f"{en}?", f"{de}?")


def _complex(dice: Dice) -> Words:
    """A main clause and a subordinate one, after or before it."""
    first = content(dice, actor(dice, 1), 1)
    main, second = build(first), _taking_up(dice, first)
    en, de = dice.pick(lexicon.CONJUNCTIONS)
    if dice.chance(70):
        return _main_first(main, en, de, second)
    return _subordinate_first(en, de, main, second)


def _when(dice: Dice) -> Words:
    """when is als in the past and wenn otherwise."""
    tense = "past" if dice.chance(50) else "present"
    first = content(dice, actor(dice, 1), 1, tense)
    main, second = build(first), build(content(dice, pronoun_for(first.subject), 1, tense))
    de = "als" if tense == "past" else "wenn"
    if dice.chance(50):
        return _main_first(main, "when", de, second)
    return _subordinate_first("when", de, main, second)


def _main_first(main: Clause, en: str, de: str, second: Clause) -> Words:
    return f"{main.english()} {en} {second.english()}.", f"{main.main()}, {de} {second.subordinate()}."


def _subordinate_first(en: str, de: str, first: Clause, main: Clause) -> Words:
    return f"{en} {first.english()}, {main.english()}.", f"{de} {first.subordinate()}, {main.inverted()}."


def _taking_up(dice: Dice, first: Content) -> Clause:
    """A clause that mostly takes up the subject or the direct object of the first by a pronoun."""
    subject, direct = first.subject, first.direct
    if direct and (direct.negative or direct.pronoun == subject.pronoun):
        direct = None
    if direct and dice.chance(45):
        if direct.letter in "tp" or dice.chance(40):
            return state(dice, pronoun_for(direct))
        return build(content(dice, pronoun_for(direct), 1))
    if dice.chance(75):
        return build(content(dice, pronoun_for(subject), 1, taken_up=direct))
    return build(content(dice, actor(dice, 1), 1))


def _report(dice: Dice) -> Words:
    """Someone says that something is so."""
    speaker = phrase(dice, "h", None, 1)
    outer = build(Content(speaker, dice.pick(lexicon.SAYING_VERBS), "past" if dice.chance(40) else "present"))
    inner = state(dice, depth=1) if dice.chance(20) else build(content(dice, actor(dice, 1), 1))
    return f"{outer.english()} that {inner.english()}.", f"{outer.main()}, dass {inner.subordinate()}."


def _contrast(dice: Dice) -> Words:
    first, second = build(content(dice, actor(dice, 1), 1)), build(content(dice, actor(dice, 1), 1))
    en, de = dice.pick((("but", "aber"), ("and", "und")))
    return f"{first.english()}, {en} {second.english()}.", f"{first.main()}, {de} {second.main()}."


_SENTENCES = (  # how often each
    (_statement,) * 12 + (_complex,) * 5 + (_report,) * 3 + (_question,) * 2 + (_when,) + (_contrast,)
)
