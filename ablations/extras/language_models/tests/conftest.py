from tests.unit.ablations.conftest import rows_of, task

__all__ = ["rows_of", "task"]
