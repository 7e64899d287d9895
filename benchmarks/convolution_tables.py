"""Tables of ``convolutions.py`` and ``envelope.py``, for ``tables.py``."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable

KEYS = {"conv_step": "step", "conv_accuracy": "accuracy", "conv_ablation": "ablate", "conv_cifar": "cifar"}


def steps(found: dict, made: str) -> list[str]:
    """Time and memory over Adam's."""
    result = found["step"]
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


def accuracies(found: dict, made: str) -> list[str]:
    """The CNN after a few epochs."""
    result = found["accuracy"]
    lines = ["| data | epochs | seeds | test accuracy |", "|---|---:|---:|---:|"]
    for data in dict.fromkeys(row["data"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["data"] == data]
        lines.append(f"| {data} | {rows[0]['epochs']} | {len(rows)} | {spread(row['test'][-1] for row in rows)} |")
    words = "The CNN on all training images, default settings, nothing else: mean (least … most) of the seeds in %."
    return [*lines, "", f"{words} {made}"]


def ablation(found: dict, made: str) -> list[str]:
    """The CNN with one thing changed."""
    result = found["ablate"]
    rows = result["rows"]
    parts = sorted(rows[0]["averaged"], key=float)
    averaged = " | ".join(f"mean of the last {100.0 * float(part):.0f} %" for part in parts)
    lines = [f"| changed | seeds | training | held out | {averaged} |", "|---|---:|---:|---:|" + "---:|" * len(parts)]
    for variant in dict.fromkeys(row["variant"] for row in rows):
        own = [row for row in rows if row["variant"] == variant]
        training = 100.0 * statistics.fmean(row["train"] for row in own)
        means = " | ".join(f"{100.0 * statistics.fmean(row['averaged'][part] for row in own):.2f}" for part in parts)
        lines.append(
            f"| {variant} | {len(own)} | {training:.2f} | {spread(row['held_out'] for row in own)} | {means} |"
        )
    words = (
        f"The CNN on {result['samples']} training images of {result['data']}, {rows[0]['epochs']} epochs; accuracy on "
        f"{result['held_out']} others in %: mean (least … most) of the seeds, which are none of those above. The last "
        "columns score the mean of the weights over the last part of the plan instead of the last weights."
    )
    if "note" in result:
        words += f" Where these rows come from: {result['note']}."
    return [*lines, "", f"{words} {made}"]


def cifar(found: dict, made: str) -> list[str]:
    """Ours beside the optimizers under the same plan."""
    rows, trials = found["cifar"]["rows"], found.get("tune", {}).get("rows", [])
    best = {row["method"]: row["rate"] for row in sorted(trials, key=lambda row: row["held_out"])}
    lines = [
        "| network | method | rate | epochs | batch | seeds | test accuracy | processor seconds |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        groups.setdefault((row["network"], row["epochs"], row["method"], row["batch"]), []).append(row)
    best_first = sorted(groups.items(), key=lambda item: (*item[0][:2], -max(row["test"] for row in item[1])))
    for (network, epochs, method, batch), runs in best_first:
        name, _, rate = method.partition("=") if not method.startswith("ours") else (method, "", "")
        name = name.replace(",", ", ").replace("=", " ")
        about = "" if not rate else f"{rate}, tuned" if best.get(name) == float(rate) else f"{rate}, not tuned"
        seconds = statistics.median(row["processor_seconds"] for row in runs)
        cells = (network, name, about, epochs, batch, len(runs), spread(row["test"] for row in runs), f"{seconds:.0f}")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    words = (
        "Crops and mirror images, cross-entropy. The optimizers have a one-cycle schedule, ours its defaults but for "
        "what is named."
    )
    if trials:
        tried = {
            method: ", ".join(
                f"{row['rate']:g}: {100.0 * row['held_out']:.1f}"
                for row in sorted(trials, key=lambda row: row["rate"])
                if row["method"] == method
            )
            for method in best
        }
        listed = "; ".join(f"{method} {scores}" for method, scores in tried.items())
        tuning = found["tune"]
        words += (
            f" Rates are tuned in {trials[0]['epochs']} epochs on {tuning['samples']} training images, by the accuracy "
            f"on {tuning['held_out']} others in %: {listed}."
        )
    return [*lines, "", f"{words} {made}"]


def spread(parts: Iterable[float]) -> str:
    """Mean (least … most) in %, or the number alone where there is one."""
    values = [100.0 * part for part in parts]
    mean = f"{statistics.fmean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.2f} … {max(values):.2f})"


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
        f"scaler in brackets: {', '.join(errors)}. Where ours is larger, the default `alpha` of the estimator, a pull "
        "of the weights to zero, makes it too modest."
    )
    return [*lines, "", words, "", calibration]


TABLES: dict[str, Callable[[dict, str], list[str]]] = {
    "conv_step": steps,
    "conv_accuracy": accuracies,
    "conv_ablation": ablation,
    "conv_cifar": cifar,
}
