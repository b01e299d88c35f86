"""Checks before training refuse exactly what preparing and training would refuse."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.config.data import DataConfig
from experiments.config.run_config import RunConfig
from experiments.config.training import TrainingConfig
from experiments.data.corpora.builtin import generate
from experiments.data.corpora.parallel import resolve
from experiments.data.encoding.prepare import prepare
from experiments.data.encoding.tokenizer import VocabularyTooLarge, train_tokenizer
from experiments.dotted import nested
from experiments.errors import NeedsCorpus, UserError
from experiments.tasks import preflight
from experiments.tasks.translation import TASK
from experiments.training import kept_checkpoints
from tests.small_training import run

SMALL = {"data.vocab_size": 200, "training.tokens_per_batch": 400, "training.train_steps": 6}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "text"
    place.mkdir()
    for name, count in (("train", 300), ("dev", 12), ("test", 5)):
        for language, lines in zip(("en", "de"), zip(*list(generate(name, 300))[:count], strict=True), strict=True):
            (place / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines))
    return place


@pytest.fixture
def found(folder: Path, tmp_path: Path) -> Callable[..., list[UserError]]:
    def of(**settings: Any) -> list[UserError]:
        return TASK.preflight(config(folder, **settings), tmp_path / "store")

    return of


def config(folder: Path | str, **settings: Any) -> RunConfig:
    given = {name.replace("__", "."): value for name, value in settings.items()}
    values = nested({**SMALL, "data.corpus": str(folder), **given}) | {"task": "translation"}
    return TASK.config_type.model_validate_json(json.dumps(values))


def test_nothing_stands_in_the_way_and_nothing_is_written(
    found: Callable[..., list[UserError]], tmp_path: Path
) -> None:
    assert found() == found(training__train_steps=0) == []
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"data__vocab_size": 37000}, "is more than the training text of text allows"),
        ({"data__vocab_size": 60}, "is too few for the training text"),
        ({"data__max_pieces": 3}, "No training pair of text is left"),
        ({"evaluation__sets": ["tset"]}, 'evaluation.sets names "tset"'),
        ({"evaluation__length_penalty": 1000.0}, "scores of long outputs overflow"),
        ({"evaluation__checkpoint": "best", "training__eval_steps": 7}, "measures none within"),
        ({"evaluation__checkpoint": "average:1", "training__train_steps": 0}, "leaves no checkpoint"),
    ],
)
def test_what_cannot_be_is_said(found: Callable[..., list[UserError]], settings: dict[str, Any], words: str) -> None:
    (error,) = found(**settings)
    assert words in str(error) and not isinstance(error, NeedsCorpus)


@pytest.mark.parametrize("vocab_size", [120, 200, 600])
def test_pairs_and_positions_are_refused_at_the_very_piece(
    folder: Path, tmp_path: Path, vocab_size: int, found: Callable[..., list[UserError]]
) -> None:
    """The longest sentence of the encoded corpus just fits. A limit of one piece less is refused."""
    made = prepare(
        resolve(config(folder).data),
        config(folder, data__vocab_size=vocab_size).data,
        True,
        tmp_path / "aside",
        lambda *_: None,
    )
    longest = max(int(side.max()) for side in (made.train["source"].lengths, made.train["target"].lengths))
    learned = {"data__vocab_size": vocab_size, "model__positions": "learned"}
    for _ in range(2):
        assert found(data__vocab_size=vocab_size, training__tokens_per_batch=longest) == []
        (error,) = found(data__vocab_size=vocab_size, training__tokens_per_batch=longest - 1)
        assert f"which has {longest} pieces" in str(error)
        assert found(**learned, model__max_length=longest) == []
        (error,) = found(**learned, model__max_length=longest - 1)
        assert f"train has {longest} pieces" in str(error)
        TASK.prepare(config(folder, data__vocab_size=vocab_size), tmp_path / "store", lambda *_: None)


def test_a_long_line_of_an_evaluated_set_needs_positions_too(
    folder: Path, found: Callable[..., list[UserError]]
) -> None:
    for language in ("en", "de"):
        (folder / f"test.{language}").write_text("a " * 300 + "\n")
    learned = {"model__positions": "learned", "model__max_length": 256}
    assert found(**learned) == []  # dev alone is evaluated
    (error,) = found(**learned, evaluation__sets=["dev", "test"])
    assert "the longest sentence of test has" in str(error)


@pytest.mark.parametrize("side", [0, 1])
def test_the_built_in_corpus_allows_fewer_pieces_than_is_said(tmp_path: Path, side: int) -> None:
    lines = [pair[side] for pair in generate("train", 3000)]
    with pytest.raises(VocabularyTooLarge):
        train_tokenizer(lines, DataConfig(vocab_size=preflight.BUILTIN_PIECES), tmp_path / "model", "the text")


@pytest.mark.parametrize(("units", "size"), [("bpe", 37000), ("bpe", 2999), ("word", 2999)])
def test_a_vocabulary_beyond_the_built_in_corpus_needs_another_or_the_size_that_is_named(
    units: str, size: int, tmp_path: Path
) -> None:
    """The size that the message names is accepted."""

    def refusals(vocab_size: int) -> list[UserError]:
        data = {"builtin_pairs": 1200, "units": units, "vocab_size": vocab_size}
        return TASK.preflight(RunConfig.from_mapping({"data": data, "training": {"tokens_per_batch": 1000}}), tmp_path)

    (error,) = refusals(size)
    assert isinstance(error, NeedsCorpus) and "--corpus DIR" in str(error) and str(size) in str(error)
    named = re.search(r"data\.vocab_size(?:=| to )(\d+)", str(error))
    assert named is not None and refusals(int(named[1])) == []


@pytest.mark.parametrize(("steps", "every"), [(7, 3), (6, 3), (2, 3), (1, 1), (5, 1)])
def test_as_many_checkpoints_are_counted_as_a_training_leaves(tmp_path: Path, steps: int, every: int) -> None:
    settings = TrainingConfig(train_steps=steps, warmup_steps=10, checkpoint_steps=every, keep_checkpoints=9)
    run(tmp_path / "run", settings=settings)
    for count in range(1, 9):
        evaluation = RunConfig().evaluation.model_copy(update={"checkpoint": f"average:{count}"})
        refused = bool(list(preflight.of_settings(settings, evaluation)))
        try:
            kept_checkpoints.last(tmp_path / "run", count, every)
        except UserError:
            assert refused
        else:
            assert not refused
