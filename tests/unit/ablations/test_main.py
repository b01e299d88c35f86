"""Tests of messages that the command prints before it starts work."""

import sys

import pytest

from ablations.cli.main import main


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_are_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], platform: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(sys, "argv", ["ablations", "studies"])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr()
    assert (end.value.code, said.out) == (2, "")
    assert said.err.startswith("ablations: ") and "Linux" in said.err and platform in said.err
