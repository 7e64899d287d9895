"""The tables of README.md and docs/reproduction.md, made from ``results/*.json``: no figure there is typed by hand.

python benchmarks/tables.py            # writes them
python benchmarks/tables.py --check    # fails where the pages and the results differ
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path

from ipdlam.comparison import title
from ipdlam.experiments.base import FAILS, HOLDS, PARTLY, Column
from ipdlam.experiments.report import load_contents, verdict_markdown
from ipdlam.experiments.tables import Table, cell, markdown

ROOT = Path(__file__).parent.parent


def origin(result: dict) -> str:
    """The command and the environment a result came from."""
    machine = result["environment"]
    return (
        f"`{result['command']}`, {machine['date']}, {machine['processor']}, {machine['threads']} threads, "
        f"torch {machine['torch']}, Python {machine['python']}."
    )


def iteration_table(result: dict) -> list[str]:
    """What one iteration costs."""
    figures = result["summary"]
    rows = [
        (
            "one iteration beside its matrix products at the SGEMM rate of the same run",
            "ratio_to_products",
            "≤ 1.3",
            "{:.2f}",
        ),
        ("the same for nested-reverse", "ratio_to_products_nested_reverse", "", "{:.2f}"),
        ("fraction of the SGEMM rate, reverse", "fraction_of_sgemm", "", "{:.2f}"),
        ("fraction of the SGEMM rate, nested-reverse", "fraction_of_sgemm_nested_reverse", "", "{:.2f}"),
        ("times faster than the same algorithm on whole arrays", "speedup_over_whole_arrays", "≥ 3", "{:.1f}"),
        (
            "speed of a product whose rows start on cache lines over one whose rows do not",
            "aligned_rows_speedup",
            "",
            "{:.2f}",
        ),
        (
            "seconds for each sample, N = 60000 over N = 15000, iterations in turn",
            "seconds_per_sample_ratio",
            "0.85 … 1.15",
            "{:.3f}",
        ),
        (
            "peak memory, GB (1.15 of the state, and 0.7, allowed: {allowed:.2f})",
            "peak_gigabytes",
            "≤ {allowed:.2f}",
            "{:.2f}",
        ),
        ("seconds for an iteration of {flop:.2f} TFLOP (median)", "seconds_per_iteration", "", "{:.1f}"),
        ("GFLOP/s of the iteration", "gflops", "", "{:.0f}"),
        ("GFLOP/s of nested-reverse", "gflops_nested_reverse", "", "{:.0f}"),
        ("GFLOP/s of SGEMM between the iterations", "sgemm_gflops", "", "{:.0f}"),
    ]
    known = {"allowed": figures["allowed_gigabytes"], "flop": figures["teraflop_per_iteration"]}
    lines = ["| 784-1500-1500-10, N = 60000, float32, order reverse | measured | goal |", "|---|---|---|"]
    lines += [
        f"| {text.format(**known)} | {form.format(figures[name])} | {goal.format(**known)} |"
        for text, name, goal, form in rows
    ]
    return [*lines, "", origin(result)]


def ridge_table(result: dict) -> list[str]:
    """Test accuracy with and without the ridge."""
    lines = ["| data | ridge | after 1 | after 5 | after 10 | after 20 | best |", "|---|---|---|---|---|---|---|"]
    for row in result["rows"]:
        accuracy = row["test_accuracy"]
        strength = "none (paper)" if row["strength"] is None else f"{row['strength']:.0e}"
        best = max(accuracy)
        cells = [f"{100 * accuracy[k - 1]:.2f}" for k in (1, 5, 10, 20)]
        lines.append(
            f"| {row['data']} | {strength} | {' | '.join(cells)} | {100 * best:.2f} at {accuracy.index(best) + 1} |"
        )
    hidden = result["rows"][0]["hidden"]
    return [*lines, "", f"Test accuracy in %, 784-{hidden}-{hidden}-10, one seed. {origin(result)}"]


def demo_table(result: dict) -> list[str]:
    """The comparison that ``make demo`` prints."""
    lines = ["| method | iterations | seconds | training | test | best test | Phi |", "|---|---|---|---|---|---|---|"]
    for row in result["rows"]:
        accuracies = [f"{100 * row[name]:.2f} %" for name in ("train_accuracy", "accuracy", "best_accuracy")]
        lines.append(
            f"| {row['method']} | {row['iterations']} | {row['seconds']:.1f} | {' | '.join(accuracies)} at "
            f"{row['best_iteration']} | {row['objective']:.3g} |"
        )
    network = "-".join(str(width) for width in result["network"])
    about = f"{result['config']['data']}, {result['samples']} training images, {network}, one seed; Adam in batches of "
    about += f"{result['batch_size']} at {result['learning_rates']['adam']:g}. {origin(result)}"
    return [*lines, "", about]


def stored(name: str) -> dict:
    """A result of a benchmark."""
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


NUMBERS = (
    Column("data", "data"),
    Column("method", "title"),
    Column("Phi", "objective", "number"),
    Column("training", "train_accuracy", "percent"),
    Column("test", "test_accuracy", "percent"),
    Column("best test", "best_test_accuracy", "percent"),
    Column("at", "best_iteration", "count"),
    Column("iterations", "iterations", "count"),
)


def numbers_table() -> list[str]:
    """What the runs at the size of the paper reach."""
    rows: dict[str, dict] = {}
    for content in load_contents(ROOT / "results"):
        if content.scale == "paper" and content.experiment.name in ("table1", "fig1", "fig3", "decay"):
            for row in content.data["means"]:
                rows.setdefault(row["run"], {}).update(row)
    cells = tuple(tuple(cell(column, {**row, "title": method(row)}) for column in NUMBERS) for row in rows.values())
    headings, numeric = zip(*((column.heading, column.kind != "text") for column in NUMBERS), strict=True)
    return markdown(Table(headings, cells, numeric)).rstrip("\n").split("\n")


def method(row: dict) -> str:
    """A run in a few words."""
    if row["method"] == "ipdlam":
        return f"iPDLAM, inertia {row.get('inertia', 0.7)}, {row.get('variant', 'as in the paper')}"
    rate = row.get("learning_rate")
    return title(row["method"]) + (f", rate {rate}" if rate else "")


def counts_table() -> list[str]:
    """How the paper's claims fared, one line an experiment."""
    lines = ["| experiment | scale | holds | holds partly | does not hold |", "|---|---|---:|---:|---:|"]
    for content in load_contents(ROOT / "results"):
        words = [claim["verdict"] for claim in content.claims]
        counts = [str(words.count(verdict) or "") for verdict in (HOLDS, PARTLY, FAILS)]
        if any(counts):
            part = "" if content.part is None else f" ({content.part})"
            lines.append(f"| {content.experiment.title} | {content.scale}{part} | {' | '.join(counts)} |")
    return lines


def mean_and_spread(values: list[float], scale: float = 100.0, digits: int = 2) -> str:
    """The mean, and the least and the most where there are several."""
    mean = f"{scale * statistics.fmean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    least, most = sorted((scale * min(values), scale * max(values)))
    return f"{mean} ({least:.{digits}f} … {most:.{digits}f})"


def ends_of(runs: list[dict], scale: float = 100.0, digits: int = 2) -> str:
    """What runs end with; that some of them diverged is said."""
    ends = [run["scores"][-1] for run in runs if run["scores"]]
    if len(ends) < len(runs):
        return f"{len(runs) - len(ends)} of {len(runs)} diverged"
    return mean_and_spread(ends, scale, digits) if ends else ""


def grouped(rows: list[dict], *names: str) -> dict[tuple, list[dict]]:
    """Rows that agree in these fields, in the order in which they come; lists as text."""
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        groups.setdefault(tuple(json.dumps(row.get(name)) for name in names), []).append(row)
    return groups


def described(run: dict) -> str:
    """The network and what else is special about a run of the mini-batch benchmark."""
    hidden = run["hidden"]
    words = [f"{len(hidden)} x {hidden[0]}"]
    words += [f"{name.replace('_', ' ')} {run[name]}" for name in ("batch_size", "activation", "loss") if name in run]
    return ", ".join(words)


def bars_table() -> list[str]:
    """Test accuracies of the mini-batch method with its default settings."""
    result = stored("minibatch")
    rows = [row for row in result["rows"] if row["part"] == "bars"]
    lines = [
        "| data | hidden layers | initialisation | epochs | mini-batch | Adam, 0.001 |",
        "|---|---|---|---:|---:|---:|",
    ]
    for group in grouped(rows, "data", "hidden", "initialisation", "epochs").values():
        cells = []
        for method in ("minibatch", "adam"):
            cells.append(ends_of([row for row in group if row["method"] == method]))
        run = group[0]
        start = run.get("initialisation", "he")
        lines.append(f"| {run['data']} | {described(run)} | {start} | {run['epochs']} | {' | '.join(cells)} |")
    about = (
        "Test accuracy in % after the last epoch, default settings, batches of 512: mean (least … most) of the seeds. "
    )
    return [*lines, "", about + origin(result).replace("minibatch.py", "minibatch.py bars")]


def range_table() -> list[str]:
    """The default settings over widths, depths, batches and data."""
    result = stored("minibatch")
    rows = [row for row in result["rows"] if row["part"] == "range"]
    lines = ["| data | network | epochs | mini-batch | Adam, 0.001 |", "|---|---|---:|---:|---:|"]
    for group in grouped(rows, "data", "hidden", "epochs", "batch_size", "activation", "loss").values():
        run, cells = group[0], []
        real = run["data"] == "diabetes"
        for method in ("minibatch", "adam"):
            runs = [row for row in group if row["method"] == method]
            cells.append(ends_of(runs, -1.0, 3) + " loss" if real else ends_of(runs))
        lines.append(f"| {run['data']} | {described(run)} | {run['epochs']} | {' | '.join(cells)} |")
    about = (
        "Accuracy in % (for diabetes half the mean squared error) on held-out training samples after the last epoch; "
    )
    about += "tables: mean (least … most) of 3 splits. "
    return [*lines, "", about + origin(result).replace("minibatch.py", "minibatch.py range")]


def ablation_table() -> list[str]:
    """What a change of each setting does to the accuracy."""
    result = stored("minibatch")
    rows = [row for row in result["rows"] if row["part"] == "ablation"]
    problems = list(grouped(rows, "data", "hidden"))
    titles = [f"{json.loads(data)}, {described({'hidden': json.loads(hidden)})}" for data, hidden in problems]
    lines = [f"| changed | {' | '.join(titles)} |", "|---|" + "---:|" * len(titles)]
    base: dict[tuple, float] = {}
    for (changed,), group in grouped(rows, "settings").items():
        cells = []
        for problem, runs in grouped(group, "data", "hidden").items():
            if not all(run["scores"] for run in runs):
                cells.append("diverged")
                continue
            mean = 100 * statistics.fmean(run["scores"][-1] for run in runs)
            cells.append(f"{mean - base[problem]:+.2f}" if problem in base else f"{mean:.2f}")
            base.setdefault(problem, mean)
        settings = json.loads(changed)
        words = ", ".join(f"{name} {value}" for name, value in settings.items()).replace("descent False", "no descent")
        lines.append(f"| {words or 'nothing: accuracy in %'} | {' | '.join(cells)} |")
    about = "Accuracy in % on held-out training samples, then the change of it in points; two seeds. 20000 images, "
    about += "batches of 256, 2 epochs; all of digits, batches of 64, 20 epochs. "
    return [*lines, "", about + origin(result).replace("minibatch.py", "minibatch.py ablation")]


def race_table() -> list[str]:
    """Wall-clock to an accuracy."""
    result = stored("time_to_accuracy")
    lines = []
    for (data,), group in grouped(result["summary"], "data").items():
        targets = list(dict.fromkeys(row["target"] for row in group))
        heads = [f"{100 * target:g} %" for target in targets]
        lines += [f"| {json.loads(data)} | {' | '.join(heads)} |", "|---|" + "---:|" * len(targets)]
        for (method,), rows in grouped(group, "method").items():
            cells = []
            for row in rows:
                if row["median_seconds"] is None:
                    cells.append(f"{row['reached']} of {row['runs']} seeds")
                else:
                    ratio = row["median_ratio_to_adam"]
                    cells.append(
                        f"{row['median_seconds']:.0f} s ({row['least']:.0f} … {row['most']:.0f})"
                        + (f", {ratio:.2f} of Adam's" if ratio is not None else "")
                    )
            lines.append(f"| {json.loads(method)} | {' | '.join(cells)} |")
        lines.append("")
    plans = {
        data: sorted({row["epochs"] for row in result["rows"] if row["part"] == "measure" and row["data"] == data})
        for data in dict.fromkeys(row["data"] for row in result["summary"])
    }
    tried = "; ".join(f"{data} for {' or '.join(map(str, epochs))} epochs" for data, epochs in plans.items())
    about = (
        "Seconds of training until the test accuracy is first reached: median (least … most) of the seeds, evaluated "
    )
    about += f"four times an epoch; the ratio is the median of those of the seeds. Runs were planned on {tried}, and "
    about += "the plan that got there first counts. "
    return [*lines, about + origin(result)]


TABLES: dict[str, Callable[[], list[str]]] = {
    "demo": lambda: demo_table(stored("demo")),
    "iteration": lambda: iteration_table(stored("iteration")),
    "ridge": lambda: ridge_table(stored("ridge")),
    "bars": bars_table,
    "range": range_table,
    "ablation": ablation_table,
    "race": race_table,
    "numbers": numbers_table,
    "counts": counts_table,
    "verdicts": lambda: verdict_markdown(load_contents(ROOT / "results")).rstrip("\n").split("\n"),
}
PAGES = ("README.md", "docs/reproduction.md", "docs/minibatch.md")


def with_tables(text: str) -> str:
    """The text with everything between its table markers made anew."""
    for name in re.findall(r"<!-- table (\w+) -->", text):
        table = "\n".join(TABLES[name]())
        marked = re.compile(rf"(<!-- table {name} -->\n).*?(<!-- end of table {name} -->)", re.DOTALL)
        text, count = marked.subn(lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text)
        if count != 1:
            raise SystemExit(f"a page must hold the markers of the table {name} once, and close them")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    for page in PAGES:
        path = ROOT / page
        text = path.read_text()
        if not options.check:
            path.write_text(with_tables(text))
        elif text != with_tables(text):
            raise SystemExit(f"{page} does not show what results/*.json hold; run python benchmarks/tables.py")


if __name__ == "__main__":
    main()
