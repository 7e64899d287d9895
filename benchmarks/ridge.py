"""Why the library's default is a small ridge: test accuracy by iteration, with and without it.

Without a regulariser (the paper's setting) the objective keeps falling while the accuracy of the network decays after
a few iterations: the auxiliary activations learn the labels, and the weights are fitted to them instead of to the
forward pass.

    IPDLAM_DATA=... python benchmarks/ridge.py    # MNIST and Fashion-MNIST, ten minutes; writes results/ridge.json
    python benchmarks/ridge.py --scale smoke      # scikit-learn's digits, seconds
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import nn

import ipdlam
import mnist
from ipdlam.prox import Ridge
from ipdlam.runs.environment import environment

STRENGTHS = (None, 1e-5, 1e-4)
SCALES = {
    "small": {"data": ("mnist", "fashion-mnist"), "hidden": 500, "iterations": 20},
    "smoke": {"data": ("digits",), "hidden": 50, "iterations": 3},
}

Part = tuple[torch.Tensor, torch.Tensor]


def load(name: str) -> tuple[Part, Part]:
    if name != "digits":
        return mnist.load(name)
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    inputs, labels = torch.tensor(X / 16.0, dtype=torch.float32), torch.tensor(y)
    return (inputs[:1347], labels[:1347]), (inputs[1347:], labels[1347:])


def measure(data: str, strength: float | None, hidden: int, iterations: int) -> dict[str, object]:
    (X, y), test = load(data)
    model = nn.Sequential(
        nn.Linear(X.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10)
    )
    ipdlam.initialise(model, "paper", seed=0)
    trainer = ipdlam.IPDLAM(model, regularizer=None if strength is None else Ridge(strength))
    history = trainer.fit(X, y, iterations=iterations, validation_data=test)
    return {
        "data": data,
        "strength": strength,
        "hidden": hidden,
        "seed": 0,
        "test_accuracy": history.column("validation_accuracy"),
        "train_accuracy": history.column("train_accuracy"),
        "objective": history.column("objective"),
        "seconds": history[-1].seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=SCALES, default="small")
    parser.add_argument("--output", type=Path, default=Path("results/ridge.json"))
    options = parser.parse_args()
    scale = SCALES[options.scale]
    result = {
        "command": f"python benchmarks/ridge.py --scale {options.scale}",
        "environment": environment(),
        "rows": [],
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    for data in scale["data"]:
        for strength in STRENGTHS:
            row = measure(data, strength, scale["hidden"], scale["iterations"])
            result["rows"].append(row)
            accuracy = row["test_accuracy"]
            best = max(accuracy)
            print(
                f"{data:13} ridge {strength!s:6} best {best:.4f} at {accuracy.index(best) + 1:2}, end "
                f"{accuracy[-1]:.4f}",
                flush=True,
            )
            options.output.write_text(
                json.dumps(result, indent=1) + "\n"
            )  # after every run: a long job keeps what it has


if __name__ == "__main__":
    main()
