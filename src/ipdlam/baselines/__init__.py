"""What the method is compared with, under the same protocol: torch's optimizers and other alternating methods."""

from ipdlam.baselines.batch_by_batch import BatchByBatch
from ipdlam.baselines.bcd import BCD
from ipdlam.baselines.dladmm import DLADMM
from ipdlam.baselines.optimizers import OPTIMIZERS, BackPropagation
from ipdlam.baselines.protocol import Baseline

__all__ = ["BCD", "DLADMM", "OPTIMIZERS", "BackPropagation", "Baseline", "BatchByBatch"]
