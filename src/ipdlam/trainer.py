"""Algorithm 1 of the paper on any ``nn.Sequential`` MLP; its lines stand in ``step`` and in :mod:`ipdlam.updates`."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ipdlam.errors import DivergenceError, SolveError
from ipdlam.evaluation import evaluate
from ipdlam.history import History, Record
from ipdlam.inputs import ArrayLike, Samples, check_samples
from ipdlam.linalg import all_finite, gain
from ipdlam.loop import Callback, Stopping, check_callbacks, run_loop
from ipdlam.network import Network
from ipdlam.objective import Objective, Tally, change_of, squared_distance, weighted_sum
from ipdlam.orders import Block, Visit, plan
from ipdlam.prox import Loss
from ipdlam.run import Iterate, Run
from ipdlam.schedules import PenaltySchedule
from ipdlam.settings import RegularizerLike, resolve_settings
from ipdlam.shards import Chunk, default_chunk_size
from ipdlam.updates import aim_z, update_a, update_b, update_hidden_z, update_output_z, update_W

ValidationData = tuple[ArrayLike, ArrayLike] | tuple[ArrayLike, ArrayLike, ArrayLike]


class IPDLAM:
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
        self.network = Network(model)
        rows = default_chunk_size(self.network) if chunk_size is None else chunk_size
        schedule = PenaltySchedule(penalty, penalty_growth, penalty_max)
        self.settings = resolve_settings(
            len(self.network), loss, regularizer, inertia, proximity, schedule, order, rows
        )
        self.plan = plan(self.settings.order)
        self._run: Run | None = None

    @property
    def model(self) -> nn.Sequential:
        """The model being trained."""
        return self.network.model

    @property
    def history(self) -> History:
        """The records of the run so far."""
        return self._started().history

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
        self.network, settings = self._read_again(), self.settings
        samples = check_samples(self.network, settings.loss, X, y, sample_weight)
        validation = None if validation_data is None else self._check_validation(validation_data)
        started = time.perf_counter()
        self._run = run = Run.begin(self.network, samples, validation, settings.chunk_size)
        penalty = settings.penalty.at(1)
        run.objective = self._objective(run, self._visit(run, self.plan.opening, penalty, penalty), penalty)
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
        objective = self._objective(run, tally, rho)
        self._check_finite(run, objective.is_finite)
        self.network.write(run.W, run.b)
        run.objective = objective
        run.iteration += 1
        run.seconds += time.perf_counter() - started
        run.whole = True
        return self._record(run, objective, evaluate)

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        iterations: int = 50,
        sample_weight: ArrayLike | None = None,
        validation_data: ValidationData | None = None,
        restore_best: bool = False,
        patience: int | None = None,
        target_score: float | None = None,
        evaluate_every: int = 1,
        callbacks: Iterable[Callback] = (),
    ) -> History:
        """Start from the model's weights and take up to ``iterations`` steps.

        ``restore_best`` leaves the weights of the best score; ``patience`` ends the run after so many evaluations
        without a better score; ``target_score`` ends it when reached (accuracy, or minus the mean loss for real
        targets; on validation data where given). Callbacks get each record and may raise :class:`ipdlam.StopTraining`.
        Ctrl-C ends the run with what has been trained, and ``fit`` returns as usual. ``step`` continues from the last
        iterate, also after ``restore_best``.
        """
        stopping = Stopping(iterations, restore_best, patience, target_score, evaluate_every)
        checked = check_callbacks(callbacks)
        self.start(X, y, sample_weight=sample_weight, validation_data=validation_data)
        return run_loop(lambda evaluate: self.step(evaluate=evaluate), self.network, self.history, stopping, checked)

    def _started(self) -> Run:
        if self._run is None:
            raise RuntimeError("no run has been started; call start(X, y) or fit(X, y) first")
        return self._run

    def _whole_run(self) -> Run:
        run = self._started()
        if not run.whole:
            raise RuntimeError(
                "the last iteration was interrupted half-way; call start(X, y) to go on from the model's weights"
            )
        return run

    def _read_again(self) -> Network:
        """The model as it is now: it may have been converted or changed since the trainer was made."""
        network = Network(self.model)
        if len(network) != len(self.network):
            raise ValueError(
                f"the model has {len(network)} layers, but had {len(self.network)} when the trainer was made; make a "
                "new one"
            )
        return network

    def _check_validation(self, validation_data: ValidationData) -> Samples:
        if not isinstance(validation_data, (tuple, list)) or len(validation_data) not in (2, 3):
            raise ValueError("validation_data must be (X, y) or (X, y, sample_weight)")
        X, y = validation_data[:2]
        weight = validation_data[2] if len(validation_data) == 3 else None
        return check_samples(self.network, self.settings.loss, X, y, weight, prefix="validation ")

    def _visit(self, run: Run, visit: Visit, rho: float, next_rho: float) -> Tally:
        """One pass over the data."""
        tally = Tally()
        gains = self._gains(run, (*visit.before, *visit.after))
        for chunk in run.shard.chunks():
            for block in visit.before:
                self._update(run, chunk, block, rho, gains)
            if visit.measures:
                self._measure(run, chunk, tally)
            for block in visit.after:
                self._update(run, chunk, block, next_rho, gains)
            for l in visit.moments:
                run.sums[l].add(chunk.z(l), chunk.a(l - 1), chunk.weight)
        run.shard.swap((*visit.before, *visit.after))
        return tally

    def _gains(self, run: Run, blocks: Iterable[Block]) -> dict[int, Tensor]:
        """What the a updates among the blocks share over all samples."""
        c = 1.0 + self.settings.proximity
        try:
            return {l: gain(run.W[l + 1], c, f"layer {l + 1}") for kind, l in blocks if kind == "a"}
        except SolveError as error:  # W W^T + c I is positive definite unless it overflows
            raise self._divergence(run) from error

    def _update(self, run: Run, chunk: Chunk, block: Block, rho: float, gains: dict[int, Tensor]) -> None:
        """The z or a update of one layer on one chunk."""
        l, network, delta = block.layer, self.network, self.settings.proximity
        previous = chunk.previous[block]
        if block.kind == "a":
            update_a(
                network.activation(l),
                chunk.z(l),
                chunk.a(l),
                previous,
                z_next=chunk.z(l + 1),
                W=run.W[l + 1],
                b=run.b[l + 1],
                K=gains[l],
                gamma=self.settings.inertia.a,
                delta=delta,
            )
        else:
            V = previous
            if l not in self.plan.foreseen:
                V = aim_z(run.preactivation(chunk, l), chunk.z(l), previous, self.settings.inertia.z, delta)
            if l < len(network):
                update_hidden_z(network.activation(l), chunk.a(l), V, delta)
            else:
                targets = run.shard.samples.targets(self.settings.loss, chunk.rows, network.outputs)
                update_output_z(self.settings.loss, targets, V, rho, delta)
        chunk.swap(block)

    def _measure(self, run: Run, chunk: Chunk, tally: Tally) -> None:
        """Add a chunk's share of the objective, and prepare the z updates that read the same products."""
        settings, samples, weight = self.settings, run.shard.samples, chunk.weight
        moving = settings.proximity > 0.0 and max(settings.inertia) > 0.0
        for l in self.network.numbers:
            z, z_previous = chunk.z(l), chunk.previous[Block("z", l)]
            P = run.preactivation(chunk, l)
            tally.linear_gap[l] += squared_distance(z, P, weight)
            if moving:
                tally.z_change += squared_distance(z, z_previous, weight)
            if l < len(self.network):
                a = chunk.a(l)
                tally.activation_gap[l] += squared_distance(a, z, weight, self.network.activation(l).value)
                if moving:
                    tally.a_change += squared_distance(a, chunk.previous[Block("a", l)], weight)
            else:
                tally.loss += weighted_sum(
                    settings.loss.value(samples.targets(settings.loss, chunk.rows, z.shape[1]), z), weight
                )
            if l in self.plan.foreseen:
                aim_z(P, z, z_previous, settings.inertia.z, settings.proximity)

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

    def _objective(self, run: Run, tally: Tally, rho: float) -> Objective:
        inertia, delta = self.settings.inertia, self.settings.proximity
        weight = run.shard.samples.weight
        n = float(len(run.shard.samples)) if weight is None else float(weight.double().sum())
        regularization = math.fsum(
            R.scale(rho, n) * float(R.value(run.W[l].double()))
            for l, R in zip(self.network.numbers, self.settings.regularizers, strict=True)
            if R is not None
        )
        weights_change = change_of((run.W[l], run.W_previous[l]) for l in run.W)
        weights_change += change_of((run.b[l], run.b_previous[l]) for l in run.b)
        energy = delta * (inertia.z * tally.z_change + inertia.weights * weights_change + inertia.a * tally.a_change)
        return Objective(
            rho,
            tally.loss,
            regularization,
            tuple(tally.linear_gap[l] for l in self.network.numbers),
            tuple(tally.activation_gap[l] for l in self.network.numbers[:-1]),
            energy,
        )

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

    def _record(self, run: Run, objective: Objective, evaluated: bool) -> Record:
        """Evaluate if asked and add the iteration to the history, whatever interrupts the evaluation."""
        scores: dict[str, Any] = {}
        try:
            if evaluated:
                size = self.settings.chunk_size
                train = evaluate(self.model, self.settings.loss, run.shard.samples, size)
                scores = {"train_loss": train.loss, "train_accuracy": train.accuracy}
                if run.validation is not None:
                    validation = evaluate(self.model, self.settings.loss, run.validation, size)
                    scores |= {"validation_loss": validation.loss, "validation_accuracy": validation.accuracy}
        finally:
            record = Record(iteration=run.iteration, seconds=run.seconds, **objective.terms(), **scores)
            run.history.append(record)
        return record


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
