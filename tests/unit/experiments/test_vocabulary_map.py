"""A vocabulary map: learnt from the pairs, stored beside them, and the search over its pieces."""

import itertools
import json
import threading
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.config import ALWAYS_MAPPED, MOST_MAPPED, DataConfig, RunConfig
from experiments.data.corpora.parallel import resolve
from experiments.data.encoding import model1
from experiments.data.encoding import vocabulary_map as module
from experiments.data.encoding.encoded import EncodedCorpus
from experiments.data.encoding.pairs import EncodedPairs, SideWriter
from experiments.data.encoding.prepare import prepare
from experiments.data.encoding.tokenizer import EOS_ID
from experiments.data.encoding.vocabulary_map import NAME, SPECIAL, VocabularyMap, read_map, stored_map
from experiments.device import Device
from experiments.errors import Damaged
from experiments.evaluation.decode.beam import SearchSettings
from experiments.evaluation.decode.translate import translate
from experiments.tasks.base import EvaluationSpec
from experiments.tasks.load import load_task
from model.config import ModelConfig
from model.ensemble import Ensemble
from model.factory import build_model
from model.fast.int8 import int8_works, to_int8
from model.protocol import Network, SearchState

CPU = Device(torch.device("cpu"), "fp32", 1)
SETTINGS = SearchSettings(beam_size=3, max_extra_length=4, nbest=2)
PIECES = 150  # of the vocabulary: more than one group of candidates.py
Lines = list[tuple[list[int], list[int]]]


# --- learning


def pairs_of(folder: Path, lines: Lines) -> EncodedPairs:
    folder.mkdir()
    for side, column in (("source", 0), ("target", 1)):
        writer = SideWriter(folder, side, np.dtype(np.uint16))
        writer.add([pair[column] for pair in lines])
        writer.close()
    return EncodedPairs(folder, (np.dtype(np.uint16),) * 2)


def random_lines(count: int, seed: int = 0) -> Lines:
    draw = np.random.default_rng(seed)
    return [(draw.integers(4, 14, 1 + n % 5).tolist(), draw.integers(4, 24, 1 + n % 3).tolist()) for n in range(count)]


def textbook(lines: Lines) -> dict[tuple[int, int], float]:
    """IBM Model 1 as in a textbook: word by word."""
    p = {(s, t): 1.0 for source, target in lines for s in source for t in target}
    for _ in range(model1.ITERATIONS):
        count: dict[tuple[int, int], float] = defaultdict(float)
        total: dict[int, float] = defaultdict(float)
        for source, target in lines:
            for t in target:
                whole = sum(p[s, t] for s in source)
                for s in source:
                    count[s, t] += p[s, t] / whole
                    total[s] += p[s, t] / whole
        p = {(s, t): c / total[s] for (s, t), c in count.items()}
    return p


@pytest.mark.parametrize("at_once", [1 << 22, 7])
def test_the_lexicon_is_that_of_model_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(model1, "CELLS_AT_ONCE", at_once)
    lines = random_lines(60)
    found = model1.learn(pairs_of(tmp_path / "train", lines), 24)
    expected = textbook(lines)
    assert list(zip(found.source_U.tolist(), found.target_U.tolist(), strict=True)) == sorted(expected)
    np.testing.assert_allclose(found.probability_U, [expected[key] for key in sorted(expected)], rtol=1e-9)


def test_the_best_are_the_most_probable_then_those_of_lower_number(tmp_path: Path) -> None:
    # 4 is beside 10 twice; 5 beside 11 and 12 alike; 6 is never a source; 7 has a single piece
    lines: Lines = [([4], [10]), ([4], [10]), ([4], [11]), ([5], [12, 11]), ([7], [13])]
    best = model1.learn(pairs_of(tmp_path / "train", lines), 14).best(3, sources=9, fill=EOS_ID)
    assert best[4].tolist() == [10, 11, EOS_ID]
    assert best[5].tolist() == [11, 12, EOS_ID]
    assert best[6].tolist() == [EOS_ID] * 3
    assert best[7].tolist() == [13, EOS_ID, EOS_ID]
    assert model1.learn(EncodedPairs(tmp_path / "train", (np.dtype(np.uint16),) * 2), 14).best(1, 9, 0)[4] == [10]


def test_what_explains_a_piece_elsewhere_leaves_it_to_others(tmp_path: Path) -> None:
    """Co-occurrence alone ties: 5 and 6 are both always beside 10. Model 1 knows that 10 is translated from 5."""
    lines: Lines = [([5, 6], [10, 11]), ([5], [10]), ([5, 7], [10, 12]), ([6, 5], [11, 10])]
    best = model1.learn(pairs_of(tmp_path / "train", lines), 13).best(1, sources=8, fill=EOS_ID)
    assert best[[5, 6, 7], 0].tolist() == [10, 11, 12]


def test_a_large_corpus_is_sampled_evenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: Lines = [([4 + n % 7], [11 + n % 7]) for n in range(1000)] + [([], [11]), ([4], [])]
    pairs = pairs_of(tmp_path / "train", lines)
    assert model1._sampled(pairs).tolist() == list(range(1000))  # those with cells
    monkeypatch.setattr(model1, "MOST_CELLS", 250)
    rows = model1._sampled(pairs)
    assert len(rows) == 250
    assert set(np.diff(rows)) == {4}
    assert model1.learn(pairs, 20).best(1, 11, 0)[4:, 0].tolist() == list(range(11, 18))


# --- the store


def mapped_pieces(encoded: EncodedCorpus, size: int) -> VocabularyMap:
    return read_map(stored_map(encoded), size)


@pytest.fixture
def encoded(tmp_path: Path) -> EncodedCorpus:
    data = DataConfig(builtin_pairs=200, vocab_size=PIECES)
    return prepare(resolve(data), data, True, tmp_path, lambda *_: None)


def test_it_is_learnt_once_for_all_sizes_and_is_a_function_of_the_pairs(
    encoded: EncodedCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = mapped_pieces(encoded, MOST_MAPPED)
    files = {path.name: path.read_bytes() for path in (encoded.folder / NAME).iterdir()}
    monkeypatch.setattr(model1, "learn", lambda *_: pytest.fail("learnt again"))
    four = mapped_pieces(encoded, 4)
    assert np.array_equal(four.best, whole.best[:, :4])
    assert len(four.frequent) == ALWAYS_MAPPED
    counts = np.bincount(encoded.train.target.pieces, minlength=PIECES)
    assert counts[four.frequent].min() >= np.delete(counts, four.frequent).max()
    monkeypatch.undo()
    for path in (encoded.folder / NAME).iterdir():
        path.unlink()
    (encoded.folder / NAME).rmdir()
    mapped_pieces(encoded, 1)
    assert {path.name: path.read_bytes() for path in (encoded.folder / NAME).iterdir()} == files


def test_an_interrupted_learning_leaves_nothing(encoded: EncodedCorpus, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(path.name for path in encoded.folder.iterdir())

    def interrupted(folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "describe_files", interrupted)  # after the arrays were written
    with pytest.raises(KeyboardInterrupt):
        mapped_pieces(encoded, 4)
    assert sorted(path.name for path in encoded.folder.iterdir()) == sorted([*before, f"{NAME}.lock"])
    monkeypatch.undo()
    assert mapped_pieces(encoded, 4).best.shape == (PIECES, 4)


def test_of_several_at_once_one_learns(encoded: EncodedCorpus, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, learn, found = [], model1.learn, list[VocabularyMap]()

    def counted(*given: object) -> model1.Lexicon:
        calls.append(1)
        return learn(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(model1, "learn", counted)
    threads = [threading.Thread(target=lambda: found.append(mapped_pieces(encoded, 4))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert len(found) == 3
    assert all(np.array_equal(one.best, found[0].best) for one in found)


@pytest.mark.parametrize("name", ["best.npy", "frequent.npy", "facts.json"])
def test_a_damaged_map_is_refused_with_what_to_do(encoded: EncodedCorpus, name: str) -> None:
    mapped_pieces(encoded, 4)
    path = encoded.folder / NAME / name
    path.write_bytes(path.read_bytes()[:-3] + b"xyz")
    with pytest.raises(Damaged, match="damaged"):
        mapped_pieces(encoded, 4)
    path.unlink()
    with pytest.raises(Damaged, match=r"Delete .*vocabulary-map-1"):
        mapped_pieces(encoded, 4)


# --- the search

NETWORKS: dict[str, dict[str, object]] = {
    "paper": {},
    "pre, learned positions": {"norm": "pre", "positions": "learned", "max_length": 30},
    "untied": {"tying": "none"},
    "factorised": {"embedding_size": 4, "fixnorm": True},
    "recurrent": {"encoder": "lstm", "decoder": "lstm, cross_attention"},
    "convolutional": {"encoder": "convolution", "decoder": "convolution, cross_attention"},
}
SOURCES = [[4 + (7 * i + 3 * j) % (PIECES - 4) for j in range(1 + (5 * i) % 7)] for i in range(12)]


def network(settings: dict[str, object], seed: int = 0) -> Network:
    torch.manual_seed(seed)
    sizes = {"num_layers": 1, "d_model": 8, "d_ff": 16, "num_heads": 2, "d_k": 4, "d_v": 4}
    model = build_model(ModelConfig.model_validate(sizes | settings), PIECES).double().eval()
    with torch.no_grad():
        for embedding in model.embeddings.values():  # type: ignore[union-attr, operator]
            embedding.weight *= 3
            embedding.weight[EOS_ID] /= 6  # so that not every output is empty
    return model


def random_map(size: int, frequent: int = 10) -> VocabularyMap:
    draw = np.random.default_rng(size)
    return VocabularyMap(draw.integers(4, PIECES, (PIECES, size)), draw.integers(4, PIECES, frequent))


EVERY = VocabularyMap(np.tile(np.arange(PIECES), (PIECES, 1)), np.arange(0))


@pytest.mark.parametrize("settings", NETWORKS.values(), ids=NETWORKS.keys())
@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16", "int8"])
def test_a_map_of_all_pieces_changes_nothing(settings: dict[str, object], precision: str) -> None:
    if precision == "int8" and not int8_works():
        pytest.skip("this torch has no exact product of 8-bit matrices")
    model = network(settings)
    model = model if precision == "fp64" else model.float()
    device = CPU if precision != "bf16" else Device(torch.device("cpu"), "bf16", 1)
    if precision == "int8":
        to_int8(model)
    found = translate(model, SOURCES, SETTINGS, device, vocabulary_map=EVERY)
    plain = translate(model, SOURCES, SETTINGS, device)
    assert [[one.ids for one in each] for each in found] == [[one.ids for one in each] for each in plain]
    for one, other in zip(itertools.chain(*found), itertools.chain(*plain), strict=True):
        assert (one.score, one.log_prob) == pytest.approx(
            (other.score, other.log_prob), rel=1e-12 if precision == "fp64" else 1e-5
        )


class Masked:
    """A network for one sentence whose scores of all pieces but these are −inf: what a map should mean."""

    def __init__(self, model: Network, pieces: NDArray[np.int64]) -> None:
        self.model, self.config = model, model.config
        self.forbidden = torch.ones(PIECES, dtype=torch.bool).scatter(0, torch.from_numpy(pieces), False)

    def next_logits(self, hidden_BKD: Tensor, state: SearchState) -> Tensor:
        return self.model.next_logits(hidden_BKD, state).masked_fill(self.forbidden, -torch.inf)

    def __getattr__(self, name: str) -> object:
        return getattr(self.model, name)


@pytest.mark.parametrize("settings", NETWORKS.values(), ids=NETWORKS.keys())
@pytest.mark.parametrize("beam", [1, 3, 40])
def test_it_is_the_search_with_all_other_pieces_blocked_whatever_is_in_the_batch(
    settings: dict[str, object], beam: int
) -> None:
    """40 candidates are more than some sentences have pieces."""
    model, mapped = network(settings), random_map(3)
    search = SearchSettings(beam, max_extra_length=4)
    together = translate(model, SOURCES, search, CPU, vocabulary_map=mapped)
    for source, found in zip(SOURCES, together, strict=True):
        allowed = mapped.pieces(source)
        (expected,) = translate(Masked(model, allowed), [source], search, CPU)  # type: ignore[arg-type]
        (alone,) = translate(model, [source], search, CPU, vocabulary_map=mapped)
        assert found[0].ids == alone[0].ids == expected[0].ids
        assert found[0].score == pytest.approx(expected[0].score, rel=1e-12)
        assert alone[0].score == pytest.approx(expected[0].score, rel=1e-12)
        assert set(found[0].ids) <= set(allowed.tolist())
    plain = translate(model, SOURCES, search, CPU)
    assert all(each[0].score != other[0].score for each, other in zip(plain, together, strict=True))  # it matters


def test_an_ensemble_and_8_bits_do_not_depend_on_the_batch_either() -> None:
    mapped = random_map(3)
    members = [network({}), network(NETWORKS["recurrent"], seed=1)]
    for narrow in (False, True) if int8_works() else (False,):
        if narrow:
            for member in members:
                to_int8(member)
        model = Ensemble(members)
        together = translate(model, SOURCES, SETTINGS, CPU, vocabulary_map=mapped)
        for slots in (1, 60):
            found = translate(model, SOURCES, SETTINGS, CPU, vocabulary_map=mapped, max_batch_slots=slots)
            assert [each[0].ids for each in found] == [each[0].ids for each in together]
            scores = [each[0].score for each in found]
            assert scores == pytest.approx([each[0].score for each in together], rel=1e-12)
        for source, each in zip(SOURCES, together, strict=True):
            assert set(each[0].ids) <= set(mapped.pieces(source).tolist())


def test_special_symbols_and_frequent_pieces_are_in_every_sentence() -> None:
    mapped = VocabularyMap(np.array([[9], [9], [9], [9], [9], [7]]), np.array([8, 6]))
    assert mapped.pieces([5]).tolist() == [*SPECIAL, 6, 7, 8]
    assert mapped.pieces([5, 4, 5]).tolist() == [*SPECIAL, 6, 7, 8, 9]


# --- settings and identities


def test_an_evaluation_without_a_map_keeps_its_name_and_one_with_it_has_its_own(tmp_path: Path) -> None:
    task = load_task("translation")
    plain = RunConfig.model_validate({"data": {"builtin_pairs": 100}})
    mapped = RunConfig.model_validate({"data": {"builtin_pairs": 100}, "evaluation": {"vocabulary_map": 20}})
    (before,), (with_map,) = (task.evaluations(config, tmp_path) for config in (plain, mapped))
    assert sorted(before.settings) == ["beam_size", "checkpoint", "length_penalty", "max_extra_length", "precision"]
    assert with_map == EvaluationSpec("dev", {**before.settings, "vocabulary_map": 20}, before.inputs)
    reads = task.part_settings
    assert "vocabulary_map" in reads["decode"]
    assert "vocabulary_map" not in reads["likelihood"]  # perplexity is over all pieces: measured once


@pytest.mark.parametrize("name", ["language_modelling", "parsing", "algorithmic"])
def test_tasks_without_pairs_of_text_refuse_it(name: str) -> None:
    kind = load_task(name).config_type
    with pytest.raises(ValueError, match=f"vocabulary_map = 20 is for translation: the task {name} has no pairs"):
        kind.model_validate({"evaluation": {"vocabulary_map": 20}})
    assert json.loads(kind().model_dump_json())["evaluation"]["vocabulary_map"] == 0


@pytest.mark.parametrize("value", [-1, MOST_MAPPED + 1, 2.5, "many"])
def test_other_sizes_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"evaluation.vocabulary_map|vocabulary_map"):
        RunConfig.model_validate({"evaluation": {"vocabulary_map": value}})
