"""The network, data and length of the paper's experiments at each scale; everything else is an experiment's own."""

from __future__ import annotations

from ipdlam.experiments.base import RunSpec

IMAGES = ("mnist", "fashion-mnist")


def datasets(scale: str) -> tuple[str, ...]:
    """Where an experiment is made."""
    return ("digits",) if scale == "smoke" else IMAGES


def ipdlam(scale: str, data: str, inertia: float = 0.7, proximity: float = 1.0) -> RunSpec:
    """iPDLAM as in section 3 of the paper: two hidden layers, ReLU, its initialisation, no regulariser."""
    hidden, iterations, every = {"smoke": (20, 8, 1), "small": (300, 200, 2), "paper": (1500, 200, 5)}[scale]
    settings = (("inertia", inertia), ("proximity", proximity))
    return RunSpec(data, "ipdlam", (hidden, hidden), iterations, settings, evaluate_every=every)


def dlam(scale: str, data: str) -> RunSpec:
    """The same without inertia and proximal terms."""
    return ipdlam(scale, data).changed(method="dlam").without("inertia", "proximity")


def optimizer(scale: str, data: str, name: str, learning_rate: float) -> RunSpec:
    """A classical optimizer at the paper's batch of 512 (fewer on the digits, which are few)."""
    spec = ipdlam(scale, data).without("inertia", "proximity")
    batch_size = 64 if scale == "smoke" else 512
    return spec.changed(method=name, settings=(("learning_rate", learning_rate), ("batch_size", batch_size)))
