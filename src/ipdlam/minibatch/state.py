"""A run on mini-batches, which may be stopped and taken up anywhere in an epoch, and what a batch must be."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ipdlam.checkpoint.format import RowStore, differences
from ipdlam.checks import check_integer, check_number
from ipdlam.distributed.agreement import refuse_mismatch
from ipdlam.distributed.group import SERIAL, Group
from ipdlam.errors import DivergenceError
from ipdlam.minibatch.step import Batchwise
from ipdlam.network.linalg import all_finite
from ipdlam.network.mlp import Network
from ipdlam.network.objective import Objective
from ipdlam.network.samples import ArrayLike, RowSource, Samples, as_tensor, check_samples
from ipdlam.training.loop import Weights
from ipdlam.training.state import Course

Loader = Iterable[Any]  # of (x, y) or (x, y, sample_weight)


def default_batch_size(samples: int) -> int:
    """Samples to a batch when the user does not say: enough batches to an epoch, where there are few samples."""
    return 512 if samples >= 10000 else 64


@dataclass
class BatchRun(Course):
    """A run on mini-batches; it may stand anywhere in an epoch."""

    state: Batchwise
    batch_size: int
    order: Tensor  # the state of the generator of the order of the samples, before this epoch's was drawn
    loader: Loader | None = None  # where the batches come from; there are no samples then
    weights: Weights | None = None  # what the run goes on from where the model may hold others: the best ones
    position: int = 0  # batches of this epoch that are done
    losses: float = 0.0  # their sum, each sample's as it was met
    counted: float = 0.0  # the samples' weights in it
    planned: tuple[int, int] = (0, 0)  # the epochs over which the steps descend; none in a loop of the user's
    epoch_batches: int | None = None  # of the last epoch, or of this one where it is known
    skipped: int = 0  # batches with NaN or infinity
    group: Group = SERIAL  # the processes that share the batches
    agreed: bool = False  # whether they have made sure that they begin alike

    def last_weights(self) -> Weights:
        if self.weights is not None:
            return self.weights
        numbers = self.state.network.numbers
        return {l: self.state.network.weight(l) for l in numbers}, {l: self.state.network.bias(l) for l in numbers}

    def tensors(self) -> dict[str, RowStore]:
        return {**super().tensors(), **self.state.tensors(), "order": self.order}

    def fingerprints(self) -> dict[str, Any]:
        return self._known(super().fingerprints())

    def fingerprints_by_row(self, group: Group = SERIAL) -> dict[str, Any]:
        return self._known(super().fingerprints_by_row(group))

    def _known(self, found: dict[str, Any]) -> dict[str, Any]:
        return {**found, "training": None} if self.is_fed else found  # a loader cannot be told from another

    @property
    def is_fed(self) -> bool:
        """Whether batches come from elsewhere, and not from samples of the run's own."""
        return isinstance(self.samples, NoSamples)

    def place(self) -> dict[str, Any]:
        own = {"batches": self.state.batches, "batches of this epoch": self.position, "planned": list(self.planned)}
        return {**super().place(), **own}

    def everything(self) -> list[Tensor]:
        """The model's weights and all else that the next batch changes."""
        network = self.state.network
        biases = [bias for l in network.numbers if (bias := network.bias(l)) is not None]
        return [*(network.weight(l) for l in network.numbers), *biases, *self.state.tensors().values()]

    def begin_alike(self, settings: dict[str, Any]) -> None:
        """Refuse what is not the same on all processes, but for the weights and moves, which become those of rank 0."""
        if self.group.size > 1 and not self.agreed:
            network, state = self.state.network.to_dict(), self.state.counters()
            given = {"settings": settings, "network": network, "state": state}
            refuse_mismatch(self.group.everyones(given, "start a run"))
            self.group.same_(self.everything())
        self.agreed = True

    def counters(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("position", "losses", "counted", "epoch_batches", "skipped")}
        return {**super().counters(), **own, "planned": list(self.planned), "state": self.state.counters()}

    def restore(self, counters: dict[str, Any], network: Network) -> None:
        super().restore(counters, network)
        self.weights = network.read()
        for name in ("position", "skipped"):
            setattr(self, name, check_integer(name, counters[name], 0))
        for name in ("losses", "counted"):
            setattr(self, name, check_number(name, counters[name]))
        first, last = counters["planned"]
        self.planned = check_integer("planned", first, 0), check_integer("planned", last, 0)
        batches = counters["epoch_batches"]
        self.epoch_batches = None if batches is None else check_integer("epoch_batches", batches, 1)
        self.state.restore(counters["state"])

    def check_filled(self) -> None:
        super().check_filled()
        for name, tensor in self.state.tensors().items():
            if not all_finite(tensor):
                raise ValueError(f"its {name} is not finite")
        try:
            torch.Generator().set_state(self.order)
        except RuntimeError as error:
            raise ValueError(f"its order of the samples is none: {str(error).splitlines()[0]}") from error

    def objective(self) -> Objective:
        """Of this epoch: the constraints hold in every forward pass, so it is the loss."""
        layers = len(self.state.network)
        penalty = self.state.settings.penalty
        return Objective(penalty, self.losses, 0.0, (0.0,) * layers, (0.0,) * (layers - 1), 0.0)

    def check_batch(
        self, skip: bool, x: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> Samples | None:
        """A batch to learn from, without rows where all have weight zero; None for one with NaN that is skipped."""
        network, loss = self.state.network, self.state.settings.loss
        given = check_kinds(network, x, y, sample_weight)
        bad = [name for name, tensor in given.items() if skip and tensor.is_floating_point() and not all_finite(tensor)]
        if bad:
            self.skipped += 1
            message = f"a batch was skipped: {bad[0]} holds NaN or infinity ({self.skipped} so far)"
            warnings.warn(message, UserWarning, stacklevel=4)
            return None
        if sample_weight is not None and len(x) and not bool(given["sample_weight"].any()):
            nothing = no_samples(network)
            return Samples(nothing.X, nothing.y, nothing.X.new_zeros(0))
        part = self.group.size > 1
        return check_samples(network, loss, given["x"], given["y"], given.get("sample_weight"), part=part).counted()

    def divergence(self) -> DivergenceError:
        """What to raise where a batch cannot be learned from; the run is over."""
        self.history.stop_reason = "diverged"
        return DivergenceError(
            f"the loss of batch {self.state.batches + 1} is not finite; in fit the model holds the weights of epoch "
            f"{self.iteration} (the best ones with restore_best). Use a step below {self.state.settings.step:g}, or "
            "scale the inputs and real targets",
            self.history,
        )

    @property
    def planned_part(self) -> float:
        """How much of the planned epochs is done, from 0 to 1."""
        first, last = self.planned
        if last <= first:
            return 0.0
        within = min(1.0, self.position / self.epoch_batches) if self.epoch_batches else 0.0
        return (self.iteration + within - first) / (last - first)

    def plan_until(self, iterations: int) -> None:
        """Keep the plan where it reaches that far, so that a stopped run goes on alike; else make a new one."""
        if self.planned[1] < iterations:
            self.planned, self.state.rise_from = (self.iteration, iterations), self.state.batches


def fill_state(state: Batchwise, saved: dict[str, Any], settings: dict[str, Any]) -> None:
    """Copy into ``state`` what ``state_dict`` gave, if it is of the same settings and a network of the same kind."""
    missing = {"settings", "network", "counters", "tensors"} - set(saved)
    if missing:
        raise ValueError(f"the state holds no {', '.join(sorted(missing))}; give what state_dict() returned")
    free = ("batch_size", "seed", "bad_batches", "chunk_size")  # what the next step does not depend on
    was, is_now = (
        {name: value for name, value in own.items() if name not in free} for own in (saved["settings"], settings)
    )
    found = differences(was, is_now, "") + differences(saved["network"], state.network.to_dict(), "the")
    if found:
        raise ValueError(f"the state is of another trainer: {'; '.join(found)}; make this one like it")
    state.restore(saved["counters"])
    wanted = state.tensors()
    if set(wanted) != set(saved["tensors"]):
        raise ValueError("the state does not hold the tensors of such a trainer; it is damaged, or of another version")
    for name, tensor in wanted.items():
        tensor.copy_(saved["tensors"][name])


def length_of(loader: Loader) -> int | None:
    """How many batches it has, where it knows; a DataLoader of a stream has a ``len`` that fails."""
    try:
        return max(1, len(loader))  # type: ignore[arg-type]
    except TypeError:
        return None


def unit_of(weight: Tensor, group: Group = SERIAL) -> float:
    """The weight that counts as one sample: the smallest, or a hundredth of the mean where that is tiny.

    Samples of weight zero, of which there are none here, do not count.
    """
    own = (float(weight.min()), float(weight.mean())) if len(weight) else (float("inf"), 0.0)
    given = group.numbers(*own, float(len(weight)))
    samples = sum(count for _, _, count in given)
    smallest = weight.new_tensor(min(least for least, _, _ in given))
    mean = weight.new_tensor(sum(mean * (count / samples) for _, mean, count in given))
    return float(torch.maximum(smallest, 0.01 * mean))


class NoSamples(Samples):
    """What a run has for samples where its batches come from elsewhere."""


def no_samples(network: Network) -> NoSamples:
    """What a run, or a process in one batch, has where there are none."""
    weight = network[1].linear.weight.detach()
    return NoSamples(weight.new_zeros(0, network.inputs), weight.new_zeros(0, network.outputs), None)


def is_array(X: Any) -> bool:
    """Whether ``X`` is data, and not an iterable of batches."""
    return isinstance(X, (Tensor, np.ndarray, RowSource))


def check_loader(X: Any, y: Any, sample_weight: Any) -> None:
    """Refuse what is no iterable of batches that can be gone through again and again."""
    if y is not None or sample_weight is not None:
        raise TypeError(
            f"X must be a torch tensor or a numpy array, got {type(X).__name__}; an iterable of batches is given "
            "alone, with y and weights in the batches"
        )
    if not isinstance(X, Iterable) or isinstance(X, (str, bytes, Iterator)):
        hint = "; an iterator is empty after one epoch, give what it iterates over" if isinstance(X, Iterator) else ""
        raise TypeError(f"X must be an array or an iterable of batches (x, y), got {type(X).__name__}{hint}")


def check_batch_parts(batch: Any) -> tuple[Any, ...]:
    """What a loader gives for a batch, if it is two or three things."""
    if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
        of = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
        raise TypeError(f"a batch must be (x, y) or (x, y, sample_weight), got {type(batch).__name__}{of}")
    return tuple(batch)


def check_kinds(network: Network, x: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> dict[str, Tensor]:
    """The parts of a batch as tensors, in the model's precision and on its device: nothing is converted in a loop."""
    given = {"x": as_tensor("x", x), "y": as_tensor("y", y)}
    if sample_weight is not None:
        given["sample_weight"] = as_tensor("sample_weight", sample_weight)
    for name, tensor in given.items():
        if tensor.dtype != network.dtype and (name == "x" or tensor.is_floating_point()):
            raise TypeError(f"{name} is {tensor.dtype}, but the model is {network.dtype}; convert one of them")
        if tensor.device != network.device:
            raise ValueError(f"{name} is on {tensor.device}, but the model is on {network.device}; move one of them")
    return given
