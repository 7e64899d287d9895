"""What a run on mini-batches remembers; it may be stopped and taken up anywhere in an epoch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ipdlam.checkpoint.format import RowStore
from ipdlam.checks import check_integer, check_number, differences
from ipdlam.distributed.agreement import refuse_mismatch
from ipdlam.distributed.group import SERIAL, Group
from ipdlam.errors import DivergenceError
from ipdlam.minibatch.batch import NoSamples, check_kinds, no_samples
from ipdlam.minibatch.step import Stepper
from ipdlam.network.linalg import all_finite
from ipdlam.network.model import ModelView, Weights
from ipdlam.network.objective import Objective
from ipdlam.network.samples import ArrayLike, Loader, Samples, check_samples
from ipdlam.training.state import RunState


@dataclass
class MiniBatchState(RunState):
    """A run on mini-batches; it may stand anywhere in an epoch."""

    stepper: Stepper
    batch_size: int
    order: Tensor  # the state of the generator of the order of the samples, before this epoch's was drawn
    loader: Loader | None = None  # where the batches come from; there are no samples then
    weights: Weights | None = None  # what the run goes on from where the model may hold others: the best ones
    position: int = 0  # batches of this epoch that are done
    losses: float = 0.0  # their sum, each sample's as it was met
    counted: float = 0.0  # the samples' weights in it
    correct: float | None = None  # of a loader's samples, those whose class was known before the step
    planned: tuple[int, int] = (0, 0)  # the epochs over which the steps descend; none in a loop of the user's
    epoch_batches: int | None = None  # of the last epoch, or of this one where it is known
    skipped: int = 0  # batches with NaN or infinity
    group: Group = SERIAL  # the processes that share the batches
    agreed: bool = False  # whether they have made sure that they begin alike

    def last_weights(self) -> Weights:
        if self.weights is not None:
            return self.weights
        return self.stepper.network.own()

    def tensors(self) -> dict[str, RowStore]:
        return {**super().tensors(), **self.stepper.tensors(), "order": self.order}

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
        own = {"batches": self.stepper.batches, "batches of this epoch": self.position, "planned": list(self.planned)}
        return {**super().place(), **own}

    def everything(self) -> list[Tensor]:
        """The model's weights and all else that the next batch changes."""
        return [*self.stepper.network.own().named().values(), *self.stepper.tensors().values()]

    def begin_epoch(self) -> None:
        """No batch of this epoch is done."""
        self.position, self.losses, self.counted, self.correct = 0, 0.0, 0.0, None

    def begin_alike(self, settings: Callable[[], dict[str, Any]]) -> None:
        """Refuse what is not the same on all processes, but for the weights and moves, which become those of rank 0."""
        if self.group.size > 1 and not self.agreed:
            network, state = self.stepper.network.to_dict(), self.stepper.counters()
            given = {"settings": settings(), "network": network, "state": state}
            refuse_mismatch(self.group.everyones(given, "start a run"))
            self.group.same_(self.everything())
        self.agreed = True

    def counters(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("position", "losses", "counted", "epoch_batches", "skipped")}
        return {**super().counters(), **own, "planned": list(self.planned), "state": self.stepper.counters()}

    def restore(self, counters: dict[str, Any], network: ModelView) -> None:
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
        self.stepper.restore(counters["state"])

    def check_filled(self) -> None:
        super().check_filled()
        for name, tensor in self.stepper.tensors().items():
            if not all_finite(tensor):
                raise ValueError(f"its {name} is not finite")
        try:
            torch.Generator().set_state(self.order)
        except RuntimeError as error:
            raise ValueError(f"its order of the samples cannot be read: {str(error).splitlines()[0]}") from error

    def objective(self) -> Objective:
        """Of this epoch: the constraints hold in every forward pass, so it is the loss."""
        layers = len(self.stepper.network)
        penalty = self.stepper.settings.penalty
        return Objective(penalty, self.losses, 0.0, (0.0,) * layers, (0.0,) * (layers - 1), 0.0)

    def check_batch(
        self, skip: bool, x: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> Samples | None:
        """A batch to learn from, without rows where all have weight zero; None for one with NaN that is skipped."""
        network, loss = self.stepper.network, self.stepper.settings.loss
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
            f"the loss of batch {self.stepper.batches + 1} is not finite; in fit the model holds the weights of epoch "
            f"{self.iteration} (the best ones with restore_best). Use a step below {self.stepper.settings.step:g}, or "
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
            self.planned, self.stepper.rise_from = (self.iteration, iterations), self.stepper.batches


def fill_stepper(stepper: Stepper, saved: dict[str, Any], settings: dict[str, Any]) -> None:
    """Copy into ``stepper`` what ``state_dict`` gave, if it is of the same settings and a network of the same kind."""
    missing = {"settings", "network", "counters", "tensors"} - set(saved)
    if missing:
        raise ValueError(f"the state holds no {', '.join(sorted(missing))}; give what state_dict() returned")
    free = ("batch_size", "seed", "bad_batches", "chunk_size")  # what the next step does not depend on
    was, is_now = (
        {name: value for name, value in own.items() if name not in free} for own in (saved["settings"], settings)
    )
    found = differences(was, is_now, "") + differences(saved["network"], stepper.network.to_dict(), "the")
    if found:
        raise ValueError(f"the state is of another trainer: {'; '.join(found)}; make this one like it")
    stepper.restore(saved["counters"])
    wanted = stepper.tensors()
    if set(wanted) != set(saved["tensors"]):
        raise ValueError("the state does not hold the tensors of such a trainer; it is damaged, or of another version")
    for name, tensor in wanted.items():
        tensor.copy_(saved["tensors"][name])
