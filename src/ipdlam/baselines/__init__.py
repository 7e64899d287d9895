"""What the method is compared with, under the same protocol: torch's optimizers and other alternating methods.

``protocol`` is what all of them share, and one file each has the rest: ``optimizers`` is the only place that
back-propagates, ``bcd`` and ``dladmm`` are other authors' methods, ``batch_by_batch`` is another reading of the paper.
Imported here: ``fullbatch``, ``minibatch`` and what they import. Begin with ``protocol``.
"""

from ipdlam.baselines.batch_by_batch import BatchByBatch
from ipdlam.baselines.bcd import BCD
from ipdlam.baselines.dladmm import DLADMM
from ipdlam.baselines.optimizers import OPTIMIZERS, BackPropagation
from ipdlam.baselines.protocol import Baseline

__all__ = ["BCD", "DLADMM", "OPTIMIZERS", "BackPropagation", "Baseline", "BatchByBatch"]
