"""Other ways to train the same models, under the protocol of :class:`ipdlam.IPDLAM`, to compare with."""

from ipdlam.baselines.optimizers import OPTIMIZERS, BackPropagation

__all__ = ["OPTIMIZERS", "BackPropagation"]
