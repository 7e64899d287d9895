"""The method on mini-batches: a forward pass, a sweep of targets back down, and a step of every layer towards them.

``step`` is what happens to one batch, ``sweep`` where the layers are wanted, ``input_memory`` what a change costs,
``rescale`` the first batch, ``levelling`` how convolutions move, ``schedule`` how long the steps are. ``epoch`` goes
through the batches, ``state`` is what a run remembers, ``trainer`` the interface. Imported here: ``training`` and what
it imports. Begin with ``step``.
"""

from ipdlam.minibatch.trainer import MiniBatchIPDLAM

__all__ = ["MiniBatchIPDLAM"]
