"""Running text: corpora, pieces that hold any text, windows, and bits per byte against plain loops."""

import gzip
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ablations.extras.language_models.corpus import LONGEST, TextData, resolve
from ablations.extras.language_models.scoring import stream_nll
from ablations.extras.language_models.task import TASK, LanguageConfig, LanguageModel
from ablations.extras.language_models.windows import WindowPlan, collate_windows, cut
from experiments.data.encoding import encode_rows
from experiments.data.encoding.encoded import EncodedCorpus
from experiments.data.encoding.prepare import prepare
from experiments.data.encoding.sides import Side
from experiments.data.encoding.tokenizer import EOS_ID, Tokenizer
from experiments.data.encoding.utf8 import to_bytes
from experiments.device import Device
from experiments.device_spec import DeviceSpec
from experiments.dotted import defaults
from experiments.errors import Damaged, UserError
from experiments.identity import digest
from model.network import build_model
from model.protocol import Network

TEXT = "".join(f"Zeile {n}: the quick brown fox, größer als {n * n}.\n" + "\n" * (n % 7 == 0) for n in range(200))
HARD = "日本 \x00\x1f\t  two  spaces\r\n▅ \u2028 é\n\nlast, without an end"
UNITS = {"bpe": {"vocab_size": 400}, "unigram": {"vocab_size": 320}, "char": {}, "byte": {}}
SIZES: dict[str, Any] = {"num_layers": 1, "d_model": 8, "d_ff": 12, "num_heads": 2, "d_k": 4, "d_v": 4, "dropout": 0.0}


def folder(place: Path, **texts: str | bytes) -> Path:
    place.mkdir()
    for name, text in ({"train": TEXT, "dev": HARD} | texts).items():
        (place / f"{name}.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    return place


def data(corpus: Path | str, units: str = "byte", **settings: Any) -> TextData:
    return TextData.from_mapping({"corpus": str(corpus), "units": units, **UNITS[units], **settings})


def encoded(settings: TextData, root: Path) -> EncodedCorpus:
    return prepare(resolve(settings), settings, True, root, lambda *_: None)


def dev_of(text: EncodedCorpus) -> tuple[Side, dict[str, Any]]:
    dev = text.set("dev")
    return dev.sides["target"], dev.facts


def network(vocab_size: int, **settings: Any) -> Network:
    torch.manual_seed(1)
    return build_model(LanguageModel.from_mapping({**SIZES, **settings}), vocab_size).double().eval()


def nll(model: Network, stream: Side, **how: Any) -> Any:
    return stream_nll(model, stream, Device.open(DeviceSpec(), "fp32"), **{"mix": True, **how})


@pytest.mark.parametrize("units", UNITS)
@pytest.mark.parametrize("documents", ["file", "line", "blank_line"])
def test_the_pieces_hold_the_text_exactly(tmp_path: Path, units: str, documents: str) -> None:
    settings = data(folder(tmp_path / "corpus"), units, documents=documents)
    text = encoded(settings, tmp_path / "store")
    tokenizer = Tokenizer(text.tokenizer_model("tokenizer.model"))
    for stream, raw in ((text.train["target"], TEXT), (text.set("dev").sides["target"], HARD)):
        pieces = stream.pieces.tolist()
        bounds = itertools.pairwise(stream.offsets.tolist())
        assert "".join(tokenizer.decode(pieces[first + 1 : last]) for first, last in bounds) == raw
        assert [p for p, piece in enumerate(pieces) if piece == EOS_ID] == stream.offsets.tolist()
    stream, facts = dev_of(text)
    assert stream.lines is not None
    assert facts["bytes"] == stream.lines[:, 1].sum() == len(HARD.encode()) and stream.lines[:, 2].sum() == len(
        HARD.split()
    )
    assert documents != "line" or len(stream.offsets) - 1 == len(HARD.split("\n")), "only line feeds end lines"
    assert TASK.vocab_sizes(LanguageConfig(data=settings))[0] == tokenizer.vocab_size


def test_bytes_take_any_file_and_other_units_name_the_line(tmp_path: Path) -> None:
    place = folder(tmp_path / "corpus", train=TEXT.encode() + b"caf\xe9\n", dev=b"\xff\xfe\x00\n")
    stream = encoded(data(place), tmp_path / "store").train["target"]
    assert bytes((stream.pieces[1:-1] - 4).astype(np.uint8)) == TEXT.encode() + b"caf\xe9\n"
    with pytest.raises(UserError, match=r"train.txt, line 230: not UTF-8 \(byte 0xe9\)"):
        encoded(data(place, "char"), tmp_path / "store")


def test_one_file_is_split_by_lines_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "all.txt.gz"
    path.write_bytes(gzip.compress(TEXT.encode()))
    corpus = resolve(data(path))
    texts = {name: "".join(line.text for line in corpus.read(name)) for name in ("train", "dev", "test")}
    assert texts["train"] + texts["dev"] + texts["test"] == TEXT
    count = TEXT.count("\n")
    assert texts["dev"].count("\n") == texts["test"].count("\n") == count // 20
    path.write_bytes(gzip.compress(b"too\nfew\n"))
    with pytest.raises(UserError, match="has 2 lines: a single file is split by lines and needs at least 20"):
        resolve(data(path)).check()


def test_long_lines_come_in_parts_and_documents_by_blank_lines(tmp_path: Path) -> None:
    corpus = resolve(
        data(folder(tmp_path / "c", train="a\nb\n\n\nc\n" + "x" * (2 * LONGEST) + "\n"), documents="blank_line")
    )
    found = list(corpus.read("train"))
    assert [line.text for line in found if line.starts] == ["a\n", "c\n"]
    assert max(len(line.text) for line in found) == LONGEST


def test_identities_follow_content_and_not_names(tmp_path: Path) -> None:
    one, same = (folder(tmp_path / name) for name in ("one", "same"))
    other = folder(tmp_path / "other", dev=HARD + "!")
    digests = [resolve(data(place)).training_digest() for place in (one, same, other)]
    assert digests[0] == digests[1] != digests[2]
    assert digests[0] != resolve(data(one, documents="line")).training_digest()


def test_dev_within_train_is_counted(tmp_path: Path) -> None:
    repeated = "Zeile 3: the quick brown fox, größer als 9.\n"
    text = encoded(
        data(folder(tmp_path / "corpus", dev=repeated * 2 + "a line that is nowhere else\nshort\n")), tmp_path / "s"
    )
    assert text.set("dev").facts["seen_in_train"] == {"lines": 2, "of": 3}


def test_damage_is_noticed(tmp_path: Path) -> None:
    text = encoded(data(folder(tmp_path / "corpus")), tmp_path / "store")
    with (text.folder / "train" / "target.pieces").open("r+b") as file:
        file.write(b"\x09")
    with pytest.raises(Damaged, match="pieces has changed since it was written"):
        _ = text.train
    next(text.folder.glob("sets/dev-*/facts.json")).unlink()
    with pytest.raises(Damaged, match=r"facts\.json is missing"):
        text.set("dev")


@pytest.mark.parametrize("mix", [True, False])
@pytest.mark.parametrize(("window", "rows"), [(7, 5), (64, 1), (300, 2)])
def test_an_epoch_has_every_piece_at_most_once_and_steps_are_pure(
    tmp_path: Path, mix: bool, window: int, rows: int
) -> None:
    stream = encoded(data(folder(tmp_path / "corpus"), documents="line"), tmp_path / "store").train["target"]
    plan = WindowPlan(stream.offsets, window, mix, window * rows + 1, seed=3)
    last = len(stream.pieces) - 1
    for epoch in range(3):
        predicted = np.concatenate([np.arange(start + 1, start + n + 1) for start, n in plan.epoch(epoch)])
        assert len(set(predicted.tolist())) == len(predicted) and predicted.max() <= last
        assert len(predicted) == last if not mix else last - len(predicted) < 2 * window
    again = WindowPlan(stream.offsets, window, mix, window * rows + 1, seed=3)
    steps = [plan.batch(step) for step in range(40)]
    assert all(np.array_equal(again.batch(step), steps[step]) for step in (39, 0, 17))
    lengths, counts = plan.seen(40)
    assert (lengths * counts).sum() == sum(int(batch[:, 1].sum()) for batch in steps)
    batch = collate_windows(stream, steps[0], window)
    for row, (start, n) in enumerate(steps[0].tolist()):
        assert batch.target_input[row, :n].tolist() == stream.pieces[start : start + n].tolist()
        assert batch.target_output[row, :n].tolist() == stream.pieces[start + 1 : start + n + 1].tolist()
        assert not batch.target_output[row, n:].any()
        assert mix or EOS_ID not in batch.target_output[row, : n - 1], "no window reaches into the next document"


@pytest.mark.parametrize(("window", "stride"), [(5, 5), (5, 1), (5, 3), (40, 7), (1000, 1000)])
def test_windows_of_an_evaluation_predict_every_piece_once(window: int, stride: int) -> None:
    documents = np.array([0, 3, 4, 25, 26, 31])
    seen: list[int] = []
    for first, length, new in cut(documents, window, stride).tolist():
        assert 0 < new <= length <= window
        document = int(np.searchsorted(documents, first, side="right")) - 1
        assert first + length <= documents[document + 1]
        seen += range(first + length - new + 1, first + length + 1)
        context = first + length - new - documents[document]
        assert length - new >= min(context, window - stride), "as much context as asked for"
    assert seen == list(range(1, 32))


@pytest.mark.parametrize("mix", [True, False])
@pytest.mark.parametrize(("window", "stride"), [(6, 6), (6, 2), (30, 7)])
def test_bits_per_byte_equal_a_plain_loop_over_the_bytes(tmp_path: Path, mix: bool, window: int, stride: int) -> None:
    """The loop knows neither streams nor windows: it asks for one byte at a time."""
    raw = b"a b\n\nc\xff d\n"
    place = folder(tmp_path / "corpus", dev=raw)
    stream, facts = dev_of(encoded(data(place, documents="line"), tmp_path / "store"))
    model = network(260, positions="learned", max_length=40)
    total = 0.0
    symbols: list[int] = [EOS_ID]
    starts = [0]
    for line in raw.splitlines(keepends=True):
        symbols += [*(4 + byte for byte in line), EOS_ID]
        starts.append(len(symbols) - 1)
    bounds = [(0, len(symbols) - 1)] if mix else list(itertools.pairwise(starts))
    with torch.inference_mode():
        for first, last in bounds:
            for place_ in range(first + 1, last + 1):
                # the first window that has it: windows begin every `stride` symbols
                begin = first + stride * max(0, math.ceil((place_ - first - window) / stride))
                read = torch.tensor([symbols[begin:place_]])
                hidden = model(torch.zeros(1, 0, dtype=torch.int64), None, read)
                total -= torch.log_softmax(model.logits(hidden)[0, -1], -1)[symbols[place_]].item()
    found = nll(model, stream, window=window, stride=stride, mix=mix)
    assert found.sum() / math.log(2) / facts["bytes"] == pytest.approx(total / math.log(2) / len(raw), abs=1e-9)
    small = nll(model, stream, window=window, stride=stride, mix=mix, max_batch_tokens=1)
    np.testing.assert_allclose(small, found, atol=1e-12)


def test_bytes_and_pieces_of_one_text_are_comparable(tmp_path: Path) -> None:
    """A network that knows nothing pays the same for a document whatever its pieces: ln V a piece, over its bytes."""
    place = folder(tmp_path / "corpus")
    for units in UNITS:
        stream, facts = dev_of(encoded(data(place, units), tmp_path / "store"))
        size = Tokenizer(encoded(data(place, units), tmp_path / "store").tokenizer_model("tokenizer.model")).vocab_size
        model = network(size)
        with torch.no_grad():
            model.output_weight.zero_()
        found = nll(model, stream, window=50, stride=50)
        np.testing.assert_allclose(found, math.log(size))
        assert facts["bytes"] == len(HARD.encode()) and len(found) == len(stream.pieces) - 1


def test_surrogates_are_bytes() -> None:
    assert to_bytes("a\udcff") == b"a\xff" and to_bytes("\ud800") == b"?"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": {"encoder": "self_attention", "decoder": "cross_attention"}}, "must be empty"),
        ({"evaluation": {"stride": 300}}, "more than the window of 256"),
        ({"model": {"positions": "learned", "max_length": 100}}, "more than the 100 positions"),
        ({"model": {"decoder": "N * (cross_attention)"}}, "model.encoder is empty, but cross_attention"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LanguageConfig.from_mapping(settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"test": ["a/news.txt", "b/news.txt"]}, "are both the set news"),
        ({"train": ["/etc/*"]}, "data.train = '/etc/\\*' is no pattern"),
        ({"test": ["**a"]}, "data.test = '..a' is no pattern"),
        ({"test": ["test.txt"]}, "Both .*test.txt and .*test.txt.gz exist"),
    ],
)
def test_files_that_one_name_or_no_pattern_means_are_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    place = folder(tmp_path / "corpus", test="x\n")
    (place / "test.txt.gz").write_bytes(gzip.compress(b"y\n"))
    for name in ("a", "b"):
        (place / name).mkdir()
        (place / name / "news.txt").write_text(name)
    with pytest.raises(UserError, match=message):
        resolve(data(place, **settings))


def test_a_set_whose_name_is_a_pattern_is_found(tmp_path: Path) -> None:
    place = folder(tmp_path / "corpus", **{"test": "a\n", "test[1]": "a\nb\n"})
    prepared = encoded(data(place), tmp_path / "store")
    assert prepared.set("test[1]").facts["lines"] == 2 and prepared.set("test").facts["lines"] == 1


def test_a_long_line_is_encoded_in_bounded_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "ab " * LONGEST
    small, seen, batch = LONGEST + 1, [], Tokenizer.encode_batch
    monkeypatch.setattr(encode_rows, "CHUNK_CHARACTERS", small)
    monkeypatch.setattr(
        Tokenizer,
        "encode_batch",
        lambda self, texts, threads=1: seen.append(sum(map(len, texts))) or batch(self, texts, threads),
    )
    train = encoded(data(folder(tmp_path / "corpus", train=line)), tmp_path / "store").facts["train"]
    assert train["characters"] == len(line) and max(seen) <= 2 * small


def test_texts_that_cannot_be(tmp_path: Path) -> None:
    place = folder(tmp_path / "corpus", train="short\n")

    def refused(corpus: Path = place) -> str:
        config = LanguageConfig.from_mapping({"data": data(corpus).model_dump(mode="json")})
        with pytest.raises(UserError) as found:
            TASK.prepare(config, tmp_path / "store", lambda *_: None)
        return str(found.value)

    assert "has 7 pieces, fewer than data.window = 256" in refused()
    (place / "dev.txt").unlink()
    assert "has no dev*.txt or val*.txt" in refused()
    assert "does not exist" in refused(tmp_path / "nowhere")


def test_every_default_is_what_it_was() -> None:
    """A new setting with a default of its own changes this digest: write the new one. A changed default must not."""
    assert digest(dict(defaults(LanguageConfig))) == "3c18c65daaadc847"
