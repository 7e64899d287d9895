"""The paper's tables and figures, and the questions it leaves open.

``paper`` declares them, one short file each, with the classes of ``spec`` and the rules of ``claims``. ``store`` makes
and keeps runs, ``make`` turns them into rows and pictures, ``report`` and ``page`` into a report. Imported here:
``runs`` and what it imports. Begin with ``spec``.
"""

from ipdlam.experiments.paper import (
    bcd,
    decay,
    deep,
    defaults,
    fig1,
    fig2,
    fig3,
    order,
    penalty,
    readings,
    table1,
    warmup,
    weights,
)
from ipdlam.experiments.paper.setup import CHOSEN, LETTER, in_reading
from ipdlam.experiments.spec import Experiment

PAPER = (table1, fig1, fig2, fig3, order)
OPEN = (readings, decay, penalty, weights, defaults, warmup, deep, bcd)
EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        *(in_reading(CHOSEN, module.EXPERIMENT) for module in PAPER),
        *(module.EXPERIMENT for module in OPEN),
        *(in_reading(LETTER, module.EXPERIMENT) for module in PAPER),
    )
}
"""Name to experiment: those of the paper, what it leaves open, and those of the paper in the other reading."""

__all__ = ["EXPERIMENTS", "Experiment"]
