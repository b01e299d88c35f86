"""Train a small CNN on scikit-learn's handwritten digits (8 × 8 pixels, 10 classes), without importing `ablations`."""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channels", type=int, default=16, help="channels of the first convolution")
    parser.add_argument("--dropout", type=float, default=0.25, help="dropout rate before the classifier")
    parser.add_argument("--no-pooling", action="store_true", help="use strides instead of max-pooling")
    parser.add_argument("--lr", type=float, default=2e-3, help="learning rate of Adam")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the weights")
    return parser.parse_args()


def load():
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels)
    train, test = train_test_split(torch.arange(len(y)), test_size=500, random_state=0, stratify=y)
    return x[train], y[train], x[test], y[test]


def build(channels, dropout, pooling):
    stride, shrink = (1, nn.MaxPool2d(2)) if pooling else (2, nn.Identity())
    return nn.Sequential(
        *(nn.Conv2d(1, channels, 3, stride, padding=1), nn.ReLU(), shrink),
        *(nn.Conv2d(channels, 2 * channels, 3, stride, padding=1), nn.ReLU(), shrink),
        *(nn.Flatten(), nn.Dropout(dropout), nn.Linear(8 * channels, 10)),
    )


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    x, y, x_test, y_test = load()
    model = build(args.channels, args.dropout, not args.no_pooling)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(1, args.epochs + 1):
        model.train()
        total = 0.0
        for batch in torch.randperm(len(y)).split(args.batch_size):
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        model.eval()
        with torch.no_grad():
            accuracy = 100 * (model(x_test).argmax(1) == y_test).float().mean().item()
        print(f"epoch {epoch}/{args.epochs} train_loss {total / len(y):.4f} test_acc {accuracy:.2f}")
    args.out.mkdir(exist_ok=True)
    torch.save(model.state_dict(), args.out / "model.pt")


if __name__ == "__main__":
    main()
