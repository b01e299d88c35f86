"""Tests of a trained model as a translator: order, windows, empty and too long lines, export and load."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from experiments.config.data import DataConfig
from experiments.config.run_config import RunConfig
from experiments.data.encoding.tokenizer import Tokenizer, train_tokenizer
from experiments.device import Device
from experiments.device_spec import DeviceSpec
from experiments.errors import UserError
from experiments.evaluation.beam import SearchSettings
from experiments.evaluation.export import export
from experiments.evaluation.translate import translate
from experiments.evaluation.translator import Translator
from experiments.tasks.translation import TRANSLATE
from experiments.training.checkpoint import add_file, model_tensors, save_weights
from model.network import build_model

LINES = ["der Hund läuft schnell", "", "eine Katze schläft", "der Hund schläft", "Katze", "schnell schläft der Hund"]
CONFIG = RunConfig.model_validate(
    {
        "model": {"num_layers": 2, "d_model": 8, "d_ff": 16, "num_heads": 2, "d_k": 4, "d_v": 4},
        "data": {"vocab_size": 40},
        "evaluation": {"beam_size": 3, "max_extra_length": 4},
    }
)


@pytest.fixture(scope="module")
def attempt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attempt")
    torch.manual_seed(0)
    model = build_model(CONFIG.model, 40)
    with torch.no_grad():
        model.target_embedding.weight *= 3
    save_weights(folder / "final", model_tensors(model), {})
    train_tokenizer(LINES * 3, DataConfig(vocab_size=40), folder / "learnt", "the text")
    add_file(folder / "final", "tokenizer.model", (folder / "learnt").read_bytes())
    return folder


@pytest.fixture
def translator(attempt: Path) -> Translator:
    return Translator.of_run(CONFIG, attempt, DeviceSpec())


def test_windows_change_nothing_and_empty_lines_stay_empty(translator: Translator) -> None:
    whole = translator.translate(LINES)
    assert whole[1] == ""
    assert len(set(whole)) > 2
    for windows in ((1,), (2,), (1, 4)):
        assert [found[0].text for found in translator.stream(LINES, windows=windows)] == whole


def test_no_more_than_a_window_is_read_ahead(translator: Translator) -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield LINES[read % 3]

    found = translator.stream(endless(), windows=(2, 3))
    for _ in range(4):
        next(found)
    assert read == 5


def test_n_best_come_best_first_with_scores(translator: Translator) -> None:
    settings = SearchSettings(beam_size=3, max_extra_length=4, nbest=3)
    (found,) = translator.stream(LINES[:1], settings)
    hypotheses = translate(
        translator.model, [translator.source_tokenizer.encode(LINES[0])], settings, translator.device
    )
    assert [one.score for one in found] == [h.score for h in hypotheses[0]]
    assert found[0].score >= found[-1].score


def test_over_long_lines_are_refused_by_number(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.evaluation.translator.MAX_PIECES", 3)
    with pytest.raises(UserError, match=r"Line 4 has \d+ pieces, more than 3"):
        list(translator.stream(["der", "", "der", LINES[0]], windows=(1,)))


def test_progress_counts_lines_over_all_windows(translator: Translator) -> None:
    seen: list[int] = []
    list(translator.stream(LINES, windows=(2,), progress=seen.append))
    assert seen[-1] == len(LINES)
    assert seen == sorted(seen)


def test_an_exported_folder_translates_the_same(translator: Translator, attempt: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    export(CONFIG, attempt, folder, run_id="0" * 16, choice="last", facts={"commit": "abc"}, use=TRANSLATE.readme)
    assert Translator.load(folder).translate(LINES) == translator.translate(LINES)
    assert "Translator.load" in (folder / "README.md").read_text(encoding="utf-8")
    assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["run_id"] == "0" * 16
    with pytest.raises(UserError, match="not empty"):
        export(CONFIG, attempt, folder, run_id="0" * 16, choice="last", facts={}, use=TRANSLATE.readme)
    (folder / "final" / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(UserError, match="damaged"):
        Translator.load(folder)
    with pytest.raises(UserError, match="not an exported model"):
        Translator.load(tmp_path)


def test_workers_side_by_side_give_the_same(translator: Translator) -> None:
    sources = [[4 + (i * j) % 30 for j in range(1 + i % 9)] for i in range(40)]
    settings = SearchSettings(beam_size=2, max_extra_length=4)
    model = translator.model.double()
    alone = translate(model, sources, settings, Device(torch.device("cpu"), "fp32", 1))
    together = translate(model, sources, settings, Device(torch.device("cpu"), "fp32", 2), max_batch_slots=60)
    assert [h[0].ids for h in together] == [h[0].ids for h in alone]
    torch.set_num_threads(1)


def test_an_error_in_a_worker_is_raised(translator: Translator) -> None:
    device = Device(torch.device("cpu"), "fp32", 2)
    calls = iter(range(100))
    with pytest.raises(UserError, match="enough"):
        translate(
            translator.model, [[4, 5]] * 30, SearchSettings(beam_size=2), device, max_batch_slots=250,
            should_stop=lambda: next(calls) > 3 and _fail(),
        )  # fmt: skip
    torch.set_num_threads(1)


def _fail() -> bool:
    raise UserError("enough")


def test_the_tokenizer_names_its_pieces(attempt: Path) -> None:
    tokenizer = Tokenizer.load(attempt / "final" / "tokenizer.model")
    assert "".join(tokenizer.pieces(tokenizer.encode(LINES[0]))).replace("▁", " ").strip() == LINES[0]
