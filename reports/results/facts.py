"""What the record of a finished training says of itself, as one flat line: a frame's, `ablations explain`'s."""

from typing import Any

from experiments.store.results import Revision, TrainingResult

RUN_FACTS = (
    "steps", "wall_s", "train_s", "device", "device_kind", "devices", "device_share", "threads", "precision", "torch",
    "repository", "commit", "dirty", "interpreter", "code_digest", "tool", "tool_commit", "host",
)  # fmt: skip


def run_facts(trained: TrainingResult | None) -> dict[str, Any]:
    """RUN_FACTS of a run; None for what it did not record, and for a run that is not trained."""
    if trained is None:
        return dict.fromkeys(RUN_FACTS)
    tool = trained.tool or Revision()
    found = {name: getattr(trained, name) for name in RUN_FACTS if name in TrainingResult.model_fields}
    found |= {"steps": trained.step, "torch": trained.versions.get("torch"), "tool": tool.version}
    found |= {name: getattr(trained.revision, name) for name in ("repository", "commit", "dirty")}
    found |= {"tool_commit": tool.commit}
    return {name: found[name] for name in RUN_FACTS}
