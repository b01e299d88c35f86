"""Score two files with one tree per line as evalb.c does, for EVALB's own samples."""

import re

from ablations.extras.parsing.evalb import DELETED, score_sentence
from ablations.extras.parsing.tree import Tree
from ablations.extras.parsing.treebank import BadTree, parse_line
from experiments.data.corpora.files import read_lines

_TAGGED = re.compile(r"\(([^\s()]*)\s+([^\s()]*)\s*\)")  # (TAG word); EVALB takes the word of "(NP )" to be ""
_LOOSE = re.compile(r"(?:^|[\s)])[^\s()]")  # text that follows no opening bracket


def score_files(gold, parses):
    """The SentenceScore of each line; a line that is not a tree is an error of its sentence."""
    pairs = zip(read_lines(gold), read_lines(parses), strict=True)
    return [score_sentence(_tree(ours), _parse(theirs)) for ours, theirs in pairs]


def _parse(line):
    """A parser's line as evalb.c reads it: one without counted words is skipped, whether or not its brackets close."""
    counted = [word for tag, word in _TAGGED.findall(line) if tag not in DELETED]
    if not counted and not _LOOSE.search(_TAGGED.sub("", line)):
        return Tree((), (), ())
    return None if "" in counted else _tree(line)


def _tree(line):
    try:
        return parse_line(line)
    except BadTree:
        return None
