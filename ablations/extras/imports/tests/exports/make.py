"""Writes the exports in this folder, each by the program's own library: five optimizers, three seeds, acc and loss.

    pip install trackio wandb tensorboard inspect-ai lm-eval mlflow
    python make.py csv trackio wandb tensorboard inspect lm-eval [mlflow FOLDER]

The stored ones are by trackio, wandb, tensorboard, inspect-ai and lm-eval as pip gave them on 2026-11-24.
"""

import csv
import gzip
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
OPTIMIZERS = ("adam", "sgd", "lion", "muon", "adafactor")
EXAMPLES = 40


def runs() -> Iterator[tuple[str, int, list[tuple[float, float]]]]:
    """Optimizer, seed, and (acc, loss) of each step; the last counts. Values are exact in single precision."""
    for place, optimizer in enumerate(OPTIMIZERS):
        for seed in (1, 2, 3):
            draw = random.Random(f"{optimizer} {seed}")
            yield (
                optimizer,
                seed,
                [
                    (
                        round((0.5 + 0.1 * step + 0.02 * place + 0.02 * draw.random()) * 1024) / 1024,
                        2.0**-step + place / 64,
                    )
                    for step in range(3)
                ],
            )


def of_csv() -> None:
    with (HERE / "runs.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["optimizer", "seed", "acc", "loss"])
        writer.writerows([optimizer, seed, *steps[-1]] for optimizer, seed, steps in runs())


def of_trackio() -> None:
    with TemporaryDirectory() as folder:
        os.environ["TRACKIO_DIR"] = folder
        import trackio

        for optimizer, seed, steps in runs():
            config = {"optimizer": optimizer, "seed": seed}
            trackio.init(project="demo", name=f"{optimizer}-{seed}", config=config, embed=False)
            for acc, loss in steps:
                trackio.log({"acc": acc, "loss": loss})
            trackio.finish()
        with gzip.GzipFile(HERE / "trackio.db.gz", "wb", mtime=0) as file:
            file.write(Path(folder, "demo.db").read_bytes())


def of_wandb() -> None:
    os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    import wandb

    with TemporaryDirectory() as folder:
        for optimizer, seed, steps in runs():
            config = {"optimizer": optimizer, "seed": seed}
            with wandb.init(project="demo", name=f"{optimizer}-{seed}", config=config, dir=folder) as run:
                for acc, loss in steps:
                    run.log({"acc": acc, "loss": loss})
        shutil.rmtree(HERE / "wandb", ignore_errors=True)
        (HERE / "wandb").mkdir()
        for file in Path(folder).rglob("run-*.wandb"):
            shutil.copy(file, HERE / "wandb")


def of_tensorboard() -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    shutil.rmtree(HERE / "tensorboard", ignore_errors=True)
    for optimizer, seed, steps in runs():
        writer = EventFileWriter(str(HERE / "tensorboard" / optimizer / f"seed{seed}"))
        writer.add_event(Event(summary=hparams_pb({"optimizer": optimizer, "seed": seed})))
        for step, values in enumerate(steps):
            points = [Summary.Value(tag=tag, simple_value=v) for tag, v in zip(("acc", "loss"), values, strict=True)]
            writer.add_event(Event(step=step, summary=Summary(value=points)))
        writer.close()


def answers(optimizer: str, seed: int) -> list[bool]:
    """Which examples are answered rightly: more by later optimizers."""
    draw = random.Random(f"answers {optimizer} {seed}")
    return [draw.random() < 0.4 + 0.1 * OPTIMIZERS.index(optimizer) for _ in range(EXAMPLES)]


def of_inspect() -> None:
    import tiktoken

    class Words:
        def encode(self, text: str, **_: object) -> list[str]:
            return text.split()

    tiktoken.get_encoding = tiktoken.encoding_for_model = lambda _: Words()  # it would fetch its tables
    from inspect_ai import Task, task
    from inspect_ai import eval as evaluate
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput, get_model
    from inspect_ai.scorer import match
    from inspect_ai.solver import generate

    shutil.rmtree(HERE / "inspect", ignore_errors=True)
    samples = [Sample(input=f"question {i}", target="yes", id=i) for i in range(EXAMPLES)]

    @task
    def trained(optimizer: str, seed: int) -> Task:
        return Task(dataset=samples, solver=generate(), scorer=match(), name="answers")

    for optimizer in OPTIMIZERS[:2]:
        for seed in (1, 2, 3):
            words = ["yes" if right else "no" for right in answers(optimizer, seed)]
            outputs = [ModelOutput.from_content("mockllm/model", word) for word in words]
            model = get_model("mockllm/model", custom_outputs=outputs, memoize=False)
            [log] = evaluate(
                trained(optimizer, seed), model=model, max_samples=1, display="none", log_format="json",
                log_dir=str(HERE / "inspect"),
            )  # fmt: skip
            assert log.status == "success"
    for file in (HERE / "inspect").glob("*.json"):  # without what fills megabytes and is not read
        content = json.loads(file.read_text())
        content["eval"]["model_args"] = {}
        kept = ("id", "epoch", "input", "target", "scores")
        content["samples"] = [{key: sample[key] for key in kept} for sample in content["samples"]]
        file.write_text(
            json.dumps({k: v for k, v in content.items() if k not in ("plan", "stats", "reductions")}, indent=1)
        )


def of_lm_eval() -> None:
    with TemporaryDirectory() as folder:
        task = {
            "task": "tiny", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": f"{folder}/tiny.jsonl"}},
            "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "{{question}}",
            "doc_to_choice": "{{choices}}", "doc_to_target": "{{answer}}",
            "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        }  # fmt: skip
        Path(folder, "tiny.yaml").write_text(json.dumps(task))
        lines = [{"question": f"q{i}?", "choices": ["a", "b"], "answer": i % 2} for i in range(EXAMPLES)]
        Path(folder, "tiny.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        for tag, seeds in (("a", (1, 2, 3)), ("b", (4, 5, 6))):
            for number, seed in enumerate(seeds, 1):
                words = [
                    "--model",
                    "dummy",
                    "--model_args",
                    f"tag={tag},run={number}",
                    "--tasks",
                    "tiny",
                    "--seed",
                    str(seed),
                ]
                words += ["--include_path", folder, "--output_path", f"{folder}/out-{tag}{number}", "--log_samples"]
                offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
                subprocess.run([str(Path(sys.executable).with_name("lm_eval")), *words], check=True, env=offline)
        shutil.rmtree(HERE / "lm-eval", ignore_errors=True)
        for file in sorted(Path(folder).rglob("*_tiny_*.jsonl")) + sorted(Path(folder).rglob("results_*.json")):
            place = HERE / "lm-eval" / file.relative_to(folder).parts[0]
            place.mkdir(parents=True, exist_ok=True)
            text = file.read_text()
            if file.suffix == ".json":  # without this machine's packages
                text = json.dumps({k: v for k, v in json.loads(text).items() if k != "pretty_env_info"}, indent=1)
            (place / file.name).write_text(text.replace(folder, "tiny"))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[f"of_{name.replace('-', '_')}"]()
