"""Names that MLflow refuses are mapped to others, and the mapping is reversible."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from experiments.tracking.mlflow_keys import LONGEST, from_key, to_key, whole_names

ODD = [
    "",
    ".",
    "..",
    "...a",
    "/",
    "/a",
    "a/",
    "a//b",
    "a/../b",
    "a/./b",
    "a%",
    "a=b",
    "a\nb",
    "a\u200db",
    "_x_",
    "_x41_",
    "_x;",
    "/_x/",
    "_x_x4;",
]
names = st.one_of(st.sampled_from(ODD), st.text(max_size=40), st.text(alphabet="_x4F/. a;", max_size=20))


@given(names)
@example("_x;")
@example("/_x/")
def test_every_name_comes_back(name):
    assert from_key(to_key(name)) == name


@given(names, names)
def test_two_names_have_two_keys(one, other):
    assert (to_key(one) == to_key(other)) == (one == other)


@pytest.mark.parametrize(
    "name", ["loss", "dev_perplexity", "a/b", "bleu.test_2016", "ä b:c-d", "model.d_k", "_x", "x41_"]
)
def test_a_name_that_mlflow_takes_stays(name):
    assert to_key(name) == name


def test_what_is_too_long_is_kept_whole_beside(name="loss/" + "ä%" * 300):
    assert len(to_key(name)) <= LONGEST and to_key(name) != to_key(name + "x")
    assert list(whole_names([name, "loss", "a%"]).values()) == [name]
    [tag] = whole_names([name])
    assert to_key(name).endswith(tag.removeprefix("name."))


@pytest.mark.slow
@given(names)
def test_mlflow_takes_every_key(name):
    from mlflow.utils.validation import _validate_metric_name, _validate_param_name, _validate_tag_name

    for validate in (_validate_metric_name, _validate_param_name, _validate_tag_name):
        validate(to_key(name))
