"""Convolutional networks: the time and memory of a step beside Adam's, and the accuracy after a few epochs.

    python benchmarks/convolutions.py step                 # the CNN, VGG-5 and ResNet-8; ratios, taken in turns
    python benchmarks/convolutions.py accuracy             # the CNN on Fashion-MNIST and MNIST, 3 epochs, 3 seeds
    python benchmarks/convolutions.py ablate               # the CNN with one thing changed, on held-out training images
    python benchmarks/convolutions.py tune                 # rates of AdamW and SGD on held-out images of CIFAR-10
    python benchmarks/convolutions.py cifar                # ResNet-8 with crop and flip, ours beside the tuned ones

The data are found through IPDLAM_DATA. Results go to results/convolutions.json; what is there is not made again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import ipdlam
from ipdlam.minibatch import levelling
from ipdlam.minibatch import step as stepping
from ipdlam.minibatch.schedule import StepSchedule
from ipdlam.network.architectures import ARCHITECTURES
from ipdlam.runs.environment import environment

RESULTS = Path(__file__).parent.parent / "results" / "convolutions.json"
SHAPES = {"cnn": (1, 28, 28), "vgg5": (3, 32, 32), "resnet8": (3, 32, 32)}
WARM_UP = 10
BATCH = {"cnn": 512, "vgg5": 128, "resnet8": 512}


def read(output: Path) -> dict[str, Any]:
    return json.loads(output.read_text()) if output.exists() else {}


def write(output: Path, key: str, rows: Any, **more: Any) -> None:
    """Add to the results; every part has the environment it was made in."""
    found = {**read(output), "command": "python benchmarks/convolutions.py step, accuracy, ablate, tune and cifar"}
    found[key] = {"environment": environment(), **more, "rows": rows}
    output.write_text(json.dumps(found, indent=1) + "\n")


def make(name: str, seed: int = 0, shape: tuple[int, int, int] | None = None) -> nn.Module:
    torch.manual_seed(seed)
    return ARCHITECTURES[name](shape or SHAPES[name], 10)


# --- the time and the memory of a step --------------------------------------------------------------------------------


def adam_step(model: nn.Module, channels_last: bool) -> Callable[[Tensor, Tensor], None]:
    """Forward, backward and update, as people write it."""
    if channels_last:
        model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def step(x: Tensor, y: Tensor) -> None:
        if channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def our_step(model: nn.Module) -> Callable[[Tensor, Tensor], None]:
    return ipdlam.MiniBatchIPDLAM(model, loss="cross_entropy").step


STEPPERS: dict[str, Callable[[nn.Module], Callable[[Tensor, Tensor], Any]]] = {
    "ours": our_step,
    "adam": lambda model: adam_step(model, False),
    "adam, channels last": lambda model: adam_step(model, True),
}


def memory_of_steps(name: str, method: str, steps: int, batch: int) -> int:
    """By how much some steps raise the peak memory of this process, in bytes."""
    x, y = random_batch(name, batch)
    before = high_water()
    step = STEPPERS[method](make(name))
    for _ in range(steps):
        step(x, y)
    return high_water() - before


def high_water() -> int:
    """The peak memory of this process; that of getrusage begins with the peak of its parent."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def peak(name: str, method: str, steps: int, batch: int) -> int:
    """:func:`memory_of_steps` in a process of its own (a new one: threads do not survive a fork)."""
    code = f"import convolutions; print(convolutions.memory_of_steps({name!r}, {method!r}, {steps}, {batch}))"
    here = Path(__file__).parent
    return int(subprocess.run([sys.executable, "-c", code], cwd=here, check=True, stdout=subprocess.PIPE).stdout)


def random_batch(name: str, batch: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.rand(batch, *SHAPES[name]), torch.randint(0, 10, (batch,))


def measure_steps(output: Path, names: list[str], rounds: int, batch: int | None = None) -> None:
    """Medians of steps that are taken in turns, so that all methods see the same machine."""
    rows = []
    for name in names:
        samples = batch or BATCH[name]
        memory = {method: peak(name, method, 3, samples) for method in STEPPERS}
        x, y = random_batch(name, samples)
        steppers = {method: start(make(name)) for method, start in STEPPERS.items()}
        seconds: dict[str, list[float]] = {method: [] for method in steppers}
        for step in steppers.values():  # the first ten batches of ours measure more than the others
            for _ in range(WARM_UP):
                step(x, y)
        for _ in range(rounds):
            for method, step in steppers.items():
                started = time.perf_counter()
                step(x, y)
                seconds[method].append(time.perf_counter() - started)
        # Every 51 batches a metric is made anew: the mean has its share of that, the median has not.
        rows.append({
            "network": name,
            "batch": samples,
            "seconds": {method: statistics.median(values) for method, values in seconds.items()},
            "mean_seconds": {method: statistics.fmean(values) for method, values in seconds.items()},
            "peak_bytes": memory,
        })  # fmt: skip
        print(json.dumps(rows[-1]), flush=True)
    write(output, "step", rows, rounds=rounds, threads=torch.get_num_threads())


# --- accuracy ---------------------------------------------------------------------------------------------------------


def images(name: str, limit: int | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    data = ipdlam.datasets.load(name)
    X, X_test = data.images
    assert X_test is not None
    assert data.y_test is not None
    return X[:limit], data.y[:limit], X_test, data.y_test


def measure_accuracy(output: Path, sets: list[str], seeds: int, epochs: int, limit: int | None) -> None:
    """The CNN by our defaults; nothing is chosen here."""
    rows = read(output).get("accuracy", {}).get("rows", [])
    for name in sets:
        X, y, X_test, y_test = images(name, limit)
        for seed in range(seeds):
            if any((row["data"], row["seed"], row["epochs"]) == (name, seed, epochs) for row in rows):
                continue
            _, *shape = X.shape
            trainer = ipdlam.MiniBatchIPDLAM(make("cnn", seed, tuple(shape)), seed=seed)  # type: ignore[arg-type]
            history = trainer.fit(X, y, epochs=epochs, validation_data=(X_test, y_test))
            found = [record.validation_accuracy for record in history]
            rows.append({"data": name, "seed": seed, "epochs": epochs, "test": found, "seconds": history[-1].seconds})
            print(json.dumps(rows[-1]), flush=True)
            write(output, "accuracy", rows, samples=len(X), settings=trainer.settings_dict())


# --- what pays --------------------------------------------------------------------------------------------------------

CHECKED, ABLATION_SEEDS = 10000, (10, 11)  # the last training images; no reported run has these seeds
VARIANTS: dict[str, dict[str, Any]] = {  # settings of the trainer
    "as it is": {},
    "weight_decay 0.05": {"weight_decay": 0.05},
    "inertia 0.85": {"inertia": 0.85},
    "batches of 256": {"batch_size": 256},
    "batches of 256, convolutions alone are levelled": {"batch_size": 256},
}
AVERAGED = (0.1, 0.2, 0.33)  # last parts of the plan


@dataclass(frozen=True)
class Descent:
    """A schedule of steps that rises as ours does, and comes down in another way."""

    shape: Callable[[float], float]

    def at(self, batch: int, progress: float) -> float:
        usual = StepSchedule().at(batch, progress)
        return usual / (1.0 - progress) * self.shape(progress) if progress < 1.0 else self.shape(1.0)


INSIDE: dict[str, dict[str, Any]] = {  # names in the modules of the step and of levelling
    "descent as a cosine": {"SCHEDULE": Descent(lambda progress: 0.5 + 0.5 * math.cos(math.pi * progress))},
    "descent to 0.3 instead of 0": {"SCHEDULE": Descent(lambda progress: 1.0 - 0.7 * progress)},
    "convolutions alone are levelled": {"LEVELLING": 0.02},
    "batches of 256, convolutions alone are levelled": {"LEVELLING": 0.02},
}


class Averages:
    """Means of the weights over the last parts of a plan, taken beside a run that knows nothing of them."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.counts = model, dict.fromkeys(AVERAGED, 0)
        self.means = {part: torch.zeros_like(self.weights()) for part in AVERAGED}

    def weights(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.model.parameters()).detach()

    def take(self, progress: float) -> None:
        for part, mean in self.means.items():
            if progress >= 1.0 - part:
                self.counts[part] += 1
                mean.add_(self.weights() - mean, alpha=1.0 / self.counts[part])

    def scores(self, X: Tensor, y: Tensor) -> dict[str, float]:
        """The accuracy of each; the model has the last of them afterwards."""
        found = {}
        for part, mean in self.means.items():
            nn.utils.vector_to_parameters(mean, self.model.parameters())
            found[str(part)] = accuracy(self.model, X, y)
        return found


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """``owner.name`` is another one for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def ablate(output: Path, data: str, epochs: int, limit: int | None) -> None:
    """The CNN with one thing changed, scored on held-out training images."""
    X, y, _, _ = images(data, limit)
    checked = min(CHECKED, len(y) // 6)
    X, y, X_checked, y_checked = X[:-checked], y[:-checked], X[-checked:], y[-checked:]
    rows = read(output).get("ablate", {}).get("rows", [])
    for seed in ABLATION_SEEDS:
        for name in dict.fromkeys((*VARIANTS, *INSIDE)):
            if any((row["variant"], row["seed"], row["epochs"]) == (name, seed, epochs) for row in rows):
                continue
            _, *shape = X.shape
            model = make("cnn", seed, tuple(shape))  # type: ignore[arg-type]
            averages, real = Averages(model), stepping.Stepper.update

            def update(self: Any, batch: Any, progress: float, real: Any = real, taken: Any = averages.take) -> float:
                loss = real(self, batch, progress)
                taken(progress)
                return float(loss)

            with ExitStack() as changes:
                changes.enter_context(replaced(stepping.Stepper, "update", update))
                for inside, value in INSIDE.get(name, {}).items():
                    owner = stepping if hasattr(stepping, inside) else levelling
                    changes.enter_context(replaced(owner, inside, value))
                trainer = ipdlam.MiniBatchIPDLAM(model, seed=seed, **VARIANTS.get(name, {}))
                history = trainer.fit(X, y, epochs=epochs, evaluate_every=epochs)
            row = {"variant": name, "seed": seed, "epochs": epochs, "train": history[-1].train_accuracy}
            end = accuracy(model, X_checked, y_checked)
            rows.append({**row, "held_out": end, "averaged": averages.scores(X_checked, y_checked)})
            print(json.dumps(rows[-1]), flush=True)
            write(output, "ablate", rows, data=data, samples=len(y), held_out=checked)


# --- CIFAR-10 ---------------------------------------------------------------------------------------------------------

MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


class Augmented:
    """Batches of images that are cropped at random after a padding of 4, and mirrored every other time."""

    def __init__(self, X: Tensor, y: Tensor, batch: int, seed: int) -> None:
        self.X, self.y, self.batch = nn.functional.pad(X, (4, 4, 4, 4), mode="reflect"), y, batch
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return len(self.y) // self.batch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.y), generator=self.generator)
        side = self.X.shape[2] - 8
        for number in range(len(self)):
            rows = order[number * self.batch : (number + 1) * self.batch]
            x = torch.empty(len(rows), 3, side, side)
            shifts = torch.randint(0, 9, (len(rows), 2), generator=self.generator).tolist()
            for place, (row, (down, right)) in enumerate(zip(rows.tolist(), shifts, strict=True)):
                x[place] = self.X[row, :, down : down + side, right : right + side]
            mirrored = torch.rand(len(rows), generator=self.generator) < 0.5
            x[mirrored] = x[mirrored].flip(-1)
            yield x, self.y[rows]


def cifar(limit: int | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    X, y, X_test, y_test = images("cifar10", limit)
    mean, deviation = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(DEVIATION).view(3, 1, 1)
    return (X - mean) / deviation, y, (X_test - mean) / deviation, y_test


def accuracy(model: nn.Module, X: Tensor, y: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        found = torch.cat([model(part).argmax(1) for part in X.split(500)])
    model.train()
    return float((found == y).double().mean())


def one_cycle(name: str, rate: float, model: nn.Module, steps: int) -> tuple[Any, Any]:
    """An optimizer with the schedule that suits short plans best."""
    if name == "adamw":
        optimizer: Any = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.05)
    else:
        optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9, nesterov=True, weight_decay=5e-4)
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.2)


def train_peer(name: str, rate: float, model: nn.Module, loader: Augmented, epochs: int) -> None:
    """Back-propagation under the same plan."""
    model.to(memory_format=torch.channels_last)
    optimizer, schedule = one_cycle(name, rate, model, epochs * len(loader))
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(x.contiguous(memory_format=torch.channels_last)), y).backward()
            optimizer.step()
            schedule.step()


HELD_OUT, TUNING_SEED = 5000, 100  # the last training images; no reported run has this seed
RATES = {"adamw": (0.003, 0.01, 0.03), "sgd": (0.1, 0.3, 1.0)}  # to begin with
GRID = [float(f"{digit}e{power}") for power in range(-7, 4) for digit in (1, 3)]


def next_rate(tried: dict[float, float]) -> float | None:
    """What to try next, where the best rate so far is at an edge of what was tried."""
    best = GRID.index(max(tried, key=lambda rate: tried[rate]))
    neighbours = GRID[max(best - 1, 0) : best + 2]
    return next((rate for rate in neighbours if rate not in tried), None)


def tune(output: Path, network: str, epochs: int, batch: int, limit: int | None) -> None:
    """The rates of the optimizers on held-out training images; grids grow until the best rate is inside."""
    X, y, _, _ = cifar(limit)
    held_out = min(HELD_OUT, len(y) // 5)
    rows = read(output).get("tune", {}).get("rows", [])
    for name, rates in RATES.items():
        waiting: list[float] = list(rates)
        while waiting:
            rate = waiting.pop(0)
            key = {"network": network, "method": name, "rate": rate, "epochs": epochs, "batch": batch}
            if not any(key.items() <= row.items() for row in rows):
                model = make(network, TUNING_SEED)
                train_peer(name, rate, model, Augmented(X[:-held_out], y[:-held_out], batch, TUNING_SEED), epochs)
                rows.append({**key, "held_out": accuracy(model, X[-held_out:], y[-held_out:])})
                print(json.dumps(rows[-1]), flush=True)
                write(output, "tune", rows, samples=len(y) - held_out, held_out=held_out, seed=TUNING_SEED)
            if not waiting:
                following = next_rate(tried(rows, network, name))
                waiting = [] if following is None else [following]


def tried(rows: list[dict[str, Any]], network: str, method: str) -> dict[float, float]:
    """The held-out accuracy of every rate."""
    mine = [row for row in rows if (row["network"], row["method"]) == (network, method)]
    return {row["rate"]: row["held_out"] for row in mine}


def tuned_methods(output: Path, network: str) -> list[str]:
    """Ours with its defaults, and each optimizer at its best rate."""
    rows = read(output).get("tune", {}).get("rows", [])
    found = {name: tried(rows, network, name) for name in RATES}
    if not all(found.values()):
        sys.exit(f"no rates for {network} in {output}: run convolutions.py tune first, or give --methods")
    best = {name: max(rates, key=lambda rate: rates[rate]) for name, rates in found.items()}
    return ["ours", *(f"{name}={rate:g}" for name, rate in best.items())]


def measure_cifar(
    output: Path, network: str, methods: list[str], epochs: int, batch: int, seed: int, limit: int | None
) -> None:
    """``methods`` are ours, or an optimizer and its rate: adamw=0.01. Seconds are those of the processor."""
    X, y, X_test, y_test = cifar(limit)
    rows = read(output).get("cifar", {}).get("rows", [])
    for method in methods:
        key = {"network": network, "method": method, "epochs": epochs, "batch": batch, "seed": seed, "samples": len(X)}
        if any(key.items() <= row.items() for row in rows):
            continue
        model, loader = make(network, seed), Augmented(X, y, batch, seed)
        started = time.process_time()
        if method.startswith("ours"):
            own = {name: float(value) for name, _, value in (part.partition("=") for part in method.split(",")[1:])}
            trainer = ipdlam.MiniBatchIPDLAM(model, loss="cross_entropy", **own)  # type: ignore[arg-type]
            trainer.fit(loader, epochs=epochs)
        else:
            name, _, rate = method.partition("=")
            train_peer(name, float(rate), model, loader, epochs)
        seconds = time.process_time() - started
        rows.append({**key, "test": accuracy(model, X_test, y_test), "processor_seconds": seconds})
        print(json.dumps(rows[-1]), flush=True)
        write(output, "cifar", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("step", "accuracy", "ablate", "tune", "cifar"))
    parser.add_argument("--networks", default="cnn,vgg5,resnet8")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--data", default="fashion-mnist,mnist")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--methods", help="such as 'ours;adamw=0.003'; by default ours and what tune found best")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.what == "step":
        measure_steps(given.output, given.networks.split(","), given.rounds, given.batch)
    elif given.what == "accuracy":
        measure_accuracy(given.output, given.data.split(","), given.seeds, given.epochs or 3, given.limit)
    elif given.what == "ablate":
        ablate(given.output, given.data.split(",")[0], given.epochs or 3, given.limit)
    else:
        network = given.networks if "," not in given.networks else "resnet8"
        batch = given.batch or 512
        if given.what == "tune":
            tune(given.output, network, given.epochs or 2, batch, given.limit)
        else:
            methods = given.methods.split(";") if given.methods else tuned_methods(given.output, network)
            measure_cifar(given.output, network, methods, given.epochs or 10, batch, given.seed, given.limit)


if __name__ == "__main__":
    main()
