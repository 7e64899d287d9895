"""Algorithm 1 of the paper on any ``nn.Sequential`` MLP."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from ipdlam.checkpoint.format import Checkpoint
from ipdlam.distributed.agreement import divide
from ipdlam.distributed.group import Group, Span, current_group, divide_work
from ipdlam.errors import DivergenceError, SolveError, StorageError
from ipdlam.fullbatch.disk_folder import check_folder, rank_folder
from ipdlam.fullbatch.memory import default_chunk_size
from ipdlam.fullbatch.orders import Visit, plan
from ipdlam.fullbatch.passes import objective_of, pass_over, solve_weights, sum_over
from ipdlam.fullbatch.schedules import PenaltySchedule
from ipdlam.fullbatch.settings import RegularizerLike, Settings, resolve_settings
from ipdlam.fullbatch.state import Iterate, Run
from ipdlam.network.history import Record
from ipdlam.network.linalg import all_finite
from ipdlam.network.mapped import map_samples
from ipdlam.network.mlp import Network
from ipdlam.network.objective import Objective, Tally
from ipdlam.network.samples import ArrayLike, Samples, ValidationData
from ipdlam.prox import Loss
from ipdlam.training.trainer import CountsIterations


class IPDLAM(CountsIterations[Run]):
    """Trains ``model`` in place by inertial proximal alternating minimisation; no gradient is back-propagated.

    One block of variables at a time, exactly, it minimises

        Phi = L(Y, Z_L) + sum_l R_l(W_l)
              + (rho / 2) (sum_l ||Z_l - A_(l-1) W_l^T - b_l||^2 + sum_l ||A_l - sigma_l(Z_l)||^2)

    plus the proximal term ``(delta rho / 2) ||x - x_hat||^2`` of the block ``x``; for W and b it may have a weight of
    its own. Where a process group of ``torch.distributed`` is initialised, its processes train one model together: each
    gives its own samples to ``fit``, ``start`` or ``load`` (docs/distributed.md).

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
        ``delta`` in all, as the paper's update of W is printed (docs/deviations.md).
    penalty, penalty_growth, penalty_max
        ``rho_0``, ``theta`` and the upper bound of ``rho`` in the paper.
    order
        ``"reverse"``, ``"increase"``, ``"nested-reverse"``, or every block once: ``["z2", "W2", "a1", "z1", "W1"]``.
    chunk_size
        How many samples are visited at a time; by default as many as suit the cache.
    storage
        A folder for z and a, which then live on its disk and not in memory; X and y may be memory-mapped and are read
        chunk by chunk. The iterates are the same to the bit. The files are removed when the run is over
        (docs/storage.md); :meth:`save` keeps it.
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
        weight_proximity: float | tuple[float, float] | None = None,
        penalty: float = 0.1,
        penalty_growth: float = 1.1,
        penalty_max: float = 1e6,
        order: str | Iterable[str | tuple[str, int]] = "reverse",
        chunk_size: int | None = None,
        storage: str | PathLike[str] | None = None,
    ) -> None:
        super().__init__(model)
        self.storage = None if storage is None else check_folder("storage", storage)
        rows = default_chunk_size(self.network) if chunk_size is None else chunk_size
        schedule = PenaltySchedule(penalty, penalty_growth, penalty_max)
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
        """Check the data, and initialise z and a by one forward pass of the model as it is (on rank 0)."""
        with self._meeting_others():
            self.network = self._read_again()
            self.network.refuse_beyond(inertia=max(self.settings.inertia), proximity=self.settings.proximity)
            samples, validation = self._check_data(X, y, sample_weight, validation_data)
            self._begin(samples, validation)

    def _begin(self, samples: Samples, validation: Samples | None) -> None:
        spans = self._divide(samples, validation)
        if spans is not None:
            W, b = self.network.read()
            self.group.same_([*W.values(), *(bias for bias in b.values() if bias is not None)])
            self.network.write(W, b)
        started = time.perf_counter()
        if self.storage is not None:
            self.close()  # the run before lives in the same folder
        self._run = run = Run.begin(self.network, samples, validation, self.chunk_size, self._own_storage())
        run.spans = spans
        penalty = self.settings.penalty.at(1)
        run.objective = objective_of(run, self.settings, self._visit(run, self.plan.opening, penalty, penalty), penalty)
        self._check_finite(run, run.objective.is_finite)
        run.seconds = self.group.first_number(time.perf_counter() - started)
        run.whole = True

    @torch.no_grad()
    def step(self, *, evaluate: bool = True) -> Record:
        """One iteration of Algorithm 1; ``evaluate`` runs the model on the data for the record's losses and accuracies.

        The z updates that open the next iteration are made in the same pass over the data as the a updates that close
        this one, and the objective is measured in between. The run keeps its own weights and writes them to the model:
        what else changes the model's weights between two steps is overwritten. ``start`` takes them up.
        """
        with self.group.telling(), self.network.in_full_precision():
            run = self._whole_run()
            run.whole = False
            return self._step(run, evaluate)

    def _step(self, run: Run, evaluate: bool) -> Record:
        started = time.perf_counter()
        penalty = self.settings.penalty
        rho, next_rho = penalty.at(run.iteration + 1), penalty.at(run.iteration + 2)  # line 8
        for stage in self.plan.stages:
            self._update_weights(run, stage.solves, rho)  # lines 2 and 6
            tally = self._visit(run, stage.visit, rho, next_rho)  # lines 1, 3, 4, 5 and 7, chunk by chunk
        objective = objective_of(run, self.settings, tally, rho)
        self._check_finite(run, objective.is_finite)
        self._note(run, f"iteration {run.iteration + 1} is complete")
        with self.group.in_step():  # all processes count the iteration, or none
            seconds = self.group.first_number(time.perf_counter() - started)
            self.network.write(run.W, run.b)
            run.objective = objective
            run.iteration += 1
            run.seconds += seconds
            run.whole = True
            record = self._record(run, objective, evaluate)
        return record

    def _next(self, evaluate: bool) -> Record:
        return self.step(evaluate=evaluate)

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        model: nn.Sequential,
        X: ArrayLike | None = None,
        y: ArrayLike | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        validation_data: ValidationData | None = None,
        storage: str | PathLike[str] | None = None,
    ) -> Self:
        """:meth:`ipdlam.training.trainer.Resumable.load` with z and a in the folder ``storage``, or in memory.

        It does not matter where they were when the checkpoint was saved; they are copied a part at a time. Nor does it
        matter how many processes saved it, and who of them held which samples.
        """
        checkpoint = cls._read(Path(path))
        return cls.take_up(
            checkpoint, model, X, y, sample_weight=sample_weight, validation_data=validation_data, storage=storage
        )

    @classmethod
    def take_up(
        cls,
        checkpoint: Checkpoint,
        model: nn.Sequential,
        X: ArrayLike | None = None,
        y: ArrayLike | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        validation_data: ValidationData | None = None,
        storage: str | PathLike[str] | None = None,
    ) -> Self:
        """:meth:`load` for a checkpoint that has been read."""
        group = cls._joined()
        with group.telling():
            trainer = cls._made_by(checkpoint, model)
            trainer.group = group
            trainer.storage = None if storage is None else check_folder("storage", storage)
            trainer._go_on_from(checkpoint, X, y, sample_weight, validation_data)
            group.agree()
        return trainer

    @classmethod
    def _joined(cls) -> Group:
        return current_group()

    def settings_dict(self) -> dict[str, Any]:
        return self.settings.to_dict()

    @classmethod
    def _from_settings(cls, model: nn.Sequential, settings: dict[str, Any]) -> Self:
        trainer = cls(model)
        trainer._adopt(Settings.from_dict(settings))
        if len(trainer.settings.regularizers) != len(trainer.network):
            raise ValueError("its settings are those of another network")
        if cls is DLAM and not trainer.settings.is_dlam:
            raise ValueError("it is of a run of IPDLAM; load it with IPDLAM.load")
        return trainer

    def _allocate(self, samples: Samples, validation: Samples | None) -> Run:
        spans = self._divide(samples, validation)
        run = Run.allocate(self.network, samples, validation, self.chunk_size, self._own_storage())
        run.spans = spans
        return run

    def _divide(self, samples: Samples, validation: Samples | None) -> tuple[Span, Span | None] | None:
        return divide(self.group, self._described(), self.network, samples, validation)

    def _described(self) -> dict[str, Any]:
        """The settings, to be compared; those that no registry knows by their class."""
        try:
            return self.settings_dict()
        except ValueError:
            settings = self.settings
            own = {
                name: getattr(settings, name)
                for name in ("proximity", "weight_proximity", "chunk_size", "penalty", "inertia")
            }
            kinds = [type(thing).__qualname__ for thing in (settings.loss, *settings.regularizers)]
            return {**own, "loss and regularizers": kinds, "order": [str(block) for block in settings.order]}

    def _own_storage(self) -> Path | None:
        """The folder of this process's z and a."""
        if self.storage is None or self.group.size == 1:
            return self.storage
        return self.storage / rank_folder(self.group.rank, self.group.size)

    def _samples(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, prefix: str = "") -> Samples:
        if self.storage is None:
            return super()._samples(X, y, sample_weight, prefix)
        part = self.group.size > 1
        return map_samples(self.network, self.loss, X, y, sample_weight, prefix, part=part)

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
        self._note(run, f"iteration {run.iteration + 1} is under way")
        try:
            tally = pass_over(run, self.network, self.settings, self.plan, visit, rho, next_rho)
        except SolveError as error:  # W W^T + c I of the a update is positive definite unless it overflows
            raise self._divergence(run) from error
        except StorageError as error:
            raise self._lost(run, error) from error
        return sum_over(self.group, run, visit, tally)

    def _note(self, run: Run, progress: str) -> None:
        try:
            run.shard.note(progress)
        except StorageError as error:
            raise self._lost(run, error) from error

    def _lost(self, run: Run, error: StorageError) -> StorageError:
        """What to raise where the state of a run cannot be read or written any more; the run is over."""
        run.close()
        run.history.stop_reason = "storage"
        return StorageError(
            f"{error}. The model holds the weights of iteration {run.iteration} (the best ones with restore_best); "
            "start begins from them"
        )

    def _update_weights(self, run: Run, layers: Sequence[int], rho: float) -> None:
        """The W updates of some layers, and after each its b update; no layer reads another's.

        A layer is solved for by one process, which gives its weights to the others: that is faster than if all of them
        solved for all, and the weights are the same to the bit whatever machines they are.
        """
        owners = divide_work({l: self.network[l].inputs ** 2 * sum(run.W[l].shape) for l in layers}, self.group.size)
        new: dict[int, list[Tensor]] = defaultdict(list)
        for l in layers:
            moments = run.sums[l].take()
            self._check_finite(run, all_finite(moments.ZtA) and all_finite(moments.AtA.matrix))
            W, b = run.W[l], run.b[l]
            if owners[l] == self.group.rank:
                run.W[l], run.b[l] = solve_weights(run, self.settings, l, moments, rho)
            else:
                run.W[l], run.b[l] = torch.empty_like(W), None if b is None else torch.empty_like(b)
            if self.group.size > 1:
                run.W[l] = run.W[l].contiguous()  # laid out alike on all ranks, for equal bits after a resume
            run.W_previous[l], run.b_previous[l] = W, b
            new[owners[l]] += [tensor for tensor in (run.W[l], run.b[l]) if tensor is not None]
        self.group.spread_(new)
        for l in layers:
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
    solutions of minimum norm as far as rounding lets that be seen. Along directions that rounding hides, the first
    iteration after a start begins from nothing, also where the model was trained before (``continue_fit`` does not).
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
