from tests.system.conftest import cli, shared_torch

__all__ = ["cli", "shared_torch"]
