"""In records with a checksum, every flipped bit is detected or changes nothing."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.errors import Damaged
from experiments.store.checksummed import read_json, with_checksum, without_checksum, write_json
from experiments.store.layout import Store

RECORD = {"metrics": {"bleu": 57.25454960845013, "perplexity": math.inf}, "step": 600, "näme": ["ü", None, True, 1e-09]}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_what_was_checksummed_comes_back_through_json(record):
    record = {k: v for k, v in record.items() if not k.startswith("record_")}
    assert without_checksum(json.loads(json.dumps(with_checksum(record)))) == record


def test_no_flipped_bit_is_silent(tmp_path):
    path = tmp_path / "result.json"
    write_json(path, RECORD)
    whole, harmless = path.read_bytes(), 0
    for place in range(len(whole)):
        for bit in range(8):
            harmed = bytearray(whole)
            harmed[place] ^= 1 << bit
            path.write_bytes(harmed)
            try:
                assert read_json(path) == RECORD, "accepted, so nothing is changed"
                harmless += 1
            except Damaged as damage:
                assert str(path) in str(damage)
    assert harmless < len(whole), "a few flips of layout and of an exponent's letter, no more"


def test_half_a_seal_or_none_is_damage(tmp_path):
    path = tmp_path / "result.json"
    for lacking in (("record_format",), ("record_sha256",), ("record_format", "record_sha256")):
        path.write_text(json.dumps({k: v for k, v in with_checksum(RECORD).items() if k not in lacking}))
        with pytest.raises(Damaged):
            read_json(path)


@pytest.mark.parametrize("text", ["", "[]", "7", "{", "[" * 5000, '{"a": "\udcff"}'.encode("utf-8", "surrogatepass")])
def test_what_is_no_record_is_damage(tmp_path, text):
    path = tmp_path / "result.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(Damaged, match=r"result\.json is damaged"):
        read_json(path)


def test_a_record_in_the_place_of_another_is_damage(tmp_path):
    store = Store.open(tmp_path)
    one, other = "1" * 16, "2" * 16
    for run_id in (one, other):
        store.run_folder(run_id).mkdir()
    write_json(store.run_folder(one) / "result.json", {"run_id": one, "attempt": 1})
    (store.run_folder(other) / "result.json").write_bytes((store.run_folder(one) / "result.json").read_bytes())
    assert store.result(one).content == {"run_id": one, "attempt": 1}
    with pytest.raises(Damaged, match=f"of another run_id: {one}"):
        store.result(other)
