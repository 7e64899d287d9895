"""Algorithm 1 of the paper on any ``nn.Sequential`` MLP; its lines stand in ``step`` and in :mod:`ipdlam.updates`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from typing_extensions import Self

from ipdlam.errors import DivergenceError, SolveError
from ipdlam.history import Record
from ipdlam.inputs import ArrayLike, Samples, ValidationData
from ipdlam.linalg import all_finite
from ipdlam.network import Network
from ipdlam.objective import Objective, Tally
from ipdlam.orders import Visit, plan
from ipdlam.passes import objective_of, pass_over
from ipdlam.prox import Loss
from ipdlam.resumable import CountsIterations
from ipdlam.run import Iterate, Run
from ipdlam.schedules import PenaltySchedule
from ipdlam.settings import RegularizerLike, Settings, resolve_settings
from ipdlam.shards import default_chunk_size
from ipdlam.updates import update_b, update_W


class IPDLAM(CountsIterations[Run]):
    """Trains ``model`` in place by inertial proximal alternating minimisation; no gradient is back-propagated.

    One block of variables at a time, exactly, it minimises

        Phi = L(Y, Z_L) + sum_l R_l(W_l)
              + (rho / 2) (sum_l ||Z_l - A_(l-1) W_l^T - b_l||^2 + sum_l ||A_l - sigma_l(Z_l)||^2)

    plus the proximal term ``(delta rho / 2) ||x - x_hat||^2`` of the block ``x``.

    Parameters
    ----------
    model
        An ``nn.Sequential`` of Linear layers and activations of ``ipdlam.prox.ACTIVATIONS``, the last one Linear.
    loss
        A name in ``ipdlam.prox.LOSSES`` or a ``Loss``.
    regularizer
        A name in ``ipdlam.prox.REGULARIZERS``, a ``Regularizer``, None, or one of these for each layer. The paper has
        none; the default, a ridge of 1e-5 for each sample and unit of penalty, keeps the accuracy from decaying.
    inertia
        ``alpha = beta = gamma`` in the paper, or the three of them: for z, for W and b, for a.
    proximity
        ``delta`` in the paper.
    penalty, penalty_growth, penalty_max
        ``rho_0``, ``theta`` and the upper bound of ``rho`` in the paper.
    order
        ``"reverse"``, ``"increase"``, ``"nested-reverse"``, or every block once: ``["z2", "W2", "a1", "z1", "W1"]``.
    chunk_size
        How many samples are visited at a time; by default as many as suit the cache.
    """

    saved_as = "IPDLAM"

    def __init__(
        self,
        model: nn.Sequential,
        *,
        loss: str | Loss = "squared",
        regularizer: RegularizerLike | Sequence[RegularizerLike] = "ridge",
        inertia: float | tuple[float, float, float] = 0.7,
        proximity: float = 1.0,
        penalty: float = 0.1,
        penalty_growth: float = 1.1,
        penalty_max: float = 1e6,
        order: str | Iterable[str | tuple[str, int]] = "reverse",
        chunk_size: int | None = None,
    ) -> None:
        super().__init__(model)
        rows = default_chunk_size(self.network) if chunk_size is None else chunk_size
        schedule = PenaltySchedule(penalty, penalty_growth, penalty_max)
        layers = len(self.network)
        self._adopt(resolve_settings(layers, loss, regularizer, inertia, proximity, schedule, order, rows))

    def objective(self) -> Objective:
        """Phi term by term, and the gaps, at the current iterate."""
        objective = self._started().objective
        assert objective is not None
        return objective

    def iterate(self) -> Iterate:
        """Copies of all variables after the last finished iteration."""
        return self._whole_run().iterate(self.plan.ahead)

    @torch.no_grad()
    def start(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        sample_weight: ArrayLike | None = None,
        validation_data: ValidationData | None = None,
    ) -> None:
        """Check the data, and initialise z and a by one forward pass of the model as it is."""
        self.network = self._read_again()
        samples, validation = self._check_data(X, y, sample_weight, validation_data)
        started = time.perf_counter()
        self._run = run = Run.begin(self.network, samples, validation, self.chunk_size)
        penalty = self.settings.penalty.at(1)
        run.objective = objective_of(run, self.settings, self._visit(run, self.plan.opening, penalty, penalty), penalty)
        self._check_finite(run, run.objective.is_finite)
        run.seconds = time.perf_counter() - started
        run.whole = True

    @torch.no_grad()
    def step(self, *, evaluate: bool = True) -> Record:
        """One iteration of Algorithm 1; ``evaluate`` runs the model on the data for the record's losses and accuracies.

        The z updates that open the next iteration are made in the same pass over the data as the a updates that close
        this one, and the objective is measured in between. The run keeps its own weights and writes them to the model:
        what else changes the model's weights between two steps is overwritten. ``start`` takes them up.
        """
        run = self._whole_run()
        run.whole = False
        started = time.perf_counter()
        penalty = self.settings.penalty
        rho, next_rho = penalty.at(run.iteration + 1), penalty.at(run.iteration + 2)  # line 8
        for stage in self.plan.stages:
            for layer in stage.solves:
                self._update_weights(run, layer, rho)  # lines 2 and 6
            tally = self._visit(run, stage.visit, rho, next_rho)  # lines 1, 3, 4, 5 and 7, chunk by chunk
        objective = objective_of(run, self.settings, tally, rho)
        self._check_finite(run, objective.is_finite)
        self.network.write(run.W, run.b)
        run.objective = objective
        run.iteration += 1
        run.seconds += time.perf_counter() - started
        run.whole = True
        return self._record(run, objective, evaluate)

    def _next(self, evaluate: bool) -> Record:
        return self.step(evaluate=evaluate)

    def settings_dict(self) -> dict[str, Any]:
        return self.settings.to_dict()

    @classmethod
    def _from_settings(cls, model: nn.Sequential, settings: dict[str, Any]) -> Self:
        trainer = cls(model)
        trainer._adopt(Settings.from_dict(settings))
        if len(trainer.settings.regularizers) != len(trainer.network):
            raise ValueError("its settings are those of another network")
        if cls is DLAM and (trainer.settings.proximity > 0.0 or max(trainer.settings.inertia) > 0.0):
            raise ValueError("it is of a run of IPDLAM; load it with IPDLAM.load")
        return trainer

    def _allocate(self, samples: Samples, validation: Samples | None) -> Run:
        return Run.allocate(self.network, samples, validation, self.chunk_size)

    def _adopt(self, settings: Settings) -> None:
        self.settings = settings
        self.plan = plan(settings.order)
        self.loss, self.chunk_size = settings.loss, settings.chunk_size

    def _read_again(self) -> Network:
        """The model as it is now: it may have been converted or changed since the trainer was made."""
        network = Network(self.model)
        if len(network) != len(self.network):
            raise ValueError(
                f"the model has {len(network)} layers, but had {len(self.network)} when the trainer was made; make a "
                "new one"
            )
        return network

    def _visit(self, run: Run, visit: Visit, rho: float, next_rho: float) -> Tally:
        try:
            return pass_over(run, self.network, self.settings, self.plan, visit, rho, next_rho)
        except SolveError as error:  # W W^T + c I of the a update is positive definite unless it overflows
            raise self._divergence(run) from error

    def _update_weights(self, run: Run, l: int, rho: float) -> None:
        """The W update of one layer, then its b update."""
        moments = run.sums[l].take()
        self._check_finite(run, all_finite(moments.ZtA) and all_finite(moments.AtA.matrix))
        beta, delta = self.settings.inertia.weights, self.settings.proximity
        W, b = run.W[l], run.b[l]
        run.W[l] = update_W(moments, W, run.W_previous[l], b, beta, delta, rho, self.settings.regularizers[l - 1])
        run.W_previous[l] = W
        b_previous = run.b_previous[l]
        if b is not None and b_previous is not None:
            run.b[l] = update_b(moments, run.W[l], b, b_previous, beta, delta)
            run.b_previous[l] = b
        self._check_finite(run, all_finite(run.W[l]))

    def _check_finite(self, run: Run, finite: bool) -> None:
        if not finite:
            raise self._divergence(run)

    def _divergence(self, run: Run) -> DivergenceError:
        run.history.stop_reason = "diverged"
        return DivergenceError(
            f"iteration {run.iteration + 1} is not finite; the model holds the weights of iteration {run.iteration} "
            "(the best ones with restore_best). Use less inertia (below 1), a larger proximity, or scale the inputs",
            run.history,
        )


class DLAM(IPDLAM):
    """Deep learning alternating minimisation: :class:`IPDLAM` without inertia and without proximal terms.

    It has the same default ridge. ``regularizer=None`` is the DLAM of the paper, whose weights are the least-squares
    solutions of minimum norm.
    """

    def __init__(
        self,
        model: nn.Sequential,
        *,
        loss: str | Loss = "squared",
        regularizer: RegularizerLike | Sequence[RegularizerLike] = "ridge",
        penalty: float = 0.1,
        penalty_growth: float = 1.1,
        penalty_max: float = 1e6,
        order: str | Iterable[str | tuple[str, int]] = "reverse",
        chunk_size: int | None = None,
    ) -> None:
        super().__init__(
            model,
            loss=loss,
            regularizer=regularizer,
            inertia=0.0,
            proximity=0.0,
            penalty=penalty,
            penalty_growth=penalty_growth,
            penalty_max=penalty_max,
            order=order,
            chunk_size=chunk_size,
        )
