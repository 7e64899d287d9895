"""ipdlam: neural networks trained by alternating minimisation instead of back-propagation."""

from ipdlam import prox
from ipdlam.errors import DivergenceError, SolveError, StopTraining, UnsupportedModelError
from ipdlam.history import History, Record
from ipdlam.initialise import initialise
from ipdlam.objective import Objective
from ipdlam.trainer import DLAM, IPDLAM
from ipdlam.version import __version__

__all__ = [
    "DLAM",
    "IPDLAM",
    "DivergenceError",
    "History",
    "Objective",
    "Record",
    "SolveError",
    "StopTraining",
    "UnsupportedModelError",
    "__version__",
    "initialise",
    "prox",
]
