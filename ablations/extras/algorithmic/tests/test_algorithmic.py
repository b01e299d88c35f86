"""The algorithmic corpus: right outputs, lengths, sets without common inputs, identities; exact scores."""

import hashlib
import itertools
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablations.extras.algorithmic.corpus import VERSION, AlgorithmicData, generate
from ablations.extras.algorithmic.scores import exact, pieces, score_exact
from ablations.extras.algorithmic.task import TASK, AlgorithmicConfig
from experiments.dotted import defaults
from experiments.errors import UserError
from experiments.identity import digest, run_identity
from experiments.tasks import versions

ALGORITHMS = get_args(AlgorithmicData.model_fields["algorithm"].annotation)
SETS = ("train", "dev", "21-30", "31-40", "41-60")
LENGTHS = {"train": (5, 20), "dev": (5, 20), "21-30": (21, 30), "31-40": (31, 40), "41-60": (41, 60)}


def data(**settings: Any) -> AlgorithmicData:
    """With enough keys for recall_all, which has each once."""
    if settings.get("algorithm") == "recall_all" and "train_lengths" not in settings:
        settings["symbols"] = max(20, settings.get("symbols", 0))
    return AlgorithmicData.from_mapping({"builtin_pairs": 400, "set_pairs": 60, **settings})


def config(**settings: Any) -> AlgorithmicConfig:
    model = settings.pop("model", {})
    return AlgorithmicConfig.from_mapping({"data": data(**settings).model_dump(mode="json"), "model": model})


def closes(source: list[str], target: list[str]) -> bool:
    """Return whether the two together are a word of Dyck's language, by taking out neighbours that match."""
    word = source + target
    while True:
        pairs = itertools.pairwise(word)
        place = next((i for i, (a, b) in enumerate(pairs) if a[0] == "(" and b == ")" + a[1:]), None)
        if place is None:
            return not word
        del word[place : place + 2]


def right(algorithm: str, source: list[str], target: list[str]) -> bool:
    match algorithm:
        case "copy":
            return target == source
        case "reverse":
            return target == source[::-1]
        case "sort":
            return sorted(source) == sorted(target) and all(int(a) <= int(b) for a, b in itertools.pairwise(target))
        case "recall":
            memory = dict(zip(source[:-1:2], source[1::2], strict=True))  # a later value replaces an earlier one
            return target == [memory[source[-1]]]
        case "recall_all":
            pairs = len(source) // 3
            memory = dict(zip(source[: 2 * pairs : 2], source[1 : 2 * pairs : 2], strict=True))
            queries = source[2 * pairs :]
            return len(memory) == pairs and target == [word for key in queries for word in (key, memory[key])]
    return bool(target) and closes(source, target)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("symbols", [2, 5, 16])
def test_every_output_is_right_and_every_length_occurs(algorithm: str, symbols: int) -> None:
    for name in SETS:
        pairs = [(s.split(" "), t.split(" ")) for s, t in generate(data(algorithm=algorithm, symbols=symbols), name)]
        assert len(pairs) == (400 if name == "train" else 60)
        assert all(right(algorithm, source, target) for source, target in pairs)
        shortest, longest = LENGTHS[name]
        lengths = {len(source) for source, _ in pairs}
        rest = {"recall": lambda n: n % 2 == 0, "recall_all": lambda n: n % 3}.get(algorithm, lambda n: 0)
        expected = {n - rest(n) for n in range(shortest, longest + 1)}
        assert lengths <= expected and (name != "train" or lengths == expected)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_input_of_dev_or_test_is_trained_on_or_comes_twice(algorithm: str) -> None:
    settings = data(algorithm=algorithm, symbols=4, builtin_pairs=4000, test_lengths=["5-20", "6-9"])
    sources = {name: [source for source, _ in generate(settings, name)] for name in ("train", "dev", "5-20", "6-9")}
    for name in ("dev", "5-20", "6-9"):
        assert set(sources[name]).isdisjoint(sources["train"])
        assert len(set(sources[name])) == len(sources[name])
    assert set(sources["dev"]).isdisjoint({*sources["5-20"], *sources["6-9"]})


@pytest.mark.parametrize("distance", [1, 3, 9])
def test_recall_looks_exactly_so_far_back(distance: int) -> None:
    for source, target in generate(data(algorithm="recall", distance=distance, train_lengths="19-40",
                                        dev_lengths="19-40", symbols=4), "train"):  # fmt: skip
        words = source.split(" ")
        assert words[-1 - 2 * distance] == words[-1] and words[-2 * distance] == target
        assert words[-1] not in words[-1 - 2 * distance + 1 : -1]


PINNED = {1: "73542b37517fa608"}  # by version, of all but recall_all, which came later


def test_other_pairs_need_another_version() -> None:
    every = [AlgorithmicData.from_mapping({"algorithm": one, "builtin_pairs": 10_000}) for one in ALGORITHMS[:-1]]
    text = "".join(f"{pair}" for one in every for name in SETS for pair in generate(one, name))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == PINNED[VERSION]


def test_recall_all_asks_every_key_once_and_needs_a_key_for_each_pair() -> None:
    settings = {"algorithm": "recall_all", "train_lengths": "6-12", "dev_lengths": "6-12", "test_lengths": ["12-12"]}
    lines = [pair for name in ("train", "dev") for pair in generate(data(symbols=4, **settings), name)]
    text = "\n".join("\t".join(pair) for pair in lines)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "13148b552337d880"
    for source, _ in lines:
        keys = [word for word in source.split(" ") if word.startswith("k")]
        half = len(keys) // 2
        assert sorted(keys[:half]) == sorted(keys[half:]) and len(set(keys)) == half
    with pytest.raises(ValueError, match=r"set data\.symbols to 4 or more"):
        data(symbols=3, **settings)


def test_the_text_is_a_function_of_the_settings_alone() -> None:
    assert list(generate(data(), "dev")) == list(generate(data(), "dev")) != list(generate(data(corpus_seed=2), "dev"))


def test_what_changes_the_training_pairs_names_another_run_and_nothing_else_does(tmp_path: Path) -> None:
    def run_id(**settings: Any) -> str:
        made = config(**settings)
        return run_identity(made, TASK.inputs(made, tmp_path))

    base = run_id()
    assert base == run_id(test_lengths=["30-40"]) == run_id(vocab_size=99)
    others = {"algorithm": "sort", "symbols": 5, "train_lengths": "6-20", "dev_lengths": "6-20", "builtin_pairs": 401}
    others |= {"corpus_seed": 2, "set_pairs": 61}
    assert len({base, *(run_id(**{name: value}) for name, value in others.items())}) == len(others) + 1
    near, far = (run_id(algorithm="recall", distance=n, train_lengths="9-20", dev_lengths="9-20") for n in (1, 4))
    assert near != far


def test_sets_are_named_by_their_lengths_and_evaluated_by_name(tmp_path: Path) -> None:
    names = [spec.set for spec in TASK.evaluations(config(), tmp_path)]
    assert names == ["dev", "21-30", "31-40", "41-60"]
    digests = {spec.set: spec.inputs["set"] for spec in TASK.evaluations(config(), tmp_path)}
    fewer = {spec.set: spec.inputs["set"] for spec in TASK.evaluations(config(test_lengths=["31-40"]), tmp_path)}
    assert fewer == {name: digests[name] for name in ("dev", "31-40")} and len(set(digests.values())) == 4


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_plan_knows_the_vocabulary_that_is_prepared(algorithm: str, tmp_path: Path) -> None:
    made = config(algorithm=algorithm, symbols=6)
    facts = TASK.prepare(made, tmp_path, lambda *_: None)
    assert TASK.vocab_sizes(made) == (facts["vocab_size"]["target"], facts["vocab_size"]["source"])
    assert TASK.vocab_sizes(made)[0] == {"recall": 2 * 6, "recall_all": 2 * 20}.get(algorithm, 6) + 4
    assert facts["train"]["source"]["unknown"] == facts["train"]["target"]["unknown"] == 0


def test_learned_positions_are_refused_only_where_the_table_is_too_short(tmp_path: Path) -> None:
    enough = {"positions": "learned", "max_length": 61}
    assert TASK.preflight(config(model=enough), tmp_path) == []
    (error,) = TASK.preflight(config(model={**enough, "max_length": 60}), tmp_path)
    assert "the longest sentence of 41-60 has 61 pieces" in str(error)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"train_lengths": "20-5"}, "the shorter first"),
        ({"dev_lengths": "5"}, "expected two lengths"),
        ({"test_lengths": ["21-30", "x"]}, "test_lengths: expected two lengths"),
        ({"test_lengths": ["21-30", "21-30"]}, "names a range twice"),
        ({"algorithm": "recall", "distance": 3}, "needs inputs of 7 symbols or more"),
        ({"algorithm": "recall", "train_lengths": "2-9"}, "needs inputs of 3 symbols or more"),
        ({"distance": 2}, 'only algorithm = "recall" uses a distance'),
        ({"corpus": "somewhere"}, "builtin"),
        ({"units": "byte"}, "word"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        data(**settings)


def test_too_few_different_inputs_are_refused_before_anything_runs(tmp_path: Path) -> None:
    (error,) = TASK.preflight(config(symbols=2, dev_lengths="1-3"), tmp_path)
    assert "has too few different inputs for dev" in str(error) and "or lower data.set_pairs" in str(error)
    with pytest.raises(UserError, match=r"data\.train_lengths, data\.dev_lengths and data\.test_lengths say its sets"):
        TASK.corpus(config(test=["newstest"]))


LINE = st.lists(st.sampled_from("ab1"), max_size=6)


@given(st.lists(st.tuples(LINE, LINE), min_size=1, max_size=8))
def test_scores_are_the_shares_that_they_are_called(lines: list[tuple[list[str], list[str]]]) -> None:
    outputs, references = ([" ".join(side) for side in sides] for sides in zip(*lines, strict=True))
    scores = score_exact(outputs, references)
    same = [output == reference for output, reference in lines]
    assert scores.metrics["exact"] == pytest.approx(100 * sum(same) / len(same))
    wrong = sum(
        i >= min(len(output), len(reference)) or output[i] != reference[i]
        for output, reference in lines
        for i in range(max(len(output), len(reference)))
    )
    places = sum(max(len(output), len(reference)) for output, reference in lines)
    assert scores.metrics["pieces"] == pytest.approx(100 * (places - wrong) / places if places else 0)
    assert (scores.metrics["pieces"] == 100) == (all(same) and places > 0)
    sums = scores.statistics.sum(axis=0)
    assert (float(exact(sums)), float(pieces(sums))) == (scores.metrics["exact"], scores.metrics["pieces"])
    assert exact(np.stack([sums, sums])).shape == (2,)


def test_a_test_set_of_recall_has_a_distance_of_its_own():
    settings = data(
        algorithm="recall", symbols=4, train_lengths="3-9", dev_lengths="3-9", test_lengths=["9-9d1", "9-9d4"]
    )
    for name, place in (("9-9d1", 7), ("9-9d4", 1)):
        for source, target in generate(settings, name):
            symbols = source.split(" ")
            assert symbols[place - 1] == symbols[-1] and symbols[place] == target
            assert symbols[-1] not in symbols[place + 1 : -1]
    for wrong, message in ((["9-9d0"], "as"), (["9-9d5"], "11 symbols or more"), (["9-9d"], "as")):
        with pytest.raises(ValueError, match=message):
            data(algorithm="recall", train_lengths="3-9", dev_lengths="3-9", test_lengths=wrong)
    with pytest.raises(ValueError, match="uses a distance"):
        data(test_lengths=["9-9d1"])


def test_the_defaults_of_the_corpus_are_what_they_were() -> None:
    """run_ids contain the differences from them."""
    own = {name: value for name, value in defaults(AlgorithmicConfig).items() if name.startswith("data.")}
    assert digest(own) == "56f8b09555d90118"


def test_scores_are_those_of_the_version() -> None:
    """If they change, increment the version (tests/unit/experiments/test_versions.py)."""
    found = score_exact(["a b", "c"], ["a b", "d"]).metrics
    assert {versions.SCORING: found} == {1: pytest.approx({"exact": 50.0, "pieces": 200 / 3}, abs=1e-9)}
