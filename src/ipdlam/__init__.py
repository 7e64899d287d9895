"""ipdlam: neural networks trained by alternating minimisation instead of back-propagation."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ipdlam.version import __version__

if TYPE_CHECKING:
    from ipdlam import baselines, checkpoint, datasets, prox
    from ipdlam.errors import (
        CheckpointError,
        DataError,
        DistributedError,
        DivergenceError,
        FileError,
        SolveError,
        StopTraining,
        StorageError,
        UnsupportedModelError,
    )
    from ipdlam.fullbatch.trainer import DLAM, IPDLAM
    from ipdlam.minibatch.trainer import MiniBatchIPDLAM
    from ipdlam.network.initialise import initialise
    from ipdlam.network.objective import Objective
    from ipdlam.training import callbacks, plots
    from ipdlam.training.history import History, Record

# Imported when they are first used: `ipdlam --help` does not wait for torch.
HOMES = {
    "baselines": "ipdlam.baselines",
    "callbacks": "ipdlam.training.callbacks",
    "checkpoint": "ipdlam.checkpoint",
    "datasets": "ipdlam.datasets",
    "plots": "ipdlam.training.plots",
    "prox": "ipdlam.prox",
    "CheckpointError": "ipdlam.errors",
    "DataError": "ipdlam.errors",
    "DistributedError": "ipdlam.errors",
    "DivergenceError": "ipdlam.errors",
    "FileError": "ipdlam.errors",
    "SolveError": "ipdlam.errors",
    "StopTraining": "ipdlam.errors",
    "StorageError": "ipdlam.errors",
    "UnsupportedModelError": "ipdlam.errors",
    "History": "ipdlam.training.history",
    "Record": "ipdlam.training.history",
    "initialise": "ipdlam.network.initialise",
    "Objective": "ipdlam.network.objective",
    "DLAM": "ipdlam.fullbatch.trainer",
    "IPDLAM": "ipdlam.fullbatch.trainer",
    "MiniBatchIPDLAM": "ipdlam.minibatch.trainer",
}

MODULES = ("baselines", "callbacks", "checkpoint", "datasets", "plots", "prox")

__all__ = [
    "DLAM",
    "IPDLAM",
    "CheckpointError",
    "DataError",
    "DistributedError",
    "DivergenceError",
    "FileError",
    "History",
    "MiniBatchIPDLAM",
    "Objective",
    "Record",
    "SolveError",
    "StopTraining",
    "StorageError",
    "UnsupportedModelError",
    "__version__",
    "baselines",
    "callbacks",
    "checkpoint",
    "datasets",
    "initialise",
    "plots",
    "prox",
]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'ipdlam' has no attribute {name!r}")
    home = import_module(HOMES[name])
    found = home if name in MODULES else getattr(home, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
