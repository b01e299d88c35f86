from tests.unit.reports.conftest import bench, new_bench, small

__all__ = ["bench", "new_bench", "small"]
