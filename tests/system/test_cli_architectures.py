"""Mistakes in an architecture's line of text: one clear paragraph, exit code 2."""

from pathlib import Path

import pytest

from .conftest import Cli

MISTAKES = [
    ("encoder", "N * (self_attention, feed_forward", ["column 34", '")"']),
    ("encoder", "N * (self_attention; feed_forward)", ["column 20", "';'"]),
    ("encoder", "N * (self_atention, feed_forward)", ["column 6", "self_atention", "nearest: self_attention"]),
    ("decoder", "N * (cross_attention(num_head=2))", ["column 6", "num_head;", "num_heads"]),
    ("encoder", "N * (self_attention(num_heads=word))", ["num_heads=word", "integer"]),
    ("encoder", "N * (self_attention(kv_heads=3))", ["column 6", "kv_heads = 3 does not divide", "1, 2, 4, 8"]),
    ("decoder", "N * (self_attention(window=0), cross_attention)", ["column 6", "window=0", "equal to 1"]),
    ("encoder", "N * (feed_forward(activation=silu))", ["column 6", "activation=silu", "'swish'"]),
    ("encoder", "N * (self_attention, cross_attention)", ["column 22", "cross_attention", "only in the decoder"]),
    ("decoder", "N * (self_attention, feed_forward)", ["no way to the source", "cross_attention"]),
    ("decoder", "", ["model.decoder is empty"]),
    ("encoder", "9999 * (9999 * feed_forward)", ["99,980,001 sub-layers", "at most"]),
    ("encoder", "(" * 3000, ["column 21", "brackets"]),
]


@pytest.mark.parametrize(("side", "line", "words"), MISTAKES, ids=[line[:34] for _, line, _ in MISTAKES])
def test_in_a_study_file_and_as_an_option(cli: Cli, tmp_path: Path, side: str, line: str, words: list[str]) -> None:
    study = tmp_path / "mine.toml"
    rows = f'[[variation]]\nkey = "base"\n[[variation]]\nkey = "x"\nset = {{model.{side} = "{line}"}}\n'
    study.write_text(f'name = "mine"\ntitle = "Mine"\n{rows}', encoding="utf-8")
    in_file = cli("plan", study, "--store", tmp_path / "store", code=2).stderr
    option = cli(
        *("plan", "table3", "--rows", "base", "--store", tmp_path / "store"), "--set", f'model.{side}="{line}"', code=2
    ).stderr
    for message, place in ((in_file, 'row "x"'), (option, "--set")):
        assert "Traceback" not in message and message.count("\n") == 1, message
        assert all(word in message for word in [*words, place, f"model.{side}"]), message


def test_a_knob_that_nobody_reads(cli: Cli, tmp_path: Path) -> None:
    study = tmp_path / "mine.toml"
    line = 'model.encoder = "N * feed_forward", model.decoder = "N * cross_attention", model.attention_dropout = 0.1'
    study.write_text(
        'name = "mine"\ntitle = "Mine"\n[[variation]]\nkey = "base"\n[[variation]]\nkey = "x"\n'
        f'set = {{{line}}}\n[[variation]]\nkey = "y"\nset = {{{line}, model.d_ff = 64, model.position_clip = 2}}\n',
        encoding="utf-8",
    )
    message = cli("plan", study, "--store", tmp_path / "store", code=2).stderr
    assert 'row "y"' in message and "model.position_clip" in message and message.count("\n") == 1


SETTINGS = [
    (["model.kv_heads=3"], "kv_heads = 3 does not divide num_heads = 8"),
    (["model.positions=rotary", "model.rotary_share=0.2"], "12.8 is not an even number"),
    (["model.compatibility=cosine"], "'scaled_dot', 'dot', 'additive' or 'bilinear'"),
    (["model.position_clip=2"], "a network with model.positions = relative reads it"),
]


@pytest.mark.parametrize(("settings", "said"), SETTINGS, ids=[settings[0] for settings, _ in SETTINGS])
def test_settings_of_attention(cli: Cli, tmp_path: Path, settings: list[str], said: str) -> None:
    sets = [word for setting in settings for word in ("--set", setting)]
    chosen = ("table3", "--profile", "paper", "--rows", "base", "--store", tmp_path / "store")
    message = cli("plan", *chosen, *sets, code=2).stderr
    assert said in message and message.count("\n") == 1, message
