"""In which precision products are taken, who decides it, and when it is said to be slow."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from contracts import says
from ipdlam.network import arithmetic
from ipdlam.network.arithmetic import LEAST_SIDE, PLAIN, TIMED_SIDE, Products, products_for, warn_where_slow
from ipdlam.network.graph import Graph
from ipdlam.network.nodes import Drawing, Pulling

NARROW = Products(torch.bfloat16)
ROUNDING = 2.0**-7  # of numbers with 8 bits, and of what is made of two of them
CPU = torch.device("cpu")


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_rounded(found, exact):
    """Float32 numbers, as near to the exact ones as bfloat16 lets them be, and no nearer."""
    assert found.dtype == torch.float32
    error = float((found - exact).norm() / exact.norm())
    assert 1e-4 < error < ROUNDING


def test_products_round_operands_and_give_float32():
    A, B = random(40, 50), random(50, 60, seed=1)
    assert_rounded(NARROW.mm(A, B), A @ B)
    total, plain = random(40, 60, seed=2), random(40, 60, seed=2)
    NARROW.add_mm(total, A, B, 0.7, 0.3)
    assert_rounded(total, torch.addmm(plain, A, B, beta=0.7, alpha=0.3))
    PLAIN.add_mm(plain, A, B, 0.7, 0.3)
    assert torch.equal(plain, torch.addmm(random(40, 60, seed=2), A, B, beta=0.7, alpha=0.3))
    assert torch.equal(PLAIN.mm(A, B), A @ B)
    assert PLAIN.operand(A) is A
    assert PLAIN.result(A) is A


def test_a_bias_is_added_in_float32():
    x, W, b = torch.zeros(3, 40), random(50, 40), random(50, seed=1)
    assert torch.equal(NARROW.affine(nn.functional.linear, x, W, b), b.expand(3, -1))
    pictures, kernel = torch.zeros(3, 40, 4, 4), random(50, 40, 3, 3)
    found = NARROW.affine(nn.functional.conv2d, pictures, kernel, b, after=2)
    assert torch.equal(found, b.view(-1, 1, 1).expand(3, -1, 2, 2))


@pytest.mark.parametrize(
    ("shape", "narrow"),
    [
        ((LEAST_SIDE, LEAST_SIDE), True),
        ((LEAST_SIDE - 1, 1000), False),  # ten outputs, on which the loss depends
        ((1000, LEAST_SIDE - 1), False),
        ((64, 1, 3, 3), False),  # nine inputs
        ((64, 4, 3, 3), True),
    ],
)
def test_the_weight_alone_decides(shape, narrow):
    W = torch.zeros(shape)
    assert (NARROW.of(W).narrow is not None) == narrow
    assert NARROW.of(W.double()) is PLAIN
    assert PLAIN.of(W) is PLAIN


MODELS = {
    "linear": (nn.Sequential(nn.Linear(40, 48)), (9, 40)),
    "linear of words": (nn.Sequential(nn.Linear(40, 48), nn.Flatten()), (9, 3, 40)),
    "convolution": (nn.Sequential(nn.Conv2d(8, 40, 3, padding=1), nn.Flatten()), (9, 8, 5, 5)),
    "convolution with stride": (nn.Sequential(nn.Conv2d(8, 40, 3, stride=2), nn.Flatten()), (9, 8, 5, 5)),
    "convolution in one dimension": (nn.Sequential(nn.Conv1d(16, 40, 3), nn.Flatten()), (9, 16, 6)),
}


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_every_layer_passes_pulls_and_multiplies_narrow(name):
    model, shape = MODELS[name]
    graph, X = Graph(model), random(*shape)
    layer, found = graph[1], {}
    for products in (PLAIN, NARROW):
        graph.multiply(products)
        passed = graph.run(X, Drawing(None, len(X)))
        z, kept = layer.run([X], Drawing(None, len(X)))
        wish = random(*z.shape, seed=1)
        (pulled,) = layer.pull(wish, [X], z, kept, Pulling())
        found[products] = [passed.output, z, pulled, *layer.product(wish, X, kept)]
    for narrow, plain in zip(found[NARROW][:-1], found[PLAIN][:-1], strict=True):
        assert_rounded(narrow, plain)
        assert narrow.shape == plain.shape
    torch.testing.assert_close(found[NARROW][-1], found[PLAIN][-1])  # the sum of wishes is no product
    assert layer.weight.dtype == torch.float32


def test_a_graph_is_tried_in_full_precision_and_multiplies_as_before():
    model = nn.Sequential(nn.Linear(40, 48), nn.ReLU(), nn.Linear(48, 40))
    graph = Graph(model)
    graph.multiply(NARROW)
    graph.try_on(1e3 * random(5, 40))  # 8 bits would not give what the model gives
    assert graph.arithmetic is NARROW
    assert graph[1].products is NARROW
    other = Graph(model)
    other.multiply(NARROW)
    with pytest.raises(ValueError, match="cannot take what it is given"):
        other.try_on(random(5, 41))
    assert other[2].products is NARROW


def test_the_setting_or_a_surrounding_autocast_narrows():
    assert products_for("float32", torch.float32, CPU) is PLAIN
    assert products_for("bfloat16", torch.float32, CPU) == NARROW
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert products_for("float32", torch.float32, CPU) == NARROW
        assert products_for("float32", torch.float64, CPU) is PLAIN  # as torch does
        with torch.autocast("cpu", enabled=False):
            assert products_for("float32", torch.float32, CPU) is PLAIN
    with torch.autocast("cpu", dtype=torch.float16):
        with pytest.raises(ValueError, match=says("torch.autocast", "float16", "dtype=torch.bfloat16")):
            products_for("float32", torch.float32, CPU)
        assert products_for("float32", torch.float64, CPU) is PLAIN


@pytest.mark.parametrize(
    ("ratio", "side", "told"), [(5.0, TIMED_SIDE, True), (0.6, TIMED_SIDE, False), (5.0, TIMED_SIDE - 1, False)]
)
def test_slow_products_of_large_layers_are_said_to_be_slow(monkeypatch, ratio, side, told):
    asked = []
    monkeypatch.setattr(arithmetic, "time_ratio", lambda threads: asked.append(threads) or ratio)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warn_where_slow(torch.zeros(side, side))
    assert [str(one.message).startswith("products in bfloat16 take 5.0 times") for one in found] == [True] * told
    assert bool(asked) == (side >= TIMED_SIDE)  # small layers do not pay for it


def test_the_ratio_is_measured_once():
    arithmetic.time_ratio.cache_clear()
    first = arithmetic.time_ratio(1)
    assert first > 0.0
    assert arithmetic.time_ratio(1) == first
    assert arithmetic.time_ratio.cache_info().hits == 1
