"""Processes that train together, and what the tests have them do; one pool of them runs many cases."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import ipdlam
from problems import make_data, make_model

WIDTHS = (5, 7, 6, 3)
SAMPLES = 37
COUNTS = {1: (37,), 2: (23, 14), 3: (20, 0, 17)}  # ragged, and one rank without any


def context():
    """Workers are forked from a server that has imported torch once, and started nothing."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["ranks"])
    return found


class Pool:
    """So many ranks, which wait for work until they are closed."""

    def __init__(self, size, folder, timeout=60.0):
        store = str(folder / f"store-{size}-{time.monotonic_ns()}")
        self.pipes, self.processes = [], []
        for rank in range(size):
            ours, theirs = context().Pipe()
            process = context().Process(target=serve, args=(theirs, store, rank, size, timeout), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        self.size = size

    def begin(self, work, *arguments):
        for pipe in self.pipes:
            pipe.send((work, arguments))

    def answers(self, ranks=None, patience=60.0):
        """What each rank returned, or the exception it raised."""
        found = []
        for rank in range(self.size) if ranks is None else ranks:
            assert self.pipes[rank].poll(patience), f"rank {rank} gave no answer within {patience} s"
            found.append(self.pipes[rank].recv())
        return found

    def __call__(self, work, *arguments):
        self.begin(work, *arguments)
        return self.answers()

    def close(self):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()


def serve(pipe, store, rank, size, timeout):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, size), rank=rank, world_size=size, timeout=timedelta(seconds=timeout)
    )
    while True:
        work, arguments = pipe.recv()
        try:
            answer = work(rank, size, *arguments)
        except BaseException as error:
            answer = (type(error).__name__, str(error))
        pipe.send(answer)


def case(**changes):
    """Everything that defines a run of the tests, in plain types."""
    return {
        "kind": "IPDLAM",
        "settings": {},
        "loss": "squared",
        "iterations": 4,
        "dtype": "float64",
        "weighted": False,
        "validation": None,
        "fit": {},
        "counts": None,
        **changes,
    }


def data_of(given, rank=0, counts=None):
    """X, y, weight and validation data: all of them, or those of a rank."""
    dtype = getattr(torch, given["dtype"])
    X, y = make_data(SAMPLES, WIDTHS[0], WIDTHS[-1], given["loss"], dtype=dtype)
    X_test, y_test = make_data(11, WIDTHS[0], WIDTHS[-1], given["loss"], seed=5, dtype=dtype)
    weight = None
    if given["weighted"]:
        weight = torch.rand(SAMPLES, generator=torch.Generator().manual_seed(2), dtype=dtype)
        weight[:20] = 0.0  # all samples of rank 0 of three
    if counts is not None:
        rows = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
        X, y, weight = X[rows], y[rows], None if weight is None else weight[rows]
        if given["validation"] == "parts":
            cut = slice(rank * 11 // len(counts), (rank + 1) * 11 // len(counts))
            X_test, y_test = X_test[cut], y_test[cut]
    return X, y, weight, None if given["validation"] is None else (X_test, y_test)


def trainer_of(given, rank=0):
    """The trainer of a case; only rank 0 has the weights that count."""
    model = make_model(WIDTHS, seed=rank, dtype=getattr(torch, given["dtype"]))
    return getattr(ipdlam, given["kind"])(model, loss=given["loss"], **given["settings"])


def outcome(trainer):
    """What a run has come to, for a trip between processes."""
    return {
        "weights": [parameter.detach().tolist() for parameter in trainer.model.parameters()],
        "history": [record.to_dict() for record in trainer.history],
        "reason": trainer.history.stop_reason,
        "objective": trainer.objective().value,
        "z": {l: z.tolist() for l, z in trainer.iterate().z.items()},
    }


def in_one(given):
    """The run in this process."""
    X, y, weight, validation = data_of(given)
    trainer = trainer_of(given)
    trainer.fit(X, y, iterations=given["iterations"], sample_weight=weight, validation_data=validation, **given["fit"])
    return outcome(trainer)


def train(rank, size, given):
    """The same run, shared."""
    X, y, weight, validation = data_of(given, rank, given["counts"] or COUNTS[size])
    trainer = trainer_of(given, rank)
    trainer.fit(X, y, iterations=given["iterations"], sample_weight=weight, validation_data=validation, **given["fit"])
    found = outcome(trainer)
    trainer.close()
    return found


def traffic(rank, size, given, copies):
    """Bytes of a second iteration, and of one with an evaluation, on so many copies of the samples."""
    X, y, _, _ = data_of(given, rank, COUNTS[size])
    trainer = trainer_of(given, rank)
    trainer.start(X.repeat(copies, 1), y.repeat(copies, 1))
    trainer.step(evaluate=False)
    edges = [trainer.group.bytes]
    for evaluate in (False, True):
        trainer.step(evaluate=evaluate)
        edges.append(trainer.group.bytes)
    return [later - earlier for earlier, later in itertools.pairwise(edges)]
