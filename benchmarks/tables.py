"""The tables of README.md and of the pages in docs, made from ``results/*.json``: nobody types a figure there.

python benchmarks/tables.py            # writes them
python benchmarks/tables.py --check    # fails where the pages and the results differ
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import convolution_tables
import precision
import race_tables
import scaling_tables
import summary_tables
import tabular_tables
from ipdlam.experiments import EXPERIMENTS
from ipdlam.experiments.claims import FAILS, HOLDS, PARTLY, UNMEASURED, percent
from ipdlam.experiments.contents import base_name, load_contents, reading_label, verdicts
from ipdlam.experiments.paper import readings
from ipdlam.experiments.paper.decay import PLAIN
from ipdlam.experiments.paper.table1 import PRINTED, corrected
from ipdlam.experiments.report import verdict_markdown
from ipdlam.experiments.spec import Column
from ipdlam.experiments.tables import Table, cell, markdown
from ipdlam.runs.compare import title

ROOT = Path(__file__).parent.parent
ENDS = (0.1, 0.7)  # inertias between which the paper's Table 1 gets better


def counted(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def origin(result: dict) -> str:
    """The command and the environment a result came from."""
    machine = result["environment"]
    return (
        f"`{result['command']}`, {machine['date']}, {machine['processor']}, {counted(machine['threads'])}, "
        f"torch {machine['torch']}, Python {machine['python']}."
    )


def iteration_table(result: dict) -> list[str]:
    """What one iteration costs."""
    figures = result["summary"]
    rows = [
        (
            "time of an iteration, over the time of its matrix products alone by SGEMM in the same run",
            "ratio_to_products",
            "≤ 1.3",
            "{:.2f}",
        ),
        ("the same for order nested-reverse", "ratio_to_products_nested_reverse", "", "{:.2f}"),
        ("fraction of the SGEMM rate, reverse", "fraction_of_sgemm", "", "{:.2f}"),
        ("fraction of the SGEMM rate, nested-reverse", "fraction_of_sgemm_nested_reverse", "", "{:.2f}"),
        ("speed over the same algorithm on whole arrays", "speedup_over_whole_arrays", "≥ 3", "{:.1f}"),
        (
            "speed of a product with rows on cache lines, over one without",
            "aligned_rows_speedup",
            "",
            "{:.2f}",
        ),
        (
            "seconds for each sample at N = 60000, over those at N = 15000 (iterations alternate)",
            "seconds_per_sample_ratio",
            "0.85 … 1.15",
            "{:.3f}",
        ),
        (
            "peak memory, GB (the goal is 1.15 times the state, plus 0.7)",
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
        if content.scale == "paper" and base_name(content.experiment.name) in ("table1", "fig1", "fig3", "decay"):
            reading = {} if content.reading is None else {"reading": reading_label(content.reading)}
            for row in content.data["means"]:
                rows.setdefault(row["run"], {}).update({**row, **reading})
    cells = tuple(tuple(cell(column, {**row, "title": method(row)}) for column in NUMBERS) for row in rows.values())
    headings, numeric = zip(*((column.heading, column.kind != "text") for column in NUMBERS), strict=True)
    return markdown(Table(headings, cells, numeric)).rstrip("\n").split("\n")


def method(row: dict) -> str:
    """A run in a few words."""
    if row["method"] == "ipdlam":
        variant = row.get("variant", PLAIN)
        kind = row.get("reading", PLAIN) if variant == PLAIN else variant
        return f"iPDLAM, inertia {row.get('inertia', 0.7)}, {kind}"
    if row["method"] == "dlam":
        return f"{title('dlam')}, {row['reading']}"
    rate = row.get("learning_rate")
    return title(row["method"]) + (f", rate {rate}" if rate else "")


def counts_table() -> list[str]:
    """How claims fared, one line for each experiment, scale and who says it; questions of ours have no verdict."""
    words = (HOLDS, PARTLY, FAILS, UNMEASURED)
    lines = [f"| experiment | scale | said by | {' | '.join(words)} |", "|---|---|---|---:|---:|---:|---:|"]
    found: dict[tuple[str, ...], Counter[str]] = {}
    for verdict in verdicts(load_contents(ROOT / "results")):
        scale = verdict.scale if verdict.part is None else f"{verdict.scale} ({verdict.part})"
        if verdict.claim["verdict"] in words:
            key = (EXPERIMENTS[verdict.experiment].title, scale, verdict.claim["source"])
            found.setdefault(key, Counter())[verdict.claim["verdict"]] += 1
    return [*lines, *(f"| {' | '.join([*key, *(str(n[word] or '') for word in words)])} |" for key, n in found.items())]


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
    same = ("data", "hidden", "random_labels")
    problems, titles = grouped(rows, *same), []
    for run, *_ in problems.values():
        noise = f", cross-entropy, {run['random_labels']:.0%} of labels random" if "random_labels" in run else ""
        titles.append(f"{run['data']}, {described({'hidden': run['hidden']})}{noise}")
    lines = [f"| changed | {' | '.join(titles)} |", "|---|" + "---:|" * len(titles)]
    base: dict[tuple, float] = {}
    for (changed,), group in grouped(rows, "settings").items():
        cells, found = [], grouped(group, *same)
        for problem in problems:
            runs = found.get(problem, [])
            if not runs or not all(run["scores"] for run in runs):
                cells.append("diverged" if runs else "")
                continue
            mean = 100 * statistics.fmean(run["scores"][-1] for run in runs)
            cells.append(f"{mean - base[problem]:+.2f}" if problem in base else f"{mean:.2f}")
            base.setdefault(problem, mean)
        settings = json.loads(changed)
        words = ", ".join(f"{name} {value}" for name, value in settings.items()).replace("descent False", "no descent")
        lines.append(f"| {words or 'nothing: accuracy in %'} | {' | '.join(cells)} |")
    about = "Accuracy in % on held-out training samples, then the change of it in points; two seeds. 20000 images, "
    about += (
        "batches of 256, 2 epochs; 5000 where labels are random, batches of 32, 4 epochs; all of digits, batches of "
    )
    about += "64, 20 epochs. "
    return [*lines, "", about + origin(result).replace("minibatch.py", "minibatch.py ablation")]


def race_table(lines: Callable[[dict], list[str]], about: str, part: str = "measure") -> list[str]:
    """A table of the page on the race, and where it came from."""
    result = stored("race")
    return [*lines(result), "", f"{about} {race_origin(result, part)}"]


def race_origin(result: dict, part: str) -> str:
    """The command and the machines: problems have been raced on several."""
    machines: dict[str, list[str]] = {}
    for row in result["rows"]:
        if row["part"] == part.split()[-1]:
            made = origin({"command": "", "environment": row["environment"]}).removeprefix("``, ").removesuffix(".")
            machines.setdefault(made, []).append(row["problem"])
    shown = {made: f"{', '.join(dict.fromkeys(problems))}: {made}" for made, problems in machines.items()}
    return f"`python benchmarks/race.py {part}`, {'; '.join(shown.values() if len(shown) > 1 else shown)}."


def tabular_table(lines: Callable[[dict], list[str]], about: str, part: str = "scores") -> list[str]:
    """A table of the page on tables, and where it came from."""
    result = stored("tabular")
    return [*lines(result), "", f"{about} {origin(result).replace('.py`', f'.py {part}`')}"]


def tabular_memory() -> list[str]:
    """What a fit on a million rows needs."""
    lines = ["| samples | data | memory before the fit | peak | above it |", "|---|---:|---:|---:|---:|"]
    result = stored("tabular")
    for row in (row for row in result["rows"] if row["part"] == "memory"):
        sizes = [row["data"], row["before"], row["peak"], row["peak"] - row["before"]]
        cells = " | ".join(f"{size / 1e9:.2f} GB" for size in sizes)
        lines.append(f"| {row['rows']} x {row['columns']}, {row['dtype']} | {cells} |")
    return [*lines, "", f"One epoch. {origin(result).replace('.py`', '.py memory`')}"]


def scaling_table(name: str) -> list[str]:
    """A table of the page on scaling; the first one of a page says where all of them came from."""
    result = stored("scaling")
    lines = scaling_tables.TABLES[name](result)
    return [*lines, "", origin(result)] if name in ("scaling_efficiency", "scaling_summary") else lines


def disk_table() -> list[str]:
    result = stored("disk")
    return [*scaling_tables.disk_table(result), "", origin(result)]


def readings_table() -> list[str]:
    """The readings that were held against Table 1 in full, the best fit first."""
    experiment = EXPERIMENTS["readings"]
    content = json.loads((ROOT / "results" / "readings-small.json").read_text())
    rows = [row for row in experiment.shown(content["means"]) if row["total"] is not None]
    headings = tuple(column.heading for column in experiment.columns)
    lines = tuple(tuple(cell(column, row) or "-" for column in experiment.columns) for row in rows)
    table = Table(headings, lines, tuple(column.kind != "text" for column in experiment.columns))
    made = f"{content['runs']} of {content['runs_declared']} runs"
    words = "Cells: Φ for each sample, training and test accuracy after 200 iterations. "
    return [*markdown(table).rstrip("\n").split("\n"), "", f"{words}`{content['command']}`, {made}."]


def trends_table() -> list[str]:
    """All readings at inertia 0.1 and 0.7, the best fit there first: two runs tell most of them apart."""
    content = json.loads((ROOT / "results" / "readings-small.json").read_text())
    made: dict[str, dict[float, dict]] = {}
    for row in content["means"]:
        if row["inertia"] in ENDS:
            made.setdefault(row["reading"], {})[row["inertia"]] = row
    both = {reading: at for reading, at in made.items() if len(at) == len(ENDS)}
    misfits = {reading: statistics.fmean(row["misfit"] for row in at.values()) for reading, at in both.items()}
    headings = " | ".join(f"at {inertia}" for inertia in ENDS)
    lines = [f"| reading | misfit of these | {headings} | has |", "|---|---:|---|---|---|"]
    for reading in sorted(both, key=misfits.__getitem__):
        has = [words.split(" from")[0] for words, there in readings.features(both[reading]).items() if there]
        cells = (f"{misfits[reading]:.2f}", *(readings.summary(both[reading][inertia]) for inertia in ENDS))
        lines.append(f"| {' | '.join((reading, *cells, ', '.join(has) or 'none'))} |")
    paper = " and ".join(
        f"{PRINTED['mnist'][inertia][0]}, {PRINTED['mnist'][inertia][1]} %, {percent(corrected('mnist', inertia))}"
        for inertia in ENDS
    )
    return [*lines, "", f"Cells as above; the paper's are {paper}. `{content['command']}`."]


def results() -> dict[str, dict]:
    """Every result by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "results").glob("*.json"))}


def heading(name: str, result: dict) -> str:
    """What a result is about."""
    if "experiment" not in result:
        return name.replace("_", " ").capitalize()
    return f"{EXPERIMENTS[result['experiment']].title} ({result['scale']} scale)"


def pictures_table() -> list[str]:
    """Every picture with the command that made it."""
    lines: list[str] = []
    for name, result in results().items():
        if (ROOT / "results" / f"{name}.png").exists():
            made = f", {result['runs']} of {result['runs_declared']} runs" if "runs_declared" in result else ""
            title = heading(name, result)
            lines += [
                f"## {title}",
                "",
                f"![{title}](../../results/{name}.png)",
                "",
                f"`{result['command']}`{made}.",
                "",
            ]
    return lines[:-1]


def sources_table() -> list[str]:
    """Every file of results/ with the command that made it."""
    lines = ["| file | what | made by | runs |", "|---|---|---|---:|"]
    for name, result in results().items():
        runs = f"{result['runs']} of {result['runs_declared']}" if "runs_declared" in result else ""
        lines.append(f"| `results/{name}.json` | {heading(name, result)} | `{result['command']}` | {runs} |")
    return lines


def convolution_table(name: str) -> list[str]:
    """A table of ``convolutions.py``, each part of which has an environment of its own."""
    found = stored("convolutions")
    key = convolution_tables.KEYS[name]
    if key not in found:
        return ["Not measured yet."]
    command = f"python benchmarks/convolutions.py {key}"
    made = origin({"command": command, "environment": found[key]["environment"]})
    return convolution_tables.TABLES[name](found, made)


TABLES: dict[str, Callable[[], list[str]]] = {
    "good": lambda: summary_tables.good_table(stored, tabular_tables.wins(stored("tabular"))),
    "bad": lambda: summary_tables.bad_table(stored, tabular_tables.wins(stored("tabular"))),
    "demo": lambda: demo_table(stored("demo")),
    "iteration": lambda: iteration_table(stored("iteration")),
    "ridge": lambda: ridge_table(stored("ridge")),
    "bars": bars_table,
    "range": range_table,
    "ablation": ablation_table,
    "precision": lambda: [
        *precision.table(stored("precision")),
        "",
        "Test accuracies at the end of the longest plan, means over 3 seeds; medians of the seeds' ratios of processor "
        f"time. {origin(stored('precision'))}",
    ],
    "race": lambda: race_table(
        race_tables.summary_table,
        "Processor seconds of training to a target, medians over the seeds. Ours runs with its defaults; peers, and "
        "ours in the last column, have had 12 trials each. Ratios are medians of the seeds' ratios.",
        "tune measure",
    ),
    "race_methods": lambda: race_table(
        race_tables.all_tables,
        "Median (least … most) over the seeds of the processor seconds to each target, and epochs; the plan that gets "
        "there first counts.",
        "tune measure",
    ),
    "race_trials": lambda: race_table(
        race_tables.tuning_table, "The best score of the trials on held-out training samples.", "tune"
    ),
    "race_leads": lambda: [
        *race_tables.leads_table(stored("race_leads")),
        "",
        "Scores on held-out training samples at the end of the plan, and half-way in brackets; then changes of them in "
        f"points. Means of two seeds; 20000 pictures, 2 epochs. {origin(stored('race_leads'))}",
    ],
    "race_costs": lambda: race_table(
        race_tables.cost_table,
        "Means over 18 steps by turns, of one thread; those of peers over ours. Ours has 54 steps before them. "
        "An empty cell: it failed with the settings of a first trial, or was not asked.",
        "cost",
    ),
    "race_profile": lambda: race_table(
        race_tables.profile_table, "Steps of ours after 60 others, one thread.", "profile"
    ),
    **{name: partial(convolution_table, name) for name in convolution_tables.TABLES},
    "envelope": lambda: convolution_tables.envelope(stored("envelope")),
    "tabular_wins": lambda: tabular_table(
        tabular_tables.wins_table,
        "Better and worse: the mean difference over the splits is larger than its standard error (of one split: any "
        "difference). Seconds are medians over the tables. Log-losses are of the tables of classes.",
    ),
    "tabular_ranks": lambda: tabular_table(tabular_tables.ranks_table, "By accuracy or R²."),
    "tabular_chances": lambda: tabular_table(
        tabular_tables.chances_table, "Means over the tables of classes; the calibration error has 15 bins."
    ),
    "tabular_classes": lambda: tabular_table(
        lambda result: tabular_tables.cells_table(result, "classes", tabular_tables.score_of),
        "Accuracy on the held-out quarter, mean over the splits.",
    ),
    "tabular_real": lambda: tabular_table(
        lambda result: tabular_tables.cells_table(result, "real", tabular_tables.score_of),
        "R² on the held-out quarter, mean over the splits.",
    ),
    "tabular_seconds": lambda: tabular_table(
        lambda result: [
            *tabular_tables.cells_table(result, "classes", tabular_tables.seconds_of),
            "",
            *tabular_tables.cells_table(result, "real", tabular_tables.seconds_of),
        ],
        "Processor seconds of a fit, median over the splits, one thread.",
    ),
    "tabular_ablation": lambda: tabular_table(
        tabular_tables.ablation_table,
        "Mean differences to the defaults over the tables that they were chosen on, one member each, two splits each.",
        "ablation",
    ),
    "tabular_members": lambda: tabular_table(
        lambda result: tabular_tables.ablation_table(result, "members"),
        "Mean differences to the defaults over the tables that they were chosen on, two splits each.",
        "members",
    ),
    "tabular_memory": tabular_memory,
    **{name: partial(scaling_table, name) for name in scaling_tables.TABLES},
    "disk": disk_table,
    "numbers": numbers_table,
    "readings": readings_table,
    "trends": trends_table,
    "pictures": pictures_table,
    "sources": sources_table,
    "counts": counts_table,
    "verdicts": lambda: verdict_markdown(load_contents(ROOT / "results")).rstrip("\n").split("\n"),
}
PAGES = (
    "README.md",
    "docs/method/networks.md",
    "docs/guide/storage.md",
    *(
        f"docs/results/{name}.md"
        for name in (
            "index",
            "pictures",
            "reproduction",
            "verdicts",
            "fullbatch",
            "minibatch",
            "race",
            "networks",
            "tabular",
            "scaling",
        )
    ),
)


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
