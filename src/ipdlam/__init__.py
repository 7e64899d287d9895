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
MODULES = {
    **{name: f"ipdlam.{name}" for name in ("baselines", "checkpoint", "datasets", "prox")},
    **{name: f"ipdlam.training.{name}" for name in ("callbacks", "plots")},
}
ERRORS = (
    *("CheckpointError", "DataError", "DistributedError", "DivergenceError", "FileError", "SolveError"),
    *("StopTraining", "StorageError", "UnsupportedModelError"),
)
HOMES = {
    **MODULES,
    **dict.fromkeys(ERRORS, "ipdlam.errors"),
    **dict.fromkeys(("History", "Record"), "ipdlam.training.history"),
    "initialise": "ipdlam.network.initialise",
    "Objective": "ipdlam.network.objective",
    **dict.fromkeys(("DLAM", "IPDLAM"), "ipdlam.fullbatch.trainer"),
    "MiniBatchIPDLAM": "ipdlam.minibatch.trainer",
}

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
