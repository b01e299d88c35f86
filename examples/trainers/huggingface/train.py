"""Train a small classifier with Hugging Face's Trainer and print its accuracy. This is a plain script of a user."""

import argparse
import json
import random

import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--learning-rate", type=float, default=3e-3)
parser.add_argument("--dim", type=int, default=32)
parser.add_argument("--no-dropout", action="store_true")
parser.add_argument("--max-steps", type=int, default=60)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--output-dir", default="out")
arguments = parser.parse_args()


class Pairs(torch.utils.data.Dataset):
    """Sequences of numbers, labelled by whether the largest number precedes the smallest."""

    def __init__(self, seed, size):
        noise = random.Random(seed)
        self.rows = [noise.sample(range(2, 100), 8) for _ in range(size)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, n):
        row = self.rows[n]
        return {"input_ids": torch.tensor(row), "labels": int(row.index(max(row)) < row.index(min(row)))}


def accuracy(prediction):
    return {"accuracy": 100 * float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


torch.manual_seed(arguments.seed)
dropout = 0.0 if arguments.no_dropout else 0.1
model = DistilBertForSequenceClassification(
    DistilBertConfig(
        vocab_size=100, dim=arguments.dim, hidden_dim=4 * arguments.dim, n_layers=2, n_heads=2,
        max_position_embeddings=8, dropout=dropout, attention_dropout=dropout,
    )
)  # fmt: skip
trainer = Trainer(
    model,
    TrainingArguments(
        arguments.output_dir, seed=arguments.seed, max_steps=arguments.max_steps, learning_rate=arguments.learning_rate,
        per_device_train_batch_size=32, report_to=[], save_strategy="no", logging_steps=20, disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    ),
    train_dataset=Pairs("train", 2000),
    eval_dataset=Pairs("test", 500),
    compute_metrics=accuracy,
)  # fmt: skip
trainer.train()
print(json.dumps({"accuracy": trainer.evaluate()["eval_accuracy"]}))
