"""Does the mini-batch method fit the loss it was given, or a smoother one?

    python benchmarks/envelope.py                 # medians, quantiles, rates and calibration; results/envelope.json

Targets have nothing to do with the inputs, so that the best prediction is known: the median and a quantile of an
exponential distribution, and the rate of a coin. The calibration error is that of scikit-learn's tables in five folds,
beside an MLP with the same loss behind the same scaler.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

import ipdlam
from ipdlam.estimators import IPDLAMClassifier
from ipdlam.prox import LOSSES, Loss
from ipdlam.runs.environment import environment

RESULTS = Path(__file__).parent.parent / "results" / "envelope.json"
TABLES = {"breast cancer": datasets.load_breast_cancer, "wine": datasets.load_wine, "digits": datasets.load_digits}
GROWTHS = (1.0, 1e4)


def fitted(loss: str | Loss, X: Tensor, y: Tensor, outputs: int, seed: int, growth: float, epochs: int) -> Tensor:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))
    trainer = ipdlam.MiniBatchIPDLAM(model, loss=loss, seed=seed, penalty_growth=growth)
    trainer.fit(X, y, epochs=epochs, evaluate_every=epochs)
    return model(X).detach()


def measure(samples: int, seeds: int, epochs: int) -> list[dict[str, Any]]:
    """What is predicted, and what is true of the samples."""
    rows = []
    for growth in GROWTHS:
        for seed in range(seeds):
            generator = torch.Generator().manual_seed(seed)
            X = torch.randn(samples, 5, generator=generator)
            waits = -torch.log(torch.rand(samples, 1, generator=generator))
            coins = (torch.rand(samples, generator=generator) < math.log(2.0)).long()
            median = fitted("absolute", X, waits, 1, seed, growth, epochs)
            high = fitted(LOSSES["quantile"](level=0.9), X, waits, 1, seed, growth, epochs)  # type: ignore[call-arg]
            rate = fitted("cross_entropy", X, coins, 2, seed, growth, epochs)
            rows.append({
                "growth": growth,
                "seed": seed,
                "median": float(median.mean()),
                "true_median": float(waits.median()),
                "coverage": float((waits <= high).double().mean()),
                "rate": float(torch.softmax(rate, 1)[:, 1].mean()),
                "true_rate": float(coins.double().mean()),
            })  # fmt: skip
            print(json.dumps(rows[-1]), flush=True)
    return rows


def calibration_error(probabilities: np.ndarray, y: np.ndarray, bins: int = 10) -> float:
    """The mean distance of confidence and accuracy, by bins of the confidence."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == y
    places = np.minimum((confidence * bins).astype(int), bins - 1)
    parts = ((places == bin).nonzero()[0] for bin in range(bins))
    return sum(abs(float(right[p].mean() - confidence[p].mean())) * len(p) for p in parts if len(p)) / len(y)


def calibrate(seeds: int) -> list[dict[str, Any]]:
    """Held-out probabilities of ours and of the MLP's."""
    rows = []
    for name, load in TABLES.items():
        X, y = load(return_X_y=True)
        errors: dict[str, list[float]] = {"ours": [], "mlp": []}
        for seed in range(seeds):
            folds = StratifiedKFold(5, shuffle=True, random_state=seed)
            ours = IPDLAMClassifier(loss="cross_entropy", random_state=seed)
            mlp = make_pipeline(StandardScaler(), MLPClassifier(random_state=seed))
            for key, estimator in (("ours", ours), ("mlp", mlp)):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = cross_val_predict(estimator, X, y, cv=folds, method="predict_proba")
                errors[key].append(calibration_error(found, y))
        rows.append({"table": name, **{key: float(np.mean(values)) for key, values in errors.items()}})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=6000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--no-tables", action="store_true", help="leave out the calibration")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    found = {
        "command": "python benchmarks/envelope.py",
        "environment": environment(),
        "samples": given.samples,
        "epochs": given.epochs,
        "rows": measure(given.samples, given.seeds, given.epochs),
        "calibration": [] if given.no_tables else calibrate(given.seeds),
    }
    given.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
