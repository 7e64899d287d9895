"""How accurate the mini-batch method is with its default settings, where they hold, and what each setting is good for.

    IPDLAM_DATA=... python benchmarks/minibatch.py            # all parts; writes results/minibatch.json
    IPDLAM_DATA=... python benchmarks/minibatch.py bars       # 784-1500-1500-10 for 10 epochs, and ten layers of 300
    IPDLAM_DATA=... python benchmarks/minibatch.py range      # widths, depths, batches and data, beside Adam
    IPDLAM_DATA=... python benchmarks/minibatch.py ablation   # every setting changed, one at a time
    python benchmarks/minibatch.py --scale smoke --output /tmp/minibatch.json    # digits, seconds

Every run is written as it ends, and is not made again by the next call. Accuracies are of the test set for bars; range
and ablation score on 5000 (or a fifth) of the training samples, held out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import ipdlam
from ipdlam.baselines import BackPropagation
from ipdlam.minibatch.batch import default_batch_size
from ipdlam.network.initialise import mlp
from ipdlam.runs.environment import environment

PARTS = ("bars", "range", "ablation")
TABLES = ("breast_cancer", "wine", "diabetes")  # small ones that come with scikit-learn
HELD_OUT = 5000
CHANGES: dict[str, tuple[Any, ...]] = {  # by a factor of three or more, each way, or off
    "step": (0.15, 1.5),
    "inertia": (0.0, 0.9),
    "proximity": (0.3, 1.0, 10.0, 100.0),
    "penalty": (0.001, 10.0),
    "rank": (1, 16, 256),
    "weight_decay": (0.01, 0.1),
    "start": ("keep",),
    "descent": (False,),
}
Spec = dict[str, Any]


def spec(part: str, data: str, hidden: list[int], epochs: int, **more: Any) -> Spec:
    """A run in plain JSON types; what is not said is the default."""
    return {"part": part, "data": data, "hidden": hidden, "epochs": epochs, "seed": 0, "method": "minibatch", **more}


def bars(smoke: bool) -> Iterator[Spec]:
    seeds = range(1 if smoke else 3)
    for seed in seeds:
        for data in ["digits"] if smoke else ["mnist", "fashion-mnist"]:
            yield spec("bars", data, [50] * 2 if smoke else [1500] * 2, 2 if smoke else 10, seed=seed)
    for epochs in [2] if smoke else [3, 10]:
        for seed in seeds if epochs == 3 else seeds[:1]:
            for initialisation in ("he", "torch", "paper"):
                deep = [30] * 10 if smoke else [300] * 10
                data = "digits" if smoke else "mnist"
                for method in ["minibatch", "adam"] if epochs == 3 or initialisation == "paper" else ["minibatch"]:
                    yield spec("bars", data, deep, epochs, seed=seed, initialisation=initialisation, method=method)


def over_range(smoke: bool) -> Iterator[Spec]:
    epochs, images = (1, "digits") if smoke else (3, "mnist")
    problems: list[tuple[str, list[int], dict[str, Any]]] = [
        *((images, [width] * 2, {}) for width in ([20] if smoke else [100, 500, 2000])),
        *((images, [300] * depth, {}) for depth in ([] if smoke else [1, 3, 5, 10])),
        *((images, [300] * 2, {"batch_size": size}) for size in ([] if smoke else [64, 256, 1024, 4096])),
        *((images, [300] * 2, {"activation": name}) for name in ([] if smoke else ["tanh", "sigmoid", "softplus"])),
        *((images, [300] * 2, {"loss": name}) for name in ([] if smoke else ["cross_entropy", "hinge"])),
        *(("fashion-mnist", [width] * 2, {}) for width in ([] if smoke else [100, 500])),
    ]
    for data, hidden, more in problems:
        for method in ("minibatch", "adam"):
            yield spec("range", data, hidden, epochs, method=method, **more)
    for seed in range(1 if smoke else 3):
        for data in ("digits", *TABLES):
            for method in ("minibatch", "adam"):
                yield spec("range", data, [100], 2 if smoke else 50, method=method, seed=seed)


def ablation(smoke: bool) -> Iterator[Spec]:
    problems: list[tuple[str, list[int], int, dict[str, Any]]] = [
        ("mnist", [300] * 2, 2, {"limit": 20000, "batch_size": 256}),
        ("fashion-mnist", [300] * 2, 2, {"limit": 20000, "batch_size": 256}),
        ("mnist", [200] * 6, 2, {"limit": 20000, "batch_size": 256}),
        ("mnist", [100] * 2, 4, {"limit": 5000, "batch_size": 32, "loss": "cross_entropy", "random_labels": 0.2}),
        ("digits", [100], 20, {}),
    ]
    changes: list[dict[str, Any]] = [{}, *({name: value} for name, values in CHANGES.items() for value in values)]
    for settings in changes[:3] if smoke else changes:
        for data, hidden, epochs, more in problems[-1:] if smoke else problems:
            for seed in range(1 if smoke else 2):
                yield spec("ablation", data, hidden, 1 if smoke else epochs, seed=seed, settings=settings, **more)


MAKERS = {"bars": bars, "range": over_range, "ablation": ablation}


def load(run: Spec) -> tuple[ipdlam.datasets.Dataset, tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """The data of a run: what to train on and what to score on. Tables are standardised, targets too."""
    if run["data"] in TABLES:
        import sklearn.datasets

        X, y = getattr(sklearn.datasets, f"load_{run['data']}")(return_X_y=True)
        inputs = torch.tensor((X - X.mean(0)) / X.std(0), dtype=torch.float32)
        real = run["data"] == "diabetes"
        goals = torch.tensor((y - y.mean()) / y.std(), dtype=torch.float32) if real else torch.tensor(y)
        classes = None if real else tuple(str(label) for label in sorted(set(y.tolist())))
        goals = goals.unsqueeze(1) if real else goals
        data = ipdlam.datasets.Dataset(run["data"], inputs, goals, None, None, classes, "table", "scikit-learn")
    else:
        data = ipdlam.datasets.load(run["data"])
    if run["part"] == "bars" and data.X_test is not None and data.y_test is not None:
        return data, (data.X, data.y, data.X_test, data.y_test)
    order = torch.randperm(len(data.X), generator=torch.Generator().manual_seed(run["seed"]))
    aside, kept = order[: (held := min(HELD_OUT, len(order) // 5))], order[held:][: run.get("limit")]
    return data, (data.X[kept], with_noise(data.y[kept], run), data.X[aside], data.y[aside])


def with_noise(labels: torch.Tensor, run: Spec) -> torch.Tensor:
    """The labels, a part of them drawn at random where the run says so."""
    if "random_labels" not in run:
        return labels
    generator = torch.Generator().manual_seed(run["seed"])
    drawn = torch.rand(len(labels), generator=generator) < run["random_labels"]
    return torch.where(drawn, labels[torch.randperm(len(labels), generator=generator)], labels)


def make(run: Spec) -> dict[str, Any]:
    """Train, and report the scores after every epoch."""
    data, (X, y, X_test, y_test) = load(run)
    outputs = y.shape[1] if data.classes is None else len(data.classes)
    widths = (X.shape[1], *run["hidden"], outputs)
    activation, initialisation = run.get("activation", "relu"), run.get("initialisation", "he")
    model = mlp(widths, activation, initialisation, run["seed"], torch.float32, "cpu")
    size = run.get("batch_size", default_batch_size(len(X)))
    common = {"loss": run.get("loss", "squared"), "batch_size": size, "seed": run["seed"]}
    scored = {"validation_data": (X_test, y_test), "epochs": run["epochs"]}
    if run["method"] == "adam":
        history = BackPropagation(model, "adam", learning_rate=0.001, **common).fit(X, y, **scored)
    else:
        settings = dict(run.get("settings", {}))
        descent = settings.pop("descent", True)
        trainer = ipdlam.MiniBatchIPDLAM(model, **common, **settings)
        trainer.start(X, y, validation_data=(X_test, y_test))
        if not descent:
            trainer._started().planned = (0, 10**9)
        history = trainer.continue_fit(epochs=run["epochs"])
    scores = [record.score for record in history]
    return {**run, "scores": scores, "train_loss": history[-1].train_loss, "seconds": history[-1].seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} [default: all]")
    parser.add_argument("--scale", choices=("full", "smoke"), default="full")
    parser.add_argument("--output", type=Path, help="[default: results/minibatch.json]")
    options = parser.parse_args()
    if options.scale == "smoke" and options.output is None:
        parser.error("--scale smoke needs an --output of its own: its runs are no results")
    options.output = options.output or Path("results/minibatch.json")
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no part {unknown.pop()!r}; the parts are {', '.join(PARTS)}")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"command": "python benchmarks/minibatch.py", "environment": environment(), "rows": []}
    if options.output.exists():
        result["rows"] = json.loads(options.output.read_text())["rows"]
    made = ("scores", "train_loss", "seconds")
    done = [{name: value for name, value in row.items() if name not in made} for row in result["rows"]]
    for part in options.parts or PARTS:
        for run in MAKERS[part](options.scale == "smoke"):
            if run in done:
                continue
            try:
                row = make(run)
            except ipdlam.DivergenceError:
                row = {**run, "scores": [], "train_loss": None, "seconds": None}
            result["rows"].append(row)
            options.output.write_text(json.dumps(result, indent=1) + "\n")
            best = f"{max(row['scores']):.4f}, end {row['scores'][-1]:.4f}" if row["scores"] else "diverged"
            print({name: value for name, value in run.items() if name != "part"}, best, flush=True)


if __name__ == "__main__":
    main()
