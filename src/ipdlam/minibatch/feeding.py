"""The batches of an epoch, put together from what each process has: samples of one list, or batches of its own."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ipdlam.minibatch.batch import Batch, Part
from ipdlam.minibatch.state import BatchRun, check_batch_parts, length_of, no_samples
from ipdlam.network.samples import Samples

ENDED, BAD = -1, -2  # what a process says that has no more batches, or one that is to be skipped


def batch_of(run: BatchRun, numbers: Tensor) -> Batch:
    """The samples with these numbers in the list of all processes; each process takes those that it holds."""
    if run.spans is None:
        return as_batch(run.samples.picked(numbers), len(numbers))
    span = run.spans[0]
    positions = ((numbers >= span.first) & (numbers < span.first + span.held)).nonzero().squeeze(1)
    chosen = run.samples.picked(numbers[positions] - span.first)
    return as_batch(chosen, len(numbers), run, positions)


def as_batch(samples: Samples, rows: int, run: BatchRun | None = None, positions: Tensor | None = None) -> Batch:
    """Samples as what is held here of a batch of so many rows."""
    part = Part.made(samples.weight, rows) if run is None else Part.made(samples.weight, rows, run.group, positions)
    return Batch(samples.X, samples.y, samples.weight, part=part)


def batches_of(run: BatchRun, order: Tensor) -> Iterator[Batch]:
    """The samples in this order, a batch at a time, from where the run stands."""
    size = run.batch_size
    for start in range(run.position * size, len(order), size):
        yield batch_of(run, order[start : start + size])


def batches_from(run: BatchRun, skip: bool) -> Iterator[Batch | None]:
    """What the loaders of all processes give; None for a batch that is skipped.

    A process whose loader has ended goes on without samples until all have.
    """
    assert run.loader is not None
    lengths = [length for (length,) in run.group.numbers(float(length_of(run.loader) or 0))]
    run.epoch_batches = int(max(lengths)) or run.epoch_batches
    nothing = object()
    for batch in itertools.chain(run.loader, itertools.repeat(nothing)):
        own = ENDED if batch is nothing else run.check_batch(skip, *check_batch_parts(batch))
        said = everyones_part(run, own)
        if all(word == ENDED for word in said):
            return
        yield joined(run, own, said)


def everyones_part(run: BatchRun, own: Samples | int | None) -> list[int]:
    """What each process has for the next batch: :data:`ENDED`, :data:`BAD`, or its rows and whether they have weights.

    It is one number, so that it takes one meeting: twice the rows, and one more where there are weights.
    """
    word = own if isinstance(own, int) else BAD if own is None else 2 * len(own) + (own.weight is not None)
    return [int(word) for (word,) in run.group.numbers(float(word))]


def joined(run: BatchRun, own: Samples | int | None, said: Sequence[int]) -> Batch | None:
    """The batch that the processes have together; None where one of them is to skip it, or nothing counts."""
    if BAD in said:
        if own is not None:  # check_batch has counted it otherwise
            run.skipped += 1
            message = f"a batch was skipped: that of rank {said.index(BAD)} holds NaN or infinity"
            warnings.warn(f"{message} ({run.skipped} so far)", UserWarning, stacklevel=4)
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
    held = own if isinstance(own, Samples) and len(own) else no_samples(run.state.network)
    if True in weighted.values() and held.weight is None:
        held = Samples(held.X, held.y, held.X.new_zeros(0))
    if run.group.size == 1:
        return as_batch(held, sum(rows))
    first = sum(rows[: run.group.rank])
    positions = torch.arange(first, first + len(held), device=held.X.device)
    return as_batch(held, sum(rows), run, positions)
