"""A profile's ratios: multiply the paper's sizes; heads and rates stay."""

from collections.abc import Collection, Mapping
from fractions import Fraction

from ablations.study.messages import show
from ablations.study.overrides import Setting
from ablations.study.variation import Profile
from experiments.errors import UserError

# The settings that each ratio multiplies.
SCALED = {
    "width": ("model.d_model", "model.d_ff", "model.d_k", "model.d_v"),
    "depth": ("model.num_layers",),
    "steps": ("training.train_steps", "training.warmup_steps"),
}


def check_ratios(profile: Profile, known: Collection[str], where: str) -> None:
    """Raises UserError for a ratio that multiplies no setting: a user's own task may name its sizes differently."""
    for kind, names in SCALED.items():
        if getattr(profile.scale, kind) != 1 and not any(name in known for name in names):
            raise UserError(
                f"{where}: scale.{kind} multiplies nothing, because the task has none of the settings "
                f"{', '.join(names)}. Give the sizes in the profile's `set` instead."
            )


def scaled_step(step: int, profile: Profile, name: str, where: str) -> int:
    """A step of the training under a profile. Raises UserError for a result that is no integer of at least 1."""
    new = step * Fraction(str(profile.scale.steps))
    if new.denominator != 1 or new < 1:
        raise UserError(
            f"{where}: from.step = {step} times steps = {profile.scale.steps:g} is {float(new):g}, expected an integer "
            f"of at least 1. Change scale.steps of the profile, or give the step as from.by_profile.{name}."
        )
    return int(new)


def scaled(settings: Mapping[str, Setting], profile: Profile, name: str, where: str) -> dict[str, Setting]:
    """The settings that profile `name` scales, with their new values. Settings that are no integers are left out.

    Raises UserError for a result that is not an integer of at least 1 (a declared 0 stays 0).
    """
    result: dict[str, Setting] = {}
    for kind, names in SCALED.items():
        ratio = Fraction(str(getattr(profile.scale, kind)))  # 0.1 as written, so that 10 × 0.1 is exactly 1
        for key in names if ratio != 1 else ():
            old = settings.get(key)
            if old is None or isinstance(old.value, bool) or not isinstance(old.value, int):
                continue
            new = old.value * ratio
            if new.denominator != 1 or (new < 1 <= old.value):
                raise UserError(
                    f"{where}: {key} = {show(old.value)} (set by {old.source}) times {kind} = {float(ratio):g} is "
                    f"{float(new):g}, expected an integer of at least 1. Change scale.{kind} of the profile, "
                    f"or set {key} in its `set`."
                )
            result[key] = Setting(int(new), f'{old.source}, scaled by profile "{name}"')
    return result
