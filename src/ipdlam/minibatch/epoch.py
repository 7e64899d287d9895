"""A run on mini-batches, batch after batch to the end of an epoch; in between it can be stopped and taken up."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ipdlam.distributed.interrupts import uninterrupted
from ipdlam.errors import DivergenceError, SolveError
from ipdlam.minibatch.batch import Batch
from ipdlam.minibatch.feeding import batch_of, batches_from, batches_of
from ipdlam.minibatch.state import BatchRun
from ipdlam.network.linalg import all_finite
from ipdlam.network.mlp import Network

START_ROWS = 256  # of the samples that the start is scaled on, where batches are smaller


def finish_epoch(run: BatchRun, start: str, skip: bool) -> None:
    """Train on what is left of this epoch; batches with NaN or infinity are refused unless they are to be skipped.

    Whatever ends it between two batches leaves a run that can go on, all processes of it with the same batch; what
    fails within one leaves the weights before the epoch.
    """
    network = run.state.network
    before = network.read()  # to fall back on
    run.weights = None
    if run.loader is not None:
        run.position, run.losses, run.counted = 0, 0.0, 0.0
    generator = torch.Generator()
    generator.set_state(run.order)
    try:
        started = time.perf_counter()
        for batch in batches(run, generator, start, skip):
            with uninterrupted():
                if batch is not None:
                    take(run, batch, run.planned_part, start)
                run.position += 1
                run.seconds, started = run.seconds + time.perf_counter() - started, time.perf_counter()
        with run.group.in_step():
            end_epoch(run, generator)
    except BaseException as error:
        run.whole = run.whole and is_sound(network) and not isinstance(error, DivergenceError)
        if run.whole:
            run.weights = network.read()  # restore_best may leave others in the model
        else:
            network.write(*before)
        raise


def batches(run: BatchRun, generator: torch.Generator, start: str, skip: bool) -> Iterator[Batch | None]:
    """What is left of this epoch; None for a batch that is skipped."""
    if run.loader is not None:
        yield from batches_from(run, skip)
        return
    total = len(run.samples) if run.spans is None else run.spans[0].total
    order = torch.randperm(total, generator=generator).to(run.state.network.device)
    run.epoch_batches = -(-total // run.batch_size)
    if not run.state.prepared:
        first = order[: max(run.batch_size, START_ROWS)]
        with changing(run):
            run.state.prepare(batch_of(run, first), start)
    yield from batches_of(run, order)


def take(run: BatchRun, batch: Batch, progress: float, start: str) -> float:
    """Train on one batch; its mean loss before."""
    try:
        with changing(run):
            run.state.prepare(batch, start)
            loss = run.state.update(batch, progress)
    except (SolveError, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]  # of what overflows
        raise run.divergence() from error
    if not math.isfinite(loss):
        raise run.divergence()
    run.losses += loss * batch.part.count
    run.counted += batch.part.count
    return loss


@contextmanager
def changing(run: BatchRun) -> Iterator[None]:
    """What fails in the middle of a change leaves some layers a step ahead: no run can go on from there."""
    try:
        with uninterrupted():
            yield
    finally:
        run.whole = run.state.intact


def end_epoch(run: BatchRun, generator: torch.Generator) -> None:
    """Count an epoch whose batches are done."""
    network = run.state.network
    run.seconds = run.group.first_number(run.seconds)
    run.group.same_(run.everything())  # their bits may differ where processes run on machines of different kinds
    if not is_sound(network):
        raise run.divergence()
    if not run.position:
        raise ValueError(
            "X has no batches: it was empty in this epoch; give an iterable that can be gone through again"
        )
    run.epoch_batches = run.position
    run.iteration += 1
    run.order = generator.get_state()
    run.weights = network.read()


def is_sound(network: Network) -> bool:
    """Whether the model's weights are finite."""
    return all(all_finite(weight.detach()) for weight in network.model.parameters())
