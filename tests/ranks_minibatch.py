"""What the tests have processes do that train on mini-batches together."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import warnings

import torch
from torch import nn

import ipdlam
from ipdlam.distributed.group import current_group
from ipdlam.minibatch.step import Stepper
from problems import make_data, make_model
from ranks import Failing

WIDTHS = (5, 9, 8, 3)
SAMPLES = 150
COUNTS = {1: (150,), 2: (97, 53), 3: (80, 0, 70)}  # ragged, and one rank without any


def case(**changes):
    """Everything that defines a run of the tests, in plain types."""
    return {
        "settings": {},
        "loss": "squared",
        "activation": "relu",
        "widths": WIDTHS,
        "bias": True,
        "epochs": 2,
        "dtype": "float64",
        "samples": SAMPLES,
        "weighted": False,
        "validation": None,
        "fit": {},
        "counts": None,
        "scale": 1.0,
        "huge": None,
        "picture": None,  # the shape of a sample, for a network of convolutions
        **changes,
    }


def data_of(given, rank=0, counts=None):
    """X, y, weight and validation data: all of them, or those of a rank."""
    dtype, widths, samples = getattr(torch, given["dtype"]), given["widths"], given["samples"]
    X, y = make_data(samples, widths[0], widths[-1], given["loss"], dtype=dtype)
    X_test, y_test = make_data(11, widths[0], widths[-1], given["loss"], seed=5, dtype=dtype)
    weight = None
    if given["picture"] is not None:
        X, X_test = (images.unflatten(1, given["picture"]) for images in (X, X_test))
    if given["huge"] is not None:
        X[given["huge"]] = 1e30
    if given["weighted"]:
        weight = torch.rand(samples, generator=torch.Generator().manual_seed(2), dtype=dtype)
        weight[60:100] = 0.0  # all samples of some ranks of some divisions
    if counts is not None:
        rows = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
        X, y, weight = X[rows], y[rows], None if weight is None else weight[rows]
        if given["validation"] == "parts":
            cut = slice(rank * 11 // len(counts), (rank + 1) * 11 // len(counts))
            X_test, y_test = X_test[cut], y_test[cut]
    return X, y, weight, None if given["validation"] is None else (X_test, y_test)


class Convolutions(nn.Module):
    """A network with all that a convolutional one has, but for BatchNorm, whose statistics are each process's own."""

    def __init__(self, channels, outputs):
        super().__init__()
        self.first, self.norm = nn.Conv2d(channels, 6, 3, padding=1), nn.GroupNorm(2, 6)
        self.inner = nn.Conv2d(6, 6, 3, padding=1, groups=2)
        self.dropout, self.last = nn.Dropout(0.2), nn.Linear(6 * 2 * 2, outputs)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.norm(self.first(x))), 2)
        x = x + torch.relu(self.inner(x))
        return self.last(self.dropout(x.flatten(1)))


def convolutions_of(given, rank):
    """The convolutional network of a case."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rank)
        return Convolutions(given["picture"][0], given["widths"][-1]).to(getattr(torch, given["dtype"]))


def trainer_of(given, rank=0):
    """The trainer of a case; only rank 0 has the weights that count."""
    if given["picture"] is not None:
        model = convolutions_of(given, rank)
        return ipdlam.MiniBatchIPDLAM(model, loss=given["loss"], **{"rank": 4, "output_rank": 2, **given["settings"]})
    model = make_model(given["widths"], given["activation"], seed=rank, dtype=getattr(torch, given["dtype"]))
    for module in model:
        if isinstance(module, nn.Linear):
            with torch.no_grad():
                module.weight.mul_(given["scale"])
            if not given["bias"]:
                module.bias = None
    return ipdlam.MiniBatchIPDLAM(model, loss=given["loss"], **{"rank": 4, "output_rank": 2, **given["settings"]})


def counts_of(given, size):
    return None if size == 1 else given["counts"] or COUNTS[size]


def outcome(trainer):
    """What a run has come to, for a trip between processes: weights, and all that the next batch depends on."""
    run = trainer._state
    tensors = [*trainer.model.parameters(), *run.stepper.tensors().values()]
    return {
        "weights": [tensor.detach().double().flatten().tolist() for tensor in trainer.model.parameters()],
        "bits": [tensor.detach().flatten().tolist() for tensor in tensors],
        "state": run.stepper.counters(),
        "history": [record.to_dict() for record in trainer.history],
        "reason": trainer.history.stop_reason,
        "position": run.position,
        "skipped": run.skipped,
    }


def train(rank, size, given):
    """A run, in one process or shared."""
    X, y, weight, validation = data_of(given, rank, counts_of(given, size))
    trainer = trainer_of(given, rank)
    trainer.fit(X, y, epochs=given["epochs"], sample_weight=weight, validation_data=validation, **given["fit"])
    return outcome(trainer)


def in_one(given):
    return train(0, 1, given)


def cut(batch, rank, size, seed):
    """The part of a batch that a rank gives: any, and often none."""
    edges = sorted(random.Random(seed).choices(range(len(batch[0]) + 1), k=size - 1))
    edges = [0, *edges, len(batch[0])]
    return tuple(part[edges[rank] : edges[rank + 1]] for part in batch)


def batches_of(given, size=29):
    X, y, weight, _ = data_of(given)
    arrays = (X, y) if weight is None else (X, y, weight)
    return list(zip(*(array.split(size) for array in arrays), strict=True))


class Loader:
    """Can be gone through again, and may not know how long it is."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


def train_on_loader(rank, size, given, kind):
    """Whole batches cut at random; or loaders of their own, of which some end early."""
    batches = batches_of(given)
    own = [cut(batch, rank, size, number) for number, batch in enumerate(batches)]
    if kind == "ends early" and size > 1:  # the last batches are rank 0's alone
        own = [cut(batch, rank, size, n) if n < 3 else batch for n, batch in enumerate(batches) if n < 3 or rank == 0]
    trainer = trainer_of(given, rank)
    loader = Loader(own) if kind == "no length" else own
    trainer.fit(loader, epochs=given["epochs"], validation_data=data_of(given)[3], **given["fit"])
    return outcome(trainer)


def own_loop(rank, size, given, bad=None):
    """Steps of a loop, after which all goes on from a state dict in another trainer."""
    trainer = trainer_of(given, rank)
    batches = batches_of(given)
    losses, warned = [], []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number, batch in enumerate(batches):
            own = tuple(part.clone() for part in cut(batch, rank, size, number)) if size > 1 else batch
            if number == bad and rank == size - 1:
                own = (batch[0][:2] * torch.nan, *(part[:2] for part in batch[1:]))
            losses.append(trainer.step(*own))
            if number == 2:
                saved = trainer.state_dict()
                other = trainer_of(given, rank)
                other.model.load_state_dict(trainer.model.state_dict())
                other.load_state_dict(saved)
                trainer = other
        warned = [str(warning.message) for warning in caught]
    return {**outcome(trainer), "losses": [repr(loss) for loss in losses], "warned": warned}


def refusing(rank, size, given, what):
    """What of a batch, or of the arguments, is refused; then the group is still of use."""
    trainer = trainer_of(given, rank)
    batch = batches_of(given)[0]
    last = rank == size - 1
    if what == "nan":
        batch = (batch[0] * torch.nan, batch[1]) if last else batch
    elif what == "weights":
        batch = (*batch, torch.ones(len(batch[0]), dtype=batch[0].dtype)) if last else batch
    elif what == "empty":
        batch = tuple(part[:0] for part in batch)
    elif what == "loader raises":
        batch = None if last else batch
    try:
        with current_group().telling():
            if what == "settings":
                other = {**given, "settings": {"step": 0.1}} if last else given
                trainer_of(other, rank).step(*batch)
            elif what == "loader and arrays":
                trainer.fit(*(batch if last else [[batch]]), epochs=1)
            elif what == "loader raises":
                trainer.fit([batch], epochs=1)
            elif what == "epochs":
                trainer.fit(*batch, epochs=2 + last)
            elif what == "autocast":
                single = trainer_of({**given, "dtype": "float32"}, rank)  # float64 is what autocast leaves alone
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=last):
                    single.step(batch[0].float(), batch[1].float())
            else:
                trainer.step(*batch)
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def traffic(rank, size, given):
    """Bytes of each batch of an epoch, from the forward pass on."""
    X, y, weight, _ = data_of(given, rank, counts_of(given, size))
    trainer = trainer_of(given, rank)
    trainer.start(X, y, sample_weight=weight)
    edges, real = [], Stepper.update

    def update(self, batch, progress):
        before = trainer.group.bytes
        loss = real(self, batch, progress)
        edges.append(trainer.group.bytes - before)
        return loss

    Stepper.update = update
    try:
        trainer.continue_fit(epochs=1, evaluate_every=5)
    finally:
        Stepper.update = real
    return edges


def train_with(rank, size, given, bad_rank, epoch, action, batch=None):
    """A run in which a rank does something after an epoch, or in the middle of a batch."""
    X, y, _, _ = data_of(given, rank, counts_of(given, size))
    trainer = trainer_of(given, rank)
    callback = Failing(rank, bad_rank, epoch, action)
    real, seen = Stepper._direction, []

    def direction(self, l, *rest):
        seen.append(l)
        if rank == bad_rank and len(seen) == 3 * batch + 2:
            action()
        return real(self, l, *rest)

    if batch is not None:
        Stepper._direction = direction
    started = time.monotonic()
    try:
        with current_group().telling():  # as around a job
            trainer.fit(X, y, epochs=given["epochs"], callbacks=[callback])
    except Exception as error:
        return {
            "error": type(error).__name__,
            "text": str(error),
            "done": trainer.iteration,
            "whole": trainer._state.whole,
            "weights": [parameter.detach().flatten().tolist() for parameter in trainer.model.parameters()],
            "seconds": time.monotonic() - started,
        }
    finally:
        Stepper._direction = real
    return outcome(trainer)


def train_until(rank, size, given, bad_rank, after, number, loader=False):
    """A run in which one rank gets a signal at some moment; where it could, it goes on to the end."""
    X, y, _, _ = data_of(given, rank, counts_of(given, size))
    trainer = trainer_of(given, rank)
    if loader:
        trainer.start([cut(batch, rank, size, n) for n, batch in enumerate(batches_of(given))])
    else:
        trainer.start(X, y)
    if rank == bad_rank:
        threading.Timer(after, os.kill, (os.getpid(), number)).start()
    started = time.monotonic()
    try:
        trainer.continue_fit(epochs=given["epochs"])
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error), "seconds": time.monotonic() - started}
    found = outcome(trainer)
    trainer.continue_fit(epochs=1)
    return found, outcome(trainer)


def interrupt_and_save(rank, size, given, path, batch):
    """Ctrl-C on the last rank in the middle of an epoch, a checkpoint of that, and the rest of the run."""
    X, y, weight, validation = data_of(given, rank, counts_of(given, size))
    trainer = trainer_of(given, rank)
    real = Stepper.update

    def update(self, batch_given, progress):
        if rank == size - 1 and self.batches == batch:
            signal.raise_signal(signal.SIGINT)
        return real(self, batch_given, progress)

    Stepper.update = update
    try:
        more = {"sample_weight": weight, "validation_data": validation}
        trainer.fit(X, y, epochs=given["epochs"], **more, **given["fit"])
    finally:
        Stepper.update = real
    stopped = (len(trainer.history), trainer._state.position, trainer.history.stop_reason)
    trainer.save(path)
    trainer.continue_fit(epochs=given["epochs"] - len(trainer.history), **given["fit"])
    return stopped, outcome(trainer)


def go_on(rank, size, given, path, change=0.0):
    """Take up a checkpoint and train to the end."""
    X, y, weight, validation = data_of(given, rank, counts_of(given, size))
    if change:
        X = X + change
    model = trainer_of(given, 9).model
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of one process's checkpoint
        more = {"sample_weight": weight, "validation_data": validation}
        trainer = ipdlam.MiniBatchIPDLAM.load(path, model, X, y, **more)
    trainer.continue_fit(epochs=given["epochs"] - trainer.iteration, **given["fit"])
    return outcome(trainer)


def loader_half_way(rank, size, given, path, again):
    """Two epochs of a loader, a checkpoint, and the rest of a plan of four; or the rest after loading it."""
    loader = [cut(batch, rank, size, number) for number, batch in enumerate(batches_of(given))]
    validation = data_of(given, rank, counts_of(given, size))[3]
    if again:
        trainer = ipdlam.MiniBatchIPDLAM.load(path, trainer_of(given, 9).model, loader, validation_data=validation)
    else:
        trainer = trainer_of(given, rank)
        trainer.fit(loader, epochs=4, validation_data=validation, callbacks=[stop_after(2)])
        trainer.save(path)
    trainer.continue_fit(epochs=2)
    return outcome(trainer)


def stop_after(epoch):
    def callback(record):
        if record.iteration == epoch:
            raise ipdlam.StopTraining

    return callback


def train_what_is_known(rank, size, given):
    """Labels that the model has given itself, the surer the larger its weights; and whether it was scaled anew."""
    X, _, _, _ = data_of(given, rank, counts_of(given, size))
    y = trainer_of(given).model(X).argmax(1)
    trainer, scaled, real = trainer_of(given, rank), [], ipdlam.minibatch.step.rescale

    def rescale(*arguments):
        scaled.append(True)
        real(*arguments)

    ipdlam.minibatch.step.rescale = rescale
    try:
        trainer.fit(X, y, epochs=1)
    finally:
        ipdlam.minibatch.step.rescale = real
    return outcome(trainer), bool(scaled)


def save_on_one(rank, size, given, path):
    """What looks natural and is wrong: only rank 0 saves."""
    X, y, _, _ = data_of(given, rank, counts_of(given, size))
    trainer = trainer_of(given, rank)
    trainer.fit(X, y, epochs=3, callbacks=[lambda record: trainer.save(path)] if rank == 0 else [])
