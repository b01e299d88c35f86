from tests.system.conftest import cli, finished, shared_torch, tiny

__all__ = ["cli", "finished", "shared_torch", "tiny"]
