"""Processes that train together, and what the tests have them do; one pool of them runs many cases."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
import time
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import ipdlam
from ipdlam.distributed.group import current_group
from ipdlam.training.callbacks import Checkpoints
from problems import make_data, make_model

WIDTHS = (5, 7, 6, 3)
SAMPLES = 37
SIZES = (2, 3)  # of the pools that tests share
COUNTS = {1: (37,), 2: (23, 14), 3: (20, 0, 17)}  # ragged, and one rank without any


def context():
    """Workers are forked from a server that has imported torch once, and started nothing."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(
        [
            "torch.distributed",
            "numpy",
            "ipdlam.fullbatch.trainer",
            "ipdlam.minibatch.trainer",
            "ipdlam.training.callbacks",
            "ipdlam.cli",
            "ipdlam.runs.job",
            "torch._dynamo",  # which the first optimizer of a process loads
            "settled",
        ]
    )
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
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background passes on that it is ignored
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


class Failing:
    """A callback that does something on one rank after an iteration."""

    def __init__(self, rank, bad_rank, iteration, action):
        self.armed, self.iteration, self.action = rank == bad_rank, iteration, action

    def __call__(self, record):
        if self.armed and record.iteration == self.iteration:
            self.action()


def stop():
    raise ipdlam.StopTraining("enough")


def fail():
    raise LookupError("no such thing")


def press_ctrl_c():
    signal.raise_signal(signal.SIGINT)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def hang():
    time.sleep(3600)


def train_with(rank, size, given, bad_rank, iteration, action):
    """A run in which a callback of one rank does something."""
    X, y, _, _ = data_of(given, rank, COUNTS[size])
    trainer = trainer_of(given, rank)
    callback = Failing(rank, bad_rank, iteration, action)
    started = time.monotonic()
    try:
        with current_group().telling():  # as around a job
            trainer.fit(X, y, iterations=given["iterations"], callbacks=[callback])
    except Exception as error:
        return {
            "error": type(error).__name__,
            "text": str(error),
            "cause": type(error.__cause__).__name__,
            "done": trainer.iteration,
            "seconds": time.monotonic() - started,
        }
    return outcome(trainer)


def train_until(rank, size, given, bad_rank, after, number):
    """A run in which one rank gets a signal at some moment; None where it is the end of that rank."""
    X, y, _, _ = data_of(given, rank, COUNTS[size])
    trainer = trainer_of(given, rank)
    trainer.start(X, y)
    if rank == bad_rank:
        threading.Timer(after, os.kill, (os.getpid(), number)).start()
    started = time.monotonic()
    try:
        trainer.continue_fit(iterations=given["iterations"])
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error), "seconds": time.monotonic() - started}
    return outcome(trainer) if trainer._state.whole else {"reason": trainer.history.stop_reason}


def start_with(rank, size, given, bad_rank, change):
    """Start with something else on one rank."""
    own = case(**{**given, **(change if rank == bad_rank else {})})
    X, y, weight, validation = data_of(own, rank, COUNTS[size])
    if own.get("nan"):
        X = X.clone()
        X[3, 2] = float("nan")
    if own.get("empty"):
        X, y = X[:0], y[:0]
    trainer_of(own, rank).fit(X, y, sample_weight=weight, validation_data=validation, iterations=2, **own["fit"])


def break_in_a_pass(rank, size, given, bad_rank, error):
    """One rank fails in the middle of its samples."""
    X, y, _, _ = data_of(given, rank, COUNTS[size])
    trainer = trainer_of(given, rank)
    trainer.start(X, y)
    trainer.step()
    if rank == bad_rank:

        def chunks(access=None):
            yield from ()
            raise error

        trainer._state.variables.shard.chunks = chunks
    try:
        trainer.step()
    except Exception as raised:
        return type(raised).__name__, str(raised), trainer.iteration, trainer._state.whole
    return None


def save_half_way(rank, size, given, path):
    """Train, with a checkpoint of half of it; the whole run."""
    X, y, weight, validation = data_of(given, rank, given["counts"] or COUNTS[size])
    trainer = trainer_of(given, rank)
    more = {"sample_weight": weight, "validation_data": validation}
    trainer.fit(X, y, iterations=given["iterations"] // 2, **more)
    trainer.save(path)
    trainer.continue_fit(iterations=given["iterations"] - given["iterations"] // 2)
    return outcome(trainer)


def go_on(rank, size, given, path, change=0.0):
    """Take up a checkpoint and train to the end."""
    counts = None if size == 1 else given["counts"] or COUNTS[size]
    X, y, weight, validation = data_of(given, rank, counts)
    if change:  # a sum lies elsewhere in memory than a slice, which may cost the last bit of a product
        X = X + change
    trainer = ipdlam.IPDLAM.load(
        path, make_model(WIDTHS, seed=9), X, y, sample_weight=weight, validation_data=validation
    )
    trainer.continue_fit(iterations=given["iterations"] - trainer.iteration)
    return outcome(trainer)


def save_badly(rank, size, given, folder, bad_rank, step="write_parts"):
    """A rank that cannot do a step of a save: no checkpoint, one error on all, and the run goes on."""
    import ipdlam.checkpoint.together

    X, y, _, _ = data_of(given, rank, COUNTS[size])
    trainer = trainer_of(given, rank)
    trainer.fit(X, y, iterations=2)
    real = getattr(ipdlam.checkpoint.together, step)

    def full(*arguments):
        raise OSError("no space left")

    setattr(ipdlam.checkpoint.together, step, full if rank == bad_rank else real)
    try:
        trainer.save(folder / "bad")
        said = None
    except ipdlam.CheckpointError as error:
        said = str(error)
    finally:
        setattr(ipdlam.checkpoint.together, step, real)
    trainer.continue_fit(iterations=given["iterations"] - 2)
    return said, outcome(trainer)


def series_of_checkpoints(rank, size, given, folder):
    """What the callback leaves."""
    X, y, _, _ = data_of(given, rank, COUNTS[size])
    trainer = trainer_of(given, rank)
    trainer.fit(X, y, iterations=5, callbacks=[Checkpoints(trainer, folder, every=1)])
    loaded = ipdlam.IPDLAM.load(folder, make_model(WIDTHS, seed=9), X, y)
    return loaded.iteration, outcome(loaded)["weights"] == outcome(trainer)["weights"]


def save_for_ever(rank, size, given, folder):
    """Save after every iteration, until somebody dies."""
    X, y, _, _ = data_of(given, rank, COUNTS[size])
    trainer = trainer_of(given, rank)
    try:
        trainer.fit(X, y, iterations=100_000, callbacks=[Checkpoints(trainer, folder, every=1)])
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error)}
    return None


def job(rank, size, settings, folder):
    """What ``ipdlam train`` does, without pictures."""
    import ipdlam.runs.job
    from ipdlam.cli.display import Silent
    from ipdlam.runs.config import TrainConfig
    from ipdlam.runs.folder import RunFolder

    ipdlam.runs.job.curves = lambda *arguments, **more: None
    config = TrainConfig().changed(settings)
    done = ipdlam.runs.job.Job(config, RunFolder(folder), group=current_group())
    history = done.run(Silent(), resume=False, stop=lambda record: None)
    return len(history), history.stop_reason


def job_on_a_full_disk(rank, size, settings, folder, bad_ranks):
    """A job whose storage fails on some ranks in the third iteration; the error, and the seconds until it is known."""
    import ipdlam.fullbatch.disk_folder

    real, failing = ipdlam.fullbatch.disk_folder.StateFolder.note, rank in bad_ranks

    def note(self, progress):
        if failing and "iteration 3" in progress:
            raise ipdlam.StorageError("the disk is full")
        real(self, progress)

    ipdlam.fullbatch.disk_folder.StateFolder.note = note
    started = time.monotonic()
    try:
        job(rank, size, settings, folder)
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - started
    finally:
        ipdlam.fullbatch.disk_folder.StateFolder.note = real
    return None


def spread_without_memory(rank, size):
    """Rank 0 fails before its tensors are on the way: those of the others stay what they were."""
    group, tensor, cat = current_group(), torch.full((3,), rank + 1.0), torch.cat

    def no_room(*arguments):
        raise MemoryError("no room")

    torch.cat = no_room if rank == 0 else cat
    try:
        with group.telling():
            group.spread_({0: [tensor]})
    except Exception as error:
        return type(error).__name__, tensor.tolist()
    finally:
        torch.cat = cat
    return None


def who_speaks(rank, size, what):
    """Whether this rank is the one to say something, and whether something is remembered, before and after."""
    import ipdlam.distributed.torchrun

    store = dist.distributed_c10d._get_default_store()
    ipdlam.distributed.torchrun._stores.update(attempt=store, job=store)
    try:
        before = ipdlam.distributed.torchrun.is_remembered(what)
        dist.barrier()
        if rank == 1:
            ipdlam.distributed.torchrun.remember(what)
        dist.barrier()
        return (
            ipdlam.distributed.torchrun.is_first_to_say(what),
            before,
            ipdlam.distributed.torchrun.is_remembered(what),
        )
    finally:
        ipdlam.distributed.torchrun._stores.clear()


def save_differently(rank, size, given, folder, light, other):
    """Ranks that save something else, or elsewhere, after a checkpoint that is good; what it still is."""
    X, y, _, _ = data_of(given, rank, COUNTS[size])
    trainer = trainer_of(given, rank)
    trainer.fit(X, y, iterations=2)
    trainer.save(folder / "good")
    trainer.continue_fit(iterations=1)
    try:
        trainer.save(folder / ("other" if other and rank == 1 else "good"), light=light and rank == 1)
    except ipdlam.DistributedError as error:
        loaded = ipdlam.IPDLAM.load(folder / "good", make_model(WIDTHS, seed=9), X, y)
        return str(error), loaded.iteration
    return None


def only_one_saves(rank, size, given, folder):
    """The habit of those who have one copy of everything on each rank."""
    X, y, _, _ = data_of(given, rank, COUNTS[size])
    trainer = trainer_of(given, rank)
    trainer.fit(X, y, iterations=2)
    if rank == 0:
        trainer.save(folder / "alone")
    trainer.continue_fit(iterations=1)


def load_differently(rank, size, given, folder):
    """Another path on one rank."""
    X, y, _, _ = data_of(given, rank, COUNTS[size])
    ipdlam.IPDLAM.load(folder / ("a" if rank else "b"), make_model(WIDTHS), X, y)


def save_on_one(rank, size, given, folder):
    """What looks natural and is wrong: only rank 0 saves."""
    X, y, _, _ = data_of(given, rank, COUNTS[size])
    trainer = trainer_of(given, rank)
    trainer.fit(X, y, iterations=5, callbacks=[Checkpoints(trainer, folder, every=2)] if rank == 0 else [])


def go_on_of_one(rank, size, given, path):
    """:func:`go_on` with a checkpoint that one process saved; what it warns of, too."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = go_on(rank, size, given, path)
    return found, [str(warning.message) for warning in caught]


def run_page(rank, size, code):
    """The program of a page, in a group that is there already."""
    names = {}
    for call in (
        'dist.init_process_group("gloo")',
        "dist.destroy_process_group()",
    ):  # the pool has a group, and keeps it
        assert call in code
        code = code.replace(call, "")
    exec(code, names)
    return outcome(names["trainer"])["weights"]


def options(settings):
    """Settings as they are given to ``ipdlam train``."""
    given = [
        f"--{name.replace('_', '-')}={value}" for name, value in settings.items() if name not in ("data", "hidden")
    ]
    return [settings["data"], *given, "--hidden=" + ",".join(map(str, settings["hidden"]))]


def workers_of(launcher):
    """Process numbers of what torchrun has started: its ranks, in their order unless it starts anything else."""
    return [int(process) for process in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()]
