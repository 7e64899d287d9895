"""Algorithm 1 of the paper on any ``nn.Sequential`` MLP: :meth:`IPDLAM._iteration` is one iteration, line by line."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn
from typing_extensions import Self

from ipdlam import defaults
from ipdlam.distributed.agreement import divide
from ipdlam.fullbatch.disk_folder import check_folder, rank_folder
from ipdlam.fullbatch.orders import plan
from ipdlam.fullbatch.passes import NotFiniteError, objective_of, pass_over, solve_layers, sum_over
from ipdlam.fullbatch.settings import PenaltyFunction, PenaltySchedule, RegularizerLike, Settings, resolve_settings
from ipdlam.fullbatch.state import FullBatchState, Iterate, Variables
from ipdlam.network.mlp import Network
from ipdlam.network.objective import Objective
from ipdlam.network.samples import Samples
from ipdlam.prox import Loss
from ipdlam.training.trainer import CountsIterations


class IPDLAM(CountsIterations[FullBatchState]):
    """Trains ``model`` in place by inertial proximal alternating minimisation; no gradient is back-propagated.

    One block of variables at a time, exactly, it minimises

        Phi = L(Y, Z_L) + sum_l R_l(W_l)
              + (rho / 2) (sum_l ||Z_l - A_(l-1) W_l^T - b_l||^2 + sum_l ||A_l - sigma_l(Z_l)||^2)

    plus the proximal term ``(delta rho / 2) ||x - x_hat||^2`` of the block ``x``; for W and b it may have a weight of
    its own. Where a process group of ``torch.distributed`` is initialised, its processes train one model together: each
    gives its own samples to ``fit``, ``start`` or ``load`` (docs/guide/distributed.md).

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
    weight_proximity
        The weight of the proximal terms of W and b for each sample, or two of them: for W and for b. It takes the place
        of ``delta`` there, times the number of samples, and so means the same however many there are. None is
        ``delta`` in all, as the paper's update of W is printed (docs/method/deviations.md).
    penalty, penalty_growth, penalty_max
        ``rho_0``, ``theta`` and the upper bound of ``rho`` in the paper. A function of the iteration, which counts from
        1, takes the place of all three; such a run cannot be saved.
    order
        ``"reverse"``, ``"increase"``, ``"nested-reverse"``, or every block once: ``["z2", "W2", "a1", "z1", "W1"]``.
    chunk_size
        How many samples are visited at a time; by default as many as suit the cache.
    storage
        A folder for z and a, which then live on its disk and not in memory; X and y may be memory-mapped and are read
        chunk by chunk. The iterates are the same to the bit. The files are removed when the run is over
        (docs/guide/storage.md); :meth:`save` keeps it.
    """

    saved_as = "IPDLAM"
    trains_together = True
    remedy = "Use less inertia (below 1), a larger proximity, or scale the inputs"

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: str | Loss = defaults.LOSS,
        regularizer: RegularizerLike | Sequence[RegularizerLike] = defaults.REGULARIZER,
        inertia: float | tuple[float, float, float] = defaults.INERTIA,
        proximity: float = defaults.PROXIMITY,
        weight_proximity: float | tuple[float, float] | None = None,
        penalty: float | Callable[[int], float] = defaults.PENALTY,
        penalty_growth: float = defaults.PENALTY_GROWTH,
        penalty_max: float = defaults.PENALTY_MAX,
        order: str | Iterable[str | tuple[str, int]] = defaults.ORDER,
        chunk_size: int | None = None,
        storage: str | PathLike[str] | None = None,
    ) -> None:
        super().__init__(model)
        self._keep_in(storage)
        rows = self.network.chunk_size if chunk_size is None else chunk_size
        own = PenaltyFunction(penalty) if callable(penalty) else None
        schedule = own or PenaltySchedule(penalty, penalty_growth, penalty_max)  # type: ignore[arg-type]
        layers = len(self.network)
        self._adopt(
            resolve_settings(layers, loss, regularizer, inertia, proximity, weight_proximity, schedule, order, rows)
        )

    def objective(self) -> Objective:
        """Phi term by term, and the gaps, at the current iterate."""
        objective = self._started().objective
        assert objective is not None
        return objective

    def iterate(self) -> Iterate:
        """Copies of all variables after the last finished iteration."""
        return self._whole_state().variables.iterate(self.plan.ahead)

    def _iteration(self, state: FullBatchState) -> Objective:
        """Algorithm 1, lines 1 to 8; layers and their order are data (:mod:`ipdlam.fullbatch.orders`).

        The z updates that open the next iteration are made in the same pass over the data as the a updates that close
        this one, and the objective is measured in between.
        """
        started, network, group, settings = time.perf_counter(), self.network, self.group, self.settings
        variables, first = state.variables, state.iteration == 0
        rho, next_rho = (settings.penalty.at(state.iteration + ahead) for ahead in (1, 2))  # line 8
        try:
            with state.under_way():
                for stage in self.plan.stages:
                    # Lines 2 and 6: W and b of some layers, from the sums of the pass before.
                    solve_layers(group, variables, settings, stage.solves, rho, first)
                    # Lines 1, 3, 4, 5 and 7: z and a, chunk by chunk, and the sums for the next solves.
                    tally = pass_over(variables, network, settings, self.plan, stage.visit, rho, next_rho)
                    tally = sum_over(group, variables, stage.visit, tally)
                objective = finite(objective_of(variables, settings, tally, rho))
        except NotFiniteError as error:
            raise self._divergence(state) from error
        with group.in_step():  # all processes count the iteration, or none
            seconds = group.first_number(time.perf_counter() - started)
            network.write(variables.W, variables.b)
            state.objective = objective
            state.count(seconds)
        return objective

    def _begin(self, samples: Samples, validation: Samples | None) -> FullBatchState:
        """Initialise z and a by one forward pass, and open the first iteration."""
        spans = divide(self.group, self._described(), self.network, samples, validation)
        if spans is not None:
            W, b, _ = self.network.read()
            self.group.same_([*W.values(), *(bias for bias in b.values() if bias is not None)])
            self.network.write(W, b)
        if self.storage is not None:
            self.close()  # the run before lives in the same folder
        variables = Variables.begin(self.network, samples, self.chunk_size, self._own_storage())
        state = FullBatchState(samples, validation, variables, spans=spans)
        self._state = state  # not whole yet; what fails says what it leaves
        rho, opening = self.settings.penalty.at(1), self.plan.opening
        try:
            with state.under_way(opening=True):
                tally = pass_over(variables, self.network, self.settings, self.plan, opening, rho, rho)
                tally = sum_over(self.group, variables, opening, tally)
                state.objective = finite(objective_of(variables, self.settings, tally, rho))
        except NotFiniteError as error:
            raise self._divergence(state) from error
        return state

    def _allocate(self, samples: Samples, validation: Samples | None) -> FullBatchState:
        spans = divide(self.group, self._described(), self.network, samples, validation)
        variables = Variables.allocate(self.network, samples, self.chunk_size, self._own_storage())
        return FullBatchState(samples, validation, variables, spans=spans)

    def settings_dict(self) -> dict[str, Any]:
        return self.settings.to_dict()

    @classmethod
    def _from_settings(cls, model: nn.Module, settings: dict[str, Any]) -> Self:
        trainer = cls(model)
        trainer._adopt(Settings.from_dict(settings))
        return trainer

    def _check_settings(self) -> None:
        if len(self.settings.regularizers) != len(self.network):
            raise ValueError("its settings are those of another network")
        if isinstance(self, DLAM) and not self.settings.is_dlam:
            raise ValueError("it is of a run of IPDLAM; load it with IPDLAM.load")

    def _described(self) -> dict[str, Any]:
        """The settings, to be compared; those that no registry knows by their class."""
        try:
            return self.settings_dict()
        except ValueError:
            settings = self.settings
            own = {name: getattr(settings, name) for name in ("proximity", "weight_proximity", "chunk_size", "inertia")}
            own["penalty"] = repr(settings.penalty) if isinstance(settings.penalty, PenaltySchedule) else "a function"
            kinds = [type(thing).__qualname__ for thing in (settings.loss, *settings.regularizers)]
            return {**own, "loss and regularizers": kinds, "order": [str(block) for block in settings.order]}

    def _adopt(self, settings: Settings) -> None:
        self.settings = settings
        self.plan = plan(settings.order)
        self.loss, self.chunk_size = settings.loss, settings.chunk_size

    def _keep_in(self, storage: str | PathLike[str] | None) -> None:
        self.storage = None if storage is None else check_folder("storage", storage)

    def _own_storage(self) -> Path | None:
        """The folder of this process's z and a."""
        if self.storage is None or self.group.size == 1:
            return self.storage
        return self.storage / rank_folder(self.group.rank, self.group.size)

    def _read_again(self) -> Network:
        network = super()._read_again()
        if len(network) != len(self.network):
            raise ValueError(
                f"the model has {len(network)} layers, but had {len(self.network)} when the trainer was made; make a "
                "new one"
            )
        network.refuse_beyond(inertia=max(self.settings.inertia), proximity=self.settings.proximity)
        assert isinstance(network, Network)
        return network


class DLAM(IPDLAM):
    """Deep learning alternating minimisation: :class:`IPDLAM` without inertia and without proximal terms.

    It has the same default ridge. ``regularizer=None`` is the DLAM of the paper, whose weights are the least-squares
    solutions of minimum norm as far as rounding lets that be seen. Along directions that rounding hides, the first
    iteration after a start begins from nothing, also where the model was trained before (``continue_fit`` does not).
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: str | Loss = defaults.LOSS,
        regularizer: RegularizerLike | Sequence[RegularizerLike] = defaults.REGULARIZER,
        penalty: float | Callable[[int], float] = defaults.PENALTY,
        penalty_growth: float = defaults.PENALTY_GROWTH,
        penalty_max: float = defaults.PENALTY_MAX,
        order: str | Iterable[str | tuple[str, int]] = defaults.ORDER,
        chunk_size: int | None = None,
        storage: str | PathLike[str] | None = None,
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
            storage=storage,
        )


def finite(objective: Objective) -> Objective:
    """The objective, if it is a number."""
    if not objective.is_finite:
        raise NotFiniteError("the objective")
    return objective
