"""docs/architecture.md names files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_FILE = re.compile(r"[\w/.-]+\.(?:py|toml|md)\b")


def named_files() -> list[str]:
    """The files of the map. A name without a folder is in the folder of the name before it in its cell."""
    found = []
    for line in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").splitlines():
        for cell in line.split(" | "):
            folder = Path()
            for name in _FILE.findall(cell):
                folder = Path(name).parent if "/" in name or name == "pyproject.toml" else folder
                found.append(str(folder / Path(name).name))
    return found


@pytest.mark.parametrize("name", sorted(set(named_files())))
def test_every_file_of_the_map_exists(name: str) -> None:
    assert (ROOT / name).is_file()
