"""Trains every method on small data and prints hashes of weights, histories and checkpoints: has anything changed?

    python tests/fingerprints.py write before.json folder     # before a change: hashes, checkpoints, run folders
    python tests/fingerprints.py check before.json folder     # after it: the same hashes, and the old files still load

It uses nothing but the public interface, so that the code behind it may be moved at will. One thread: the order of
sums is then the same every time.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import ipdlam
from ipdlam.baselines import BCD, DLADMM, OPTIMIZERS, BackPropagation
from ipdlam.prox import ACTIVATIONS, LOSSES, REGULARIZERS

WIDTHS = (6, 9, 8, 3)
N = 50
CUSTOM = ["W1", "z1", "a1", "z2", "W2", "a2", "z3", "W3"]


def make_model(activation="relu", dtype=torch.float32, seed=0):
    kinds = [ACTIVATIONS[activation].module() for _ in WIDTHS[2:]]
    linears = [nn.Linear(a, b) for a, b in itertools.pairwise(WIDTHS)]
    modules = [linears[0]] + [module for pair in zip(kinds, linears[1:], strict=True) for module in pair]
    return ipdlam.initialise(nn.Sequential(*modules).to(dtype), "he", seed=seed)


def make_data(loss, dtype=torch.float32, rows=N):
    generator = torch.Generator().manual_seed(7)
    X = torch.randn(rows, WIDTHS[0], generator=generator, dtype=torch.float64).to(dtype)
    if loss in ("squared", "huber", "absolute"):
        return X, torch.randn(rows, WIDTHS[-1], generator=generator, dtype=torch.float64).to(dtype)
    return X, torch.randint(0, WIDTHS[-1], (rows,), generator=generator)


def digest(*parts):
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, torch.Tensor):
            found.update(str(part.dtype).encode() + part.detach().contiguous().numpy().tobytes())
        else:
            found.update(json.dumps(part, sort_keys=True, default=str).encode())
    return found.hexdigest()[:24]


def of_history(history):
    return [{**record.to_dict(), "seconds": None} for record in history]


def of_run(trainer):
    return digest(*trainer.model.parameters(), of_history(trainer.history))


def of_checkpoint(folder):
    """The tensors of a checkpoint, whichever files they are in."""
    from safetensors.torch import load_file

    files = sorted(Path(folder).rglob("*.safetensors"))
    tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
    return digest(*(part for name in sorted(tensors) for part in (name, tensors[name])))


def full_batch(found, folder):
    cases = {f"order {order}": {"order": order} for order in ("reverse", "increase", "nested-reverse")}
    cases["order custom"] = {"order": CUSTOM}
    cases |= {f"loss {loss}": {"loss": loss} for loss in LOSSES}
    cases |= {f"regularizer {name}": {"regularizer": name} for name in REGULARIZERS}
    cases |= {f"activation {name}": {"activation": name} for name in ACTIVATIONS}
    cases["float64"] = {"dtype": torch.float64}
    cases["no regularizer"] = {"regularizer": None}
    cases["weighted"] = {"weighted": True, "chunk_size": 7}
    cases["for each sample"] = {"weight_proximity": (0.01, 1.0)}
    cases["disk"] = {"storage": folder / "storage", "chunk_size": 16}
    for name, case in cases.items():
        settings = dict(case)
        dtype, loss = settings.pop("dtype", torch.float32), settings.get("loss", "squared")
        weight = torch.arange(N) % 3 * 0.5 if settings.pop("weighted", False) else None
        model = make_model(settings.pop("activation", "relu"), dtype)
        X, y = make_data(loss, dtype)
        for kind in (ipdlam.IPDLAM, ipdlam.DLAM):
            if kind is ipdlam.DLAM and ("weight_proximity" in settings or "storage" in settings):
                continue
            trainer = kind(model, **settings)
            trainer.fit(X, y, iterations=4, sample_weight=weight, validation_data=(X, y), restore_best=True, patience=9)
            found[f"{kind.__name__}, {name}"] = of_run(trainer)
            trainer.close()


def mini_batches(found):
    for loss in LOSSES:
        X, y = make_data(loss)
        trainer = ipdlam.MiniBatchIPDLAM(make_model(), loss=loss, batch_size=16, seed=3)
        trainer.fit(X, y, epochs=3, validation_data=(X, y))
        found[f"MiniBatchIPDLAM, loss {loss}"] = of_run(trainer)
    X, y = make_data("squared", torch.float64)
    for name, settings in {
        "decay": {"weight_decay": 0.01, "rank": 3},
        "keep": {"start": "keep", "inertia": 0.0},
    }.items():
        trainer = ipdlam.MiniBatchIPDLAM(make_model(dtype=torch.float64), batch_size=7, **settings)
        trainer.fit(X, y, epochs=2, sample_weight=torch.arange(N) % 3 * 0.5)
        found[f"MiniBatchIPDLAM, {name}"] = of_run(trainer)
    trainer = ipdlam.MiniBatchIPDLAM(make_model(dtype=torch.float64), horizon=12)
    for start in range(0, 48, 8):
        trainer.step(X[start : start + 8], y[start : start + 8])
    found["MiniBatchIPDLAM, step"] = digest(*trainer.model.parameters())
    batches = [(X[start : start + 10], y[start : start + 10]) for start in range(0, N, 10)]
    trainer = ipdlam.MiniBatchIPDLAM(make_model(dtype=torch.float64))
    trainer.fit(batches, epochs=2)
    found["MiniBatchIPDLAM, loader"] = of_run(trainer)


def baselines(found):
    X, y = make_data("cross_entropy")
    for kind in (BCD, DLADMM):
        trainer = kind(make_model())
        trainer.fit(X, y, iterations=4)
        found[kind.__name__] = of_run(trainer)
    for name in OPTIMIZERS:
        trainer = BackPropagation(make_model(), name, loss="cross_entropy", learning_rate=0.01, batch_size=16)
        trainer.fit(X, y, epochs=3)
        found[f"BackPropagation, {name}"] = of_run(trainer)


CHECKPOINTED = {
    "ipdlam": (ipdlam.IPDLAM, {"order": "nested-reverse", "loss": "cross_entropy"}, "iterations"),
    "dlam": (ipdlam.DLAM, {"regularizer": None}, "iterations"),
    "minibatch": (ipdlam.MiniBatchIPDLAM, {"batch_size": 16, "loss": "cross_entropy"}, "epochs"),
    "bcd": (BCD, {}, "iterations"),
    "dladmm": (DLADMM, {}, "iterations"),
    "adam": (BackPropagation, {"optimizer": "adam", "batch_size": 16}, "epochs"),
}


def save(found, folder):
    X, y = make_data("cross_entropy")
    for name, (kind, settings, unit) in CHECKPOINTED.items():
        trainer = kind(make_model(), **settings)
        trainer.fit(X, y, validation_data=(X, y), **{unit: 3})
        trainer.save(folder / name)
        trainer.save(folder / f"{name}-light", light=True)
        found[f"checkpoint of {name}"] = of_checkpoint(folder / name)


def resume(found, folder):
    X, y = make_data("cross_entropy")
    for name, (kind, _, unit) in CHECKPOINTED.items():
        trainer = kind.load(folder / name, make_model(seed=4), X, y, validation_data=(X, y))
        trainer.continue_fit(**{unit: 3})
        found[f"resumed {name}"] = of_run(trainer)
        light = kind.load(folder / f"{name}-light", make_model(seed=4))
        found[f"light {name}"] = digest(*light.model.parameters())


def rank(number, size, store, results):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=size)
    torch.set_num_threads(1)
    X, y = make_data("cross_entropy")
    rows = slice(0, 30) if number == 0 else slice(30, N)
    full = ipdlam.IPDLAM(make_model(), loss="cross_entropy")
    full.fit(X[rows], y[rows], iterations=4)
    full.save(f"{results}-checkpoint")
    batch = ipdlam.MiniBatchIPDLAM(make_model(), loss="cross_entropy", batch_size=16)
    batch.fit(X[rows], y[rows], epochs=2)
    if number == 0:
        Path(results).write_text(json.dumps({"full batch": of_run(full), "mini-batch": of_run(batch)}))
    dist.destroy_process_group()


def two_processes(found, folder):
    results = folder / "ranks.json"
    mp.spawn(rank, (2, str(folder / "store"), str(results)), nprocs=2)
    found |= {f"two processes, {name}": value for name, value in json.loads(results.read_text()).items()}


RUNS = {
    "then": ["--iterations", "3", "--then", "adam", "--then-epochs", "2", "--hidden", "12"],
    "cli-ipdlam": ["--iterations", "4", "--hidden", "12,10", "--checkpoint-every", "2", "--limit", "300"],
    "cli-minibatch": ["--epochs", "2", "--batch-size", "64", "--hidden", "12", "--loss", "cross_entropy"],
    "cli-dlam": ["--method", "dlam", "--iterations", "2", "--hidden", "12", "--dtype", "float64"],
    "cli-disk": ["--iterations", "2", "--hidden", "12", "--limit", "200"],
}


def command(*words):
    answer = subprocess.run(
        [sys.executable, "-m", "ipdlam", *map(str, words)], capture_output=True, text=True, check=False
    )
    if answer.returncode:
        raise SystemExit(f"ipdlam {' '.join(map(str, words))}: {answer.stderr}")


def of_folder(run):
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    history = [{**line, "seconds": None, "peak_memory": None} for line in lines]
    return digest(of_checkpoint_file(run / "model.safetensors"), history)


def of_checkpoint_file(path):
    from safetensors.torch import load_file

    tensors = load_file(path)
    return digest(*(part for name in sorted(tensors) for part in (name, tensors[name])))


def shell(found, folder):
    for name, options in RUNS.items():
        more = ["--storage", folder / "cli-storage"] if name == "cli-disk" else []
        command("train", "digits", *options, *more, "--threads", "1", "--output", folder / name)
        found[name] = of_folder(folder / name)


def shell_again(found, folder):
    """Runs of before go on: to more iterations, epochs, or epochs of the second stage."""
    more = {"then": "--then-epochs=4", "cli-ipdlam": "--iterations=6", "cli-dlam": "--iterations=4"}
    for name, option in more.items():
        command("train", "--resume", folder / name, option, "--threads", "1")
        found[f"{name}, resumed"] = of_folder(folder / name)
    for name in RUNS:
        command("evaluate", folder / name)


def estimators(found):
    from sklearn.datasets import load_diabetes, load_iris

    from ipdlam.estimators import IPDLAMClassifier, IPDLAMRegressor

    for batch_size in ("auto", None):
        X, y = load_iris(return_X_y=True)
        classifier = IPDLAMClassifier((8,), max_iter=5, batch_size=batch_size, random_state=0).fit(X, y)
        found[f"classifier, batches {batch_size}"] = digest(classifier.predict_proba(X).tolist())
        X, y = load_diabetes(return_X_y=True)
        regressor = IPDLAMRegressor((8,), max_iter=5, batch_size=batch_size, random_state=0).fit(X, y)
        found[f"regressor, batches {batch_size}"] = digest(regressor.predict(X).tolist())


def make(kept, load_from=None):
    """All hashes; checkpoints and run folders go to ``kept``, and those in ``load_from`` are taken up."""
    torch.set_num_threads(1)
    found = {}
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        full_batch(found, Path(scratch))
        mini_batches(found)
        baselines(found)
        two_processes(found, Path(scratch))
        estimators(found)
        save(found, kept)
        shell(found, kept)
        old = Path(scratch) / "old"
        shutil.copytree(kept if load_from is None else load_from, old)  # a run that goes on is changed
        resume(found, old)
        shell_again(found, old)
    return found


def main(action, file, folder):
    file, folder = Path(file), Path(folder)
    if action == "write":
        folder.mkdir(parents=True)
        found = make(folder)
        file.write_text(json.dumps(found, indent=1))
        print(f"{len(found)} hashes in {file}")
        return 0
    before = json.loads(file.read_text())
    with tempfile.TemporaryDirectory() as scratch:
        kept = Path(scratch) / "kept"
        kept.mkdir()
        found = make(kept, load_from=folder)
    changed = [name for name in before if found.get(name) != before[name]]
    print(f"{len(before) - len(changed)} of {len(before)} hashes are the same")
    for name in changed:
        print(f"  changed: {name}")
    return bool(changed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
