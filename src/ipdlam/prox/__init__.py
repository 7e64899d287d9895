"""Proximal operators of activations, losses and regularisers; the registries are open to users.

``base`` says what an operator is, ``activations`` (with ``smooth``, ``curves`` and their solvers ``newton``, ``search``
and ``scan``), ``losses`` (with ``softmax``, and ``members`` for several networks) and ``regularizers`` hold them,
``registry`` finds them by name, and ``certificate`` checks one of your own. Imported here: the checks. Begin with
``base``.
"""

from ipdlam.prox.activations import (
    ACTIVATIONS,
    Hardtanh,
    Identity,
    LeakyReLU,
    PiecewiseLinear,
    ReLU,
    ReLU6,
)
from ipdlam.prox.base import Activation, Loss, Regularizer
from ipdlam.prox.certificate import check
from ipdlam.prox.curves import ELU, GELU, SELU, Hardswish, Mish, SiLU
from ipdlam.prox.losses import LOSSES, Absolute, Hinge, Huber, Logistic, MarginLoss, Quantile, Squared, SquaredHinge
from ipdlam.prox.regularizers import L1, REGULARIZERS, ElasticNet, NonNegative, Ridge
from ipdlam.prox.smooth import Sigmoid, Softplus, Tanh
from ipdlam.prox.softmax import CrossEntropy

__all__ = [
    "ACTIVATIONS",
    "ELU",
    "GELU",
    "L1",
    "LOSSES",
    "REGULARIZERS",
    "SELU",
    "Absolute",
    "Activation",
    "CrossEntropy",
    "ElasticNet",
    "Hardswish",
    "Hardtanh",
    "Hinge",
    "Huber",
    "Identity",
    "LeakyReLU",
    "Logistic",
    "Loss",
    "MarginLoss",
    "Mish",
    "NonNegative",
    "PiecewiseLinear",
    "Quantile",
    "ReLU",
    "ReLU6",
    "Regularizer",
    "Ridge",
    "SiLU",
    "Sigmoid",
    "Softplus",
    "Squared",
    "SquaredHinge",
    "Tanh",
    "check",
]
