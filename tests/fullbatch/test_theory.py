"""docs/method/theory.md as tests: for a fixed penalty the Lyapunov value never increases."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ipdlam
from ipdlam.fullbatch.orders import ORDERS, increase
from ipdlam.prox import ACTIVATIONS, L1, LOSSES, ElasticNet, Ridge
from problems import make_data, make_model

REGULARIZERS = [None, Ridge(0.01), Ridge(0.3, relative=False), L1(0.01), ElasticNet(0.01, 0.02, relative=False)]


@st.composite
def runs(draw):
    depth = draw(st.integers(1, 4))
    widths = draw(st.lists(st.integers(1, 7), min_size=depth + 1, max_size=depth + 1))
    loss = draw(st.sampled_from(sorted(LOSSES)))
    if loss == "cross_entropy":
        widths[-1] += 1  # one class alone is nothing to learn
    named = st.sampled_from(sorted(ORDERS))
    order = draw(named | st.permutations([str(block) for block in increase(depth)]))
    return {
        "widths": widths,
        "activation": draw(st.sampled_from(sorted(ACTIVATIONS))),
        "loss": loss,
        "seed": draw(st.integers(0, 10_000)),
        "samples": draw(st.integers(1, 25)),
        "weighted": draw(st.booleans()),
        "trainer": {
            "order": order,
            "inertia": (draw(st.floats(0.0, 0.5)), draw(st.floats(0.0, 0.99)), draw(st.floats(0.0, 0.99))),
            "proximity": draw(st.sampled_from([0.05, 0.3, 1.0, 4.0])),
            "weight_proximity": draw(st.sampled_from([None, 0.0, 0.002, 1.0, (0.05, 1.0)])),
            "penalty": draw(st.sampled_from([0.02, 0.3, 2.0, 30.0])),
            "penalty_growth": 1.0,
            "regularizer": draw(st.sampled_from(REGULARIZERS)),
            "chunk_size": draw(st.integers(1, 30)),
        },
    }


def lyapunov_values(run, steps):
    X, y = make_data(run["samples"], run["widths"][0], run["widths"][-1], run["loss"], run["seed"])
    generator = torch.Generator().manual_seed(run["seed"])
    weight = torch.rand(run["samples"], generator=generator) + 0.05 if run["weighted"] else None
    trainer = ipdlam.IPDLAM(
        make_model(run["widths"], run["activation"], run["seed"]), loss=run["loss"], **run["trainer"]
    )
    trainer.start(X, y, sample_weight=weight)
    values = [trainer.objective().lyapunov]
    for _ in range(steps):
        values.append(trainer.step(evaluate=False).lyapunov)
    return values


def assert_it_never_increases(run):
    values = lyapunov_values(run, steps=8)
    for before, after in itertools.pairwise(values):
        assert after <= before + 1e-9 * (1.0 + abs(before)), values


@settings(max_examples=60, deadline=None, derandomize=True)
@given(runs())
def test_the_lyapunov_value_never_increases(run):
    assert_it_never_increases(run)


@pytest.mark.slow
@settings(max_examples=400, deadline=None, derandomize=True)
@given(runs())
def test_the_lyapunov_value_never_increases_in_many_runs(run):
    assert_it_never_increases(run)


def test_too_much_inertia_is_noticed():
    """With far more inertia than the theorem allows the value does increase, so the test above can fail."""
    run = {"widths": [3, 4, 2], "activation": "relu", "loss": "squared", "seed": 1, "samples": 20, "weighted": False}
    trainer = {"inertia": (1.8, 1.8, 1.8), "proximity": 4.0, "penalty": 0.3, "penalty_growth": 1.0}
    with pytest.warns(UserWarning, match="inertia"):
        values = lyapunov_values({**run, "trainer": trainer}, steps=15)
    assert any(after > 1.001 * before for before, after in itertools.pairwise(values))


def test_the_objective_itself_may_increase():
    """The paper's remark under Figure 1: within the bounds xi falls, while Phi alone overshoots like any heavy ball."""
    X, y = make_data(30, 4, 3)
    trainer = ipdlam.IPDLAM(
        make_model([4, 3]), inertia=(0.5, 0.99, 0.99), proximity=300.0, penalty=0.02, penalty_growth=1.0
    )
    trainer.start(X, y)
    records = [trainer.step(evaluate=False) for _ in range(150)]
    pairs = list(itertools.pairwise(records))
    assert any(after.objective > before.objective * (1.0 + 1e-9) for before, after in pairs)
    assert all(after.lyapunov <= before.lyapunov * (1.0 + 1e-12) for before, after in pairs)


def test_without_inertia_the_objective_never_increases():
    for seed in range(5):
        X, y = make_data(30, 4, 3, "cross_entropy", seed)
        trainer = ipdlam.IPDLAM(
            make_model([4, 6, 5, 3], seed=seed), loss="cross_entropy", inertia=0.0, penalty_growth=1.0
        )
        trainer.start(X, y)
        values = [trainer.objective().value] + [trainer.step(evaluate=False).objective for _ in range(10)]
        assert all(after <= before * (1.0 + 1e-10) for before, after in itertools.pairwise(values))
