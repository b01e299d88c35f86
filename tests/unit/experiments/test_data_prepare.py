"""The encoded corpus has the right pairs and counts, and is complete or does not exist."""

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.config.data import DataConfig
from experiments.data.corpora.corpus import SIDES
from experiments.data.corpora.parallel import ParallelCorpus, resolve
from experiments.data.encoding import encode_rows
from experiments.data.encoding import prepare as prepare_module
from experiments.data.encoding.encode_rows import Encoder
from experiments.data.encoding.encoded import EncodedCorpus, encoded_digest, open_encoded
from experiments.data.encoding.prepare import prepare, seen_in_train
from experiments.data.encoding.sides import Side, SideWriter, piece_dtype
from experiments.data.encoding.tokenizer import EOS_ID, UNK_ID, Tokenizer
from experiments.errors import Damaged, UserError
from experiments.store.checksummed import read_json

ENGLISH = [
    "the cat sat",
    "a dog",
    "",
    "the dog sat on the long long long mat, on the long long long mat",
    "a cat",
    "the\u2028mat",
]
GERMAN = ["die Katze saß", "ein Hund", "leer", "der Hund saß auf der Matte", "eine Katze", "die Matte"]
DEV = (["a dog", "a 漢 sat", "  "], ["ein Hund", "eine Matte", "leer"])


def silent(what: str, done: int, total: int) -> None:
    pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "text"
    place.mkdir()
    for name, sides in {"train": (ENGLISH, GERMAN), "dev": DEV, "test": (["a cat"], ["eine Katze"])}.items():
        for language, lines in zip(("en", "de"), sides, strict=True):
            (place / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines), newline="\n")
    return place


def data(folder: Path, **settings: Any) -> DataConfig:
    return DataConfig(corpus=str(folder), **{"vocab_size": 60, "max_pieces": 20, **settings})


def made(
    config: DataConfig, root: Path, shared: bool = True, progress: Callable[[str, int, int], None] = silent
) -> EncodedCorpus:
    return prepare(resolve(config), config, shared, root, progress, workers=2)


def whole_folders(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir()] if root.exists() else []


def test_mapped_pieces_equal_direct_encoding(folder: Path, tmp_path: Path) -> None:
    encoded = made(data(folder), tmp_path / "corpora")
    source_model, target_model = encoded.tokenizers
    assert source_model is target_model
    kept = [0, 1, 4, 5]  # 2 is empty, 3 too long
    assert len(encoded.train["source"]) == len(kept)
    for i, line in enumerate(kept):
        source, target = (side[i] for side in encoded.train.values())
        assert source.tolist() == source_model.encode(ENGLISH[line])
        assert target.tolist() == target_model.encode(GERMAN[line])
        assert encoded.train["source"].lengths[i] == len(source) + 1  # EOS
        assert encoded.train["target"].lengths[i] == len(target) + 1
    assert encoded.train["source"].lengths.max() <= 20


def test_what_is_dropped_is_counted(folder: Path, tmp_path: Path) -> None:
    facts = made(data(folder), tmp_path / "corpora").facts["train"]
    assert (facts["pairs"], facts["kept"], facts["dropped_empty"], facts["dropped_long"]) == (6, 4, 1, 1)
    characters = sum(len(ENGLISH[i]) for i in (0, 1, 4, 5))
    assert facts["source"]["characters"] == characters
    assert facts["source"]["characters_per_line"] == characters / 4


def test_a_side_that_is_no_sentence_is_counted_as_too_long_without_being_encoded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode_rows, "LONGEST_LINE", 1000)
    shown: list[int] = []
    batch = Tokenizer.encode_batch
    monkeypatch.setattr(
        Tokenizer,
        "encode_batch",
        lambda self, texts, threads=1: shown.append(max(map(len, texts))) or batch(self, texts, threads),
    )
    with (folder / "train.en").open("a") as english, (folder / "train.de").open("a") as german:
        english.write("the dog\n" + "the cat " * 200 + "\n")
        german.write("der Hund\n" + "kurz\n")
    train = made(data(folder), tmp_path).facts["train"]
    assert max(shown) < 1000
    assert (train["pairs"], train["kept"], train["dropped_empty"], train["dropped_long"]) == (8, 6, 1, 1)


def test_a_set_whose_name_is_a_pattern_is_found(folder: Path, tmp_path: Path) -> None:
    for language in ("en", "de"):
        (folder / f"test[1].{language}").write_text("a cat\nthe dog\n")
    encoded = made(data(folder), tmp_path)
    assert len(encoded.set("test[1]").source) == 2 and len(encoded.set("test").source) == 1


def test_evaluated_sets_are_kept_whole_with_their_text(folder: Path, tmp_path: Path) -> None:
    encoded = made(data(folder), tmp_path / "corpora")
    dev = encoded.set("dev")
    assert (dev.source, dev.target) == tuple(map(tuple, DEV))
    model = encoded.tokenizers[0]
    assert [dev.sides["source"][i].tolist() for i in range(3)] == [model.encode(line) for line in DEV[0]]
    assert dev.facts["source"]["unknown"] == 1 == model.encode(DEV[0][1]).count(UNK_ID)
    assert dev.facts["source"]["unknown_rate"] == 1 / sum(len(model.encode(line)) for line in DEV[0])
    assert dev.facts["seen_in_train"] == {"source": 1, "target": 2, "pair": 1}
    assert encoded.set("test").facts["seen_in_train"] == {"source": 1, "target": 1, "pair": 1}


def test_separate_vocabularies_know_their_side_only(folder: Path, tmp_path: Path) -> None:
    encoded = made(data(folder, vocab_size=26), tmp_path / "corpora", shared=False)
    source, target = encoded.tokenizers
    assert source.sha256 != target.sha256
    assert UNK_ID in source.encode("ß") and UNK_ID not in target.encode("ß")


def test_the_name_changes_with_all_that_changes_the_arrays(folder: Path) -> None:
    base = data(folder)
    corpus = resolve(base).training_digest()
    names = {
        encoded_digest(corpus, base, True),
        encoded_digest(corpus, base, False),
        encoded_digest(corpus, data(folder, vocab_size=61), True),
        encoded_digest(corpus, data(folder, max_pieces=21), True),
        encoded_digest("0" * 16, base, True),
    }
    assert len(names) == 5
    assert encoded_digest(corpus, DataConfig(vocab_size=60, max_pieces=20), True) in names


def test_a_second_call_reads_and_writes_nothing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, root = data(folder), tmp_path / "corpora"
    first = made(config, root)
    files = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    monkeypatch.setattr(ParallelCorpus, "read", lambda *_: pytest.fail("read again"))
    again = made(config, root)
    assert again.digest == first.digest and again.facts == first.facts
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == files


@pytest.mark.parametrize("held_pairs", [0, 100])
@pytest.mark.parametrize("name", ["train.en", "dev.de"])
def test_a_file_edited_after_it_was_hashed_is_not_encoded_under_its_old_name(
    folder: Path, tmp_path: Path, name: str, held_pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One character changes but not the file's size, before the first reading or between two readings."""
    monkeypatch.setattr(prepare_module, "HELD_PAIRS", held_pairs)
    check, old = ParallelCorpus.check, (folder / name).read_text()
    edited = old.replace("n", "m", 1)

    def edit(*_: Any) -> None:
        (folder / name).write_text(edited)

    def check_then_edit(corpus: ParallelCorpus, cache_dir: Path | None = None) -> dict[str, int]:
        counts = check(corpus, cache_dir)
        edit()
        return counts

    config, root = data(folder), tmp_path / "corpora"
    with monkeypatch.context() as patched, pytest.raises(UserError, match=f"{name} was changed after it was hashed"):
        if held_pairs:
            patched.setattr(ParallelCorpus, "check", check_then_edit)
        made(config, root, progress=silent if held_pairs else edit)
    assert not list(root.glob("*/sets/*"))
    encoded = made(config, root)  # again: with what is there now, under its own name
    assert encoded.digest == encoded_digest(resolve(config).training_digest(), config, True)
    whole = {"train": len(encoded.train["source"]), "dev": len(encoded.set("dev").sides["source"])}
    assert whole == {"train": 4, "dev": 3} and edited != old
    if name == "dev.de":
        assert "\n".join(encoded.set("dev").target) + "\n" == edited


def test_a_new_test_set_is_added_to_what_is_there(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "corpora"
    first = made(data(folder), root)
    for language in ("en", "de"):
        (folder / f"test_2.{language}").write_text("a dog\n")
    (folder / "test.en").write_text("the cat\n")  # and a changed one
    second = made(data(folder), root)
    assert second.digest == first.digest
    assert second.set("test_2").source == ("a dog",)
    digests = second.set_digests("test")
    assert {second.set("test", digest).source for digest in digests} == {("a cat",), ("the cat",)}
    with pytest.raises(ValueError, match="several sets have the name test"):
        second.set("test")
    with pytest.raises(UserError, match='"newstest" is not prepared'):
        second.set("newstest")


class Interrupted(BaseException):
    """A substitute for KeyboardInterrupt, which may be raised at any time."""


@pytest.mark.parametrize("when", ["training the tokenizer", "encoding", "searching duplicates"])
def test_an_interrupted_preparation_leaves_nothing_that_passes_for_whole(
    folder: Path, tmp_path: Path, when: str
) -> None:
    root = tmp_path / "corpora"

    def interrupt(what: str, done: int, total: int) -> None:
        if what == when:
            raise Interrupted

    with pytest.raises(Interrupted):
        made(data(folder), root, progress=interrupt)
    assert not list(root.rglob("*.partial"))
    for place in whole_folders(root):
        # The training set was complete; the other sets do not exist yet.
        assert len(open_encoded(root, place.name).train["source"]) == 4
        assert not list((place / "sets").glob("*"))
    undisturbed = made(data(folder), tmp_path / "other")
    resumed = made(data(folder), root)
    assert resumed.facts["tokenizer"]["sha256"] == undisturbed.facts["tokenizer"]["sha256"]
    assert resumed.set("dev").source == undisturbed.set("dev").source


def test_what_a_killed_process_left_is_swept_away(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "corpora"
    name = encoded_digest(resolve(data(folder)).training_digest(), data(folder), True)
    made(data(folder), root)
    (root / f".{name}.abc.partial" / "train").mkdir(parents=True)
    (root / name / "sets" / ".dev-0.abc.partial").mkdir()
    shutil.rmtree(next((root / name / "sets").glob("dev-*")))  # so that there is work to do
    (root / ".0123456789abcdef.abc.partial").mkdir()  # another corpus, perhaps at work
    made(data(folder), root)
    assert [path.name for path in root.rglob(".*.part*")] == [".0123456789abcdef.abc.partial"]


def test_two_at_once_make_one(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "corpora"
    results: list[EncodedCorpus] = []
    threads = [threading.Thread(target=lambda: results.append(made(data(folder), root))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3 and len(whole_folders(root)) == 1
    assert {len(encoded.train["source"]) for encoded in results} == {4}


def test_damage_is_noticed(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "corpora"
    digest = made(data(folder), root).digest
    pieces = root / digest / "train" / "source.pieces"
    whole = pieces.read_bytes()
    for harmed in (whole[:-2], bytes([whole[0] ^ 1]) + whole[1:]):
        pieces.write_bytes(harmed)
        with pytest.raises(Damaged, match=r"damaged: source\.pieces (has \d+ bytes|has changed since it was written)"):
            _ = open_encoded(root, digest).train
    text = next((root / digest / "sets").glob("dev-*/target.txt"))
    text.write_text(text.read_text().replace("e", "a", 1))
    with pytest.raises(Damaged, match=r"target\.txt has changed since it was written"):
        open_encoded(root, digest).set("dev")
    (text.parent / "facts.json").unlink()
    with pytest.raises(Damaged, match=r"facts\.json is missing"):
        open_encoded(root, digest).set("dev")
    (root / digest / "tokenizer.model").write_bytes((root / digest / "tokenizer.model").read_bytes() + b"\x00")
    with pytest.raises(UserError, match="tokenizer"):
        _ = open_encoded(root, digest).tokenizers
    with pytest.raises(UserError, match="no encoded corpus"):
        open_encoded(root, "0" * 16)


def test_bad_input_writes_nothing(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "corpora"
    with pytest.raises(UserError, match=r"data\.vocab_size = 5000 is more than the training text of text allows"):
        made(data(folder, vocab_size=5000), root)
    with pytest.raises(UserError, match=r"more than the source side of the training text"):
        made(data(folder, vocab_size=5000), root, shared=False)
    with pytest.raises(UserError, match=r"No training pair .* 1 have an empty side, 5 a side of more than"):
        made(data(folder, max_pieces=2), root)
    (folder / "dev.de").write_bytes("Käse\n\n\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"dev\.de, line 1: not UTF-8"):
        made(data(folder), root)
    assert not whole_folders(root) and not list(root.rglob("*.partial"))


def test_a_folder_that_cannot_be_written_is_explained(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Could not prepare the corpus text"):
        made(data(folder), tmp_path / "file" / "corpora")


def test_a_full_disk_is_explained(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(self: SideWriter, lines: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SideWriter, "add", no_space)
    with pytest.raises(UserError, match="no space left on the disk"):
        made(data(folder), tmp_path / "corpora")
    assert not whole_folders(tmp_path / "corpora")


def test_progress_counts_every_pair(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (prepare_module, encode_rows):
        monkeypatch.setattr(module, "CHUNK", 4)
    calls: list[tuple[str, int, int]] = []
    made(data(folder), tmp_path / "corpora", progress=lambda *call: calls.append(call))
    assert [call for call in calls if call[0] == "encoding"] == [("encoding", 4, 6), ("encoding", 6, 6)]


def test_streamed_and_held_training_sets_are_encoded_alike(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = made(data(folder), tmp_path / "a")
    monkeypatch.setattr(prepare_module, "HELD_PAIRS", 0)
    streamed = made(data(folder), tmp_path / "b")
    assert held.facts["tokenizer"]["sha256"] == streamed.facts["tokenizer"]["sha256"]
    np.testing.assert_array_equal(held.train["source"].pieces, streamed.train["source"].pieces)


def test_chunks_and_writers_do_not_change_what_is_written(folder: Path, tmp_path: Path) -> None:
    encoded = made(data(folder), tmp_path / "corpora")
    pairs = list(resolve(data(folder)).read("train"))
    encoder = Encoder(tmp_path, dict(zip(SIDES, encoded.tokenizers, strict=True)), threads=1, max_pieces=20)
    for pair in pairs:
        encoder.add([pair])
    encoder.close()
    assert encoder.facts() == encoded.facts["train"]
    assert (tmp_path / "source.pieces").read_bytes() == (encoded.folder / "train/source.pieces").read_bytes()


def test_large_vocabularies_take_wider_pieces(tmp_path: Path) -> None:
    assert piece_dtype(65_536) == np.uint16 and piece_dtype(65_537) == np.uint32
    writer = SideWriter(tmp_path, "source", piece_dtype(70_000))
    writer.add([[65_536, 4], []])
    writer.add([[69_999]])
    writer.close()
    side = Side(tmp_path, "source", piece_dtype(70_000))
    assert [side[i].tolist() for i in range(3)] == [[65_536, 4], [], [69_999]]
    assert side.lengths.tolist() == [3, 1, 2]


def test_offsets_are_the_places_of_rows(tmp_path: Path) -> None:
    writer = SideWriter(tmp_path, "target", piece_dtype(100))
    places = [writer.add([[5] * n for n in (3, 0, 2)]), writer.add([[6] * n for n in (1, 4)], np.array([False, True]))]
    writer.close()
    side = Side(tmp_path, "target", piece_dtype(100))
    assert np.concatenate(places).tolist() == [0, 3, 3, 5, 6]
    assert side.offsets.tolist() == [0, 3, 3, 6, 10] and side.pieces[-1] == EOS_ID
    assert sorted(path.name for path in tmp_path.iterdir()) == ["target.offsets", "target.pieces"]
    with (tmp_path / "target.offsets").open("r+b") as file:
        file.truncate(16)
    with pytest.raises(Damaged, match="do not fit"):
        Side(tmp_path, "target", piece_dtype(100))


def test_an_error_while_reading_pairs_reaches_who_encodes(folder: Path, tmp_path: Path) -> None:
    def lines() -> Iterator[tuple[str, str]]:
        yield "a", "b"
        raise UserError("the file changed")

    tokenizers = dict(zip(SIDES, made(data(folder), tmp_path / "corpora").tokenizers, strict=True))
    encoder = Encoder(tmp_path, tokenizers, threads=1)
    with pytest.raises(UserError, match="the file changed"):
        encoder.add(lines())


def test_duplicates_are_counted_by_line() -> None:
    train = [("a", "A"), ("b", "B"), ("a", "X")]
    sets = {"dev": [("a", "A"), ("a", "A"), ("b", "X"), ("c", "C")], "test": [("c", "B")]}
    assert seen_in_train(iter(train), sets) == {
        "dev": {"source": 3, "target": 3, "pair": 2},
        "test": {"source": 0, "target": 1, "pair": 0},
    }


def test_facts_are_plain_json(folder: Path, tmp_path: Path) -> None:
    encoded = made(data(folder), tmp_path / "corpora")
    kept = read_json(encoded.folder / "facts.json")
    files = kept.pop("files")
    assert kept == encoded.facts
    assert files.keys() == {f"train/{path.name}" for path in (encoded.folder / "train").iterdir()}
    assert encoded.facts["vocab_size"] == {"source": 60, "target": 60}
    assert str(tmp_path) not in (encoded.folder / "facts.json").read_text()  # a store can be moved
