"""Every activation's prox is the global minimiser of ``(sigma(x) - w)^2 + r (x - v)^2``."""

from __future__ import annotations

import decimal
import functools
import itertools
import math
from collections.abc import Callable
from decimal import Decimal

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
    change_within,
    global_minimum,
    higher_slopes,
    left_alone,
    local_steps,
    normal,
    perturbations,
    signed_magnitudes,
    slope,
    uniform,
    wide_grid,
)
from ipdlam.prox import (
    ACTIVATIONS,
    ELU,
    GELU,
    SELU,
    Activation,
    Hardswish,
    Hardtanh,
    Identity,
    LeakyReLU,
    Mish,
    PiecewiseLinear,
    ReLU,
    Sigmoid,
    SiLU,
    Softplus,
    Tanh,
    newton,
    search,
    smooth,
)

CASES: dict[str, Activation] = {name: kind() for name, kind in ACTIVATIONS.items()} | {
    "leaky_relu(0)": LeakyReLU(0.0),
    "leaky_relu(0.2)": LeakyReLU(0.2),
    "leaky_relu(0.99)": LeakyReLU(0.99),
    "hardtanh(-2, 0.5)": Hardtanh(-2.0, 0.5),
    "hardtanh(1, 3)": Hardtanh(1.0, 3.0),
    "softplus(3)": Softplus(3.0),
    "gelu(tanh)": GELU("tanh"),
    "elu(0.3)": ELU(0.3),
    "elu(4)": ELU(4.0),
}
KINKS = [-3.0, -2.0, 3.0, 6.0]  # those of the cases above that VALUES does not hold
OPERANDS = sorted(VALUES + KINKS)
NEAR = {torch.float32: 1e-6, torch.float64: 1e-12}  # how accurate a result is, relative to the operands


def is_straight(sigma: Activation) -> bool:
    """Made of straight pieces: three points close together are on one line, wherever no kink is near."""
    at = torch.tensor([0.3137, 1.7131, -0.6179], dtype=torch.float64)
    bend = sigma.value(at + 1e-3) - 2.0 * sigma.value(at) + sigma.value(at - 1e-3)
    return bool((bend.abs() < 1e-12).all())


SMOOTH = [name for name, sigma in CASES.items() if not is_straight(sigma)]
ONE = Decimal(1)


def normal_distribution(x: Decimal) -> Decimal:
    """``(1 + erf(x / sqrt(2))) / 2`` by a series of positive terms; beyond 16 it is 0 or 1 to fifty digits."""
    if abs(x) > 16:
        return ONE if x > 0 else Decimal(0)
    term = total = x
    odd = ONE
    while abs(term) > abs(total) * Decimal("1e-52"):
        odd += 2
        term *= x * x / odd
        total += term
    pi = Decimal("3.14159265358979323846264338327950288419716939937510582")
    return Decimal("0.5") + total * (-x * x / 2).exp() / (2 * pi).sqrt()


def exact_gelu(sigma: Activation, x: Decimal) -> Decimal:
    if sigma.approximate == "none":
        return x * normal_distribution(x)
    pi = Decimal("3.14159265358979323846264338327950288419716939937510582")
    inner = 2 * (2 / pi).sqrt() * (x + Decimal("0.044715") * x**3)
    return x / (ONE + (-inner).exp()) if abs(inner) < 1000 else max(x, Decimal(0))


def exact_mish(sigma: Activation, x: Decimal) -> Decimal:
    u = x.exp()
    return x * (u * u + 2 * u) / (u * u + 2 * u + 2)


def exact_elu(sigma: Activation, x: Decimal) -> Decimal:
    return Decimal(sigma.scale) * (x if x >= 0 else Decimal(sigma.alpha) * (x.exp() - ONE))


EXACT: dict[type[Activation], Callable[[Activation, Decimal], Decimal]] = {
    Sigmoid: lambda sigma, x: ONE / (ONE + (-x).exp()),
    Tanh: lambda sigma, x: ONE - 2 / ((2 * x).exp() + ONE),
    Softplus: lambda sigma, x: (ONE + (Decimal(sigma.beta) * x).exp()).ln() / Decimal(sigma.beta),
    GELU: exact_gelu,
    SiLU: lambda sigma, x: x / (ONE + (-x).exp()),
    Mish: exact_mish,
    ELU: exact_elu,
    SELU: exact_elu,
    Hardswish: lambda sigma, x: x * min(max(x + 3, Decimal(0)), Decimal(6)) / 6,
}
"""The smooth activations in as many digits as wanted: rounding then excuses nothing. A new one needs its line here."""


@pytest.fixture(params=CASES)
def sigma(request: pytest.FixtureRequest) -> Activation:
    return CASES[request.param]


@pytest.fixture(params=SMOOTH)
def curve(request: pytest.FixtureRequest) -> Activation:
    return CASES[request.param]


@pytest.fixture(params=PRECISIONS, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def solve(sigma: Activation, w: Tensor, v: Tensor, r: float) -> tuple[Tensor, Tensor, Tensor]:
    """The result and the operands, all in the precision of the judge."""
    x = sigma.prox(w, v, r)
    assert x.dtype == w.dtype
    assert x.shape == w.shape
    return x.double(), w.double(), v.double()


def rounding_of_objective(sigma: Activation, x: Tensor, w: Tensor, v: Tensor, r: float, eps: float) -> Tensor:
    """The objective is the squared length of ``(sigma(x) - w, sqrt(r) (x - v))``, each known to a few ``eps``."""
    error = 4.0 * eps * torch.hypot(w.abs() + sigma.value(x).abs(), math.sqrt(r) * (x.abs() + v.abs()))
    return error * (2.0 * sigma.prox_objective(x, w, v, r).sqrt() + error)


# --- the value -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_value_is_that_of_the_torch_module(name, dtype):
    module = ACTIVATIONS[name].module()
    x = torch.tensor(OPERANDS, dtype=dtype)
    # nn.Softplus cuts over to x beyond 20, which is 2e-9 away; float32 has its own rounding.
    torch.testing.assert_close(
        ACTIVATIONS[name].from_module(module).value(x),
        module(x),
        rtol=1e-6 if dtype == torch.float32 else 1e-12,
        atol=3e-9,
    )


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (torch.nn.LeakyReLU(0.2), LeakyReLU(0.2)),
        (torch.nn.Hardtanh(-2.0, 0.5), Hardtanh(-2.0, 0.5)),
        (torch.nn.Softplus(beta=3.0), Softplus(3.0)),
        (torch.nn.GELU(), GELU()),
        (torch.nn.GELU(approximate="tanh"), GELU("tanh")),
        (torch.nn.ELU(0.3), ELU(0.3)),
    ],
)
def test_parameters_of_the_module_are_kept(module, expected):
    assert type(expected).from_module(module) == expected
    x = torch.linspace(-4.0, 4.0, 33, dtype=torch.float64)
    torch.testing.assert_close(expected.value(x), module(x))


def test_objective_is_the_one_definition(sigma):
    x, w, v = normal(3, 50, seed=1)
    torch.testing.assert_close(sigma.prox_objective(x, w, v, 0.3), (sigma.value(x) - w) ** 2 + 0.3 * (x - v) ** 2)


# --- certificates for every activation -------------------------------------------------------------------------------


def test_beats_grid_and_perturbations(sigma, dtype):
    w, v = all_pairs(OPERANDS, OPERANDS, dtype)
    eps = torch.finfo(dtype).eps
    wide, steps = wide_grid()[:, None], local_steps()[:, None]
    moves = perturbations(tuple(w.shape), seed=2)
    for r in WEIGHTS:
        x, w64, v64 = solve(sigma, w, v, r)

        def objective(x, w=w64, v=v64, r=r):
            return sigma.prox_objective(x, w, v, r)

        allowance = change_within(objective, x, 4.0 * eps * (x.abs() + v64.abs()))
        allowance = allowance + rounding_of_objective(sigma, x, w64, v64, r, eps)
        for kind, candidates in [
            ("wide grid", wide.expand(-1, len(x))),
            ("local grid", x + steps * (1.0 + x.abs())),
            ("perturbation", x + moves),
            ("where sigma or x is fitted exactly", torch.stack([v64, w64])),
        ]:
            assert_lowest(objective, x, candidates, allowance, f"{sigma}, r={r:g}, {kind}")


def assert_stationary(sigma: Activation, w: Tensor, v: Tensor, r: float) -> int:
    """Just left of the result the objective falls, just right of it it rises; where it is smooth its slope is 0.

    "Just" is NEAR, relative to the operands. Returns how many of the results are smooth.
    """
    near, single = NEAR[w.dtype], w.dtype == torch.float32
    x, w, v = solve(sigma, w, v, r)

    def objective(x):
        return sigma.prox_objective(x, w, v, r)

    distance = near * (1.0 + x.abs() + v.abs())
    left, here, right = (slope(objective, x + side * distance) for side in (-1.0, 0.0, 1.0))
    steepness = slope(sigma.value, x).abs()
    residual = w.abs() + sigma.value(x).abs()
    # What the float64 of this test cannot see; saturated slopes such as 1 - tanh^2 are known to eps absolutely.
    noise = 16.0 * DOUBLE * (residual * (steepness + 0.25) + r * (x.abs() + v.abs()))
    if single:  # the residual w - sigma(x) of a float32 solver is rounded as float32
        noise = noise + 4.0 * torch.finfo(torch.float32).eps * residual * steepness
    shown = {"w": w, "v": v, "x": x, "left": left, "here": here, "right": right, "noise": noise}
    assert_all(left <= noise, f"{sigma}, r={r:g}: still rising on the left", **shown)
    assert_all(right >= -noise, f"{sigma}, r={r:g}: still falling on the right", **shown)
    before, after = (slope(sigma.value, x + side * 1e-7 * (1.0 + x.abs())) for side in (-1.0, 1.0))
    is_smooth = (before - after).abs() <= 1e-3 * torch.maximum(before, after)
    small = here.abs() <= (right - left).abs() + noise
    assert_all(small | ~is_smooth, f"{sigma}, r={r:g}: the slope is not 0", **shown)
    return int(is_smooth.sum())


def test_derivative_vanishes_or_changes_sign(sigma, dtype):
    w, v = all_pairs(OPERANDS, OPERANDS, dtype)
    smooth_ones = sum(assert_stationary(sigma, w, v, r) for r in WEIGHTS)
    assert smooth_ones > len(WEIGHTS) * len(w) // 10


@pytest.mark.parametrize("name", [name for name, sigma in CASES.items() if is_straight(sigma)])
def test_minimiser_next_to_a_kink_is_told_from_the_kink(name, dtype):
    """Their objectives may differ by less than rounding; their slopes do not."""
    sigma = CASES[name]
    kinks = [low for low, *_ in sigma.pieces()[1:]] if isinstance(sigma, PiecewiseLinear) else [0.0]
    offsets = both_signs(torch.logspace(-11, -2, 28, dtype=torch.float64))
    tried = 0
    for kink, w0, r in itertools.product(kinks, [-100.0, -0.7, 0.3, 5.0, 1e3], WEIGHTS[::2]):
        w, v = leading_to(sigma, kink + offsets, w0, r)
        # Closer than this, the points on either side of x that are looked at lie on either side of the kink.
        apart = offsets.abs() > 8.0 * NEAR[dtype] * (1.0 + abs(kink) + v.abs())
        if bool(apart.any()) and float(v.abs().max()) <= 1e4:
            assert_stationary(sigma, w[apart].to(dtype), v[apart].to(dtype), r)
            tried += int(apart.sum())
    assert tried > 250


@pytest.mark.parametrize("r", [1e-6, 1e-3, 0.1, 1.0, 30.0, 1e6])
def test_increases_with_v_and_jumps_only_at_ties(sigma, r):
    """A prox is monotone in ``v`` whatever ``sigma``; where it jumps, both ends are minimisers."""
    w = torch.tensor([-100.0, -3.0, -0.5, 0.0, 0.3, 0.9, 1.0, 1.1, 2.0, 5.0, 40.0, 1e3], dtype=torch.float64)
    fractions = torch.linspace(0.0, 1.0, 129, dtype=torch.float64)[:, None]
    high = 40.0 + 4.0 * (w.abs() + 1.0) / math.sqrt(r)  # a weak pull lets v go far before it is given up
    low = -high
    for zoom in range(9):  # close in on the widest step of every w, 128-fold at a time, to neighbouring floats
        v = low + (high - low) * fractions
        x = sigma.prox(w.expand_as(v), v, r)
        rises = x.diff(dim=0)
        if zoom < 2:  # later v are so close to the tie that rounding decides, and may do so in any order
            assert_all(rises >= -1e-11 * (1.0 + x[1:].abs()), f"{sigma}, r={r:g}: decreasing", w=w, v=v[1:], x=x[1:])
        index = rises.argmax(0, keepdim=True)
        low, high = v.gather(0, index)[0], v.gather(0, index + 1)[0]
    x_low, x_high = sigma.prox(w, low, r), sigma.prox(w, high, r)
    jumps = x_high - x_low > 1e-4
    # Where w pulls far more weakly than r holds, even a kink does not make the objective bistable.
    if 0.1 <= r <= 1.0 and not isinstance(sigma, Identity):
        assert bool(jumps.any()), "no jump was met: the test says nothing"
    difference = sigma.prox_objective(x_high, w, low, r) - sigma.prox_objective(x_low, w, low, r)
    allowance = rounding_of_objective(sigma, x_high, w, low, r, DOUBLE)
    assert_all((difference.abs() <= 4.0 * allowance) | ~jumps, f"{sigma}, r={r:g}: the jump is no tie", w=w, v=low)


finite = st.floats(-1e4, 1e4, allow_subnormal=False)


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None, derandomize=True, max_examples=40)
@given(w=finite, v=finite, other=finite, exponent=st.floats(-6.0, 6.0))
def test_nothing_is_better(name, w, v, other, exponent):
    sigma, r = CASES[name], 10.0**exponent
    w, v, other = (torch.tensor(t, dtype=torch.float64) for t in (w, v, other))
    x = sigma.prox(w, v, r)
    # A point between the result and any other tests all distances, not only the far ones.
    rivals = torch.stack([torch.lerp(x, other, t) for t in (1e-6, 1e-3, 0.1, 0.5, 1.0)])
    excess = sigma.prox_objective(x, w, v, r) - sigma.prox_objective(rivals, w, v, r).min()
    assert excess <= rounding_of_objective(sigma, x, w, v, r, DOUBLE)


# --- ties ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("r", WEIGHTS)
def test_relu_tie(r, dtype):
    """At ``v = -kappa w`` staying at ``v`` and fitting ``w`` cost the same, and one of the two is returned."""
    kappa = math.expm1(0.5 * math.log1p(1.0 / r))  # sqrt(1 + 1/r) - 1
    w = torch.logspace(-3, 4, 29, dtype=torch.float64).to(dtype)
    v = (-kappa * w.double()).to(dtype)
    relu, eps = ReLU(), torch.finfo(dtype).eps
    x = relu.prox(w, v, r)
    stay, fit = v, Identity().prox(w, v, r)  # without the kink: the minimiser on the active side
    assert bool((fit > 0).all())
    assert bool(((x == stay) | (x == fit)).all())
    costs = [relu.prox_objective(at.double(), w.double(), v.double(), r) for at in (stay, fit)]
    torch.testing.assert_close(costs[0], costs[1], rtol=8.0 * eps, atol=0.0)


def test_tie_rules_are_those_of_the_docstrings(dtype):
    """r = 1/8 makes kappa = 2: everything is a small integer, so the tie is exact in any precision."""
    w, v, r = torch.tensor([3.0], dtype=dtype), torch.tensor([-6.0], dtype=dtype), 0.125
    for sigma in (ReLU(), LeakyReLU(0.0), Hardtanh(0.0, 100.0)):
        assert sigma.prox_objective(v, w, v, r) == sigma.prox_objective(torch.full_like(v, 2.0), w, v, r) == 9.0
    assert ReLU().prox(w, v, r) == Identity().prox(w, v, r)  # the active side
    assert LeakyReLU(0.0).prox(w, v, r) == -6.0  # the leftmost piece
    assert Hardtanh(0.0, 100.0).prox(w, v, r) == -6.0
    assert Hardtanh(-100.0, 0.0).prox(-w, -v, r) == -2.0  # the mirror image: the fit is on the left


def test_a_perfect_fit_stays(sigma, dtype):
    """``w = sigma(v)`` costs nothing at ``x = v``, kink or not."""
    v = torch.tensor(OPERANDS, dtype=dtype)
    w = sigma.value(v)
    for r in WEIGHTS:
        x = sigma.prox(w, v, r)
        # sigma(v) is itself rounded, and x moves by at most 1 / (2 sqrt(r)) times as much as w does.
        rounding = 4.0 * torch.finfo(dtype).eps * (v.abs() + w.abs() / (2.0 * math.sqrt(r)))
        assert_all((x - v).abs() <= rounding, f"{sigma}, r={r:g}", v=v, x=x)


@pytest.mark.parametrize("name", [name for name, sigma in CASES.items() if isinstance(sigma, PiecewiseLinear)])
def test_pieces_agree_with_value(name):
    sigma = CASES[name]
    pieces = sigma.pieces()
    assert pieces[0][0] == -math.inf
    assert pieces[-1][1] == math.inf
    for (_, end, *_), (start, *_) in itertools.pairwise(pieces):
        assert end == start
    for low, high, gradient, intercept in pieces:
        x = torch.linspace(max(low, -50.0), min(high, 50.0), 11, dtype=torch.float64)
        torch.testing.assert_close(sigma.value(x), gradient * x + intercept)


def test_leaky_relu_without_slope_is_relu():
    w, v = all_pairs(OPERANDS, OPERANDS, torch.float64)
    for r in WEIGHTS:
        leaky, relu = LeakyReLU(0.0).prox(w, v, r), ReLU().prox(w, v, r)
        assert_all(
            (leaky - relu).abs() <= 8.0 * DOUBLE * (leaky.abs() + v.abs()), f"r={r:g}", w=w, v=v, leaky=leaky, relu=relu
        )


# --- smooth activations: an independent oracle, and exact arithmetic to judge ---------------------------------------


def exact_objective(sigma: Activation, w: float, v: float, r: float) -> Callable[[Decimal], Decimal]:
    value, w_, v_, r_ = EXACT[type(sigma)], Decimal(w), Decimal(v), Decimal(r)
    return lambda x: (value(sigma, x) - w_) ** 2 + r_ * (x - v_) ** 2


def certify_exactly(sigma: Activation, x: Tensor, rival: Tensor, w: Tensor, v: Tensor, r: float) -> tuple[list, list]:
    """The problems where ``rival`` beats ``x`` noticeably, and the well-conditioned ones whose ``x`` is inaccurate.

    If the objective is higher both at ``x - d`` and at ``x + d`` than at ``x``, a minimiser lies in between: ``x`` is
    accurate to ``d``. Fifty digits make the comparison exact for every purpose.
    """
    beaten, inaccurate = [], []
    with decimal.localcontext(decimal.Context(prec=50)):
        for numbers in zip(x.tolist(), rival.tolist(), w.tolist(), v.tolist(), strict=True):
            at, other, fit, stay = numbers
            objective = exact_objective(sigma, fit, stay, r)
            here, best = objective(Decimal(at)), objective(Decimal(other))
            floor = (DOUBLE * (abs(fit) + 1.0)) ** 2 + r * (DOUBLE * (abs(stay) + abs(at) + 1.0)) ** 2
            if here > best * Decimal("1.000000001") + Decimal(floor):
                excess = float((here - best) / (best + Decimal(floor)))
                beaten.append({"r": r, "w": fit, "v": stay, "x": at, "oracle": other, "excess": excess})
            d = Decimal(1e-12 * (1.0 + abs(at) + abs(stay)))
            left, right = objective(Decimal(at) - d), objective(Decimal(at) + d)
            conditioning = float((left - 2 * here + right) / d**2) / (2.0 * r)
            if conditioning >= 0.1 and min(left, right) < here:
                inaccurate.append({"r": r, "w": fit, "v": stay, "x": at, "conditioning": conditioning})
    return beaten, inaccurate


def oracle(sigma: Activation, w: Tensor, v: Tensor, r: float | Tensor) -> Tensor:
    # Nothing farther from v than this can beat v itself.
    radius = (sigma.value(v) - w).abs() / r**0.5
    return global_minimum(lambda x: sigma.prox_objective(x, w, v, r), v, radius)


def mixed_sample(n: int, seed: int) -> Tensor:
    """All magnitudes, the range of the activations, values next to 0 and 1, and 0 itself."""
    parts = [
        signed_magnitudes(n, seed=seed),
        2.0 * normal(n, seed=seed + 2),
        15.0 * normal(n, seed=seed + 3),
        uniform(n, seed=seed + 4),
        1.0 + signed_magnitudes(n, seed=seed + 5, low=-9.0, high=-2.0),
        torch.zeros(n, dtype=torch.float64),
    ]
    share = torch.tensor([0.3, 0.2, 0.2, 0.2, 0.07, 0.03])
    choice = torch.searchsorted(share.cumsum(0), uniform(n, seed=seed + 6).float()).clamp_max(len(parts) - 1)
    return torch.stack(parts).gather(0, choice[None])[0]


CUSP_FITS = [-20.0, -0.4, 0.1, 0.3, 0.8, 1.0, 1.2, 3.0, 20.0, 500.0]


@functools.cache
def cusps(sigma: Activation) -> list[tuple[float, float, float]]:
    """``(w, c, r)``: the objective of ``w`` has its most negative curvature at ``c``, and just none there for ``r``.

    Around ``v`` that leads to ``x = c``, two minimisers are born with a second derivative of zero: the hardest place
    for a solver. Found by bisecting the third derivative of the fit, so nothing is assumed of the activation.
    """
    w = torch.tensor(CUSP_FITS, dtype=torch.float64)

    def fit(x):
        return (sigma.value(x) - w).square()

    grid = torch.linspace(-12.0, 12.0, 2401, dtype=torch.float64)[:, None].expand(-1, len(w))
    curvature = higher_slopes(fit, grid, 2)[1][1:-1]
    deepest = curvature.argmin(0, keepdim=True)
    low, high = grid.gather(0, deepest)[0], grid.gather(0, deepest + 2)[0]
    for _ in range(50):
        middle = torch.lerp(low, high, 0.5)
        falling = higher_slopes(fit, middle, 3)[2] < 0.0
        low, high = torch.where(falling, middle, low), torch.where(falling, high, middle)
    steepest = -0.5 * higher_slopes(fit, low, 2)[1]
    has_cusp = (curvature.amin(0) < 0.0) & (low.abs() < 11.0)  # otherwise the objective is convex for this w
    return [(float(w[i]), float(low[i]), float(steepest[i])) for i in has_cusp.nonzero()[:, 0]]


def leading_to(sigma: Activation, x: Tensor, w: float, r: float) -> tuple[Tensor, Tensor]:
    """Operands for which ``x`` is stationary: the derivative of the objective is solved for ``v``."""
    fits = torch.full_like(x, w)
    return fits, x + slope(lambda x: (sigma.value(x) - w).square(), x) / (2.0 * r)


def test_every_smooth_activation_can_be_judged():
    missing = [name for name in SMOOTH if type(CASES[name]) not in EXACT]
    assert not missing, f"add {missing} to EXACT, so that their solvers are tested"
    assert {"sigmoid", "tanh", "softplus"} <= set(SMOOTH)
    with decimal.localcontext(decimal.Context(prec=50)):
        for name in SMOOTH:
            for at in (-30.0, -1.0, 0.3, 8.0):
                exact = float(EXACT[type(CASES[name])](CASES[name], Decimal(at)))
                assert float(CASES[name].value(torch.tensor(at, dtype=torch.float64))) == pytest.approx(
                    exact, rel=1e-14
                )


@pytest.mark.parametrize("r", [1e-6, 3e-5, 1e-3, 0.03, 1.0, 100.0, 1e6])
def test_smooth_minimiser_is_global_and_accurate(curve, r):
    w, v = mixed_sample(300, seed=10), mixed_sample(300, seed=20)
    x = curve.prox(w, v, r)
    beaten, inaccurate = certify_exactly(curve, x, oracle(curve, w, v, r), w, v, r)
    assert not beaten, f"{curve}: {len(beaten)} not global, such as {beaten[0]}"
    assert not inaccurate, f"{curve}: {len(inaccurate)} inaccurate, such as {inaccurate[0]}"


@pytest.mark.parametrize("factor", [0.9, 0.99, 0.999, 1.0, 1.001, 1.01, 1.05, 1.2, 2.0])
def test_smooth_minimiser_near_a_cusp(curve, factor):
    """Where two minimisers merge, Newton's method is slowest: ``r`` around the steepest slope of the fit."""
    offsets = torch.tensor([1e-3, 1e-2, 0.03, 0.1, 0.2, 0.4, 0.8], dtype=torch.float64)
    problems = []
    for w0, c, steepest in cusps(curve):
        r = factor * steepest
        problems.append((*leading_to(curve, c + torch.cat([-offsets, offsets]), w0, r), r))
    weights = torch.tensor([r for *_, r in problems], dtype=torch.float64).repeat_interleave(2 * len(offsets))
    rivals = oracle(curve, *(torch.cat(operands) for operands in list(zip(*problems, strict=True))[:2]), weights)
    beaten, inaccurate = [], []
    for (w, v, r), rival in zip(problems, rivals.split(2 * len(offsets)), strict=True):
        found = certify_exactly(curve, curve.prox(w, v, r), rival, w, v, r)
        beaten += found[0]
        inaccurate += found[1]
    worst = max(beaten, key=lambda problem: problem["excess"], default=None)
    assert not beaten, f"{curve}: {len(beaten)} not global, the worst {worst}"
    assert not inaccurate, f"{curve}: {len(inaccurate)} inaccurate, such as {inaccurate[0]}"


@pytest.mark.parametrize("factor", [1.5, 3.0, 10.0])
def test_smooth_minimiser_at_the_steepest_point(curve, factor):
    """A minimiser next to the point where the fit is steepest is as well conditioned as any other, and as accurate."""
    offsets = torch.logspace(-11, -3, 25, dtype=torch.float64)
    inaccurate = []
    for w0, c, steepest in cusps(curve):
        r = factor * steepest
        w, v = leading_to(curve, c + torch.cat([-offsets, offsets]), w0, r)
        x = curve.prox(w, v, r)
        inaccurate += certify_exactly(curve, x, x, w, v, r)[1]
    assert not inaccurate, f"{curve}: {len(inaccurate)} inaccurate, such as {inaccurate[0]}"


def polished(sigma: Activation, x: Tensor, w: Tensor, v: Tensor, r: float) -> tuple[Tensor, Tensor]:
    """The stationary point next to ``x`` by Newton's method in float64, and the second derivative there."""
    for _ in range(4):
        first, second = higher_slopes(lambda x: sigma.prox_objective(x, w, v, r), x, 2)
        x = torch.where(second > 0.0, x - first / second, x)
    return x, higher_slopes(lambda x: sigma.prox_objective(x, w, v, r), x, 2)[1]


def assert_single_follows_double(sigma: Activation, w: Tensor, v: Tensor, r: float) -> int:
    """float32 agrees with float64 to 1e-6 where well conditioned; returns for how many problems that was."""
    w, v = w.float(), v.float()
    eps = torch.finfo(torch.float32).eps
    x, w, v = solve(sigma, w, v, r)
    double = sigma.prox(w, v, r)
    excess = sigma.prox_objective(x, w, v, r) - sigma.prox_objective(double, w, v, r)
    assert_all(
        excess <= rounding_of_objective(sigma, x, w, v, r, eps),
        f"{sigma}, r={r:g}: not global",
        w=w,
        v=v,
        x=x,
        x64=double,
    )
    scale = 1.0 + x.abs() + v.abs()
    # Two minimisers may tie within float32; the one taken must then be accurate in its own right.
    own, curvature = polished(sigma, x, w, v, r)
    other_valley = (x - double).abs() > 0.05 * scale
    target = torch.where(other_valley, own, double)
    curvature = torch.where(other_valley, curvature, polished(sigma, double, w, v, r)[1])
    # float32 knows w - sigma(x) to a rounding, and that moves x by this much:
    moved = 4.0 * eps * (w.abs() + sigma.value(x).abs()) * 2.0 * slope(sigma.value, x).abs() / curvature
    conditioned = (curvature >= 0.2 * r) & (moved <= 1e-6 * scale)
    assert_all(
        ((x - target).abs() <= 1e-6 * scale + moved) | ~conditioned,
        f"{sigma}, r={r:g}: float32 is inaccurate",
        w=w,
        v=v,
        x=x,
        x64=double,
    )
    return int(conditioned.sum())


@pytest.mark.parametrize("r", WEIGHTS)
def test_single_precision_follows_double(curve, r):
    n = 1500
    assert assert_single_follows_double(curve, mixed_sample(n, seed=30), mixed_sample(n, seed=40), r) > n // 2


@pytest.mark.parametrize("factor", [1.5, 3.0, 10.0])
def test_single_precision_follows_double_at_the_steepest_point(curve, factor):
    offsets = torch.logspace(-5, -2, 25, dtype=torch.float64)
    conditioned = 0
    for w0, c, steepest in cusps(curve):
        r = factor * steepest
        w, v = leading_to(curve, c + torch.cat([-offsets, offsets]), w0, r)
        conditioned += assert_single_follows_double(curve, w, v, r)
    assert conditioned > 50


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "softplus", "softplus(3)"])
def test_at_most_twenty_evaluations(name, dtype, monkeypatch):
    """Counts the calls of the functions that the solvers are given, along the costliest path of any problem.

    Both searches of a problem with two candidates share one function, and comparing the candidates costs two more. The
    quick attempt comes before the careful search of what it leaves, so that search is charged with it.
    """
    curve = CASES[name]
    calls: dict[Callable, int] = {}
    searches: dict[Callable, int] = {}
    attempts: dict[Callable, int] = {}

    def count_in(name: str, charge: Callable[[Callable], None]) -> None:
        solver = getattr(search, name)

        def counted(k, *operands, **options):
            def counting(x):
                charge(k)
                return k(x)

            searches[k] = searches.get(k, 0) + 1
            calls.setdefault(k, max(attempts.values(), default=0))
            return solver(counting, *operands, **options)

        for module in (search, smooth):
            monkeypatch.setattr(module, name, counted)

    def charge_search(k: Callable) -> None:
        calls[k] += 1

    def charge_quick(k: Callable) -> None:
        attempts[k] = attempts.get(k, 0) + 1

    count_in("increasing_root", charge_search)
    count_in("quick_root", charge_quick)
    w, v = mixed_sample(2000, seed=50).to(dtype), mixed_sample(2000, seed=60).to(dtype)
    worst = 0
    for r in [*WEIGHTS, *(steepest for *_, steepest in cusps(curve))]:
        calls.clear()
        searches.clear()
        attempts.clear()
        curve.prox(w, v, r)
        direction = 2  # to see whether Newton's method covers it, and for the search
        worst = max([worst, *(calls[k] + direction + (2 if searches[k] > 1 else 0) for k in calls)])
    assert 5 < worst <= 20


CURVES = [name for name, sigma in CASES.items() if isinstance(sigma, newton.Curve)]


@pytest.mark.parametrize("name", CURVES)
def test_bounds_of_the_derivatives_hold_and_are_sharp(name):
    """What the proof of the quick path rests on, by automatic differentiation; a kink has no derivatives."""
    sigma = CASES[name]
    x = torch.linspace(-12.0, 12.0, 24001, dtype=torch.float64) + 1e-7
    found_slopes = higher_slopes(lambda x: sigma.value(x) + 0.0 * x**4, x, 3)  # a graph, also of what is straight
    for number, (found, bound) in enumerate(zip(found_slopes, sigma.bounds, strict=True), start=1):
        largest = float(found.abs().max())
        assert largest <= bound * (1.0 + 1e-12), f"derivative {number}"
        assert bound <= 1.01 * largest + 1e-20, f"derivative {number}"


@pytest.mark.parametrize("name", CURVES)
def test_slopes_are_the_derivatives_of_the_value(name, dtype):
    sigma = CASES[name]
    x = torch.linspace(-30.0, 30.0, 6001, dtype=dtype) + 1e-3
    first, second = higher_slopes(sigma.value, x.double(), 2)
    for mine, exact in zip(sigma.slopes(x), (sigma.value(x.double()), first, second), strict=True):
        near = 4.0 * NEAR[dtype] * (1.0 + exact.abs())  # automatic differentiation has a rounding of its own
        assert_all((mine - exact).abs() <= near, f"{sigma}", x=x, mine=mine, exact=exact)


@pytest.mark.parametrize("name", CURVES)
def test_few_evaluations_near_a_fit(name, dtype, monkeypatch):
    """A target near sigma(v) with r = 4, as mini-batches pose it: no entry is searched for, unless it is at a kink."""
    sigma, calls, searched = CASES[name], [], []
    v = normal(20000, seed=90)
    w, v = (sigma.value(v) + 0.02 * normal(20000, seed=91)).to(dtype), v.to(dtype)
    kind = type(sigma)
    slopes, search_for = kind.slopes, kind._search
    monkeypatch.setattr(kind, "slopes", lambda self, x: calls.append(x) or slopes(self, x))
    monkeypatch.setattr(kind, "_search", lambda self, w, v, r: searched.append(v) or search_for(self, w, v, r))
    x = sigma.prox(w, v, 4.0)
    steep = sigma.bounds.second > 1.0
    assert len(calls) <= (2 if dtype == torch.float32 else 3) + steep
    kinks = torch.cat([sigma.to_kink(at) for at in searched]) if searched else torch.zeros(0)
    assert len(kinks) <= 400
    assert bool((kinks < 0.2).all())
    monkeypatch.undo()
    assert_all((x - sigma._search(w, v, 4.0)).abs() <= NEAR[dtype], f"{sigma}", w=w, v=v)


@pytest.mark.parametrize("r", [0.02, 0.3, 1.0, 2.0, 30.0])
@pytest.mark.parametrize("name", CURVES)
def test_the_quick_path_agrees_with_the_search(name, r):
    """Residuals on both sides of what the proof covers, in one tensor with those that it does not."""
    sigma = CASES[name]
    v = 2.0 * normal(3000, seed=92)
    w = sigma.value(v) + newton.limit(sigma.bounds, r) * 1.5 * (2.0 * uniform(3000, seed=93) - 1.0)
    x, searched = sigma.prox(w, v, r), sigma._search(w, v, r)
    difference = sigma.prox_objective(x, w, v, r) - sigma.prox_objective(searched, w, v, r)
    assert_all(difference.abs() <= rounding_of_objective(sigma, x, w, v, r, DOUBLE), f"{sigma}, r={r:g}", w=w, v=v)


def test_numbers_that_are_not_finite_do_no_harm(curve):
    """The engine finds them in the objective, after the prox has had them."""
    w, v = normal(2, 8, seed=94)
    w[1], v[2], w[3], v[3] = math.nan, math.inf, math.inf, -math.inf
    x = curve._prox(w, v, 0.5)
    good = torch.tensor([0, 4, 5, 6, 7])
    torch.testing.assert_close(x[good], curve.prox(w[good], v[good], 0.5))


# --- the contract of the arguments -----------------------------------------------------------------------------------


SHAPES = [(), (1,), (7,), (3, 5), (2, 3, 4), (0,), (0, 4)]
BROADCASTS = [((5, 1), (7,)), ((7,), (5, 1)), ((), (5, 7)), ((5, 7), ()), ((5, 7), (7,))]


def test_shape_and_precision_are_kept(sigma, dtype):
    for shape in SHAPES:
        w, v = (3.0 * normal(2, *shape, seed=3)).to(dtype)
        x = sigma.prox(w, v, 0.7)
        assert x.shape == shape
        assert x.dtype == dtype
        assert bool(torch.isfinite(x).all())


def test_operands_are_broadcast(sigma, dtype):
    for of_w, of_v in BROADCASTS:
        w, v = (3.0 * normal(*of_w, seed=4)).to(dtype), (3.0 * normal(*of_v, seed=5)).to(dtype)
        with left_alone(w, v):
            x = sigma.prox(w, v, 0.2)
        assert x.shape == (5, 7)
        assert x.is_contiguous()
        expected = sigma.prox(w.expand(5, 7).clone(), v.expand(5, 7).clone(), 0.2)
        torch.testing.assert_close(x, expected, rtol=8.0 * torch.finfo(dtype).eps, atol=1e-30)


def test_views_give_what_their_copies_give(sigma, dtype):
    w, v = (3.0 * normal(2, 8, 12, seed=6)).to(dtype)
    for view_w, view_v in [
        (w.t(), v.t()),
        (w[::2, 1::3], v[1::2, ::3]),
        (w.t()[::2], v.t()[1::2]),
        (w[:, 0], v[3, :8]),
    ]:
        with left_alone(w, v):
            x = sigma.prox(view_w, view_v, 0.2)
        expected = sigma.prox(view_w.contiguous(), view_v.contiguous(), 0.2)
        torch.testing.assert_close(x, expected, rtol=8.0 * torch.finfo(dtype).eps, atol=1e-30)


def test_entries_do_not_influence_each_other(sigma):
    """The result for an entry is the same alone and beside entries that need more steps."""
    w, v = mixed_sample(40, seed=70), mixed_sample(40, seed=80)
    for r in (1e-4, 0.1, 10.0):
        together = sigma.prox(w, v, r)
        alone = torch.stack([sigma.prox(w[i], v[i], r) for i in range(len(w))])
        torch.testing.assert_close(together, alone, rtol=1e-13, atol=1e-13)


def test_arguments_are_left_alone(sigma, dtype):
    w, v = all_pairs(OPERANDS, OPERANDS, dtype)
    for r in (1e-6, 0.1, 1e6):
        with left_alone(w, v):
            assert_fresh(sigma.prox(w, v, r), w, v)
        with left_alone(w):
            assert_fresh(sigma.prox(w, w, r), w)


def test_no_graph_is_built(sigma, dtype):
    w, v = normal(2, 20, seed=7).to(dtype)
    plain = sigma.prox(w, v, 0.3)
    w, v = w.clone().requires_grad_(), v.clone().requires_grad_()
    with left_alone(w, v):
        x = sigma.prox(w, v, 0.3)
    assert_fresh(x, w, v)
    assert torch.equal(x, plain)


def test_bad_weight_is_refused(sigma):
    one = torch.ones(3)
    for r in BAD_WEIGHTS:
        with pytest.raises(ValueError, match=r"^r must be finite and > 0, got"):
            sigma.prox(one, one, r)


@pytest.mark.parametrize("operand", ["w", "v"])
def test_infinities_and_nan_are_refused(sigma, operand, dtype):
    for bad in BAD_NUMBERS:
        operands = {"w": torch.ones(3, dtype=dtype), "v": torch.ones(3, dtype=dtype)}
        operands[operand][1] = bad
        with pytest.raises(ValueError, match=rf"^{operand} holds NaN or infinity"):
            sigma.prox(**operands, r=1.0)


@pytest.mark.parametrize("operand", ["w", "v"])
def test_other_precisions_are_refused(sigma, operand):
    for bad in BAD_PRECISIONS:
        operands = {"w": torch.ones(3), "v": torch.ones(3)}
        operands[operand] = torch.ones(3).to(bad)
        with pytest.raises(TypeError, match=rf"^{operand} must be float32 or float64, got {bad}"):
            sigma.prox(**operands, r=1.0)


def test_mixed_precision_is_refused(sigma):
    with pytest.raises(TypeError, match=r"share one precision.*w: torch.float32, v: torch.float64"):
        sigma.prox(torch.ones(3), torch.ones(3).double(), 1.0)
    with pytest.raises(TypeError, match=r"share one precision.*w: torch.float64, v: torch.float32"):
        sigma.prox(torch.ones(3).double(), torch.ones(3), 1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LeakyReLU(1.0), r"slope must be in \[0, 1\), got 1\.0"),
        (lambda: LeakyReLU(-0.1), r"slope must be a finite number >= 0, got -0\.1"),
        (lambda: LeakyReLU(math.nan), "slope must be a finite number"),
        (lambda: Hardtanh(1.0, 1.0), r"low must be below high, got low=1\.0 and high=1\.0"),
        (lambda: Hardtanh(-math.inf, 1.0), "low must be a finite number, got -inf"),
        (lambda: Softplus(0.0), r"beta must be a finite number > 0, got 0\.0"),
        (lambda: ELU(0.0), r"alpha must be a finite number > 0, got 0\.0"),
        (lambda: GELU("erf"), r"approximate must be 'none' or 'tanh', got 'erf'"),
    ],
)
def test_bad_parameters_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
