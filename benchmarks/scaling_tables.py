"""The tables of docs/results/scaling.md, for ``tables.py``."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from scaling_model import DISK, LATENCY, MEMORY, NODE, PAPER, errors
from scaling_picture import rate_name

PLACES = ("in_memory", "on_disk")
BUSY = 0.25  # a spread of iterations that an idle machine does not have


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> list[str]:
    """Markdown; the columns after the first ``texts`` are numbers."""
    rule = ["---"] * texts + ["---:"] * (len(headings) - texts)
    return [f"| {' | '.join(headings)} |", f"|{'|'.join(rule)}|", *(f"| {' | '.join(row)} |" for row in rows)]


def network(widths: Sequence[int]) -> str:
    """784-1500-1500-10, and many equal layers in short."""
    hidden = widths[1:-1]
    if len(hidden) > 5 and len(set(hidden)) == 1:
        return f"{widths[0]}-({len(hidden)} of {hidden[0]})-{widths[-1]}"
    return "-".join(map(str, widths))


def seconds(value: float) -> str:
    """Three digits, as far as they say something."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def efficiency_table(result: dict) -> list[str]:
    rows = []
    for case in result["efficiency"]:
        found = [case["seconds"][kind] for kind in ("one", "two")]
        ratios = [percent(case[name]) for name in ("strong", "weak", "cores", "library")]
        cells = [*map(seconds, found), f"{case['speedup']:.2f}", *ratios, percent(case["spread"])]
        rows.append([network(case["widths"]), str(case["samples"]), *cells])
    headings = [
        "network",
        "N",
        "one process, s",
        "two, s",
        "times faster",
        "strong",
        "weak",
        "cores",
        "library",
        "spread",
    ]
    return [*table(headings, rows), *busy(result)]


def busy(result: dict) -> list[str]:
    """A warning where the machine had other things to do."""
    if statistics.median(case["spread"] for case in result["efficiency"]) < BUSY:
        return []
    return ["", "**The machine was busy with other work while this was measured: nothing follows from these seconds.**"]


def parts_table(result: dict) -> list[str]:
    rows = []
    for case in result["efficiency"]:
        parts = case["parts_of_two"]
        solves = parts["gains"] + parts["solves"]
        spent = (parts["samples"], solves, parts["small"], parts["packing"], parts["communication"])
        sent = f"{case['bytes']:,}".replace(",", " ")
        cells = [*map(seconds, spent), sent, "yes" if case["same_bytes"] else f"no: {case['formula']}"]
        rows.append([network(case["widths"]), str(case["samples"]), *cells])
    headings = [
        "network",
        "N",
        "samples",
        "solves",
        "small work",
        "packing",
        "communication",
        "bytes",
        "as the formula",
    ]
    return table(headings, rows)


def machine_table(result: dict) -> list[str]:
    own = result["machine"]
    rows = [
        ("products over samples, float32", f"{own['products'] / 1e9:.1f} GFLOP/s"),
        ("element-wise work on z and a", f"{own['elements'] / 1e6:.0f} million numbers/s"),
        ("factorisations and solves, float64", f"{own['solves'] / 1e9:.1f} GFLOP/s"),
        ("small work on weights and moments", f"{own['moments'] / 1e6:.0f} million numbers/s"),
        ("packing, where there are several ranks", f"{own['packing'] / 1e6:.0f} million numbers/s"),
        ("gloo between two processes of this machine", f"{own['bandwidth'] / 1e6:.0f} MB/s"),
        ("one message of gloo", f"{1e6 * own['latency']:.0f} µs"),
        ("an iteration, whatever the sizes", f"{1000 * own['overhead']:.1f} ms"),
        ("a core while the other one works, too", f"{result['two_cores_slower']:.2f} of its time alone"),
    ]
    return table(["fitted", "one core"], rows)


def signed(value: float) -> str:
    return f"{100 * value:+.0f} %"


def checks_table(result: dict) -> list[str]:
    rows = []
    for check in result["checks"]:
        if check["rate"] is None and check["delay"] == 0.0:
            spread = f"{seconds(check['measured'])} ({seconds(check['least'])} … {seconds(check['most'])})"
            about = [network(check["widths"]), str(check["samples"]), str(check["ranks"])]
            kind = "held out" if check["held_out"] else "fitted"
            rows.append([*about, spread, seconds(check["predicted"]), signed(check["error"]), kind])
    headings = ["network", "N", "processes", "measured, s", "predicted, s", "error", ""]
    return [*table(headings, rows), "", *errors_text(result)]


def errors_text(result: dict) -> list[str]:
    words = []
    for held_out, name in ((False, "the runs that were fitted"), (True, "those held out, all networks included")):
        found = errors(result["checks"], held_out)
        if found:
            middle, worst = percent(statistics.median(found)), percent(found[-1])
            words.append(f"{name}: {middle} in the middle, {worst} at worst, of {len(found)}")
    return [f"Errors of {'; '.join(words)}."]


def networks_table(result: dict) -> list[str]:
    limited = {
        (tuple(row["widths"]), row["samples"], row["rate"], row["delay"])
        for row in result["rows"]
        if row["part"] == "networks"
    }
    alone = {(tuple(case["widths"]), case["samples"]): case["seconds"]["one"] for case in result["efficiency"]}
    rows, seen = [], set()
    for check in reversed(result["checks"]):  # of two without limits, the one in a namespace is the last
        key = (tuple(check["widths"]), check["samples"], check["rate"], check["delay"])
        if check["ranks"] != 2 or key not in limited or key in seen:
            continue
        seen.add(key)
        one = alone.get(key[:2])
        sent = [seconds(check[f"communication_{kind}"]) for kind in ("measured", "predicted")]
        both = [seconds(check[kind]) for kind in ("measured", "predicted")]
        gain = "" if one is None else f"{one / check['measured']:.2f}"
        link = [rate_name(check["rate"]), f"{1000 * check['delay']:g} ms"]
        rows.append(
            [network(check["widths"]), str(check["samples"]), *link, *sent, *both, signed(check["error"]), gain]
        )
    headings = ["network", "N", "rate", "delay", "communication, s", "predicted", "iteration, s", "predicted", "error"]
    means = sorted({row["means"] for row in result["rows"] if row["part"] == "networks"})
    how = {
        "veth": "without delay: veth pairs and token buckets of the kernel",
        "veth, netem": "with delay: netem",
        "tun, packets delayed by a process": "with delay: TUN devices and a process, for want of netem in this kernel",
    }
    about = "; ".join(how[name] for name in means)
    return [*table([*headings, "times faster than one process"], rows[::-1]), "", f"Links {about}." if about else ""]


def collectives_table(result: dict) -> list[str]:
    rows = []
    for found in result["collectives"]:
        size = f"{found['bytes'] / 1e6:.1f} MB" if found["bytes"] > 1000 else f"{found['bytes']} bytes"
        times = [f"{1000 * found[name]:.1f}" for name in ("measured", "predicted")]
        rows.append([found["kind"], str(found["ranks"]), rate_name(found["rate"]), size, *times])
    return table(["collective", "ranks", "rate", "size", "measured, ms", "predicted, ms"], rows)


def predictions_table(result: dict) -> list[str]:
    rows = []
    for case in result["predictions"]:
        shares = [percent(case[name]) for name in ("share", "of_weights", "efficiency")]
        ranks = [f"{case[name]:,}".replace(",", " ") for name in ("equal_ranks", "equal_ranks_60000")]
        times = [seconds(case["seconds"]), seconds(case["seconds_in_memory"]), f"{case['communication']:.2f}"]
        rows.append([case["machine"], rate_name(case["rate"]), *times, *shares, *ranks])
    headings = ["a machine has", "network", "iteration, s", "if in memory, s", "communication, s", "its share"]
    headings += ["of it weights", "efficiency", "ranks where it equals the pass, N = 1e9", "N = 60000"]
    state = result["predictions"][0]["state"]
    needs = "more than its memory, so that they are on its disk" if state > MEMORY else "less than its memory"
    faster = ", ".join(f"{name} {times}" for name, times in NODE.items())
    about = (
        f"Predictions, not measurements: {network(PAPER)}, a billion samples on 64 machines, float32. z, a and X take "
        f"{state / 1e9:.0f} GB a machine, {needs}. Taken for granted: {MEMORY / 1e9:.0f} GB of memory and a disk of "
        f"{DISK / 1e9:.0f} GB/s a machine, {1e6 * LATENCY:.0f} µs one way; 64 cores are so many times faster than one "
        f"({faster}), and as fast in all else."
    )
    return [*table(headings, rows, 2), "", about]


def layers_table(result: dict) -> list[str]:
    rows = []
    for case in result["layers"]:
        total = sum(case["seconds"])
        shares = " ".join(f"{100 * spent / total:.0f}" for spent in case["seconds"])
        flops = " ".join(f"{100 * share:.0f}" for share in case["share_of_flops"])
        gains = [f"{case[name]:.2f}" for name in ("best_of_two_groups", "best_of_any", "data_parallel")]
        sent = [f"{case[name] / 1e6:.1f}" for name in ("sent_layers", "sent_data")]
        rows.append(
            [network(case["widths"]), str(case["samples"]), shares, flops, *gains, *sent, f"{case['crossover']:.0f}"]
        )
    headings = [
        "network",
        "N",
        "seconds of the layers, %",
        "FLOP, %",
        "two groups of layers, at best",
        "a rank a layer, at best",
    ]
    headings += ["samples divided, measured", "sent: layers, MB", "sent: samples, MB", "equal at N ="]
    return table(headings, rows)


def groups_table(result: dict) -> list[str]:
    rows = []
    for case in result["groups"]:
        times = [case[name] for name in ("one", "samples_divided", "layers_divided")]
        best = ("one rank", "samples", "layers")[times.index(min(times))]
        ranks = f"{case['ranks']} of {case['machine']}, {rate_name(case['rate'])}"
        about = [network(case["widths"]), ranks, str(case["samples"])]
        one, samples, layers = map(seconds, times)
        others = [seconds(case[name]) for name in ("fixed", "samples_improved")]
        rows.append([*about, one, samples, *others, layers, f"{case['crossover']:.0f}", best])
    headings = ["network", "ranks", "N", "one rank, s", "samples divided, s", "of it whatever N is", "improved, s"]
    headings += ["layers divided, at best, s", "sent: equal at N =", "best"]
    return [*table(headings, rows, 2), "", "Predictions, with ranks and latencies as above; all in memory."]


def disk_table(result: dict) -> list[str]:
    """z and a in memory and on a disk."""
    found = result["summary"]
    same = "the same bits" if found["same_bits"] else "other bits"
    rows = [
        ("peak of resident memory, GB", *(f"{found[f'peak_gigabytes_{where}']:.2f}" for where in PLACES), "≤ 1.5"),
        ("seconds of an iteration, median", *(seconds(found[f"seconds_{where}"]) for where in PLACES), ""),
        ("of the time in memory, iterations in turn", "1", f"{found['time_ratio']:.2f}", "≤ 1.5"),
        ("weights after them", "", same, "the same bits"),
    ]
    headings = [
        f"784-1500-1500-10, N = 60000, z and a of {found['file_gigabytes']:.1f} GB",
        "in memory",
        "on a disk",
        "goal",
    ]
    return table(headings, rows)


def summary_table(result: dict) -> list[str]:
    """The README's: what two processes gain at the size of the paper, and what is predicted for more."""
    case = next(case for case in result["efficiency"] if tuple(case["widths"]) == PAPER and case["samples"] == 60000)
    held_out = errors(result["checks"], held_out=True)
    many = next(case for case in result["predictions"] if (case["machine"], case["rate"]) == ("64 cores", 1e10))
    rows = [
        ("seconds of an iteration, one process", seconds(case["seconds"]["one"])),
        ("two processes", seconds(case["seconds"]["two"])),
        ("times faster", f"{case['speedup']:.2f}"),
        ("MB that a process gives to sums in an iteration, whatever N is", f"{case['bytes'] / 1e6:.1f}"),
        (f"error of the cost model on {len(held_out)} runs held out, median", percent(statistics.median(held_out))),
        (
            f"predicted: 64 machines of 64 cores, 10 Gbit/s, a billion samples on disks of {DISK / 1e9:.0f} GB/s, s",
            seconds(many["seconds"]),
        ),
        ("of it communication", f"{many['communication']:.2f}"),
    ]
    return table([f"{network(PAPER)}, N = 60000, float32, one thread for each process", "figure"], rows)


TABLES: dict[str, Callable[[dict], list[str]]] = {
    "scaling_efficiency": efficiency_table,
    "scaling_parts": parts_table,
    "scaling_machine": machine_table,
    "scaling_checks": checks_table,
    "scaling_networks": networks_table,
    "scaling_collectives": collectives_table,
    "scaling_predictions": predictions_table,
    "scaling_layers": layers_table,
    "scaling_groups": groups_table,
    "scaling_summary": summary_table,
}
