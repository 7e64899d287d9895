"""ipdlam: neural networks trained by alternating minimisation instead of back-propagation."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ipdlam.version import __version__

if TYPE_CHECKING:
    from ipdlam import baselines, callbacks, checkpoint, datasets, plots, prox
    from ipdlam.errors import (
        CheckpointError,
        DataError,
        DistributedError,
        DivergenceError,
        SolveError,
        StopTraining,
        StorageError,
        UnsupportedModelError,
    )
    from ipdlam.history import History, Record
    from ipdlam.initialisation import initialise
    from ipdlam.minibatch import MiniBatchIPDLAM
    from ipdlam.objective import Objective
    from ipdlam.trainer import DLAM, IPDLAM

# Imported when they are first used: `ipdlam --help` does not wait for torch.
HOMES = {
    "baselines": "ipdlam.baselines",
    "callbacks": "ipdlam.callbacks",
    "checkpoint": "ipdlam.checkpoint",
    "datasets": "ipdlam.datasets",
    "plots": "ipdlam.plots",
    "prox": "ipdlam.prox",
    "CheckpointError": "ipdlam.errors",
    "DataError": "ipdlam.errors",
    "DistributedError": "ipdlam.errors",
    "DivergenceError": "ipdlam.errors",
    "SolveError": "ipdlam.errors",
    "StopTraining": "ipdlam.errors",
    "StorageError": "ipdlam.errors",
    "UnsupportedModelError": "ipdlam.errors",
    "History": "ipdlam.history",
    "Record": "ipdlam.history",
    "initialise": "ipdlam.initialisation",
    "Objective": "ipdlam.objective",
    "DLAM": "ipdlam.trainer",
    "IPDLAM": "ipdlam.trainer",
    "MiniBatchIPDLAM": "ipdlam.minibatch",
}

__all__ = [
    "DLAM",
    "IPDLAM",
    "CheckpointError",
    "DataError",
    "DistributedError",
    "DivergenceError",
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
    found = home if home.__name__ == f"ipdlam.{name}" else getattr(home, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
