"""A model and its data as the trainers see them.

``model`` is what all trainers ask of a model. ``mlp`` reads a perceptron as the numbered layers of the paper. ``trace``
makes nodes of any other model, ``nodes`` and ``layers`` are their kinds, without and with parameters, ``blocks`` are
layers side by side, ``graph`` runs them, and ``architectures`` are networks by name. ``samples`` checks and holds X, y
and weights, in memory or mapped from files. ``objective`` is what training measures, ``linalg`` what it computes with,
``arithmetic`` in which precision products are taken. Imported here: ``prox`` and the checks. Begin with ``graph``, or
for the paper's method with ``mlp``.
"""
