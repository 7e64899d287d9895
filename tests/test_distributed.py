"""Several processes train one model: the run of one process, whatever happens to one of them."""

from __future__ import annotations

import numpy as np
import pytest

import ranks
from ipdlam.orders import ORDERS
from ipdlam.prox import LOSSES
from ranks import WIDTHS, Pool, case, in_one

SIZES = (2, 3)


@pytest.fixture(scope="module")
def pools(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    found = {size: Pool(size, folder) for size in SIZES}
    yield found
    for pool in found.values():
        pool.close()


@pytest.fixture(params=SIZES)
def pool(request, pools):
    return pools[request.param]


def assert_close(one, other, tolerance=1e-9):
    for name in ("weights", "objective"):
        for first, second in zip(np.atleast_1d(one[name]), np.atleast_1d(other[name]), strict=True):
            np.testing.assert_allclose(first, second, rtol=tolerance, atol=tolerance)


def assert_same_history(one, other, tolerance=1e-9):
    assert len(one["history"]) == len(other["history"])
    assert one["reason"] == other["reason"]
    for first, second in zip(one["history"], other["history"], strict=True):
        assert first.keys() == second.keys()
        for name in first.keys() - {"seconds"}:
            if first[name] is None or second[name] is None:
                assert first[name] == second[name], name
            else:
                np.testing.assert_allclose(first[name], second[name], rtol=tolerance, atol=tolerance, err_msg=name)


def assert_one_run(answers, serial, tolerance=1e-9):
    """All ranks have the same bits, which are close to those of one process."""
    for answer in answers:
        assert isinstance(answer, dict), answer
        assert {**answer, "z": None} == {**answers[0], "z": None}  # seconds, too
    flat = [np.ravel(weights).tolist() for weights in answers[0]["weights"]]
    expected = [np.ravel(weights).tolist() for weights in serial["weights"]]
    for one, other in zip(flat, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
    assert_same_history(answers[0], serial, tolerance)
    for l, z in serial["z"].items():
        rows = np.concatenate([np.reshape(answer["z"][l], (-1, np.shape(z)[1])) for answer in answers])
        np.testing.assert_allclose(rows, z, rtol=tolerance, atol=tolerance)


CASES = {
    **{f"order {order}": case(settings={"order": order}) for order in ORDERS},
    "any order": case(settings={"order": ["W1", "z3", "W3", "a2", "z1", "a1", "W2", "z2"]}),
    **{f"loss {loss}": case(loss=loss, validation="parts") for loss in LOSSES},
    "sample weights": case(weighted=True, loss="cross_entropy", validation="whole"),
    "l1": case(settings={"regularizer": "l1"}),
    "minimum norm": case(kind="DLAM", settings={"regularizer": None}),
    "small chunks": case(settings={"chunk_size": 4, "order": "nested-reverse"}),
    "best iterate": case(loss="cross_entropy", validation="parts", fit={"restore_best": True, "patience": 1}),
    "target score": case(loss="cross_entropy", iterations=20, fit={"target_score": 0.4}),
    "few evaluations": case(fit={"evaluate_every": 3}),
}


@pytest.mark.parametrize("name", CASES)
def test_processes_agree_with_one(pool, name):
    assert_one_run(pool(ranks.train, CASES[name]), in_one(CASES[name]))


def test_float32(pool):
    given = case(dtype="float32", loss="cross_entropy")
    assert_one_run(pool(ranks.train, given), in_one(given), tolerance=2e-4)


def test_all_samples_on_the_last_rank(pool):
    given = case(counts=(0,) * (pool.size - 1) + (ranks.SAMPLES,))
    assert_one_run(pool(ranks.train, given), in_one(given))


def test_state_on_a_disk(pool, tmp_path):
    given = case(settings={"storage": str(tmp_path), "chunk_size": 5})
    assert_one_run(pool(ranks.train, given), in_one(case(settings={"chunk_size": 5})))


def expected_bytes(size, evaluate):
    """The formula of :mod:`ipdlam.distributed` for an order of one pass."""
    meeting, layers = 16 * size, len(WIDTHS) - 1
    numbers = 2 * layers + 3
    for l in range(1, layers + 1):
        numbers += WIDTHS[l] * WIDTHS[l - 1] + WIDTHS[l] + 1
        if l > 1:
            numbers += WIDTHS[l - 1] * (WIDTHS[l - 1] + 1) // 2 + WIDTHS[l - 1]
    evaluation = meeting + 8 * 3 if evaluate else 0
    return 3 * meeting + 8 * numbers + evaluation  # weights compared, the sums of the pass, seconds of rank 0


@pytest.mark.parametrize("copies", [1, 30])
def test_traffic_is_what_the_module_says_and_knows_nothing_of_the_number_of_samples(pool, copies):
    wanted = [expected_bytes(pool.size, False), expected_bytes(pool.size, True)]
    assert pool(ranks.traffic, case(), copies) == [wanted] * pool.size
