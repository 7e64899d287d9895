"""An epoch: where its batches come from, and what happens to one after the other; in between a run can be stopped."""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from ipdlam.distributed.group import SERIAL, Group, uninterrupted
from ipdlam.errors import DivergenceError, SolveError
from ipdlam.minibatch.batch import Batch, Part, check_batch_parts, length_of, no_samples
from ipdlam.minibatch.state import MiniBatchState
from ipdlam.network.graph import Graph
from ipdlam.network.linalg import all_finite
from ipdlam.network.samples import Samples

ENDED, BAD = -1, -2  # what a process says that has no more batches, or one that is to be skipped
START_ROWS = 256  # of the samples that the start is scaled on, where batches are smaller


def finish_epoch(state: MiniBatchState, start: str, skip: bool) -> None:
    """Train on what is left of this epoch; batches with NaN or infinity are refused unless they are to be skipped.

    Whatever ends it between two batches leaves a run that can go on, all processes of it with the same batch; what
    fails within one leaves the weights before the epoch.
    """
    network = state.stepper.network
    before = network.read()  # to fall back on
    state.weights = None
    if state.loader is not None:
        state.begin_epoch()
    generator = torch.Generator()
    generator.set_state(state.order)
    try:
        started = time.perf_counter()
        for batch in batches(state, generator, start, skip):
            with uninterrupted():
                if batch is not None:
                    take(state, batch, state.planned_part, start)
                state.position += 1
                state.seconds, started = state.seconds + time.perf_counter() - started, time.perf_counter()
        with state.group.in_step():
            end_epoch(state, generator)
    except BaseException as error:
        state.whole = state.whole and is_sound(network) and not isinstance(error, DivergenceError)
        if state.whole:
            state.weights = network.read()  # restore_best may leave others in the model
        else:
            network.write(*before)
        raise


def batches(state: MiniBatchState, generator: torch.Generator, start: str, skip: bool) -> Iterator[Batch | None]:
    """What is left of this epoch; None for a batch that is skipped."""
    if state.loader is not None:
        yield from batches_from(state, skip)
        return
    total = len(state.samples) if state.spans is None else state.spans[0].total
    order = torch.randperm(total, generator=generator).to(state.stepper.network.device)
    state.epoch_batches = -(-total // state.batch_size)
    if not state.stepper.prepared:
        first = order[: max(state.batch_size, START_ROWS)]
        with changing(state):
            state.stepper.prepare(batch_of(state, first), start)
    yield from batches_of(state, order)


def take(state: MiniBatchState, batch: Batch, progress: float, start: str) -> float:
    """Train on one batch; its mean loss before."""
    try:
        with changing(state):
            state.stepper.prepare(batch, start)
            loss = state.stepper.update(batch, progress)
    except (SolveError, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]  # of what overflows
        raise state.divergence() from error
    if not math.isfinite(loss):
        raise state.divergence()
    accuracy = state.stepper.accuracy  # none for a batch without classes, and so for its epoch
    state.correct = (state.correct or 0.0) + (math.nan if accuracy is None else accuracy * batch.part.count)
    state.losses += loss * batch.part.count
    state.counted += batch.part.count
    return loss


@contextmanager
def changing(state: MiniBatchState) -> Iterator[None]:
    """What fails in the middle of a change leaves some layers a step ahead: no run can go on from there."""
    try:
        with uninterrupted():
            yield
    finally:
        state.whole = state.stepper.intact


def end_epoch(state: MiniBatchState, generator: torch.Generator) -> None:
    """Count an epoch whose batches are done."""
    network = state.stepper.network
    state.seconds = state.group.first_number(state.seconds)
    state.group.same_(state.everything())  # their bits may differ where processes run on machines of different kinds
    if not is_sound(network):
        raise state.divergence()
    if not state.position:
        raise ValueError(
            "X has no batches: it was empty in this epoch; give an iterable that can be gone through again"
        )
    state.epoch_batches = state.position
    state.iteration += 1
    state.order = generator.get_state()
    state.weights = network.read()


def is_sound(network: Graph) -> bool:
    """Whether the model's weights are finite."""
    return all(all_finite(weight.detach()) for weight in network.model.parameters())


def batch_of(state: MiniBatchState, numbers: Tensor) -> Batch:
    """The samples with these numbers in the list of all processes; each process takes those that it holds."""
    if state.spans is None:
        return as_batch(state.samples.picked(numbers), len(numbers))
    span = state.spans[0]
    positions = ((numbers >= span.first) & (numbers < span.first + span.held)).nonzero().squeeze(1)
    chosen = state.samples.picked(numbers[positions] - span.first)
    return as_batch(chosen, len(numbers), state.group, positions)


def as_batch(samples: Samples, rows: int, group: Group = SERIAL, positions: Tensor | None = None) -> Batch:
    """Samples as what is held here of a batch of so many rows."""
    part = Part.made(samples.weight, rows, group, positions)
    return Batch(samples.X, samples.y, samples.weight, samples.encoded, part=part)


def batches_of(state: MiniBatchState, order: Tensor) -> Iterator[Batch]:
    """The samples in this order, a batch at a time, from where the run stands."""
    size = state.batch_size
    for start in range(state.position * size, len(order), size):
        yield batch_of(state, order[start : start + size])


def batches_from(state: MiniBatchState, skip: bool) -> Iterator[Batch | None]:
    """What the loaders of all processes give; None for a batch that is skipped.

    A process whose loader has ended goes on without samples until all have.
    """
    assert state.loader is not None
    state.stepper.scores_batches = True
    lengths = [length for (length,) in state.group.numbers(float(length_of(state.loader) or 0))]
    state.epoch_batches = int(max(lengths)) or state.epoch_batches
    nothing = object()
    for batch in itertools.chain(state.loader, itertools.repeat(nothing)):
        own = ENDED if batch is nothing else state.check_batch(skip, *check_batch_parts(batch))
        said = everyones_part(state, own)
        if all(word == ENDED for word in said):
            return
        yield joined(state, own, said)


def everyones_part(state: MiniBatchState, own: Samples | int | None) -> list[int]:
    """What each process has for the next batch: :data:`ENDED`, :data:`BAD`, or its rows and whether they have weights.

    It is one number, so that it takes one meeting: twice the rows, and one more where there are weights.
    """
    word = own if isinstance(own, int) else BAD if own is None else 2 * len(own) + (own.weight is not None)
    return [int(word) for (word,) in state.group.numbers(float(word))]


def joined(state: MiniBatchState, own: Samples | int | None, said: Sequence[int]) -> Batch | None:
    """The batch that the processes have together; None where one of them is to skip it, or nothing counts."""
    if BAD in said:
        if own is not None:  # check_batch has counted it otherwise
            state.skipped += 1
            message = f"a batch was skipped: that of rank {said.index(BAD)} holds NaN or infinity"
            warnings.warn(f"{message} ({state.skipped} so far)", UserWarning, stacklevel=4)
        return None
    rows = [max(0, word) // 2 for word in said]
    if not any(rows):
        if 1 in said:  # weights of zero
            return None
        raise ValueError("the batch is empty on every rank; give at least one sample")
    weighted = {rank: bool(word % 2) for rank, word in enumerate(said) if rows[rank]}
    if len(set(weighted.values())) > 1:
        without, with_weights = (next(r for r, given in weighted.items() if given is kind) for kind in (False, True))
        raise ValueError(
            f"of one batch, rank {with_weights} gave sample_weight and rank {without} did not; give it on all or none"
        )
    held = own if isinstance(own, Samples) and len(own) else no_samples(state.stepper.network)
    if True in weighted.values() and held.weight is None:
        held = Samples(held.X, held.y, held.X.new_zeros(0))
    if state.group.size == 1:
        return as_batch(held, sum(rows))
    first = sum(rows[: state.group.rank])
    positions = torch.arange(first, first + len(held), device=held.X.device)
    return as_batch(held, sum(rows), state.group, positions)
