"""The files that docs/architecture.md names exist."""

import pytest

from tests.house import ROOT, named_files

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(set(named_files(PAGE))))
def test_every_file_of_the_map_exists(name: str) -> None:
    assert (ROOT / name).is_file()
