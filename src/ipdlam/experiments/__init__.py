"""The paper's tables and figures, and the questions it leaves open: one short file each."""

from ipdlam.experiments import bcd, decay, deep, defaults, fig1, fig2, fig3, order, penalty, table1, warmup
from ipdlam.experiments.base import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (table1, fig1, fig2, fig3, order, decay, penalty, defaults, warmup, deep, bcd)
}
"""Name to experiment, in the order of the paper."""

__all__ = ["EXPERIMENTS", "Experiment"]
