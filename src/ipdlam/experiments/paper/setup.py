"""The network, data and length of the paper's experiments at each scale; everything else is an experiment's own.

The paper does not say how heavy the proximal term of W and b is, nor where rho starts. What one takes it to mean is a
reading. The printed update of W adds delta to a sum over all samples: that is its letter. The experiment ``readings``
holds the others against Table 1; the two that fit best are made at the paper's size, and decide which is chosen. The
paper's tables and figures are made in that one. What the letter gives stands beside it, in experiments whose names end
so.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

from ipdlam.experiments.spec import START, Experiment, RunSpec

IMAGES = ("mnist", "fashion-mnist")
TRAINING_SAMPLES = 60000  # of either
BATCH = 512  # the paper's


@dataclass(frozen=True)
class Reading:
    """How the paper is read where it leaves something open."""

    name: str
    title: str
    words: str
    kappa: float | None  # the weight of the proximal terms of W and b for each sample over delta; None: delta in all
    penalty: float  # rho_0

    @property
    def suffix(self) -> str:
        """What an experiment in another reading than the chosen one has at the end of its name."""
        return "" if self == CHOSEN else f"-{self.name}"

    def titled(self, title: str) -> str:
        """The title of an experiment in this reading."""
        return title if self == CHOSEN else f"{title} ({self.title})"

    def settings(self, proximity: float) -> tuple[tuple[str, Any], ...]:
        """What it adds to the settings of iPDLAM; rho_0 is 0.1 where nothing is said."""
        own = () if self.kappa is None else (("weight_proximity", self.kappa * proximity),)
        return own if self.penalty == START else (*own, ("penalty", self.penalty))


LETTER = Reading(
    "letter",
    "to the letter of the W update",
    "delta is added to sums over all samples, as the update of W is printed; rho_0 = 0.1",
    None,
    START,
)
CHOSEN = Reading(
    "batches",
    "delta for sums over batches",
    f"delta is added to sums over batches of {BATCH}, averaged over the batches, so that it weighs delta / {BATCH} for "
    "each sample; rho_0 = 1e-6, the penalty of the set-up that the paper follows",
    1.0 / BATCH,
    1e-6,
)


def samples(spec: RunSpec) -> int | None:
    """How many a run is trained on, where the paper's data are its data."""
    return min(spec.limit or TRAINING_SAMPLES, TRAINING_SAMPLES) if spec.data in IMAGES else None


def datasets(scale: str) -> tuple[str, ...]:
    """Where an experiment is made."""
    return ("digits",) if scale == "smoke" else IMAGES


def ipdlam(scale: str, data: str, reading: Reading, inertia: float = 0.7, proximity: float = 1.0) -> RunSpec:
    """iPDLAM as in section 3 of the paper: two hidden layers, ReLU, its initialisation, no regulariser."""
    hidden, iterations, every = {"smoke": (20, 8, 1), "small": (300, 200, 2), "paper": (1500, 200, 5)}[scale]
    settings = (("inertia", inertia), ("proximity", proximity), *reading.settings(proximity))
    return RunSpec(data, "ipdlam", (hidden, hidden), iterations, settings, evaluate_every=every)


def dlam(scale: str, data: str, reading: Reading) -> RunSpec:
    """The same without inertia and proximal terms."""
    without = ("inertia", "proximity", "weight_proximity")
    return ipdlam(scale, data, reading).changed(method="dlam").without(*without)


def optimizer(scale: str, data: str, name: str, learning_rate: float) -> RunSpec:
    """A classical optimizer at the paper's batch of 512 (fewer on the digits, which are few)."""
    spec = ipdlam(scale, data, LETTER).without("inertia", "proximity")
    batch_size = 64 if scale == "smoke" else BATCH
    return spec.changed(method=name, settings=(("learning_rate", learning_rate), ("batch_size", batch_size)))


def in_reading(reading: Reading, experiment: Experiment) -> Experiment:
    """A table or figure of the paper in one reading of it."""
    return dataclasses.replace(
        experiment,
        name=f"{experiment.name}{reading.suffix}",
        title=reading.titled(experiment.title),
        about=f"{experiment.about} In this reading {reading.words}.",
        runs=partial(experiment.runs, reading=reading),  # type: ignore[call-arg]
    )
