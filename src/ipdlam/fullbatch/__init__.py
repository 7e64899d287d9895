"""Algorithm 1 of the paper: z, W, b and a of all samples, one block after the other, each solved exactly.

``trainer`` is the algorithm line by line, ``updates`` the arithmetic of each line, ``orders`` which block comes when,
``passes`` one visit of the samples, ``moments`` the sums that W and b are solved from. ``state`` is what a run
remembers; its z and a live in ``memory`` or on ``disk``. Imported here: ``training`` and what it imports. Begin with
``trainer``.
"""

from ipdlam.fullbatch.trainer import DLAM, IPDLAM

__all__ = ["DLAM", "IPDLAM"]
