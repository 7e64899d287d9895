"""What it costs to keep z and a on a disk: time and memory of the same iterations in memory and with ``storage=``.

Two processes train the same network on the same data, one with its state in memory, one with its state in a folder and
its data memory-mapped. They take their iterations in turn, so that a slow moment of the machine hits both, and each
tells its own peak of resident memory. In the end their weights are compared bit for bit. The data are the training
images of MNIST where ``IPDLAM_DATA`` names them, and random numbers otherwise: an iteration costs the same.

    python benchmarks/disk.py --folder /data            # the size of the paper; writes results/disk.json
    python benchmarks/disk.py --scale smoke             # seconds, nothing to be concluded from it

``--folder`` is on the disk to be measured; it takes the state and the data, 3.1 GB at the size of the paper.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ipdlam
from ipdlam.runs.environment import environment, peak_memory
from iteration import make_problem, state_bytes

SCALES: dict[str, dict[str, Any]] = {
    "paper": {"widths": [784, 1500, 1500, 10], "samples": 60000, "iterations": 5, "threads": 2, "chunk_size": None},
    "smoke": {"widths": [20, 32, 32, 4], "samples": 400, "iterations": 2, "threads": 1, "chunk_size": 64},
}
PLACES = ("memory", "disk")


def write_data(scale: str, folder: Path) -> str:
    """Put X and y into files; what they are."""
    widths, samples = SCALES[scale]["widths"], SCALES[scale]["samples"]
    if scale == "paper" and os.environ.get("IPDLAM_DATA"):
        data, name = ipdlam.datasets.load("mnist", offline=True), "mnist"
        X, y = data.X, data.y
    else:
        (_, X, y), name = make_problem(widths, samples), "random"
    np.save(folder / "X.npy", X.numpy())
    np.save(folder / "y.npy", y.numpy())
    return name


def train(place: str, scale: str, threads: int, folder: Path) -> None:
    """Take an iteration for every line that comes in, and tell its seconds; then the peak of memory and the weights."""
    size = SCALES[scale]
    torch.set_num_threads(threads)
    model, *_ = make_problem(size["widths"], 1)
    X, y = (np.load(folder / name, mmap_mode="r" if place == "disk" else None) for name in ("X.npy", "y.npy"))
    storage = folder / "state" if place == "disk" else None
    trainer = ipdlam.IPDLAM(model, chunk_size=size["chunk_size"], storage=storage)
    started = time.perf_counter()
    trainer.start(X, y)
    tell(time.perf_counter() - started)
    for line in sys.stdin:
        if line == "end\n":
            break
        started = time.perf_counter()
        trainer.step(evaluate=False)
        tell(time.perf_counter() - started)
    peak = peak_memory()  # before anything else is made
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().contiguous().numpy().data)
    objective = trainer.history[-1].objective
    stored = 0 if storage is None else (storage / "state.bin").stat().st_size
    trainer.close()
    tell({"peak_bytes": peak, "sha256_of_weights": digest.hexdigest(), "objective": objective, "file_bytes": stored})


def tell(what: object) -> None:
    print(json.dumps(what), flush=True)


class Worker:
    """A process that trains at one place."""

    def __init__(self, place: str, scale: str, threads: int, folder: Path) -> None:
        command = [sys.executable, __file__, "--part", place, "--scale", scale, "--folder", str(folder)]
        command += ["--threads", str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.start_seconds = self.answer()
        self.seconds: list[float] = []

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a measured process ended without an answer; its error stands above")
        return json.loads(line)

    def ask(self, what: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("end")
        self.process.wait()
        return {"start_seconds": self.start_seconds, "seconds": self.seconds, **found}


def measure(scale: str, iterations: int, threads: int, folder: Path) -> tuple[str, dict[str, dict[str, Any]]]:
    """Both places, in turn."""
    command = [sys.executable, __file__, "--part", "data", "--scale", scale, "--folder", str(folder)]
    name = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    workers = {place: Worker(place, scale, threads, folder) for place in PLACES}
    for number in range(iterations):
        for place, worker in workers.items():
            worker.seconds.append(worker.ask("step"))
            print(f"iteration {number + 1}, {place}: {worker.seconds[-1]:.2f} s", flush=True)
    return name, {place: worker.end() for place, worker in workers.items()}


def summarise(parts: dict[str, dict[str, Any]], scale: str) -> dict[str, float | bool]:
    """The figures that are promised."""
    memory, disk = (parts[place] for place in PLACES)
    ratios = [on_disk / in_memory for in_memory, on_disk in zip(memory["seconds"], disk["seconds"], strict=True)]
    return {
        "same_bits": memory["sha256_of_weights"] == disk["sha256_of_weights"],
        "time_ratio": statistics.median(ratios),
        "seconds_in_memory": statistics.median(memory["seconds"]),
        "seconds_on_disk": statistics.median(disk["seconds"]),
        "peak_gigabytes_in_memory": memory["peak_bytes"] / 1e9,
        "peak_gigabytes_on_disk": disk["peak_bytes"] / 1e9,
        "state_gigabytes": state_bytes(SCALES[scale]["widths"], SCALES[scale]["samples"]) / 1e9,
        "file_gigabytes": disk["file_bytes"] / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=SCALES, default="paper")
    parser.add_argument("--iterations", type=int, help="of each; by default what the scale has")
    parser.add_argument(
        "--folder", type=Path, help="on the disk to measure; by default the system's for temporary files"
    )
    parser.add_argument("--threads", type=int, help="of torch; by default what the scale has")
    parser.add_argument("--output", type=Path, default=Path("results/disk.json"))
    parser.add_argument("--part", choices=("data", *PLACES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    threads = SCALES[options.scale]["threads"] if options.threads is None else options.threads
    if options.part == "data":
        tell(write_data(options.scale, options.folder))
        return
    if options.part:
        train(options.part, options.scale, threads, options.folder)
        return
    iterations = SCALES[options.scale]["iterations"] if options.iterations is None else options.iterations
    with tempfile.TemporaryDirectory(prefix="ipdlam-disk-", dir=options.folder) as folder:
        data, parts = measure(options.scale, iterations, threads, Path(folder))
    summary = summarise(parts, options.scale)
    for name, value in summary.items():
        print(f"{name:28} {value!s:>10}" if isinstance(value, bool) else f"{name:28} {value:10.3f}")
    command = f"python benchmarks/disk.py --scale {options.scale} --iterations {iterations} --threads {threads}"
    result = {"command": command, "environment": environment(), "scale": options.scale, "data": data}
    result |= {"threads": threads, "summary": summary, "parts": parts}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {options.output}")


if __name__ == "__main__":
    main()
