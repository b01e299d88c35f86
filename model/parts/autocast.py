"""Switch autocast off where types are chosen by hand."""

import contextlib

import torch


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Autocast off for this device."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()
