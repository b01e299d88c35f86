"""Fixtures that several folders of tests share."""

from .clusters import ray_cluster, slurm

__all__ = ["ray_cluster", "slurm"]
