"""Random trees for property tests."""

from hypothesis import settings
from hypothesis import strategies as st

from ablations.extras.parsing.tree import Tree
from ablations.extras.parsing.treebank import parse_line

LABELS = ("S", "NP", "VP", "PP", "ADVP", "PRT", "SBAR")
TAGS = ("DT", "NN", "VBD", ",", ".", "``", "PRP$")
WORDS = ("the", "dog", "it", ",", "x")

quick = settings(max_examples=40)  # random trees are slow to draw

_leaves = st.builds("({} {})".format, st.sampled_from(TAGS), st.sampled_from(WORDS))


def _bracket(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    inside = st.lists(children, min_size=1, max_size=3).map(" ".join)
    return st.builds("({} {})".format, st.sampled_from(LABELS), inside)


trees: st.SearchStrategy[Tree] = _bracket(st.recursive(_leaves, _bracket, max_leaves=12)).map(parse_line)
