"""Create small studies of every kind of task and run them with real children."""

from dataclasses import replace
from pathlib import Path

from ablations.service.coordination import WorkOptions
from ablations.service.enqueue import enqueue, prepare
from ablations.service.selected import Selected, Selectors, choose
from experiments.store.layout import Store
from tests.stores import made_once

OWN = """
from dataclasses import dataclass
from ablations_task import column, task

@dataclass
class Settings:
    size: float = 2.0
    where: str = "WHERE"

@task(Settings, columns=[column("distance", digits=1)])
def TASK(settings, context):
    print("reading", settings.where, "and", __file__)
    for step in range(3):
        context.log(step, distance=settings.size * step)
    context.examples("test", [{"case": n, "distance": settings.size} for n in range(3)])
    return {"distance": settings.size * context.seed}
"""
OWN_STUDY = """
name = "walk"
title = "A walk"
task = "walking_in_a_bundle:TASK"
[[variation]]
key = "base"
[[variation]]
key = "long"
set = {size = 4.0}
"""
COMMAND = """
name = "said"
title = "A command"
command = '''echo "in $PWD on $(hostname)"; printf '{"accuracy": %s}\\n' "$(expr {rate} '*' {seed})" '''
[base]
rate = 3
[[metric]]
name = "accuracy"
[[variation]]
key = "base"
[[variation]]
key = "fast"
set = {rate = 5}
"""
TRANSLATION = """
name = "tiny"
title = "A table of width 8"
[base]
model = {num_layers = 1, d_model = 8, d_ff = 16, num_heads = 2, d_k = 4, d_v = 4}
data = {vocab_size = 200, builtin_pairs = 300}
training = {train_steps = 6, warmup_steps = 10, tokens_per_batch = 400, precision = "fp32"}
evaluation = {beam_size = 2, max_extra_length = 3}
[[variation]]
key = "base"
[[variation]]
key = "h1"
set = {model.num_heads = 1, model.d_k = 8, model.d_v = 8}
"""


def write_study(folder: Path, kind: str, where: str = "nowhere") -> Path:
    """Write a study of a kind ("own", "command", "translation") into a folder and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "walking_in_a_bundle.py").write_text(OWN.replace("WHERE", where))
    texts = {"own": OWN_STUDY, "command": COMMAND, "translation": TRANSLATION}
    path = folder / f"{kind}.toml"
    path.write_text(texts[kind])
    return path


def finish(study: Path, store: Path, seeds: int | None = None) -> Selected:
    """Run the whole table with this process as the coordinator, without printing the table."""
    chosen = choose(str(study), Selectors(seeds=seeds, store=store))
    opened = Store.open(store)
    runs = list(chosen.plan.runs)
    prepare(replace(chosen, store=opened), runs, lambda *_: None)
    enqueue(chosen, chosen.plan, runs, "keep")
    done = WorkOptions(devices="cpu:2").start(opened, tracked=False)
    assert (done.failed, done.finished) == (0, len(runs)), done
    return chosen


def commands_finished() -> Path:
    """Return a folder with command.toml and its store: two rows with two seeds, without MLflow.

    Tests change only copies.
    """
    return made_once("commands", lambda folder: finish(write_study(folder, "command"), folder / "store", seeds=2))
