"""Every regulariser's prox is the minimiser of ``R(x) + (r / 2) ||x - v||^2``, entry by entry."""

from __future__ import annotations

import math
import re
from functools import cached_property

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from certify import (
    BAD_NUMBERS,
    BAD_PRECISIONS,
    BAD_WEIGHTS,
    DOUBLE,
    PRECISIONS,
    VALUES,
    WEIGHTS,
    all_pairs,
    assert_all,
    assert_fresh,
    assert_lowest,
    both_signs,
    left_alone,
    normal,
    signed_magnitudes,
    slope,
)
from ipdlam.prox import L1, REGULARIZERS, ElasticNet, NonNegative, Regularizer, Ridge

CASES: dict[str, Regularizer] = {name: kind() for name, kind in REGULARIZERS.items()} | {
    "ridge(0)": Ridge(0.0),
    "ridge(2.5)": Ridge(2.5),
    "ridge(1000)": Ridge(1e3, relative=False),
    "l1(0)": L1(0.0),
    "l1(0.5)": L1(0.5),
    "l1(1000)": L1(1e3, relative=False),
    "elastic_net(0.5, 2)": ElasticNet(0.5, 2.0),
    "elastic_net(100, 0.01)": ElasticNet(100.0, 0.01, relative=False),
    "elastic_net(0, 1)": ElasticNet(0.0, 1.0),
    "elastic_net(1, 0)": ElasticNet(1.0, 0.0),
}


@pytest.fixture(params=CASES)
def regularizer(request: pytest.FixtureRequest) -> Regularizer:
    return CASES[request.param]


@pytest.fixture(params=PRECISIONS, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def values(regularizer: Regularizer, x: Tensor) -> Tensor:
    """``R`` of every entry on its own: ``value`` adds up, and a sum would hide an entry behind the others."""
    return torch.stack([regularizer.value(entry) for entry in x.flatten().unbind()]).view(x.shape)


class Certificate:
    """Entries solved with a weight each, and what rounding may do to them, in float64."""

    def __init__(self, regularizer: Regularizer, v: Tensor, r: Tensor) -> None:
        x = regularizer.prox(v, r)
        assert x.dtype == v.dtype
        assert x.shape == v.shape
        assert bool(torch.isfinite(x).all())
        self.regularizer = regularizer
        self.x, self.v, self.r = x.double(), v.double(), r.double()
        self.distance = 4.0 * torch.finfo(v.dtype).eps * (self.x.abs() + self.v.abs())

    def objective(self, x: Tensor) -> Tensor:
        return values(self.regularizer, x) + 0.5 * self.r * (x - self.v).square()

    @cached_property
    def allowance(self) -> Tensor:
        """How much the objective changes within the rounding of ``x``; a step out of the domain is not an excuse."""
        here = self.objective(self.x)
        changes = [(self.objective(self.x + side * self.distance) - here).abs() for side in (-1.0, 1.0)]
        moved = torch.stack(changes).nan_to_num(posinf=0.0).amax(0)
        return moved + 16.0 * DOUBLE * (here + self.r * (self.x - self.v).abs() * (self.x.abs() + self.v.abs()))


def every_weight(regularizer: Regularizer, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """All pairs of entries and weights, and the entries that just reach a kink at 0."""
    weights = WEIGHTS[::2]
    r, v = all_pairs(weights, VALUES, dtype)
    nearby = torch.tensor(1e-30, dtype=torch.float64)
    pull = float(regularizer.value(nearby) / nearby)  # the slope next to 0
    at_threshold = torch.tensor(weights, dtype=dtype)
    return torch.cat([v, pull / at_threshold, -pull / at_threshold]), torch.cat([r, at_threshold, at_threshold])


# --- certificates ----------------------------------------------------------------------------------------------------


def test_beats_grid_and_perturbations(regularizer, dtype):
    solved = Certificate(regularizer, *every_weight(regularizer, dtype))
    allowance, x = solved.allowance, solved.x
    steps = both_signs(torch.logspace(-12, 1, 10, dtype=torch.float64))[:, None]
    grid = both_signs(torch.logspace(-4, 4.2, 9, dtype=torch.float64))[:, None]
    random = torch.logspace(-9, 3, 7, dtype=torch.float64)[:, None] * normal(7, len(x), seed=1)
    for kind, candidates in [
        ("local grid", x + steps * (1e-3 + x.abs())),
        ("wide grid", grid.expand(-1, len(x))),
        ("perturbation", x + random),
        ("end points", torch.stack([solved.v, torch.zeros_like(x), 0.5 * (x + solved.v)])),
    ]:
        assert_lowest(solved.objective, x, candidates, allowance, f"{regularizer}, {kind}")


def test_derivative_vanishes_or_changes_sign(regularizer, dtype):
    """Left of the result the objective falls, right of it it rises (infinite counts as either); smooth, it is flat."""
    solved = Certificate(regularizer, *every_weight(regularizer, dtype))

    def total(x):
        return regularizer.value(x) + (0.5 * solved.r * (x - solved.v).square()).sum()

    if not bool(torch.isfinite(regularizer.value(-torch.ones(1, dtype=torch.float64)))):
        # The domain ends at 0: there only the right side counts, and inside the value must not matter.
        assert bool((solved.x >= 0).all())
        inside, edge = solved.x > 0, solved.x == 0
        assert torch.equal(solved.x[inside], solved.v[inside])
        assert bool((solved.v[edge] <= 0).all())
        return
    noise = 16.0 * DOUBLE * solved.r * (solved.x.abs() + solved.v.abs())
    distance = solved.distance + 1e-30  # at a result of exactly 0 the two sides must differ
    left, here, right = (slope(total, solved.x + side * distance) for side in (-1.0, 0.0, 1.0))
    shown = {"v": solved.v, "r": solved.r, "x": solved.x, "left": left, "right": right}
    assert_all(left <= noise, f"{regularizer}: still rising on the left", **shown)
    assert_all(right >= -noise, f"{regularizer}: still falling on the right", **shown)
    away_from_kink = solved.x.abs() > 2.0 * distance
    assert bool(away_from_kink.any())
    small = here.abs() <= (right - left).abs() + noise
    assert_all(small | ~away_from_kink, f"{regularizer}: the slope is not 0", here=here, **shown)


def assert_three_points(solved: Certificate, x: Tensor) -> None:
    """``f(p) + r/2 |p - v|^2 + r/2 |x - p|^2 <= f(x) + r/2 |x - v|^2`` for the prox ``p`` of a convex ``f``."""
    away = x - solved.x
    left = solved.objective(solved.x) + 0.5 * solved.r * away.square()
    right = solved.objective(x)
    rounding = solved.allowance + 2.0 * solved.r * solved.distance * away.abs() + 16.0 * DOUBLE * left
    assert_all(left <= right + rounding, f"{solved.regularizer}: three points", v=solved.v, r=solved.r, x=x)


def test_three_point_inequality(regularizer, dtype):
    solved = Certificate(regularizer, *every_weight(regularizer, dtype))
    n = len(solved.x)
    for k, scale in enumerate([1e-6, 1e-3, 1.0, 1e3]):
        assert_three_points(solved, solved.x + scale * normal(n, seed=2 + k))
    assert_three_points(solved, signed_magnitudes(n, seed=8))
    assert_three_points(solved, signed_magnitudes(n, seed=10).abs())  # inside the domain, whatever it is


finite = st.floats(-1e4, 1e4, allow_subnormal=False)


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None, derandomize=True, max_examples=30)
@given(v=finite, other=finite, exponent=st.floats(-6.0, 6.0))
def test_three_point_inequality_anywhere(name, v, other, exponent):
    v, other, r = (torch.tensor([t], dtype=torch.float64) for t in (v, other, 10.0**exponent))
    solved = Certificate(CASES[name], v, r)
    for t in (1e-6, 1e-3, 0.1, 1.0):
        assert_three_points(solved, torch.lerp(solved.x, other, t))


def test_single_precision_follows_double(regularizer):
    v, r = every_weight(regularizer, torch.float32)
    single, double = regularizer.prox(v, r).double(), regularizer.prox(v.double(), r.double())
    assert_all(
        (single - double).abs() <= 1e-6 * (double.abs() + v.abs()), str(regularizer), single=single, double=double
    )


# --- the value -------------------------------------------------------------------------------------------------------


def test_value_is_a_scalar_that_adds_up_over_the_entries(regularizer, dtype):
    W = normal(4, 5, seed=11).abs().to(dtype)
    value = regularizer.value(W)
    assert value.shape == ()
    assert value.dtype == dtype
    torch.testing.assert_close(value, values(regularizer, W).sum())


def test_non_negative_is_zero_inside_and_infinite_outside(dtype):
    assert float(NonNegative().value(torch.tensor([0.0, 3.0], dtype=dtype))) == 0.0
    assert float(NonNegative().value(torch.tensor([0.0, -1e-30, 3.0], dtype=dtype))) == math.inf
    assert float(NonNegative().value(torch.tensor([-0.0], dtype=dtype))) == 0.0
    x = NonNegative().prox(torch.tensor([-2.0, -0.0, 0.0, 2.0], dtype=dtype), 0.1)
    assert x.tolist() == [0.0, 0.0, 0.0, 2.0]
    assert float(NonNegative().value(x)) == 0.0


def test_projecting_twice_changes_nothing():
    v = normal(50, seed=12)
    once = NonNegative().prox(v, 3.0)
    assert torch.equal(NonNegative().prox(once, 0.01), once)


# --- one weight, or one for every entry ------------------------------------------------------------------------------


def test_weight_for_every_entry_is_a_weight_at_a_time(regularizer, dtype):
    v = signed_magnitudes(len(WEIGHTS) * 6, seed=13).view(len(WEIGHTS), 6).to(dtype)
    weights = torch.tensor(WEIGHTS, dtype=dtype)
    rows = torch.stack([regularizer.prox(v[i], WEIGHTS[i]) for i in range(len(WEIGHTS))])
    for r in (weights[:, None], weights[:, None].expand_as(v), weights[:, None].expand_as(v).contiguous()):
        with left_alone(v, r):
            x = regularizer.prox(v, r)
        assert x.dtype == dtype
        assert_all((x - rows).abs() <= 8.0 * torch.finfo(dtype).eps * v.abs(), str(regularizer), x=x, rows=rows, v=v)
    columns = torch.logspace(-3, 2, 6, dtype=dtype)  # a weight for every input, as the W update has them
    expected = torch.stack([regularizer.prox(v[:, j], float(columns[j])) for j in range(6)], dim=1)
    x = regularizer.prox(v, columns)
    assert_all((x - expected).abs() <= 8.0 * torch.finfo(dtype).eps * v.abs(), str(regularizer), x=x, expected=expected)


def test_weight_may_be_a_scalar_tensor(regularizer, dtype):
    v = normal(3, 4, seed=14).to(dtype)
    x = regularizer.prox(v, torch.tensor(0.3, dtype=dtype))
    assert x.dtype == dtype
    torch.testing.assert_close(x, regularizer.prox(v, float(torch.tensor(0.3, dtype=dtype))))


def test_weight_tensor_does_not_change_the_precision(regularizer, dtype):
    """Mixed precision is refused by name, or else the result has the precision of ``v``: never a third thing."""
    v = normal(6, seed=15).to(dtype)
    for precision in {torch.float16, torch.bfloat16, torch.float32, torch.float64} - {dtype}:
        x = message = None
        try:
            x = regularizer.prox(v, torch.full((6,), 0.5, dtype=precision))
        except TypeError as error:
            message = str(error)
        assert x is None or x.dtype == dtype, f"v: {dtype}, r: {precision}, result: {x.dtype}"
        assert message is None or re.search(r"\br\b", message), f"{message!r} does not name r"


# --- identities between regularisers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("strength", [0.0, 1e-5, 0.5, 1e3])
def test_elastic_net_reduces_to_its_parts(strength):
    v, r = every_weight(L1(strength), torch.float64)
    assert torch.equal(ElasticNet(strength, 0.0).prox(v, r), L1(strength).prox(v, r))
    assert torch.equal(ElasticNet(0.0, strength).prox(v, r), Ridge(strength).prox(v, r))
    assert ElasticNet(strength, 0.0).value(v) == L1(strength).value(v)
    assert ElasticNet(0.0, strength).value(v) == Ridge(strength).value(v)


@pytest.mark.parametrize("kind", [Ridge, L1, lambda strength: ElasticNet(strength, strength)])
def test_strength_zero_changes_nothing(kind):
    v = signed_magnitudes(50, seed=16)
    assert torch.equal(kind(0.0).prox(v, 0.1), v)
    assert float(kind(0.0).value(v)) == 0.0


def test_prox_is_that_of_the_rest_and_then_of_the_curvature(regularizer):
    """``R`` is its rest plus ``curvature / 2 ||x||^2``; entry by entry the prox of the sum is one after the other.

    The W update solves for the curvature itself and calls ``_prox_of_rest``: together they must be the whole ``R``.
    """
    v, r = every_weight(regularizer, torch.float64)
    if regularizer.is_quadratic:
        torch.testing.assert_close(regularizer.value(v), Ridge(regularizer.curvature).value(v))
        return
    rest = regularizer._prox_of_rest(v, r)
    x = regularizer.prox(v, r)
    torch.testing.assert_close(x, Ridge(regularizer.curvature).prox(rest, r), rtol=1e-14, atol=0.0)
    # The other way: the curvature as a quadratic that is completed into a new centre and a new weight.
    total = r + regularizer.curvature
    other = regularizer._prox_of_rest(r * v / total, total)
    assert_all((x - other).abs() <= 16.0 * DOUBLE * v.abs(), str(regularizer), v=v, r=r, x=x, other=other)


def test_curvature_is_a_part_of_the_value(regularizer):
    """What is left of ``R`` without its curvature is still convex: it never bends down."""
    points = both_signs(torch.logspace(-2, 2, 20, dtype=torch.float64))
    without = values(regularizer, points) - 0.5 * regularizer.curvature * points.square()
    inside = torch.isfinite(without)
    slopes = without[inside].diff() / points[inside].diff()
    assert bool((slopes.diff() >= -1e-9 * (1.0 + slopes[1:].abs())).all())
    assert regularizer.curvature >= 0.0


def test_scale(regularizer):
    if regularizer.relative:
        assert regularizer.scale(0.5, 40.0) == 20.0
        assert regularizer.scale(0.5, 80.0) == 2.0 * regularizer.scale(0.5, 40.0)
    else:
        assert regularizer.scale(0.5, 40.0) == regularizer.scale(7.0, 1.0) == 1.0


@pytest.mark.parametrize("name", REGULARIZERS)
def test_scale_does_not_touch_value_and_prox(name):
    """``relative`` is about ``Phi``: the object itself is the same function either way."""
    kind = REGULARIZERS[name]
    v = signed_magnitudes(30, seed=17)
    assert torch.equal(kind(relative=True).prox(v, 0.2), kind(relative=False).prox(v, 0.2))
    assert kind(relative=True).value(v.abs()) == kind(relative=False).value(v.abs())


# --- the contract of the arguments -----------------------------------------------------------------------------------


def test_shape_and_precision_are_kept(regularizer, dtype):
    for shape in [(), (1,), (7,), (3, 5), (2, 3, 4), (0,), (0, 4)]:
        x = regularizer.prox((3.0 * normal(*shape, seed=18)).to(dtype), 0.7)
        assert x.shape == shape
        assert x.dtype == dtype


def test_views_give_what_their_copies_give(regularizer, dtype):
    v = (3.0 * normal(8, 12, seed=19)).to(dtype)
    for view in (v.t(), v[::2, 1::3], v.t()[1::2], v[:1].expand(5, 12), v[:, 3]):
        with left_alone(v):
            x = regularizer.prox(view, 0.2)
        torch.testing.assert_close(
            x, regularizer.prox(view.contiguous(), 0.2), rtol=4.0 * torch.finfo(dtype).eps, atol=0.0
        )


def test_arguments_are_left_alone(regularizer, dtype):
    v, r = every_weight(regularizer, dtype)
    with left_alone(v, r):
        assert_fresh(regularizer.prox(v, r), v, r)
        assert_fresh(regularizer.prox(v, 1e-6), v)
        assert_fresh(regularizer._prox_of_rest(v, r), v, r)


def test_no_graph_is_built(regularizer, dtype):
    v, r = every_weight(regularizer, dtype)
    plain = regularizer.prox(v, r)
    v, r = v.clone().requires_grad_(), r.clone().requires_grad_()
    with left_alone(v, r):
        x = regularizer.prox(v, r)
    assert_fresh(x, v, r)
    assert torch.equal(x, plain)


def test_bad_weight_is_refused(regularizer, dtype):
    v = torch.ones(3, dtype=dtype)
    for bad in BAD_WEIGHTS:
        for r in (bad, torch.tensor(bad, dtype=dtype), torch.tensor([1.0, bad, 1.0], dtype=dtype)):
            with pytest.raises(ValueError, match=r"^r must be finite and > 0, got"):
                regularizer.prox(v, r)


def test_infinities_and_nan_are_refused(regularizer, dtype):
    for bad in BAD_NUMBERS:
        with pytest.raises(ValueError, match=r"^v holds NaN or infinity"):
            regularizer.prox(torch.tensor([1.0, bad], dtype=dtype), 1.0)


def test_other_precisions_are_refused(regularizer):
    for bad in BAD_PRECISIONS:
        with pytest.raises(TypeError, match=rf"^v must be float32 or float64, got {bad}"):
            regularizer.prox(torch.ones(3).to(bad), 1.0)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (Ridge, "strength"),
        (L1, "strength"),
        (lambda bad: ElasticNet(bad, 1.0), "l1"),
        (lambda bad: ElasticNet(1.0, bad), "ridge"),
    ],
)
def test_bad_strength_is_refused(make, name):
    for bad in (-1e-9, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"^{name} must be a finite number >= 0, got {bad}"):
            make(bad)
