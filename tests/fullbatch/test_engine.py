"""The engine agrees with the slow reference iterate by iterate."""

from __future__ import annotations

import itertools

import pytest
import torch

import ipdlam
from ipdlam.prox import ACTIVATIONS, L1, LOSSES, ElasticNet, NonNegative, Ridge
from problems import make_data, make_model
from reference import Reference

WIDTHS = {1: [4, 3], 2: [4, 5, 3], 3: [4, 5, 6, 3], 4: [4, 5, 3, 6, 3], 5: [4, 5, 3, 6, 4, 3]}
NAMED = ("reverse", "increase", "nested-reverse")
CUSTOM = {
    2: ["W2", "a1", "z1", "z2", "W1"],
    3: ["a2", "W1", "z3", "z1", "W3", "a1", "z2", "W2"],
}
N = 15


def compare(
    widths=(4, 5, 6, 3),
    activation="relu",
    loss="squared",
    order="reverse",
    chunk_size=7,
    inertia=(0.5, 0.6, 0.7),
    proximity=1.0,
    weight_proximity=None,
    regularizer=None,
    weighted=False,
    steps=3,
    seed=0,
    biased=True,
):
    model = make_model(list(widths), activation, seed)
    if not biased:
        for module in model[:-1:2]:  # every Linear layer but the last
            module.bias = None
    X, y = make_data(N, widths[0], widths[-1], loss, seed)
    weight = (
        torch.rand(N, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1 if weighted else None
    )
    operator = LOSSES[loss]()
    targets = operator.encode(y, widths[-1], torch.float64) if y.ndim == 1 else y
    layers = len(widths) - 1
    reference = Reference(
        model, operator, X, targets, inertia=inertia, proximity=proximity, penalty=0.3, growth=1.5, maximum=0.6,
        order=order, weight=weight, regularizers=(regularizer,) * layers, weight_proximity=weight_proximity,
    )  # fmt: skip
    trainer = ipdlam.IPDLAM(
        model, loss=loss, regularizer=regularizer, inertia=inertia, proximity=proximity,
        weight_proximity=weight_proximity, penalty=0.3, penalty_growth=1.5, penalty_max=0.6, order=order,
        chunk_size=chunk_size,
    )  # fmt: skip
    trainer.start(X, y, sample_weight=weight)
    for step in range(steps + 1):
        if step:
            reference.step()
            trainer.step()
        iterate, objective = trainer.iterate(), trainer.objective()
        for name in "zaWb":
            for l, ours in getattr(iterate, name).items():
                if ours is None:
                    continue
                theirs = torch.from_numpy(getattr(reference, name)[l])
                torch.testing.assert_close(
                    ours, theirs, rtol=1e-10, atol=1e-10, msg=lambda m, at=f"{name}{l} at step {step}": f"{at}: {m}"
                )
        assert objective.penalty == pytest.approx(reference.used_rho, rel=1e-12)
        assert objective.loss == pytest.approx(reference.loss_value(), rel=1e-9, abs=1e-10)
        assert objective.regularization == pytest.approx(reference.regularization(), rel=1e-9, abs=1e-10)
        assert objective.linear_gap == pytest.approx(
            [reference.linear_gap(l) for l in range(1, layers + 1)], rel=1e-8, abs=1e-10
        )
        assert objective.activation_gap == pytest.approx(
            [reference.activation_gap(l) for l in range(1, layers)], rel=1e-8, abs=1e-10
        )
        assert objective.value == pytest.approx(reference.phi(), rel=1e-9, abs=1e-10)
        assert objective.lyapunov == pytest.approx(reference.lyapunov(), rel=1e-9, abs=1e-10)


@pytest.mark.parametrize("depth", WIDTHS)
@pytest.mark.parametrize("order", NAMED)
@pytest.mark.parametrize("chunk_size", [1, 7, N])
def test_depths_orders_and_chunks(depth, order, chunk_size):
    compare(widths=WIDTHS[depth], order=order, chunk_size=chunk_size)


@pytest.mark.parametrize("depth", CUSTOM)
@pytest.mark.parametrize("chunk_size", [1, 7, N])
def test_user_given_orders(depth, chunk_size):
    compare(widths=WIDTHS[depth], order=CUSTOM[depth], chunk_size=chunk_size)


def test_every_permutation_of_a_small_network():
    blocks = ["z1", "W1", "a1", "z2", "W2"]
    for seed, order in enumerate(itertools.permutations(blocks)):
        if seed % 4 == 0:  # a quarter of the 120, spread evenly
            compare(widths=(3, 4, 2), order=list(order), steps=2, seed=seed)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("order", NAMED)
def test_activations(activation, order):
    still = (list(ACTIVATIONS).index(activation) + NAMED.index(order)) % 2 == 0
    compare(activation=activation, order=order, inertia=(0.0, 0.0, 0.0) if still else (0.5, 0.6, 0.7))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("order", NAMED)
def test_losses(loss, order):
    compare(loss=loss, order=order, weighted=(list(LOSSES).index(loss) + NAMED.index(order)) % 2 == 0)


@pytest.mark.parametrize(
    "regularizer",
    [Ridge(0.05), Ridge(0.5, relative=False), L1(0.02), L1(0.2, relative=False), ElasticNet(0.02, 0.03), NonNegative()],
    ids=str,
)
@pytest.mark.parametrize(("order", "weighted"), [("reverse", True), ("increase", False), ("nested-reverse", True)])
def test_regularizers(regularizer, order, weighted):
    compare(regularizer=regularizer, order=order, weighted=weighted)


def test_regularizers_without_weights_of_samples():
    """The other half of the pairs."""
    for regularizer in (Ridge(0.05), L1(0.2, relative=False), NonNegative()):
        compare(regularizer=regularizer, order="reverse", weighted=False)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("order", NAMED)
@pytest.mark.filterwarnings("ignore:inertia acts through")
def test_without_proximal_terms(order, weighted):
    # N = 15 samples against widths of 4 to 6: full rank, so the solution of least squares is unique.
    compare(inertia=(0.0, 0.0, 0.0), proximity=0.0, order=order, weighted=weighted)


PROXIMITIES = [0.0, 0.03, 2.0, (0.2, 1.0), (1.0, 0.0)]


@pytest.mark.parametrize("weight_proximity", PROXIMITIES, ids=str)
@pytest.mark.parametrize("order", NAMED)
def test_the_proximal_weight_of_W_and_b_for_each_sample(weight_proximity, order):
    """Each with every regulariser; a Latin square says which of them has the weights of samples."""
    place = PROXIMITIES.index(weight_proximity) + NAMED.index(order)
    regularizer = (None, Ridge(0.05), L1(0.02))[place % 3]
    compare(weight_proximity=weight_proximity, order=order, weighted=place % 2 == 0, regularizer=regularizer)


def test_the_weights_alone_may_have_proximal_terms():
    compare(proximity=0.0, weight_proximity=0.5)


@pytest.mark.parametrize("order", NAMED)
def test_layers_without_bias(order):
    compare(order=order, biased=False)


def test_one_sample_and_narrow_chunks_of_a_wide_network():
    # More features than samples, wider than a strip of the symmetric product (128) and with a ragged last chunk.
    model, (X, y) = make_model([150, 140, 2]), make_data(20, 150, 2)
    trainer = ipdlam.IPDLAM(model, regularizer=None, inertia=0.5, chunk_size=6)
    reference = Reference(
        model, LOSSES["squared"](), X, y, inertia=(0.5,) * 3, proximity=1.0, penalty=0.1, growth=1.1, maximum=1e6,
        order="reverse", regularizers=(None, None),
    )  # fmt: skip
    trainer.start(X, y)
    for _ in range(2):
        reference.step()
        trainer.step()
    for l in (1, 2):
        torch.testing.assert_close(trainer.iterate().W[l], torch.from_numpy(reference.W[l]), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("order", NAMED)
def test_float32_follows_float64(order):
    """In working precision the iterates stay within rounding of the exact ones, and no chunk is forgotten."""
    iterates = {}
    for dtype in (torch.float32, torch.float64):
        model = make_model([4, 40, 30, 3], dtype=dtype)
        X, y = make_data(300, 4, 3, "cross_entropy", dtype=torch.float64)
        trainer = ipdlam.IPDLAM(model, loss="cross_entropy", order=order, inertia=0.5, chunk_size=64)
        trainer.start(X.to(dtype), y)
        for _ in range(3):
            trainer.step()
        iterates[dtype] = trainer.iterate()
    for l in (1, 2, 3):
        single, double = iterates[torch.float32].z[l].double(), iterates[torch.float64].z[l]
        assert (single - double).norm() <= 1e-3 * double.norm()
