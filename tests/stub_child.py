"""A child program without torch that trains nothing and fails on demand.

It obeys the contract of experiments/child/run.py. Its state is a sum over steps, so lost or repeated steps change the
result. `config["stub"]` may have these keys:

- `step_s`: seconds per step. `checkpoint_steps`: steps between checkpoints.
- `attempts`: {"1": {"at": step, "do": …}} makes attempt 1 misbehave at a step. "do" is one of kill, exit, bug, raise (a
  bug with its traceback), user_error, diverged, out_of_memory, disk_full, lie (exits with 0 without a result), deaf
  (ignores SIGTERM), hang (ignores SIGTERM and stops making steps), segfault, and mute (exits as if the disk were too
  full to record the failure).
- `gpu`: describes a shared GPU by `folder` and by `tokens_per_s`, which maps the number of stubs that train at the same
  time to the speed that each of them reports.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from experiments.child.stopping import StopRequest
from experiments.events.event_log import EventWriter
from experiments.store.checksummed import read_json, write_json


def misbehave(what, events):
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "exit":
        print("leaving without a word")
        os._exit(7)
    if what == "lie":
        os._exit(0)
    if what == "mute":
        os._exit(4)
    if what == "segfault":
        ctypes.string_at(0)
    if what == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)
    if what == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return
    if what == "raise":
        try:
            sum([1, 0]) / sum([])
        except ZeroDivisionError as error:
            events.emit("failed", cls="bug", message=str(error), traceback=traceback.format_exc())
            os._exit(1)
    events.emit("failed", cls=what, message=f"stub says {what}", traceback="")
    os._exit(1)


@contextlib.contextmanager
def on_gpu(gpu):
    """Yield a function that returns the metrics of a step: the speed on a GPU shared with the stubs that train now."""
    if not gpu:
        yield dict
        return
    mine = Path(gpu["folder"]) / str(os.getpid())
    mine.touch()

    def metrics():
        beside = len(list(mine.parent.iterdir()))
        most = max(int(count) for count in gpu["tokens_per_s"] if int(count) <= beside)
        return {"target_tokens_per_s": gpu["tokens_per_s"][str(most)]}

    try:
        yield metrics
    finally:
        mine.unlink()


def train(spec, folder, events, stub, behaviour, stop):
    steps = spec["spec"]["config"]["training"]["train_steps"]
    state = {"step": 0, "sum": 0}
    for earlier in spec["earlier"]:
        saved = read_json(Path(spec["store"]) / earlier / "checkpoint.json")
        if saved:
            state = saved
            events.emit("resumed", step=state["step"], path=earlier)
            break
    with on_gpu(stub.get("gpu")) as speed:
        state = steps_of(state, steps, folder, events, stub, behaviour, stop, speed)
    if behaviour.get("at") == "result":
        misbehave(behaviour["do"], events)
    result = {
        **state,
        "spec": spec["spec"],
        "attempt": spec["attempt"],
        "pinned": spec["pinned"],
        "code_digest": stub.get("code_digest", ""),
    }
    write_json(folder / "result.json", result)
    events.emit("trained", step=steps)


def steps_of(state, steps, folder, events, stub, behaviour, stop, speed):
    while state["step"] < steps:
        if behaviour.get("at") == state["step"]:
            misbehave(behaviour["do"], events)
        if stop():
            write_json(folder / "checkpoint.json", state)
            events.emit("checkpoint", step=state["step"], path="checkpoint.json")
            events.emit("preempted", step=state["step"])
            sys.exit(3)
        time.sleep(stub.get("step_s", 0))
        state = {"step": state["step"] + 1, "sum": state["sum"] + state["step"] + 1}
        events.emit("metrics", step=state["step"], metrics={"loss": 1 / state["step"], **speed()})
        if state["step"] % stub.get("checkpoint_steps", 2) == 0:
            write_json(folder / "checkpoint.json", state)
            events.emit("checkpoint", step=state["step"], path="checkpoint.json")
    return state


def main(path):
    spec = json.loads(path.read_text())
    stop = StopRequest(spec["coordinator"])
    folder, stub = path.parent, spec["spec"]["config"]["stub"]
    behaviour = stub.get("attempts", {}).get(str(spec["attempt"]), {})
    events = EventWriter(folder)
    digest = stub.get("code_digest", "")
    events.emit("started", attempt=spec["attempt"], after_s=0.0, pid=os.getpid(), host="here", code_digest=digest)
    print("stub at work", spec["device"], os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("SLURMD_NODENAME"))
    if spec["train"]:
        train(spec, folder, events, stub, behaviour, stop)
    for item in spec["evaluations"]:
        if behaviour.get("at") == "evaluation":
            misbehave(behaviour["do"], events)
        target = folder / "evaluations" / item["eval_id"]
        target.mkdir(parents=True, exist_ok=True)
        (target / "output.txt").write_text("translated\n")
        made = {"eval_id": item["eval_id"], "set": item["set"], "settings": {}, "metrics": {"bleu": 30.5}}
        write_json(target / "result.json", made)
        events.emit("evaluated", eval_id=item["eval_id"], set=item["set"], metrics=made["metrics"])
    events.emit("finished")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
