"""iPDLAM and DLAM on the 1797 handwritten digits of scikit-learn: the same network, data and initial weights.

python examples/compare_on_digits.py
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import ipdlam

METHODS = {
    "iPDLAM": lambda model: ipdlam.IPDLAM(model, regularizer=None),
    "DLAM": lambda model: ipdlam.DLAM(model, regularizer=None),
    "iPDLAM + ridge (default)": lambda model: ipdlam.IPDLAM(model),
    "DLAM + ridge (default)": lambda model: ipdlam.DLAM(model),
}


def make_network(hidden: int) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    return ipdlam.initialise(model, "he", seed=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=300, help="units in each of the two hidden layers")
    parser.add_argument("--iterations", type=int, default=30)
    options = parser.parse_args()

    images, labels = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(images / 16.0, labels, test_size=0.25, random_state=0, stratify=labels)
    print(f"digits: {len(X)} training and {len(X_test)} test images, network 64-{options.hidden}-{options.hidden}-10")
    print(f"{options.iterations} iterations, He initialisation, seed 0, {torch.get_num_threads()} threads\n")
    print(f"{'method':26}{'seconds':>8}{'Phi':>11}{'gaps':>11}{'train':>9}{'test':>9}{'best test':>16}")
    for name, make in METHODS.items():
        history = make(make_network(options.hidden)).fit(
            X, y, iterations=options.iterations, validation_data=(X_test, y_test)
        )
        last, best = history[-1], history.best
        assert best is not None
        gaps = sum(last.linear_gap) + sum(last.activation_gap)
        print(
            f"{name:26}{last.seconds:8.2f}{last.objective:11.3g}{gaps:11.3g}{last.train_accuracy:9.2%}"
            f"{last.validation_accuracy:9.2%}{best.validation_accuracy:9.2%} at {best.iteration:3}"
        )
    print("\nPhi is the penalised objective, gaps how far its variables are from a forward pass; train and test are")
    print("accuracies of the network itself. A small Phi does not mean an accurate network: see docs/deviations.md.")


if __name__ == "__main__":
    main()
