"""The special cases that the method must reduce to."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

import ipdlam
from ipdlam.fullbatch.moments import MomentSums
from ipdlam.fullbatch.updates import update_W
from ipdlam.prox import Ridge
from problems import assert_same_runs, make_data, make_model


def run(trainer, X, y, steps, **data):
    trainer.start(X, y, **data)
    for _ in range(steps):
        trainer.step(evaluate=False)
    return trainer


def assert_same_iterates(first, second, exact=False, rows=None):
    first, second = first.iterate(), second.iterate()
    for name in "zaWb":
        for l, ours in getattr(first, name).items():
            theirs = getattr(second, name)[l]
            ours = ours[rows] if rows is not None and name in "za" else ours
            if exact:
                assert torch.equal(ours, theirs), f"{name}{l}"
            else:
                torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def augmented_least_squares(X, Y, ridge=0.0):
    """Least squares with an intercept, the ridge on the weights alone, from the normal equations."""
    A = np.hstack([X.numpy(), np.ones((len(X), 1))])
    penalty = ridge * np.eye(A.shape[1])
    penalty[-1, -1] = 0.0
    solution = np.linalg.solve(A.T @ A + penalty, A.T @ Y.numpy())
    return torch.from_numpy(solution[:-1].T), torch.from_numpy(solution[-1])


@pytest.mark.parametrize("weight_proximity", [None, 1.0 / 512.0, (0.05, 1.0)], ids=str)
@pytest.mark.parametrize("strength", [0.0, 2.0])
def test_one_layer_with_squared_loss_is_least_squares_or_ridge_regression(strength, weight_proximity):
    """Proximal terms vanish at a fixed point: however heavy they are, it is the same."""
    X, Y = make_data(40, 4, 2)
    rho = 2.0
    regularizer = Ridge(strength, relative=False) if strength else None
    settings = {"penalty": rho, "penalty_growth": 1.0, "inertia": 0.9, "weight_proximity": weight_proximity}
    trainer = ipdlam.IPDLAM(make_model([4, 2]), regularizer=regularizer, **settings)
    trainer.start(X, Y)
    moved, steps = math.inf, 0
    while moved > 1e-14 and (steps := steps + 100) <= 1500:  # a fixed point
        before = trainer.iterate().W[1]
        for _ in range(100):
            trainer.step(evaluate=False)
        moved = float((trainer.iterate().W[1] - before).abs().max())
    # With z eliminated, Phi is (rho / (1 + rho)) ||Y - X W^T - b||^2 / 2 + R(W).
    W, b = augmented_least_squares(X, Y, strength * (1.0 + rho) / rho)
    iterate = trainer.iterate()
    torch.testing.assert_close(iterate.W[1], W, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(iterate.b[1], b, rtol=1e-8, atol=1e-10)


def test_relative_ridge_is_the_plain_one_times_penalty_and_samples():
    X, Y = make_data(30, 4, 3)
    settings = {"penalty": 0.5, "penalty_growth": 1.0, "inertia": 0.5}
    relative = ipdlam.IPDLAM(make_model([4, 5, 3]), regularizer=Ridge(0.01), **settings)
    plain = ipdlam.IPDLAM(make_model([4, 5, 3]), regularizer=Ridge(0.01 * 0.5 * 30, relative=False), **settings)
    assert_same_iterates(run(relative, X, Y, 4), run(plain, X, Y, 4))


@pytest.mark.parametrize("order", ["reverse", "nested-reverse"])
def test_the_proximal_weight_for_each_sample_is_that_in_all_over_their_number(order):
    X, Y = make_data(32, 4, 3)  # a power of two: 1/32 is exact
    printed = ipdlam.IPDLAM(make_model([4, 5, 3]), order=order)
    for_each = ipdlam.IPDLAM(make_model([4, 5, 3]), weight_proximity=1.0 / 32.0, order=order)
    assert_same_iterates(run(printed, X, Y, 5), run(for_each, X, Y, 5), exact=True)


def test_the_proximal_weight_for_each_sample_means_the_same_at_every_number_of_them():
    """Every sample twice gives the weights of every sample once; with a weight in all it does not."""
    X, Y = make_data(30, 4, 3)
    for weight_proximity, same in (((0.3, 0.7), True), (None, False)):
        settings = {"weight_proximity": weight_proximity, "inertia": 0.5}
        once = run(ipdlam.IPDLAM(make_model([4, 5, 3]), **settings), X, Y, 4).iterate()
        twice = run(ipdlam.IPDLAM(make_model([4, 5, 3]), **settings), X.repeat(2, 1), Y.repeat(2, 1), 4).iterate()
        assert torch.allclose(once.W[2], twice.W[2], rtol=1e-9, atol=1e-11) == same


def test_the_printed_update_of_b_has_a_weight_of_one_for_each_sample():
    """``b = (mean of z - W a + delta b_hat) / (1 + delta)`` is the exact update with delta for each sample."""
    X, Y = make_data(30, 4, 3)
    model, delta = make_model([4, 3]), 0.5
    b = model[0].bias.detach().clone()
    trainer = ipdlam.IPDLAM(model, proximity=delta, weight_proximity=(0.1, delta))
    after = run(trainer, X, Y, 1).iterate()
    residual = (after.z[1] - X @ after.W[1].mT).mean(0)
    torch.testing.assert_close(after.b[1], (residual + delta * b) / (1.0 + delta), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("order", ["reverse", "increase", "nested-reverse"])
def test_without_inertia_the_previous_iterate_does_not_matter(order):
    """PDLAM has no memory: whatever stands in the previous generation, the next iterate is the same."""
    X, Y = make_data(30, 4, 3)
    settings = {"inertia": 0.0, "penalty_growth": 1.0, "order": order}
    poisoned = run(ipdlam.IPDLAM(make_model([4, 5, 3]), **settings), X, Y, 2)
    state = poisoned._state
    for previous in (state.variables.W_previous, state.variables.b_previous):
        for l, tensor in previous.items():
            previous[l] = torch.full_like(tensor, 1e6)  # would show in any inertial point
    state.variables.shard.previous["a", 1].fill_(1e6)  # (that of z already holds what the next z update starts from)
    poisoned.step(evaluate=False)
    clean = run(ipdlam.IPDLAM(make_model([4, 5, 3]), **settings), X, Y, 3)
    assert poisoned.objective().value == pytest.approx(clean.objective().value, rel=1e-9)


@pytest.mark.parametrize("case", ["constant features", "fewer samples than features", "one sample"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_dlam_takes_the_solution_of_minimum_norm(case, dtype):
    samples = {"constant features": 50, "fewer samples than features": 6, "one sample": 1}[case]
    X, Y = make_data(samples, 12, 3, dtype=dtype)
    if case == "constant features":
        X[:, 3:7] = 0.0  # as the pixels of MNIST that are always black
        X[:, 9] = X[:, 8]
    model = make_model([12, 3], dtype=dtype)
    bias = model[0].bias.detach().clone()
    trainer = ipdlam.DLAM(model, regularizer=None, chunk_size=4)
    trainer.start(X, Y)
    goal = trainer._state.variables.shard.current[
        "z", 1
    ].clone()  # z of the first iteration, which the start has already made
    trainer.step(evaluate=False)
    expected = torch.linalg.pinv(X.double(), rtol=1e-5) @ (goal - bias).double()
    tolerance = 1e-9 if dtype == torch.float64 else 2e-3
    torch.testing.assert_close(trainer.iterate().W[1].double(), expected.mT, rtol=tolerance, atol=tolerance)


def hidden_direction(samples=4000):
    """Two features that hardly differ, and targets that are all in their difference: float32 hides it from the Gram."""
    torch.manual_seed(0)
    difference = torch.randn(samples, 1)
    A = torch.cat([torch.full((samples, 1), 5.0), 5.0 + 0.004 * difference, torch.randn(samples, 1)], dim=1)
    weights = torch.tensor([[-100.0, 100.0, 1.0], [100.0, -100.0, 2.0]])
    return A, weights, (A.double() @ weights.double().mT).float()


def moments_of(Z, A):
    sums = MomentSums(Z.shape[1], A.shape[1], Z.dtype, Z.device, name="layer 1", constant_input=False)
    for rows in torch.arange(len(A)).split(1000):
        sums.add(Z[rows], A[rows], None)
    return sums.take()


def misfit(W, Z, A):
    return float((Z.double() - A.double() @ W.double().mT).square().sum())


def updated(moments, W, first=False):
    return update_W(moments, W, W, None, 0.0, 0.0, 1.0, None, None if first else W)


def test_what_rounding_hides_is_given_up_in_the_first_update_only():
    A, weights, Z = hidden_direction()
    moments = moments_of(Z, A)
    off = weights + torch.tensor([0.0, 0.0, 0.5])
    assert misfit(updated(moments, off), Z, A) < 1.0
    minimum = updated(moments, off, first=True)
    assert minimum[:, :2].abs().max() < 0.01
    assert misfit(minimum, Z, A) > 100.0  # what it would cost in every one
    torch.testing.assert_close(updated(moments, minimum), minimum)


@pytest.mark.parametrize("first", [True, False])
def test_a_feature_that_is_always_zero_has_no_weight(first):
    A, weights, Z = hidden_direction()
    wider = torch.cat([A, torch.zeros(len(A), 1)], dim=1)
    found = updated(moments_of(Z, wider), torch.cat([weights, torch.ones(2, 1)], dim=1), first)
    assert torch.all(found[:, 3].abs() < 1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_no_later_update_of_the_weights_is_worse_than_none(seed):
    A, weights, Z = hidden_direction()
    torch.manual_seed(seed)
    start = weights + torch.tensor([0.0, 0.0, 0.1]) * torch.randn(2, 1)  # off where nothing is hidden
    moments = moments_of(Z, A)
    assert misfit(updated(moments, start), Z, A) <= misfit(start, Z, A) * (1.0 + 1e-6)
    assert misfit(updated(moments, start, first=True), Z, A) > misfit(start, Z, A)


def dlam_in_float32(steps):
    """DLAM without a ridge at a constant penalty; rounding comes to hide directions of hidden layers that matter."""
    digits = ipdlam.datasets.load("digits")
    model = ipdlam.initialise(make_model([64, 40, 40, 10], dtype=torch.float32), "paper", seed=0)
    trainer = ipdlam.DLAM(model, regularizer=None, penalty=1.0, penalty_growth=1.0)
    trainer.start(digits.X, digits.y)
    return trainer, [trainer.step().objective for _ in range(steps)]


def test_phi_of_dlam_falls_although_rounding_hides_directions():
    _, objectives = dlam_in_float32(25)
    assert all(after < before for before, after in itertools.pairwise(objectives)), objectives


def test_what_is_kept_is_kept_when_a_run_is_resumed(tmp_path):
    whole, _ = dlam_in_float32(25)
    part, _ = dlam_in_float32(12)
    part.save(tmp_path / "half")
    digits = ipdlam.datasets.load("digits")
    resumed = ipdlam.DLAM.load(tmp_path / "half", part.model, digits.X, digits.y)
    for _ in range(13):
        resumed.step()
    assert_same_runs(resumed, whole)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("depth", [2, 4])
def test_reverse_equals_increase_bit_for_bit(dtype, depth):
    X, y = make_data(50, 4, 3, "cross_entropy", dtype=dtype)
    widths = [4, *[6] * (depth - 1), 3]
    runs = [
        run(ipdlam.IPDLAM(make_model(widths, dtype=dtype), loss="cross_entropy", order=order, chunk_size=16), X, y, 6)
        for order in ("reverse", "increase")
    ]
    assert_same_iterates(*runs, exact=True)
    assert runs[0].objective() == runs[1].objective()


@pytest.mark.parametrize("order", ["reverse", "nested-reverse"])
def test_nested_reverse_is_another_method(order):
    X, Y = make_data(50, 4, 3)
    value = run(ipdlam.IPDLAM(make_model([4, 6, 3]), order=order), X, Y, 3).objective().value
    other = run(ipdlam.IPDLAM(make_model([4, 6, 3]), order="increase"), X, Y, 3).objective().value
    assert (value == other) is (order == "reverse")


@pytest.mark.parametrize("order", ["reverse", "nested-reverse"])
@pytest.mark.parametrize("regularizer", [None, Ridge(0.01)])
def test_integer_sample_weights_are_repeated_samples(order, regularizer):
    X, y = make_data(20, 4, 3, "logistic")
    counts = torch.randint(0, 4, (20,), generator=torch.Generator().manual_seed(0))
    settings = {"loss": "logistic", "order": order, "regularizer": regularizer, "inertia": 0.5}
    weighted = run(ipdlam.IPDLAM(make_model([4, 5, 3]), **settings), X, y, 4, sample_weight=counts)
    repeated = ipdlam.IPDLAM(make_model([4, 5, 3]), **settings)
    run(repeated, X.repeat_interleave(counts, 0), y.repeat_interleave(counts, 0), 4)
    rows = torch.arange(20).repeat_interleave(counts)
    assert_same_iterates(weighted, repeated, rows=rows)
    assert weighted.objective().value == pytest.approx(repeated.objective().value, rel=1e-10)
    assert weighted.objective().lyapunov == pytest.approx(repeated.objective().lyapunov, rel=1e-10)


def test_weights_of_one_are_no_weights():
    X, y = make_data(20, 4, 3, "hinge")
    plain = run(ipdlam.IPDLAM(make_model([4, 5, 3]), loss="hinge"), X, y, 4)
    ones = run(ipdlam.IPDLAM(make_model([4, 5, 3]), loss="hinge"), X, y, 4, sample_weight=torch.ones(20))
    assert_same_iterates(plain, ones)


def test_training_moves_the_model_itself():
    X, y = make_data(60, 4, 3, "cross_entropy")
    model = make_model([4, 8, 3])
    trainer = run(ipdlam.IPDLAM(model, loss="cross_entropy"), X, y, 3)
    linear = [module for module in model if isinstance(module, nn.Linear)]
    for l in (1, 2):
        assert torch.equal(linear[l - 1].weight, trainer.iterate().W[l])
        assert torch.equal(linear[l - 1].bias, trainer.iterate().b[l])
