"""A model and its data as the trainers see them.

``mlp`` reads an ``nn.Sequential`` as numbered layers, ``samples`` checks and holds X, y and weights, in memory or
mapped from files. ``objective`` is what training measures, ``linalg`` what it computes with. Imported here: ``prox``
and the checks. Begin with ``mlp``.
"""
