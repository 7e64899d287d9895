"""What all trainers share: ``fit``, ``continue_fit``, ``save`` and ``load``, the loop, evaluation and callbacks.

``trainer`` is the skeleton that every method fills in, ``state`` what every run remembers, ``loop`` decides when a run
ends, ``history`` is what it leaves behind, and ``plots`` draws it. Nothing here knows a method. Imported here:
``checkpoint``, ``distributed`` and ``network``. Begin with ``trainer``.
"""
