"""``ipdlam.prox.check`` passes what is right, and says what is wrong with what is not."""

from __future__ import annotations

import pytest
import torch

from ipdlam.prox import (
    ACTIVATIONS,
    L1,
    LOSSES,
    REGULARIZERS,
    CrossEntropy,
    Hardtanh,
    Huber,
    LeakyReLU,
    NonNegative,
    ReLU,
    Ridge,
    Sigmoid,
    Squared,
    check,
)

RIGHT = [
    *(kind() for registry in (ACTIVATIONS, LOSSES, REGULARIZERS) for kind in registry.values()),
    *(LeakyReLU(0.2), Hardtanh(-2.0, 0.5), Huber(0.3), Ridge(2.0, relative=False), L1(0.5)),
]


@pytest.mark.parametrize("operator", RIGHT, ids=repr)
def test_the_operators_of_the_library_pass(operator):
    check(operator)


class StaysAtV(ReLU):
    def _prox(self, w, v, r):
        return v.clone()


class OneBranchOnly(ReLU):
    """The stationary point of the right piece, without asking whether the left one is lower."""

    def _prox(self, w, v, r):
        return ((w + r * v) / (1.0 + r)).clamp_min(0.0)


class LocalMinimum(Sigmoid):
    """A few Newton-like steps from v: right where the problem is convex, and stuck elsewhere."""

    def _prox(self, w, v, r):
        x = v.clone()
        for _ in range(200):
            s = self.value(x)
            x = x - ((s - w) * s * (1.0 - s) + r * (x - v)) / (0.1 + r)
        return x


class TwiceTheWeight(Squared):
    def _prox(self, targets, v, r):
        return (targets + 2.0 * r * v) / (1.0 + 2.0 * r)


class HalfTheThreshold(L1):
    def _prox(self, v, r):
        return super()._prox(v, 2.0 * r)


class Clipped(NonNegative):
    def _prox(self, v, r):
        return v.clamp_min(0.5)


class OffByTolerance(Ridge):
    def _prox(self, v, r):
        return super()._prox(v, r) + 1e-3


@pytest.mark.parametrize(
    "wrong",
    [
        *(StaysAtV(), OneBranchOnly(), LocalMinimum(), TwiceTheWeight(), HalfTheThreshold(0.5), Clipped()),
        OffByTolerance(1.0),
    ],
    ids=lambda wrong: type(wrong).__name__,
)
def test_a_wrong_prox_is_found_with_the_operands_that_show_it(wrong):
    with pytest.raises(
        ValueError, match=rf"{type(wrong).__name__}\(.*\.prox is not the minimiser in float.*r=.*at .* it is"
    ):
        check(wrong)


def test_a_tolerance_of_ones_own():
    check(OffByTolerance(1.0), tolerance=0.01)
    with pytest.raises(ValueError, match="tolerance must be a finite number > 0, got 0"):
        check(ReLU(), tolerance=0)


class InPlace(ReLU):
    def _prox(self, w, v, r):
        return super()._prox(w, v.clone(), r).mul_(1.0) if w.add_(1.0) is None else super()._prox(w, v, r)


class Itself(ReLU):
    def value(self, x):
        return x

    def _prox(self, w, v, r):
        return v


class Double(ReLU):
    def _prox(self, w, v, r):
        return super()._prox(w, v, r).double()


class Flat(CrossEntropy):
    def value(self, targets, x):
        return super().value(targets, x).sum()


class Infinite(ReLU):
    def _prox(self, w, v, r):
        return torch.full_like(v, torch.inf)


class Mixed(ReLU):
    def value(self, x):
        return x.relu() - x.mean()


class Largest(Ridge):
    def value(self, W):
        return W.abs().max()


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (InPlace(), "writes into its operands"),
        (Itself(), "returns one of its operands"),
        (Double(), "must return a tensor of shape .* and torch.float32, got .*float64"),
        (Flat(), r"must return one number for every row, got \(\)"),
        (Infinite(), "is not finite everywhere"),
        (Mixed(), "must treat every entry by itself"),
        (Largest(), "must be the sum over the entries"),
    ],
    ids=lambda bad: type(bad).__name__,
)
def test_what_no_operator_may_do(bad, words):
    with pytest.raises(ValueError, match=words):
        check(bad)


@pytest.mark.parametrize("other", [3, None, "relu", torch.nn.ReLU()], ids=repr)
def test_something_else_is_refused(other):
    with pytest.raises(TypeError, match=r"operator must be an ipdlam\.prox\.Activation, Loss or Regularizer, got"):
        check(other)


def test_a_class_is_not_its_object():
    with pytest.raises(TypeError, match=r"got the class ReLU; write ReLU\(\)"):
        check(ReLU)
