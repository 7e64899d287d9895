"""The two tables of the README, for ``tables.py``: what the library is good for, and where it loses."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import race_tables
from ipdlam.experiments.paper import table1
from race_problems import PROBLEMS
from scaling_model import PAPER

Stored = Callable[[str], dict]
Row = tuple[str, str, str, str]


Wins = dict[str, tuple[int, int, int]]
OTHERS = {
    "MLP, adam, scaled": "scikit-learn's MLP behind a scaler",
    "RealMLP-TD-S": "RealMLP-TD-S",
    "random forest": "random forests",
    "gradient boosting": "gradient boosting",
}


def table(headings: Sequence[str], rows: Sequence[Row]) -> list[str]:
    lines = [f"| {' | '.join(headings)} |", "|---|---|---|---|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def tables(stored: Stored, wins: Wins, name: str, words: str) -> Row:
    """On how many tables our estimators are better and worse than another method."""
    better, equal, worse = wins[name]
    return (
        f"{better + equal + worse} tables that our defaults were not chosen on",
        f"better on {better}, our estimators",
        f"better on {worse}, {words}",
        f"`{stored('tabular')['command']} scores`",
    )


def fit_seconds(stored: Stored, *, won: bool) -> list[Row]:
    """How long a fit takes beside that of scikit-learn's MLP, if we win, or if we lose."""
    table, methods = "diamonds, cut", ("ipdlam, mini-batch", "MLP, adam, scaled")
    rows = [row for row in stored("tabular")["rows"] if row["part"] == "scores" and row["table"] == table]
    ours, other = (statistics.median(row["seconds"] for row in rows if row["method"] == method) for method in methods)
    row = (
        f"a fit of {rows[0]['rows']} rows ({table})",
        f"{ours:.1f} s, `IPDLAMClassifier`",
        f"{other:.1f} s, scikit-learn's MLP behind a scaler",
        f"`{stored('tabular')['command']} scores`",
    )
    return [row] if (ours < other) == won else []


def races(result: dict) -> dict[bool, list[Row]]:
    """For each problem of the race the time to the highest target that ours and a peer reach; by whether we win."""
    found: dict[bool, list[Row]] = {True: [], False: []}
    for key in race_tables.raced(result):
        rows = race_tables.measured(result, key)
        for target in reversed(race_tables.targets(rows)):
            known, peer = race_tables.medians(rows, target), race_tables.best_peer(rows, target)
            if peer is None and race_tables.OURS not in known:
                continue
            about = f"{PROBLEMS[key].title}: time to {race_tables.level(key, target)} on test data"
            ours, other = (race_tables.seconds_of(known[name]) if name in known else "not reached" for name in
                           (race_tables.OURS, peer))  # fmt: skip
            wins = known.get(race_tables.OURS, math.inf) < known.get(peer or "", math.inf)
            command = f"`{race_tables.command(rows, key).split(' --methods')[0]}`"  # the page has all of it
            peers = [name for name in race_tables.methods_of(rows) if not name.startswith(race_tables.OURS)]
            who = f"{f'{len(peers)} optimizers' if peer is None else peer}, tuned"
            found[wins].append((about, f"{ours}, `MiniBatchIPDLAM`", f"{other}, {who}", command))
            break
    return found


def ends(result: dict, **wanted: object) -> list[float]:
    """The last scores of some runs of the mini-batch benchmark."""
    rows = (row for row in result["rows"] if all(row.get(name) == value for name, value in wanted.items()))
    return [row["scores"][-1] for row in rows]


def step(result: dict, key: str, peer: str) -> Row:
    """The time of a step on a problem of the race."""
    found = {row["method"]: row for row in result["rows"] if (row["part"], row["problem"]) == ("cost", key)}
    ours, other = (f"{found[name]['milliseconds']:.0f} ms" for name in (race_tables.OURS, peer))
    about = f"a step of {PROBLEMS[key].title}, batch of {PROBLEMS[key].batch}"
    return (about, f"{ours}, `MiniBatchIPDLAM`", f"{other}, {peer}", "`python benchmarks/race.py cost`")


def papers_best(stored: Stored, *, won: bool) -> list[Row]:
    """Our default at the paper's size beside the best cell of its Table 1, where we win, or where we lose."""
    weights, found = stored("weights-paper"), []
    for row in weights["means"]:
        data, ours = row["data"], row["test_accuracy"]
        other = max(table1.corrected(data, inertia) for inertia in table1.PRINTED[data] if inertia not in table1.ABOVE)
        if (ours > other) == won:
            early = f"{100 * row['early_test_accuracy']:.1f} % after 10"
            found.append(
                (
                    f"{data}: test accuracy of the full-batch method, 784-1500-1500-10",
                    f"{100 * ours:.1f} % after {row['iterations']} iterations ({early}), `IPDLAM`",
                    f"{100 * other:.1f} % after 200, the best of the paper's Table 1",
                    f"`{weights['command']}`",
                )
            )
    return found


def good_table(stored: Stored, wins: Wins) -> list[str]:
    """Where the library is ahead."""
    batches, scaling, disk = (stored(name) for name in ("minibatch", "scaling", "disk"))
    deep = {"part": "bars", "data": "mnist", "hidden": [300] * 10, "initialisation": "paper", "epochs": 3}
    ours, adam = (statistics.fmean(ends(batches, **deep, method=name)) for name in ("minibatch", "adam"))
    later = [ends(batches, **{**deep, "epochs": 10}, method=name) for name in ("minibatch", "adam")]
    case = next(case for case in scaling["efficiency"] if (tuple(case["widths"]), case["samples"]) == (PAPER, 60000))
    memory = [f"{disk['summary'][f'peak_gigabytes_{where}']:.2f} GB" for where in ("on_disk", "in_memory")]
    rows = [
        *races(stored("race"))[True],
        (
            "mnist: test accuracy after 3 epochs, 10 hidden layers, the paper's tiny initial weights",
            f"{100 * ours:.1f} % ({100 * statistics.fmean(later[0]):.1f} after 10), `MiniBatchIPDLAM`",
            f"{100 * adam:.1f} % ({100 * statistics.fmean(later[1]):.1f} after 10), Adam at 0.001, untuned",
            f"`{batches['command']} bars`",
        ),
        *(tables(stored, wins, name, words) for name, words in OTHERS.items() if wins[name][0] > wins[name][2]),
        *fit_seconds(stored, won=True),
        *papers_best(stored, won=True),
        (
            "one iteration of `IPDLAM`, 784-1500-1500-10, 60000 samples",
            f"{case['seconds']['two']:.1f} s, two processes",
            f"{case['seconds']['one']:.1f} s, one process",
            f"`{scaling['command']}`",
        ),
        (
            "peak memory of `IPDLAM`, the same network and samples",
            f"{memory[0]}, state on a disk",
            f"{memory[1]}, state in memory",
            f"`{disk['command']}`",
        ),
    ]
    return table(["task", "ipdlam", "compared with", "made by"], rows)


def bad_table(stored: Stored, wins: Wins) -> list[str]:
    """Where it loses."""
    optimizers, decay, deep = (stored(name) for name in ("fig3-letter-paper", "decay-paper", "deep-small"))
    batches, weights = stored("minibatch"), stored("weights-paper")
    adam = next(row for row in optimizers["means"] if row["method"] == "adam")
    default = next(row for row in weights["means"] if row["data"] == "mnist")
    letter = next(row for row in decay["means"] if row["variant"] == "as in the paper")
    layers = {
        row["method"]: row["best_test_accuracy"]
        for row in deep["means"]
        if (row["depth"], row["activation"], row["initialisation"]) == (20, "relu", "torch")
    }
    diabetes = [
        -statistics.fmean(ends(batches, part="range", data="diabetes", method=m)) for m in ("minibatch", "adam")
    ]
    rows = [
        (
            "mnist: test accuracy after all iterations, 784-1500-1500-10",
            f"{100 * default['test_accuracy']:.1f} % ({default['iterations']} iterations), `IPDLAM`",
            f"{100 * adam['test_accuracy']:.1f} % ({adam['iterations']} epochs), Adam",
            f"`{weights['command']}`, `{optimizers['command']}`",
        ),
        (
            f"the same to the letter of the paper (no ridge, tiny initial weights), {letter['iterations']} iterations",
            f"{100 * letter['test_accuracy']:.1f} %, last iterate",
            f"{100 * letter['best_test_accuracy']:.1f} %, its own iterate {letter['best_iteration']}",
            f"`{decay['command']}`",
        ),
        *papers_best(stored, won=False),
        *races(stored("race"))[False],
        step(stored("race"), "resnet8", "Adam"),
        (
            "mnist: best test accuracy, 20 hidden layers of 100, 10000 samples",
            f"{100 * layers['ipdlam']:.1f} %, `IPDLAM`",
            f"{100 * layers['adam']:.1f} %, Adam",
            f"`{deep['command']}`",
        ),
        *(tables(stored, wins, name, words) for name, words in OTHERS.items() if wins[name][0] <= wins[name][2]),
        *fit_seconds(stored, won=False),
        (
            "diabetes: held-out loss",
            f"{diabetes[0]:.3f}, `MiniBatchIPDLAM`",
            f"{diabetes[1]:.3f}, Adam",
            f"`{batches['command']} range`",
        ),
    ]
    return table(["task", "ipdlam", "compared with", "made by"], rows)
