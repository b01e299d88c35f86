"""The half of this extra in the process of a trainer: Python 3.8, torch, and the core's client."""

import ast
import sys

import pytest

from ablations.extras.module_rows.change import MODULES

assert MODULES.client is not None
FILES = sorted((MODULES.client / "modules").glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_client_imports_torch_and_its_own_modules_alone(file) -> None:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 8))):
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        assert {name.partition(".")[0] for name in names} <= {*sys.stdlib_module_names, "torch"}
