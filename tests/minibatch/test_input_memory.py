"""The memory of a layer's inputs, and the metric that it gives the weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from certify import normal, uniform
from ipdlam.minibatch.input_memory import OUTPUT_DAMPING, REMEMBERED_SAMPLES, WISHES_NEEDED, InputMemory, WishMemory
from ipdlam.network.linalg import complete_symmetric

CPU = torch.device("cpu")


def memory(width=6, rank=6, proximity=0.7, centred=True, dtype=torch.float64):
    return InputMemory(width, rank, proximity, centred, dtype, CPU)


def inputs(rows, width=6, seed=0):
    """Correlated, of unequal sizes, and not centred."""
    return normal(rows, width, seed=seed) @ normal(width, width, seed=99) + 3.0 * normal(width, seed=98)


def second(kept):
    return complete_symmetric(kept.second.clone())


def covariance(a, centred):
    return np.cov(a.numpy(), rowvar=False, bias=True) if centred else (a.mT @ a / len(a)).numpy()


def metric(kept):
    """M as it is defined; what is kept of the eigenvalues is how much less they are in M^-1 than the damping."""
    e = kept.damping * kept.shrink / (1.0 - kept.shrink)
    return kept.U @ torch.diag(e) @ kept.U.mT + kept.damping * torch.eye(len(kept.U), dtype=kept.U.dtype)


@pytest.mark.parametrize("width", [1, 6, 130, 300])  # wide ones are summed in strips
def test_averages_are_those_of_all_batches_while_nothing_is_forgotten(width):
    kept = memory(width, rank=4)
    batches = [inputs(rows, width, seed) for seed, rows in enumerate([10, 1, 33, 2])]
    for batch in batches:
        kept.remember(batch, None)
    everything = torch.cat(batches).numpy()
    assert kept.samples == len(everything)
    np.testing.assert_allclose(kept.mean, everything.mean(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(second(kept), everything.T @ everything / len(everything), rtol=1e-11, atol=1e-11)


def test_later_batches_count_for_more_than_the_oldest_in_the_end():
    kept, rows = memory(1), 512
    for value in [0.0] * 40 + [1.0] * 20:
        kept.remember(torch.full((rows, 1), value, dtype=torch.float64), None)
    assert kept.samples == max(20 * rows, REMEMBERED_SAMPLES) < 60 * rows
    assert 0.6 < float(kept.mean) < 0.7  # 1 - (20 / 21)^20; with everything remembered it would be a third


@pytest.mark.parametrize("centred", [True, False])
def test_a_share_is_a_repeated_sample(centred):
    a, counts = inputs(12), torch.tensor([1, 2, 3] * 4)
    weighted, repeated = memory(centred=centred), memory(centred=centred)
    weighted.remember(a, counts / counts.sum())
    repeated.remember(a.repeat_interleave(counts, 0), None)
    torch.testing.assert_close(weighted.mean, repeated.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(second(weighted), second(repeated), rtol=1e-6, atol=1e-6)
    assert bool(weighted.mean.any()) is centred


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("rows", [40, 3])  # also where the covariance is singular
def test_with_full_rank_the_metric_is_the_damped_covariance(centred, rows):
    kept, a = memory(centred=centred, proximity=0.7), inputs(rows)
    kept.remember(a, None)
    kept.refresh()
    C = covariance(a, centred)
    np.testing.assert_allclose(kept.damping, [0.7 * np.diag(C).mean()], rtol=1e-12)
    np.testing.assert_allclose(metric(kept), C + 0.7 * np.diag(C).mean() * np.eye(6), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rank", [1, 3, 6, 64])  # of 6 directions
@pytest.mark.parametrize("rows", [1, 20])
def test_solve_is_the_inverse_of_the_metric(dtype, rank, rows):
    kept = memory(rank=rank, dtype=dtype)
    kept.remember(inputs(30).to(dtype), None)
    kept.refresh()
    assert kept.U.shape == (6, min(rank, 6))
    torch.testing.assert_close(kept.U.mT @ kept.U, torch.eye(min(rank, 6), dtype=dtype), rtol=1e-5, atol=1e-5)
    B = normal(rows, 6, seed=5).to(dtype)
    given = B.clone()
    torch.testing.assert_close(kept.solve(B) @ metric(kept), B, rtol=1e-4, atol=1e-5)
    assert torch.equal(B, given)  # the inputs of a layer are handed to it


@pytest.mark.parametrize("rank", [1, 3])  # by thin products, and by the inverse as a matrix
def test_leverage_is_the_size_of_rows_in_the_metric_as_it_is_now(rank):
    kept, rows = memory(rank=rank), normal(4, 6, seed=5)
    assert kept.is_narrow is (rank == 3)
    for seed in (1, 2):  # a new metric replaces what was kept of the one before
        kept.remember(normal(30, 6, seed=seed) * torch.arange(1.0, 7.0) ** seed, None)
        kept.refresh()
        wanted = (rows @ torch.linalg.inv(metric(kept)) * rows).sum(1)
        torch.testing.assert_close(kept.leverage(rows, kept.image(rows)), wanted, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(kept.solve(rows, kept.image(rows)), kept.solve(rows), rtol=0.0, atol=0.0)


def test_the_leading_directions_are_found_in_time():
    """One step of subspace iteration to a refresh: each gains the ratio of neighbouring eigenvalues."""
    kept = memory(40, rank=5)
    a = normal(500, 40, seed=1) * torch.logspace(2, -3, 40, dtype=torch.float64)
    for _ in range(12):
        kept.remember(a, None)
        kept.refresh()
    wanted = np.linalg.eigvalsh(covariance(a, True))
    e = kept.damping * kept.shrink / (1.0 - kept.shrink) + wanted[:-5].mean()  # of which the metric has taken the mean
    np.testing.assert_allclose(e.sort().values, wanted[-5:], rtol=1e-3)
    whole = np.diag(metric(kept)).sum() / (1.0 + kept.proximity)
    np.testing.assert_allclose(whole, wanted.sum(), rtol=1e-3)  # and nothing of them is lost


def test_the_metric_goes_with_the_square_of_the_inputs():
    """So a step is the same in whatever unit the inputs are measured."""
    small, large = memory(), memory()
    for kept, scale in ((small, 1e-8), (large, 1e8)):
        kept.remember(scale * inputs(30), None)
        kept.refresh()
    torch.testing.assert_close(metric(large), 1e32 * metric(small), rtol=1e-9, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize(
    "a",
    [torch.zeros(9, 6), torch.ones(9, 6), torch.ones(1, 6), torch.eye(6)[:1], 1e-20 * torch.ones(1, 6)],
    ids=["zeros", "constants", "one sample", "one input of one sample", "tiny"],
)
def test_inputs_that_do_not_vary_give_finite_steps(dtype, centred, a):
    kept = memory(centred=centred, dtype=dtype)
    for _ in range(3):
        kept.remember(a.to(dtype), None)
        kept.refresh()
    assert all(bool(torch.isfinite(tensor).all()) for tensor in kept.tensors().values())
    assert float(kept.damping) > 0.0
    assert bool(torch.isfinite(kept.solve(a.to(dtype))).all())
    assert bool(torch.isfinite(kept.solve(a.to(dtype) - kept.mean)).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inputs_that_never_vary_leave_no_numbers_that_are_slow_to_multiply(dtype):
    """Pixels at the rim of a picture. Their part of the directions falls by 1e4 with each metric."""
    kept = memory(width=12, rank=4, dtype=dtype)
    least = torch.finfo(dtype).tiny
    for seed in range(100):
        a = torch.cat([uniform(50, 8, seed=seed), torch.zeros(50, 4)], 1).to(dtype)
        kept.remember(a, None)
        kept.refresh()
        assert not ((kept.U != 0.0) & (kept.U.abs() < least)).any()
    assert not kept.U[8:].any()


def test_it_is_the_same_memory_whenever_it_is_made():
    """The first directions are drawn from a generator of their own."""
    state = torch.get_rng_state()
    first = memory().U
    torch.rand(3)
    assert torch.equal(first, memory().U)
    torch.set_rng_state(state)
    memory()
    assert torch.equal(torch.get_rng_state(), state)


def test_its_size_does_not_depend_on_how_much_it_has_seen():
    kept = memory(width=9, rank=3)
    before = {name: tensor.shape for name, tensor in kept.tensors().items()}
    for seed in range(30):
        kept.remember(uniform(50, 9, seed=seed), None)
        kept.refresh()
    assert {name: tensor.shape for name, tensor in kept.tensors().items()} == before
    assert sum(tensor.numel() for tensor in kept.tensors().values()) == 9 + 81 + 27 + 3 + 1


# --- the output side --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_wishes_are_evened_by_the_root_of_their_own_metric(rank):
    kept, wishes = WishMemory(6, rank, torch.float64, CPU), inputs(400)
    for _ in range(30):  # the subspace settles
        kept.remember(wishes, None)
        kept.refresh()
    values, vectors = torch.linalg.eigh(metric(kept))
    expected = wishes @ (vectors * values.rsqrt()) @ vectors.mT * kept.damping.sqrt()
    torch.testing.assert_close(kept.evened(wishes), expected)
    if rank == 6:  # all directions are known: what remains is the damping
        moment = wishes.mT @ wishes / len(wishes)
        damping = OUTPUT_DAMPING * moment.diagonal().mean()
        torch.testing.assert_close(metric(kept), moment + damping * torch.eye(6, dtype=torch.float64))


def test_the_strongest_direction_of_the_wishes_is_weakened_most():
    kept, wishes = WishMemory(6, 2, torch.float64, CPU), normal(400, 6, seed=1) * torch.tensor([30.0, 3.0, 1, 1, 1, 1])
    for _ in range(30):
        kept.remember(wishes, None)
        kept.refresh()
    left = kept.evened(wishes).norm(dim=0) / wishes.norm(dim=0)
    assert left[0] < 0.5 * left[1] < 0.5 * left[2:].min()


def test_of_few_wishes_nothing_is_concluded():
    kept, wishes = WishMemory(6, 2, torch.float64, CPU), inputs(2 * WISHES_NEEDED)
    kept.remember(wishes[:-1], None)
    kept.refresh()
    assert kept.evened(wishes) is wishes
    kept.remember(wishes[-1:], None)
    assert not torch.equal(kept.evened(wishes), wishes)


def low_rank(rows, width):
    """Three directions around a large mean: what they measure is far below the rounding of the mean square."""
    return normal(rows, 3, seed=1) @ normal(3, width, seed=2) + 100.0


@pytest.mark.parametrize("width", [300, 784])
@pytest.mark.parametrize("refreshes", [1, 2, 4])
@pytest.mark.parametrize("kind", ["one sample repeated", "few directions, and a large mean", "far from zero"])
def test_single_precision_makes_no_directions_up(kind, refreshes, width):
    """No eigenvalue of M is larger than one of the covariance and the damping, but for rounding."""
    a = {
        "one sample repeated": lambda: normal(1, width, seed=3).repeat(256, 1),
        "few directions, and a large mean": lambda: low_rank(256, width),
        "far from zero": lambda: normal(256, width, seed=4) + 300.0,
    }[kind]()
    kept = memory(width, rank=64, proximity=1.0, dtype=torch.float32)
    for _ in range(refreshes):
        kept.remember(a.float(), None)
        kept.refresh()
    most = float(torch.linalg.eigvalsh(torch.from_numpy(covariance(a, centred=True)))[-1])
    rounding = torch.finfo(torch.float32).eps * width * float(a.square().mean())
    found = float(torch.linalg.eigvalsh(metric(kept).double())[-1])
    assert found <= 1.1 * most + 3.0 * rounding + float(kept.damping)
