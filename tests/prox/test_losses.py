"""Every loss's prox is the minimiser of ``L(y, x) + (r / 2) ||x - v||^2``, row by row."""

from __future__ import annotations

import math
from functools import cached_property

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from certify import (
    BAD_NUMBERS,
    BAD_PRECISIONS,
    BAD_WEIGHTS,
    DOUBLE,
    PRECISIONS,
    VALUES,
    WEIGHTS,
    assert_all,
    assert_fresh,
    assert_lowest,
    both_signs,
    change_within,
    left_alone,
    normal,
    perturbations,
    seeded,
    signed_magnitudes,
    slope,
    wide_grid,
)
from ipdlam.prox import (
    LOSSES,
    Absolute,
    CrossEntropy,
    Hinge,
    Huber,
    Identity,
    Logistic,
    Loss,
    MarginLoss,
    Quantile,
    Squared,
    SquaredHinge,
    losses,
    softmax,
)

CASES: dict[str, Loss] = {name: kind() for name, kind in LOSSES.items()} | {
    "huber(0.3)": Huber(0.3),
    "quantile(0.9)": Quantile(0.9),
    "quantile(0.05)": Quantile(0.05),
}
MARGINS = [name for name, loss in CASES.items() if isinstance(loss, MarginLoss)]
ROWS = 16


@pytest.fixture(params=CASES)
def loss(request: pytest.FixtureRequest) -> Loss:
    return CASES[request.param]


@pytest.fixture(params=PRECISIONS, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def random_labels(rows: int, outputs: int, loss: Loss, seed: int) -> Tensor:
    return torch.randint(loss.classes(outputs), (rows,), generator=seeded(seed))


def accepts(loss: Loss, targets: Tensor) -> bool:
    try:
        loss.check_targets(targets)
    except ValueError:
        return False
    return True


def kinds_of_targets(loss: Loss, outputs: int, dtype: torch.dtype) -> list[Tensor]:
    """Encoded labels for every loss, and whichever real targets it accepts: any numbers, or probabilities."""
    labels = loss.encode(random_labels(ROWS, outputs, loss, seed=1), outputs, dtype)
    numbers = signed_magnitudes(ROWS * outputs, seed=2).view(ROWS, outputs).to(dtype)
    probabilities = (3.0 * normal(ROWS, outputs, seed=3)).softmax(-1).to(dtype)
    return [labels, *(targets for targets in (numbers, probabilities) if accepts(loss, targets))]


def problems(loss: Loss, outputs: int, dtype: torch.dtype, r: float) -> tuple[Tensor, Tensor]:
    """Rows of every magnitude, and rows that lead exactly to the kinks and to where they begin to hold."""
    rows_of_targets, rows_of_v = [], []
    for targets in kinds_of_targets(loss, outputs, dtype):
        entries = torch.tensor(VALUES, dtype=dtype).repeat(ROWS * outputs)[:: len(VALUES) // 4][: ROWS * outputs]
        anywhere = signed_magnitudes(ROWS * outputs, seed=4).view(ROWS, outputs).to(dtype)
        reach = 1.0 / r if r >= 1e-2 else 1.0  # a step of 1 / r is as far as a slope of 1 pulls
        for v in (
            anywhere,
            entries.view(ROWS, outputs),
            normal(ROWS, outputs, seed=5).to(dtype),
            targets,
            targets + reach,
            targets - reach,
            -targets,
        ):
            rows_of_targets.append(targets)
            rows_of_v.append(v.to(dtype))
    return torch.cat(rows_of_targets), torch.cat(rows_of_v)


class Certificate:
    """A solved batch, its objective and what rounding may do to both, in float64."""

    def __init__(self, loss: Loss, targets: Tensor, v: Tensor, r: float) -> None:
        x = loss.prox(targets, v, r)
        assert x.dtype == v.dtype
        assert x.shape == v.shape
        assert bool(torch.isfinite(x).all())
        self.loss, self.r = loss, r
        self.x, self.v, self.targets = x.double(), v.double(), targets.double()
        size = self.x.abs() + self.v.abs() + self.targets.abs()
        # A coupled loss adds up numbers as large as any of its row, and as 1 / r, though in float64.
        row = size.amax(-1, keepdim=True) + 1.0 / r
        self.distance = 4.0 * torch.finfo(v.dtype).eps * size + 8.0 * DOUBLE * row
        self.size = size

    def objective(self, x: Tensor) -> Tensor:
        return self.loss.prox_objective(self.targets, x, self.v, self.r)

    def along(self, j: int) -> Tensor:
        """The rounding of output ``j`` alone."""
        step = torch.zeros_like(self.distance)
        step[:, j] = self.distance[:, j]
        return step

    @property
    def noise(self) -> Tensor:
        """What float64 does to the objective when it is evaluated."""
        here = self.objective(self.x)
        pull = self.r * (self.x - self.v).abs()
        return 16.0 * DOUBLE * (here + ((1.0 + here.sqrt()[:, None] + pull) * self.size).sum(-1))

    @cached_property
    def allowance(self) -> Tensor:
        moved = sum(change_within(self.objective, self.x, self.along(j)) for j in range(self.x.shape[-1]))
        return moved + self.noise


# --- the value -------------------------------------------------------------------------------------------------------


def test_value_is_one_number_for_every_sample(loss, dtype):
    for outputs in (1, 2, 5):
        for targets in kinds_of_targets(loss, outputs, dtype):
            value = loss.value(targets, normal(ROWS, outputs, seed=6).to(dtype))
            assert value.shape == (ROWS,)
            assert value.dtype == dtype
            assert bool((value >= -4.0 * torch.finfo(dtype).eps).all())


REFERENCES = {
    Squared: lambda y, x: 0.5 * functional.mse_loss(x, y, reduction="none").sum(-1),
    Huber: lambda y, x: functional.huber_loss(x, y, reduction="none", delta=1.0).sum(-1),
    Absolute: lambda y, x: functional.l1_loss(x, y, reduction="none").sum(-1),
    Logistic: lambda y, x: functional.soft_margin_loss(x, y, reduction="none").sum(-1),
    CrossEntropy: lambda y, x: functional.cross_entropy(x, y, reduction="none"),
}


@pytest.mark.parametrize("kind", REFERENCES)
def test_value_is_that_of_torch(kind):
    for targets in kinds_of_targets(kind(), 4, torch.float64):
        x = 5.0 * normal(ROWS, 4, seed=7)
        torch.testing.assert_close(kind().value(targets, x), REFERENCES[kind](targets, x))


def test_squared_hinge_is_the_square_of_hinge():
    y = torch.tensor([[1.0], [-1.0]], dtype=torch.float64).repeat(20, 1)
    x = 2.0 * normal(40, 1, seed=8)
    torch.testing.assert_close(SquaredHinge().value(y, x), Hinge().value(y, x).square())


def test_objective_is_the_one_definition(loss):
    for targets in kinds_of_targets(loss, 3, torch.float64):
        x, v = normal(2, ROWS, 3, seed=9)
        expected = loss.value(targets, x) + 0.15 * ((x - v) ** 2).sum(-1)
        torch.testing.assert_close(loss.prox_objective(targets, x, v, 0.3), expected)


# --- certificates for every loss -------------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [1, 3])
def test_beats_grid_and_perturbations(loss, outputs, dtype):
    """Along every output and some random directions, near and far, and at random points around."""
    steps = both_signs(torch.logspace(-12, 4, 33, dtype=torch.float64))
    directions = torch.cat([torch.eye(outputs, dtype=torch.float64), normal(2, outputs, seed=10)])
    lines = (steps[:, None, None] * directions).reshape(-1, 1, outputs)
    for r in WEIGHTS:
        solved = Certificate(loss, *problems(loss, outputs, dtype, r), r)
        allowance, what = solved.allowance, f"{loss}, r={r:g}"
        assert_lowest(solved.objective, solved.x, solved.x + lines, allowance, f"{what}, lines")
        moves = perturbations(tuple(solved.x.shape), seed=11)
        assert_lowest(solved.objective, solved.x, solved.x + moves, allowance, f"{what}, perturbation")
        ends = torch.stack([solved.v, solved.targets, torch.zeros_like(solved.v)])
        assert_lowest(solved.objective, solved.x, ends, allowance, f"{what}, end points")
        if outputs == 1:
            grid = wide_grid()[:, None, None].expand(-1, *solved.x.shape)
            assert_lowest(solved.objective, solved.x, grid, allowance, f"{what}, wide grid")


@pytest.mark.parametrize("outputs", [1, 3])
def test_derivative_vanishes_or_changes_sign(loss, outputs, dtype):
    """Just left of the result the objective falls in every output, just right it rises; smooth, its slope is 0."""
    smooth_ones = 0
    for r in WEIGHTS:
        solved = Certificate(loss, *problems(loss, outputs, dtype, r), r)
        noise = 16.0 * DOUBLE * (1.0 + solved.size + r * (solved.x.abs() + solved.v.abs()))

        def value(x, solved=solved):
            return solved.loss.value(solved.targets, x)

        here, loss_here = slope(solved.objective, solved.x), slope(value, solved.x)
        lefts = [slope(solved.objective, solved.x - solved.along(j)) for j in range(outputs)]
        rights = [slope(solved.objective, solved.x + solved.along(j)) for j in range(outputs)]
        for j in range(outputs):
            step, left, right = solved.along(j), lefts[j][:, j], rights[j][:, j]
            # The other outputs are rounded too, which moves the slope of a coupled loss.
            for k in range(outputs):
                if k != j:
                    noise[:, j] += torch.maximum((lefts[k] - here).abs(), (rights[k] - here).abs())[:, j]
            shown = {"v": solved.v[:, j], "y": solved.targets[:, j], "x": solved.x[:, j], "left": left, "right": right}
            assert_all(left <= noise[:, j], f"{loss}, r={r:g}: still rising on the left", **shown)
            assert_all(right >= -noise[:, j], f"{loss}, r={r:g}: still falling on the right", **shown)
            # A kink is where the slope of the loss alone changes at once.
            before, after = (slope(value, solved.x + side * 4.0 * step)[:, j] for side in (-1.0, 1.0))
            is_smooth = (before - after).abs() <= 1e-3 * loss_here[:, j].abs()
            small = here[:, j].abs() <= (right - left).abs() + noise[:, j]
            assert_all(small | ~is_smooth, f"{loss}, r={r:g}: the slope is not 0", here=here[:, j], **shown)
            smooth_ones += int(is_smooth.sum())
    assert smooth_ones > 0


def assert_three_points(solved: Certificate, x: Tensor) -> None:
    """``f(p) + r/2 |p - v|^2 + r/2 |x - p|^2 <= f(x) + r/2 |x - v|^2`` for the prox ``p`` of a convex ``f``."""
    away = x - solved.x
    left = solved.objective(solved.x) + 0.5 * solved.r * away.square().sum(-1)
    right = solved.objective(x)
    # If p is off by its rounding d, the left side is by r d |x - p| besides what f changes there.
    rounding = (
        solved.allowance + 2.0 * solved.r * (solved.distance * away.abs()).sum(-1) + 16.0 * DOUBLE * (left + right)
    )
    assert_all(left <= right + rounding, f"{solved.loss}, r={solved.r:g}: three points", left=left, right=right)


@pytest.mark.parametrize("outputs", [1, 3])
def test_three_point_inequality(loss, outputs, dtype):
    for r in WEIGHTS:
        solved = Certificate(loss, *problems(loss, outputs, dtype, r), r)
        shape = tuple(solved.x.shape)
        assert_three_points(solved, solved.x + perturbations(shape, seed=12))
        far = signed_magnitudes(8 * solved.x.numel(), seed=13).view(8, *shape)
        assert_three_points(solved, far)
        assert_three_points(solved, torch.lerp(solved.x, solved.targets, 0.5))


finite = st.floats(-1e4, 1e4, allow_subnormal=False)


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None, derandomize=True, max_examples=30)
@given(
    v=st.lists(finite, min_size=3, max_size=3),
    other=st.lists(finite, min_size=3, max_size=3),
    label=st.integers(0, 2),
    exponent=st.floats(-6.0, 6.0),
)
def test_three_point_inequality_anywhere(name, v, other, label, exponent):
    loss, r = CASES[name], 10.0**exponent
    targets = loss.encode(torch.tensor([label]), 3, torch.float64)
    solved = Certificate(loss, targets, torch.tensor([v], dtype=torch.float64), r)
    other = torch.tensor([other], dtype=torch.float64)
    for t in (1e-6, 1e-3, 0.1, 1.0):
        assert_three_points(solved, torch.lerp(solved.x, other, t))


def test_prox_is_nonexpansive(loss):
    """The prox of a convex function never moves two points apart."""
    for targets in kinds_of_targets(loss, 3, torch.float64):
        v, move = normal(2, ROWS, 3, seed=14)
        for r in WEIGHTS:
            for scale in (1e-3, 1.0, 100.0):
                near, far = loss.prox(targets, v, r), loss.prox(targets, v + scale * move, r)
                rounding = 1e-13 * (1.0 + 1.0 / r + targets.abs().amax(-1))
                assert bool(((near - far).norm(dim=-1) <= scale * move.norm(dim=-1) + rounding).all())


@pytest.mark.parametrize("r", WEIGHTS)
def test_single_precision_follows_double(loss, r):
    for outputs in (1, 3):
        targets, v = problems(loss, outputs, torch.float32, r)
        if loss == CrossEntropy():  # float32 rows sum to 1 only to 1e-7; both precisions must see the same rows
            assert accepts(loss, targets)
        single, double = loss.prox(targets, v, r).double(), loss.prox(targets.double(), v.double(), r)
        scale = double.abs() + v.abs().double() + targets.abs().double()
        assert_all((single - double).abs() <= 1e-6 * scale, f"{loss}, r={r:g}", single=single, double=double)


def test_large_weight_holds_and_small_weight_lets_go(loss):
    """The two limits of ``r``: ``x`` goes to ``v``, and the loss to its infimum."""
    for targets in kinds_of_targets(loss, 3, torch.float64):
        v = normal(ROWS, 3, seed=15)
        held = loss.prox(targets, v, 1e12)
        assert bool(((held - v).abs() <= 1e-7).all())
        free = loss.prox(targets, v, 1e-6)
        assert bool((loss.value(targets, free) <= loss.value(targets, v)).all())
        assert bool((loss.value(targets, free) <= loss.value(targets, loss.prox(targets, v, 1.0)) + 1e-12).all())


# --- identities between losses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("r", WEIGHTS)
def test_huber_is_squared_in_one_limit_and_absolute_in_the_other(r):
    y, v = signed_magnitudes(2 * ROWS, seed=16).view(2, ROWS, 1)
    huber, squared = Huber(1e12).prox(y, v, r), Squared().prox(y, v, r)
    assert_all((huber - squared).abs() <= 4.0 * DOUBLE * (y.abs() + v.abs()), f"r={r:g}", huber=huber, squared=squared)
    torch.testing.assert_close(Huber(1e12).value(y, v), Squared().value(y, v))
    threshold = 1e-12  # Huber / threshold is the absolute value up to threshold / 2
    torch.testing.assert_close(Huber(threshold).value(y, v) / threshold, Absolute().value(y, v))
    torch.testing.assert_close(
        Huber(threshold).prox(y, v, r * threshold), Absolute().prox(y, v, r), rtol=1e-5, atol=1e-12
    )


@pytest.mark.parametrize("r", WEIGHTS)
def test_half_the_absolute_loss_is_the_median(r):
    y, v = signed_magnitudes(2 * ROWS, seed=31).view(2, ROWS, 1)
    torch.testing.assert_close(Quantile(0.5).value(y, v), 0.5 * Absolute().value(y, v))
    torch.testing.assert_close(Quantile(0.5).prox(y, v, r), Absolute().prox(y, v, 2.0 * r), rtol=1e-14, atol=0.0)


@pytest.mark.parametrize("level", [0.1, 0.5, 0.8])
def test_quantile_is_least_at_the_quantile(level):
    y = normal(101, 1, seed=32)
    at = torch.quantile(y, level)
    candidates = [float(Quantile(level).value(y, x.expand_as(y)).sum()) for x in (at - 0.1, at, at + 0.1)]
    assert candidates[1] == min(candidates)


@pytest.mark.parametrize("name", ["logistic", "cross_entropy"])
def test_quick_and_general_solvers_agree(name, monkeypatch):
    """Newton's method in x, from r = 1/4 on, and what serves every r."""
    loss = CASES[name]
    for r in (0.25, 0.4, 1.0, 30.0, 1e4):
        targets, v = problems(loss, 3, torch.float64, r)
        quick = loss.prox(targets, v, r)
        with monkeypatch.context() as patched:
            for module in (losses, softmax):
                patched.setattr(module, "STEADY", math.inf)
            general = loss.prox(targets, v, r)
        size = 1.0 + v.abs().amax(-1, keepdim=True)
        assert_all((quick - general).abs() <= 16.0 * DOUBLE * size, f"{loss}, r={r:g}", quick=quick, general=general)


@pytest.mark.parametrize("r", WEIGHTS)
def test_squared_loss_is_the_identity_activation(r):
    y, v = signed_magnitudes(2 * ROWS, seed=17).view(2, ROWS, 1)
    torch.testing.assert_close(Squared().prox(y, v, r), Identity().prox(y, v, r), rtol=1e-15, atol=0.0)


@pytest.mark.parametrize("r", WEIGHTS)
def test_cross_entropy_of_two_classes_is_logistic(r):
    """Only the difference of two logits matters: it has half the weight in the proximity term."""
    labels = torch.arange(ROWS) % 2
    v = signed_magnitudes(2 * ROWS, seed=18, high=3.0).view(ROWS, 2)
    x = CrossEntropy().prox(CrossEntropy().encode(labels, 2, v.dtype), v, r)
    margin = Logistic().prox(Logistic().encode(labels, 1, v.dtype), v[:, 1:] - v[:, :1], 0.5 * r)
    torch.testing.assert_close(x[:, 1:] - x[:, :1], margin, rtol=1e-12, atol=1e-14 * (1e3 + 1.0 / r))
    value = CrossEntropy().value(CrossEntropy().encode(labels, 2, v.dtype), v)
    torch.testing.assert_close(value, Logistic().value(Logistic().encode(labels, 1, v.dtype), v[:, 1:] - v[:, :1]))


@pytest.mark.parametrize("name", MARGINS)
def test_margin_losses_are_odd(name):
    loss = CASES[name]
    y = loss.encode(torch.arange(ROWS) % 2, 1, torch.float64)
    v = signed_magnitudes(ROWS, seed=19).view(ROWS, 1)
    for r in WEIGHTS:
        assert torch.equal(loss.prox(-y, -v, r), -loss.prox(y, v, r))


@pytest.mark.parametrize("name", MARGINS)
def test_margin_losses_treat_outputs_separately(name):
    loss = CASES[name]
    y = loss.encode(torch.arange(ROWS) % 4, 4, torch.float64)
    v = signed_magnitudes(4 * ROWS, seed=20).view(ROWS, 4)
    for r in (1e-3, 1.0, 1e3):
        together = loss.prox(y, v, r)
        apart = torch.cat([loss.prox(y[:, j : j + 1], v[:, j : j + 1], r) for j in range(4)], dim=1)
        torch.testing.assert_close(together, apart, rtol=1e-14, atol=0.0)
        summed = sum(loss.value(y[:, j : j + 1], v[:, j : j + 1]) for j in range(4))
        torch.testing.assert_close(loss.value(y, v), summed)


# --- cross-entropy ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4, 1e6])
@pytest.mark.parametrize("classes", [1, 2, 10, 200])
def test_cross_entropy_is_stable(scale, classes, dtype):
    """``r (x - v) = y - softmax(x)`` holds for logits of any size, hard and soft targets alike."""
    v = (scale * normal(20, classes, seed=21)).to(dtype)
    hard = CrossEntropy().encode(torch.arange(20) % classes, classes, dtype)
    soft = (2.0 * normal(20, classes, seed=22)).softmax(-1).to(dtype)
    eps = torch.finfo(dtype).eps
    for targets in (hard, soft):
        for r in WEIGHTS:
            x = CrossEntropy().prox(targets, v, r)
            assert bool(torch.isfinite(x).all())
            x64, v64 = x.double(), v.double()
            p = x64.softmax(-1)
            residual = (r * (x64 - v64) + p - targets.double()).abs()
            # x is rounded, and its row is known to 1 / r in float64: that moves r x, and p by p times as much.
            rounding = 4.0 * eps * (x64.abs() + v64.abs()) + 16.0 * DOUBLE * (
                1.0 / r + v64.abs().amax(-1, keepdim=True)
            )
            spread = p * (rounding + (p * rounding).sum(-1, keepdim=True))
            assert_all(residual <= 1e-13 + r * rounding + spread, f"r={r:g}", residual=residual, v=v64, x=x64, p=p)
            if dtype == torch.float64:
                assert float(residual.max()) <= 1e-10 * (1.0 + r * scale)
            assert bool(torch.isfinite(CrossEntropy().value(targets, x)).all())


def test_cross_entropy_keeps_small_losses_beside_large_logits():
    """logsumexp(x) - x_y of 1e4-sized logits would be rounded to 0 or to 1e-12 steps."""
    x = torch.tensor([[1e4, 1e4 - 30.0, 0.0]], dtype=torch.float64)
    y = CrossEntropy().encode(torch.tensor([0]), 3, torch.float64)
    shifted = torch.tensor([[0.0, -30.0, -1e4]], dtype=torch.float64)
    assert float(CrossEntropy().value(y, x)) == float(CrossEntropy().value(y, shifted)) > 0.0


def test_cross_entropy_moves_with_its_logits():
    """Adding a number to all logits adds it to the result; the sum of the logits never changes."""
    y = (2.0 * normal(ROWS, 5, seed=23)).softmax(-1)
    v = 3.0 * normal(ROWS, 5, seed=24)
    for r in WEIGHTS:
        x = CrossEntropy().prox(y, v, r)
        rounding = 1e-13 * (100.0 + 1.0 / r)
        torch.testing.assert_close(CrossEntropy().prox(y, v + 100.0, r), x + 100.0, rtol=0.0, atol=rounding)
        torch.testing.assert_close(x.sum(-1), v.sum(-1), rtol=0.0, atol=5.0 * rounding)


@pytest.mark.parametrize("total", [1.0 - 5e-5, 1.0, 1.0 + 5e-5])
def test_cross_entropy_prox_fits_its_value_when_rows_sum_to_one_only_nearly(total):
    """Rows of probabilities are accepted to 1e-4 (float32 rows are never exact): value and prox must agree on them."""
    y = total * (2.0 * normal(ROWS, 4, seed=29)).softmax(-1)
    v = 3.0 * normal(ROWS, 4, seed=30)
    for r in (1e-3, 1.0, 1e3):
        x = CrossEntropy().prox(y, v, r)
        residual = slope(lambda x, r=r: CrossEntropy().prox_objective(y, x, v, r), x)
        assert_all(residual.abs() <= 1e-10 * (1.0 + r), f"r={r:g}: the slope is not 0", residual=residual, x=x, v=v)


# --- targets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [1, 2, 5])
def test_labels_survive_encoding(loss, outputs, dtype):
    labels = random_labels(ROWS, outputs, loss, seed=25)
    targets = loss.encode(labels, outputs, dtype)
    assert targets.shape == (ROWS, outputs)
    assert targets.dtype == dtype
    loss.check_targets(targets)
    assert torch.equal(loss.predict(targets), labels)
    # The prox from 0 with a weak proximity term is an output that fits: it must stand for the same class.
    assert torch.equal(loss.predict(loss.prox(targets, torch.zeros_like(targets), 1e-3)), labels)


def test_one_hot_rows(dtype):
    for loss in CASES.values():
        targets = loss.encode(torch.tensor([2, 0]), 3, dtype)
        low = -1.0 if isinstance(loss, MarginLoss) else 0.0
        assert targets.tolist() == [[low, low, 1.0], [1.0, low, low]]


@pytest.mark.parametrize("name", MARGINS)
def test_one_output_tells_two_classes_apart(name, dtype):
    loss = CASES[name]
    assert loss.classes(1) == 2
    assert loss.classes(4) == 4
    targets = loss.encode(torch.tensor([0, 1, 1]), 1, dtype)
    assert targets.tolist() == [[-1.0], [1.0], [1.0]]
    assert loss.predict(torch.tensor([[-0.1], [0.1], [7.0]], dtype=dtype)).tolist() == [0, 1, 1]
    # Pulled by its label, the margin can only grow.
    v = normal(3, 1, seed=26).to(dtype)
    assert bool((targets * loss.prox(targets, v, 0.5) >= targets * v).all())


@pytest.mark.parametrize("name", MARGINS)
@pytest.mark.parametrize("bad", [0.0, 0.5, 2.0, -1.0001])
def test_margin_losses_refuse_other_targets(name, bad):
    targets = torch.tensor([[1.0, -1.0], [1.0, bad]])
    with pytest.raises(ValueError, match=r"needs targets of -1 and \+1, got "):
        CASES[name].prox(targets, torch.zeros(2, 2), 1.0)


@pytest.mark.parametrize("bad", [[0.5, 0.6], [1.5, -0.5], [0.0, 0.0], [1.0, 1.0]])
def test_cross_entropy_refuses_what_is_no_probability(bad):
    with pytest.raises(ValueError, match="rows of probabilities"):
        CrossEntropy().prox(torch.tensor([[1.0, 0.0], bad]), torch.zeros(2, 2), 1.0)


def test_real_targets_are_welcome_elsewhere():
    targets = torch.tensor([[0.3, -7.0]])
    for loss in (Squared(), Huber(), Absolute(), Quantile()):
        loss.check_targets(targets)
        assert loss.prox(targets, torch.zeros(1, 2), 1.0).shape == (1, 2)


# --- the contract of the arguments -----------------------------------------------------------------------------------


def plain_problem(loss: Loss, rows: int, outputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    targets = loss.encode(random_labels(rows, outputs, loss, seed=27), outputs, dtype)
    return targets, (3.0 * normal(rows, outputs, seed=28)).to(dtype)


def test_shape_and_precision_are_kept(loss, dtype):
    for rows, outputs in [(1, 1), (1, 4), (6, 1), (6, 4), (0, 3)]:
        targets, v = plain_problem(loss, rows, outputs, dtype)
        x = loss.prox(targets, v, 0.7)
        assert x.shape == (rows, outputs)
        assert x.dtype == dtype


def test_rows_do_not_influence_each_other(loss):
    targets, v = problems(loss, 3, torch.float64, 0.1)
    targets, v = targets[::9], v[::9]
    for r in (1e-4, 0.1, 10.0):
        together = loss.prox(targets, v, r)
        alone = torch.cat([loss.prox(targets[i : i + 1], v[i : i + 1], r) for i in range(len(v))])
        torch.testing.assert_close(together, alone, rtol=1e-13, atol=1e-14 * (1.0 + 1.0 / r))


def test_views_give_what_their_copies_give(loss, dtype):
    targets, v = plain_problem(loss, 12, 3, dtype)
    wide_targets, wide_v = (torch.zeros(24, 9, dtype=dtype) for _ in range(2))
    wide_targets[::2, 1::3], wide_v[1::2, ::3] = targets, v
    views = [
        (wide_targets[::2, 1::3], wide_v[1::2, ::3]),
        (targets.t().contiguous().t(), v.t().contiguous().t()),
        (targets[:1].expand(12, 3), v),
    ]
    for of_targets, of_v in views:
        with left_alone(of_targets, of_v):
            x = loss.prox(of_targets, of_v, 0.2)
        expected = loss.prox(of_targets.contiguous(), of_v.contiguous(), 0.2)
        torch.testing.assert_close(x, expected, rtol=8.0 * torch.finfo(dtype).eps, atol=1e-30)


def test_arguments_are_left_alone(loss, dtype):
    for r in (1e-6, 0.1, 1e6):
        targets, v = problems(loss, 3, dtype, r)
        with left_alone(targets, v):
            assert_fresh(loss.prox(targets, v, r), targets, v)
        with left_alone(targets):  # one tensor in both roles
            assert_fresh(loss.prox(targets, targets, r), targets)


def test_no_graph_is_built(loss, dtype):
    targets, v = plain_problem(loss, 8, 3, dtype)
    plain = loss.prox(targets, v, 0.3)
    targets, v = targets.clone().requires_grad_(), v.clone().requires_grad_()
    with left_alone(targets, v):
        x = loss.prox(targets, v, 0.3)
    assert_fresh(x, targets, v)
    assert torch.equal(x, plain)


def test_bad_weight_is_refused(loss):
    targets, v = plain_problem(loss, 4, 3, torch.float32)
    for r in BAD_WEIGHTS:
        with pytest.raises(ValueError, match=r"^r must be finite and > 0, got"):
            loss.prox(targets, v, r)


@pytest.mark.parametrize("operand", ["targets", "v"])
def test_infinities_and_nan_are_refused(loss, operand, dtype):
    for bad in BAD_NUMBERS:
        operands = dict(zip(("targets", "v"), plain_problem(loss, 4, 3, dtype), strict=True))
        operands[operand][1, 2] = bad
        with pytest.raises(ValueError, match=rf"^{operand} holds NaN or infinity"):
            loss.prox(**operands, r=1.0)


@pytest.mark.parametrize("operand", ["targets", "v"])
def test_other_precisions_are_refused(loss, operand):
    for bad in BAD_PRECISIONS:
        operands = dict(zip(("targets", "v"), plain_problem(loss, 4, 3, torch.float32), strict=True))
        operands[operand] = operands[operand].to(bad)
        with pytest.raises(TypeError, match=rf"^{operand} must be float32 or float64, got {bad}"):
            loss.prox(**operands, r=1.0)


def test_mixed_precision_is_refused(loss):
    targets, v = plain_problem(loss, 4, 3, torch.float32)
    with pytest.raises(TypeError, match=r"share one precision.*targets: torch.float32, v: torch.float64"):
        loss.prox(targets, v.double(), 1.0)
    with pytest.raises(TypeError, match=r"share one precision.*targets: torch.float64, v: torch.float32"):
        loss.prox(targets.double(), v, 1.0)


@pytest.mark.parametrize("threshold", [0.0, -1.0, math.nan, math.inf])
def test_bad_threshold_is_refused(threshold):
    with pytest.raises(ValueError, match="threshold must be a finite number > 0"):
        Huber(threshold)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_bad_level_is_refused(level):
    with pytest.raises(ValueError, match=r"level must be (a finite number > 0 and <= 1|in \(0, 1\)), got"):
        Quantile(level)
