"""What is written to disk so that nothing is lost: whole or not at all, checked when it is read.

``files`` writes one file or folder atomically, ``format`` is what a checkpoint holds, ``together`` is how several
processes write one. Imported here: ``distributed``. Begin with ``format``.
"""

from ipdlam.checkpoint.format import Checkpoint, read_checkpoint, read_whole, write_checkpoint

__all__ = ["Checkpoint", "read_checkpoint", "read_whole", "write_checkpoint"]
