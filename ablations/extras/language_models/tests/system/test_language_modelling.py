"""Language models by the command: trained, scored, resumed, sampled; two processes train as one."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.system.conftest import Cli, as_json, command, environment

pytestmark = pytest.mark.slow

STUDY = """
name = "words"
title = "Language models in miniature"
task = "language_modelling"

[base]
model = {num_layers = 1, d_model = 16, d_ff = 32, num_heads = 2, d_k = 8, d_v = 8}
data = {units = "byte", window = 32, builtin_pairs = 600}
training = {train_steps = 40, warmup_steps = 20, tokens_per_batch = 256, checkpoint_steps = 10, precision = "fp32"}
evaluation = {sets = ["dev", "test"]}

[[variation]]
key = "base"

[[variation]]
key = "overlap"
set = {evaluation.stride = 4}

[[variation]]
key = "pieces"
set = {data.units = "bpe", data.vocab_size = 420}

[[variation]]
key = "sentences"
set = {data.documents = "line", data.mix_documents = false, evaluation.checkpoint = "best", training.eval_steps = 20}

[[variation]]
key = "together"
ensemble = {of = "base", seeds = [1, 2]}

[[variation]]
key = "rotary"
set = {model.positions = "rotary", model.activation = "swiglu"}
"""


def study(folder: Path) -> Path:
    path = folder / "words.toml"
    path.write_text(STUDY)
    return path


@pytest.mark.nightly
def test_rows_train_and_print_and_a_longer_context_is_no_other_training(cli: Cli, tmp_path: Path) -> None:
    path, store = study(tmp_path), tmp_path / "store"
    rows = {row["row"]: row for row in as_json(cli("run", path, "--store", store, "--devices", "cpu:1x2", "--json"))}
    assert set(rows) == {"base", "overlap", "pieces", "sentences", "rotary", "together"}
    assert rows["base"]["run_ids"] == rows["overlap"]["run_ids"]
    for row in rows.values():
        assert 0 < row["bits"] < 8 and row["bits_test"] > 0 and row["ppl"] > 1 and row["ppl_word"] > row["ppl"]
    assert rows["base"]["bits"] == pytest.approx(rows["base"]["bits_test"], rel=0.1)
    assert rows["together"]["num_params"] == 2 * rows["base"]["num_params"]
    table = cli("report", path, "--store", store, "--notes", "full").stdout
    assert "bits/byte (dev)" in table and "BLEU" not in table and "of training text, 260 pieces of vocabulary" in table
    (tmp_path / "table.json").write_text(cli("report", path, "--store", store, "--format", "json").stdout)
    cli("verify", tmp_path / "table.json", path, "--store", store)
    setup = cli("report", path, "--store", store, "--format", "setup").stdout
    assert "base is a network with the decoder" in setup and ", N = 1, d_model 16" in setup.replace("\\", "")
    texts = cli("generate", path, "--row", "pieces", "--store", store, "--samples", "2", "--json").stdout
    assert [json.loads(text)["sample"] for text in texts.splitlines()] == [1, 2]
    refused = cli("generate", path, "--row", "base", "--store", store, "--nbest", "2", code=2)
    assert "--nbest: a language model does not use this" in refused.stderr


@pytest.mark.nightly
def test_killed_and_resumed_it_is_the_same_model(cli: Cli, tmp_path: Path) -> None:
    path = study(tmp_path)
    settings = ("--rows", "sentences", "--devices", "cpu:1", "--set", "training.train_steps=200")
    cli("run", path, "--store", tmp_path / "whole", *settings)
    words = command("run", path, "--store", tmp_path / "killed", *settings)
    process = subprocess.Popen(words, env=environment(), start_new_session=True)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "killed").glob("runs/*/attempts/*/checkpoints/step-00000050")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    cli("run", path, "--store", tmp_path / "killed", *settings)
    finals = [
        next((tmp_path / name).glob("runs/*/attempts/*/final/model.safetensors")).read_bytes()
        for name in ("whole", "killed")
    ]
    assert finals[0] == finals[1]


def test_bad_input_is_one_paragraph(cli: Cli, tmp_path: Path) -> None:
    path, corpus = study(tmp_path), tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "train.txt").write_bytes(b"caf\xe9 and more text\n" * 50)
    for name in ("dev", "test"):
        (corpus / f"{name}.txt").write_bytes(b"other text, long enough\n" * 5)

    def refused(*more: str) -> str:
        return cli("plan", path, "--store", tmp_path / "s", "--corpus", corpus, *more, code=2).stderr

    assert "line 1: not UTF-8 (byte 0xe9)" in refused("--rows", "pieces")
    path.write_text(STUDY.partition('[[variation]]\nkey = "overlap"')[0])
    assert "more than the 20 positions" in refused("--set", "model.positions=learned", "--set", "model.max_length=20")
    assert "less than data.window" in refused("--set", "training.tokens_per_batch=8")
    assert "must be empty" in refused("--set", "model.encoder=self_attention", "--set", "model.decoder=cross_attention")
    assert "word" in refused("--set", "data.units=word")


def test_bytes_that_are_no_text_train_and_dev_within_train_is_said(cli: Cli, tmp_path: Path) -> None:
    path, corpus, store = study(tmp_path), tmp_path / "corpus", tmp_path / "store"
    path.write_text(STUDY.partition('[[variation]]\nkey = "overlap"')[0])
    corpus.mkdir()
    twice = b"a line of more than twenty characters in both\n"
    (corpus / "train.txt").write_bytes(b"caf\xe9 and more text\n" * 50 + twice)
    (corpus / "dev.txt").write_bytes(b"other text\n" * 5 + twice + b"\xff\xfe no text\n")
    given = ("--corpus", corpus, "--store", store, "--set", "evaluation.sets=dev", "--set", "training.train_steps=2")
    [row] = as_json(cli("run", path, *given, "--devices", "cpu:1", "--json"))
    assert 0 < row["bits"] < 20
    notes = " ".join(cli("report", path, *given, "--notes", "full").stdout.split())
    assert "1 of its 1 long lines also in train" in notes


def test_a_text_shorter_than_a_window_is_refused_before_anything_trains(cli: Cli, tmp_path: Path) -> None:
    path, corpus, store = study(tmp_path), tmp_path / "corpus", tmp_path / "store"
    path.write_text(STUDY.partition('[[variation]]\nkey = "overlap"')[0])
    corpus.mkdir()
    (corpus / "train.txt").write_text("nineteen characters")
    (corpus / "dev.txt").write_text("other text, long enough\n" * 5)
    said = cli("run", path, "--corpus", corpus, "--store", store, "--set", "evaluation.sets=dev", code=2).stderr
    assert "The training text has 20 pieces, fewer than data.window = 32. Set data.window to 20" in " ".join(
        said.split()
    )
    assert not list(store.glob("runs/*/attempts"))
