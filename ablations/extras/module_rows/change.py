"""The setting `modules`: lines such as `layers.*.attn -> identity` that change a network. Imports no torch.

network-rows.md describes the lines.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from ablations.extras.module_rows.planned import added_by, looked_at
from experiments.config.network_change import Added, Ask, Batches, NetworkChange, PlannedNetwork
from experiments.errors import TrainerFailed, UserError
from model.config import ModelConfig


class ModuleLines(NetworkChange):
    """The network change `modules`: lines that change modules of a network."""

    kind = Annotated[tuple[str, ...], Field(strict=False)]
    default = ()
    description = "changes of modules of the network: network-rows.md"
    client = Path(__file__).parent / "client"

    def check(self, value: Sequence[str], at_evaluation: Sequence[str], network: PlannedNetwork) -> None:
        looked_at(network, value, at_evaluation, None)

    def check_function(self, value: Sequence[str], ask: Ask) -> None:
        try:
            ask({"lines": list(value), "selector": ""})
        except TrainerFailed as error:
            try:
                ask({"lines": [], "selector": ""})
            except (UserError, TrainerFailed):  # the function cannot run on this machine, so the run checks the lines
                return
            raise UserError(f"modules: with these lines the network does not compute a batch: {error}") from None

    def added(self, value: Sequence[str], network: PlannedNetwork) -> Added:
        return added_by(network, value)

    def operations(self, value: Sequence[str], model: ModelConfig, sizes: tuple[int, int]) -> Callable[[Any, Any], Any]:
        from ablations.extras.module_rows.operations import TrainingChange

        return TrainingChange(model, sizes, value)

    def apply(
        self,
        value: Sequence[str],
        model: Any,
        batches: Batches,
        *,
        saved: Mapping[str, Any] | None,
        seed: int | None,
    ) -> dict[str, Any]:
        from ablations.extras.module_rows.own_networks import change_network

        return change_network(model, value, () if saved is not None else batches(), saved=saved, seed=seed)


MODULES = ModuleLines()
