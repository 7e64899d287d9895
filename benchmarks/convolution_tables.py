"""Tables of ``convolutions.py`` and ``envelope.py``, for ``tables.py``."""

from __future__ import annotations

import statistics
from collections.abc import Callable

KEYS = {"conv_step": "step", "conv_accuracy": "accuracy", "conv_cifar": "cifar"}


def steps(result: dict, made: str) -> list[str]:
    """Time and memory over Adam's."""
    lines = [
        "| network | batch | our time over Adam's | over Adam's, channels last | our peak memory over Adam's |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in result["rows"]:
        seconds, peak = row["seconds"], row["peak_bytes"]
        over, memory = (values["ours"] / values["adam"] for values in (seconds, peak))
        last = seconds["ours"] / seconds["adam, channels last"]
        lines.append(f"| {row['network']} | {row['batch']} | {over:.2f} | {last:.2f} | {memory:.2f} |")
    text = f"Medians of {result['rounds']} steps taken in turns, cross-entropy. {made}"
    return [*lines, "", text]


def accuracies(result: dict, made: str) -> list[str]:
    """The CNN after a few epochs."""
    lines = ["| data | epochs | seeds | test accuracy |", "|---|---:|---:|---:|"]
    for data in dict.fromkeys(row["data"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["data"] == data]
        ends = [100.0 * row["test"][-1] for row in rows]
        spread = f"{statistics.fmean(ends):.2f} ({min(ends):.2f} … {max(ends):.2f})"
        lines.append(f"| {data} | {rows[0]['epochs']} | {len(rows)} | {spread} |")
    words = "The CNN on all training images, default settings, nothing else: mean (least … most) of the seeds in %."
    return [*lines, "", f"{words} {made}"]


def cifar(result: dict, made: str) -> list[str]:
    """Ours beside the optimizers under the same plan."""
    lines = ["| network | method | epochs | batch | test accuracy |", "|---|---|---:|---:|---:|"]
    for row in sorted(result["rows"], key=lambda row: (row["network"], row["epochs"], -row["test"])):
        lines.append(
            f"| {row['network']} | {row['method'].replace('=', ' at ')} | {row['epochs']} | {row['batch']} | "
            f"{100.0 * row['test']:.2f} |"
        )
    words = (
        "Crops and mirror images, one seed, cross-entropy. The optimizers have a one-cycle schedule and the rates "
        "shown, which are not tuned. Ours ran with a proximity of 3, before 1 became the default. The machine was "
        "shared, so there are no seconds."
    )
    return [*lines, "", f"{words} {made}"]


def envelope(result: dict) -> list[str]:
    """How far predictions are from what is true of the samples."""
    lines = [
        "| `penalty_growth` | median, error | coverage of the 0.9 quantile | rate, error |",
        "|---:|---:|---:|---:|",
    ]
    for growth in dict.fromkeys(row["growth"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["growth"] == growth]
        median = max(abs(row["median"] - row["true_median"]) for row in rows)
        rate = max(abs(row["rate"] - row["true_rate"]) for row in rows)
        coverage = [100.0 * row["coverage"] for row in rows]
        lines.append(f"| {growth:g} | {median:.3f} | {min(coverage):.1f} … {max(coverage):.1f} % | {rate:.3f} |")
    machine = result["environment"]
    about = f"{result['samples']} samples, {result['epochs']} epochs, the worst of three seeds"
    made = f"`{result['command']}`, {machine['date']}, {machine['processor']}, torch {machine['torch']}."
    words = f"{about}; the targets have nothing to do with the inputs. {made}"
    errors = [f"{row['table']} {row['ours']:.3f} ({row['mlp']:.3f})" for row in result["calibration"]]
    calibration = (
        "Calibration error of `IPDLAMClassifier` with cross-entropy, in five folds, and of scikit-learn's MLP behind a "
        f"scaler in brackets: {', '.join(errors)}. On the digits the default `alpha` of the estimator, a pull of the "
        "weights to zero, makes it too modest."
    )
    return [*lines, "", words, "", calibration]


TABLES: dict[str, Callable[[dict, str], list[str]]] = {
    "conv_step": steps,
    "conv_accuracy": accuracies,
    "conv_cifar": cifar,
}
