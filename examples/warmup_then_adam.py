"""The paper's advice: a few iterations of iPDLAM, then Adam, against Adam alone from the same weights.

python examples/warmup_then_adam.py
"""

from __future__ import annotations

import argparse

from torch import nn

import ipdlam
from ipdlam.baselines import BackPropagation


def make_network() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))
    return ipdlam.initialise(model, "he", seed=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warm", type=int, default=3, help="iterations of iPDLAM")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the data in all")
    options = parser.parse_args()
    if options.warm < 1:
        parser.error(f"argument --warm: must be at least 1, got {options.warm}; Adam alone is run in any case")
    if options.epochs <= options.warm:
        parser.error(
            f"argument --epochs: must be above --warm, got {options.epochs} and {options.warm}, which leaves none for "
            "Adam; give more --epochs or a smaller --warm"
        )

    data = ipdlam.datasets.load("digits")
    validation = (data.X_test, data.y_test)

    warmed = make_network()
    first = ipdlam.IPDLAM(warmed).fit(data.X, data.y, iterations=options.warm, validation_data=validation)
    then = BackPropagation(warmed, "adam", batch_size=64).fit(
        data.X, data.y, epochs=options.epochs - options.warm, validation_data=validation
    )
    alone = BackPropagation(make_network(), "adam", batch_size=64).fit(
        data.X, data.y, epochs=options.epochs, validation_data=validation
    )

    warm_best = max(record.validation_accuracy for record in [*first, *then])
    warm_seconds = first[-1].seconds + then[-1].seconds
    early = f"{first[-1].validation_accuracy:.2%} against {alone[options.warm - 1].validation_accuracy:.2%}"
    print(f"iPDLAM for {options.warm} iterations, then Adam: best {warm_best:.2%} in {warm_seconds:.2f} s")
    print(f"Adam alone: best {alone.best.validation_accuracy:.2%} in {alone[-1].seconds:.2f} s")
    print(f"after {options.warm} passes over the data: {early}")


if __name__ == "__main__":
    main()
