"""The state with which a branch begins (trunk.py finds the checkpoint)."""

from pathlib import Path
from typing import NamedTuple

from experiments.errors import Damaged, UserError
from experiments.identity import Trunk
from experiments.training.checkpoints.checkpoint import Checkpoint


class Start(NamedTuple):
    """The trunk of a branch, and the folder of its checkpoint; None where there is none of that step and this code."""

    trunk: Trunk
    path: Path | None

    def open(self) -> Checkpoint:
        """The checkpoint, checked. Raises UserError for one that is missing or damaged."""
        run_id, step = self.trunk
        again = "the same `ablations run` trains the trunk again, and then this run"
        if self.path is None:
            raise UserError(
                f"This run branches from run {run_id} after step {step}, and that run has no whole checkpoint of this "
                f"step that the present code trained: {again}."
            )
        try:
            return Checkpoint.open(self.path)
        except Damaged as damage:
            raise UserError(
                f"This run branches from run {run_id} after step {step}, and its checkpoint {self.path} is damaged: "
                f"{damage}. Remove that folder; {again}."
            ) from None
