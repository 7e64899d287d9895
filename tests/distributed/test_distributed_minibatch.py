"""Several processes train one model on mini-batches: the run of one process, whatever happens to one of them."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import ranks
import ranks_minibatch
from forked import launched
from ipdlam.errors import CheckpointError
from ipdlam.prox import LOSSES
from ranks import SIZES, Pool, options, workers_of
from ranks_minibatch import case, in_one
from shell import ipdlam_run, records, same_model, without_seconds


def assert_close(one, other, tolerance=1e-9):
    """Weights, histories and what decides the next step."""
    for first, second in zip(one["weights"], other["weights"], strict=True):
        np.testing.assert_allclose(first, second, rtol=tolerance, atol=tolerance)
    assert one["reason"] == other["reason"]
    assert len(one["history"]) == len(other["history"])
    pairs = [*zip(one["history"], other["history"], strict=True), (one["state"], other["state"])]
    for first, second in pairs:
        assert first.keys() == second.keys()
        for name in first.keys() - {"seconds"}:
            if isinstance(first[name], (float, list)):
                np.testing.assert_allclose(first[name], second[name], rtol=tolerance, atol=tolerance, err_msg=name)
            else:
                assert first[name] == second[name], name


def assert_one_run(answers, serial, tolerance=1e-9):
    """All ranks have the same bits, which are close to those of one process."""
    for answer in answers:
        assert isinstance(answer, dict), answer
        assert "bits" in answer, answer
        assert answer == answers[0]  # seconds, too
    assert_close(answers[0], serial, tolerance)


PICTURES = {"picture": (2, 4, 4), "widths": (32, 3)}  # of two channels, for a convolutional network with Dropout
CASES = {
    **{loss: case(loss=loss) for loss in LOSSES},
    "weights": case(weighted=True, validation="parts"),
    "weights and labels, large batches": case(weighted=True, loss="cross_entropy", settings={"batch_size": 100}),
    "no bias": case(bias=False, settings={"batch_size": 31}),
    "one layer": case(widths=(5, 3)),
    "two layers, tanh": case(widths=(5, 9, 3), activation="tanh", settings={"start": "rescale"}),
    "kept": case(settings={"start": "keep", "weight_decay": 0.1}),
    "weak signal": case(settings={"start": "keep"}, scale=1e-60),
    "small last batch": case(settings={"batch_size": 37}),
    "many batches": case(samples=40, epochs=3, settings={"batch_size": 2}),
    "batches of one": case(samples=9, settings={"batch_size": 1}),
    "all at once": case(settings={"batch_size": 1000}),
    "best": case(validation="parts", fit={"restore_best": True, "patience": 2}, epochs=9, settings={"step": 6.0}),
    "target": case(loss="cross_entropy", validation="whole", fit={"target_score": 0.4}),
    "few evaluations": case(fit={"evaluate_every": 2}),
    "convolutions": case(**PICTURES, validation="parts"),
    "convolutions, weights": case(**PICTURES, weighted=True, loss="cross_entropy"),
}


def divided(given, size):
    if given["samples"] == ranks_minibatch.SAMPLES:
        return given
    edges = [rank * given["samples"] // size for rank in range(size + 1)]
    return {**given, "counts": tuple(np.diff(edges).tolist())}


BOTH = ("squared", "weights", "batches of one", "convolutions")


@pytest.mark.parametrize(
    ("name", "size"),
    [(name, size) for n, name in enumerate(CASES) for size in (SIZES if name in BOTH else [SIZES[n % 2]])],
)
def test_processes_agree_with_one(pools, name, size):
    given = CASES[name]
    assert_one_run(pools[size](ranks_minibatch.train, divided(given, size)), in_one(given))


def test_float32(pool):
    given = case(dtype="float32", loss="cross_entropy", epochs=2)
    assert_one_run(pool(ranks_minibatch.train, given), in_one(given), tolerance=1e-3)


def test_narrow_products(pool):
    narrow = {"settings": {"precision": "bfloat16"}, "dtype": "float32", "widths": (33, 48, 40, 3), "epochs": 1}
    given = case(**narrow, loss="cross_entropy")
    assert_one_run(pool(ranks_minibatch.train, given), in_one(given), tolerance=0.05)  # sums of other rounded parts


def test_a_group_of_one_has_the_bits_of_no_group(tmp_path):
    given = case(validation="parts", weighted=True, dtype="float32")
    pool = Pool(1, tmp_path)
    try:
        (answer,) = pool(ranks_minibatch.train, given)
    finally:
        pool.close()
    assert answer["bits"] == in_one(given)["bits"]


def test_all_samples_on_the_last_rank(pool):
    given = case(counts=(0,) * (pool.size - 1) + (ranks_minibatch.SAMPLES,))
    assert_one_run(pool(ranks_minibatch.train, given), in_one(given))


@pytest.mark.parametrize("scale", [1.0, 6.0])
def test_a_model_that_has_learned_something_is_kept_by_all(pool, scale):
    """What start="auto" sees in the outputs of other samples, which other processes hold."""
    given = case(loss="cross_entropy", epochs=1, scale=scale)
    answers, rescaled = zip(*pool(ranks_minibatch.train_what_is_known, given), strict=True)
    serial, expected = ranks_minibatch.train_what_is_known(0, 1, given)
    assert set(rescaled) == {expected} == {scale == 1.0}
    assert_one_run(answers, serial)


LOADED = {
    "weights": (case(weighted=True, validation="whole"), "a list"),
    "labels": (case(loss="cross_entropy", settings={"start": "rescale"}), "no length"),
    "early": (case(fit={"evaluate_every": 2}), "ends early"),
}


@pytest.mark.parametrize("name", LOADED)
def test_loaders_are_one_loader(pool, name):
    given, kind = LOADED[name]
    answers = pool(ranks_minibatch.train_on_loader, given, kind)
    assert_one_run(answers, ranks_minibatch.train_on_loader(0, 1, given, kind))


@pytest.mark.parametrize("weighted", [False, True])
def test_a_loop_of_steps(pool, weighted):
    given = case(weighted=weighted, settings={"horizon": 20})
    answers = pool(ranks_minibatch.own_loop, given)
    assert_one_run(answers, ranks_minibatch.own_loop(0, 1, given))


def test_a_bad_batch_of_one_rank_is_skipped_by_all(pool):
    given = case(settings={"bad_batches": "skip"})
    answers = pool(ranks_minibatch.own_loop, given, 3)
    *others, last = [answer.pop("warned") for answer in answers]
    assert last == ["a batch was skipped: x holds NaN or infinity (1 so far)"]
    assert others == [[f"a batch was skipped: that of rank {pool.size - 1} holds NaN or infinity (1 so far)"]] * len(
        others
    )
    assert answers[0]["losses"][3] == "nan"
    serial = ranks_minibatch.own_loop(0, 1, given, 3)
    assert serial.pop("warned") == last
    assert_one_run(answers, serial)


@pytest.mark.parametrize(
    ("what", "error", "said"),
    [
        ("nan", "DistributedError", "rank {last} of {size} failed: ValueError: X holds nan at (0, 0)"),
        ("weights", "ValueError", "of one batch, rank {last} gave sample_weight and rank 0 did not"),
        ("empty", "ValueError", "the batch is empty on every rank"),
        ("settings", "DistributedError", "from rank 0 to rank {last}, settings step was 0.5 and is 0.1"),
        ("autocast", "DistributedError", "settings precision was 'float32' and is 'bfloat16'"),
        ("loader and arrays", "DistributedError", "targets was 'in the batches of a loader'"),
        ("loader raises", "DistributedError", "rank {last} of {size} failed: TypeError: a batch must be (x, y)"),
        ("epochs", "DistributedError", "iterations was 2 and is 3"),
    ],
)
def test_what_is_refused_on_one_rank_is_refused_on_all(pool, what, error, said):
    answers = pool(ranks_minibatch.refusing, case(), what)
    assert len(set(answers)) == 1
    kind, text = answers[0]
    assert kind == error
    assert said.format(last=pool.size - 1, size=pool.size) in text


def expected_bytes(size, batch, rows, widths, number_bytes, weighted):
    """The formula of :mod:`ipdlam.minibatch.step`."""
    layers, meeting = len(widths) - 1, 24 * size
    pairs = list(itertools.pairwise(widths))
    measures = batch < 10 or batch % 8 == 0
    found = meeting + 8 * size * 2 + (layers - 1) * meeting
    if batch == 0:
        found += 8 * size * (2 * layers - 1)
    # The least weight counts for one sample, so that two weighted batches count for over 1024.
    first = 2 if weighted or 2 * rows >= 1024 else 4
    if batch < first or batch % (8 if batch < 51 else 17) == 0:
        found += meeting if weighted and rows >= 512 else 0  # the weights of those that are looked at
        found += meeting + number_bytes * sum(d * (d + 1) // 2 + d for d, _ in pairs)
        if layers > 1:
            found += meeting + number_bytes * sum(d * (d + 1) // 2 for d in widths[1:-1])
    found += meeting + number_bytes * sum(outputs * inputs + outputs for inputs, outputs in pairs)
    found += meeting + (8 * size * layers if measures and layers > 1 else 0)
    return found + (meeting if weighted and measures and layers > 1 else 0)


@pytest.mark.parametrize(
    ("size", "given", "number_bytes"),
    [
        (2, case(settings={"batch_size": 2, "start": "keep"}, samples=140, counts=(100, 40)), 8),
        (3, case(settings={"batch_size": 10, "start": "keep"}, widths=(5, 3), dtype="float32"), 4),
        (3, case(settings={"batch_size": 8, "start": "keep"}, weighted=True, widths=(5, 300, 3), dtype="float32"), 4),
        (2, case(settings={"batch_size": 600, "start": "keep"}, samples=1800, counts=(1000, 800), weighted=True), 8),
        (2, case(settings={"batch_size": 600, "start": "keep"}, samples=1800, counts=(1000, 800)), 8),
    ],
)
def test_traffic_is_what_the_module_says_and_knows_nothing_of_the_size_of_a_batch(pools, size, given, number_bytes):
    answers = pools[size](ranks_minibatch.traffic, given)
    assert answers == [answers[0]] * size
    weighted = given["weighted"]
    assert answers[0] == [
        expected_bytes(size, batch, given["settings"]["batch_size"], given["widths"], number_bytes, weighted)
        for batch in range(len(answers[0]))
    ]


@pytest.mark.parametrize(("action", "reason"), [(ranks.stop, "enough"), (ranks.press_ctrl_c, "interrupted")])
def test_what_ends_one_rank_between_epochs_ends_all(pool, action, reason):
    answers = pool(ranks_minibatch.train_with, case(epochs=5), pool.size - 1, 2, action)
    stopped = ranks_minibatch.train_with(0, 1, case(epochs=5), 0, 2, action)
    assert stopped["reason"] == reason
    assert_one_run(answers, stopped)


@pytest.mark.parametrize("bad_rank", [0, 1])
def test_an_error_within_a_batch_leaves_all_with_the_weights_before_the_epoch(pool, bad_rank):
    given = case(settings={"batch_size": 50})
    answers = pool(ranks_minibatch.train_with, given, bad_rank, None, ranks.fail, 4)
    assert {(answer["error"], answer["text"], answer["done"], answer["whole"]) for answer in answers} == {
        ("DistributedError", f"rank {bad_rank} of {pool.size} failed: LookupError: no such thing", 1, False)
    }
    kept = ranks_minibatch.train_with(0, 1, given, 0, 1, ranks.stop)
    assert kept["reason"] == "enough"
    for answer in answers:
        assert answer["weights"] == answers[0]["weights"]
        for one, other in zip(answer["weights"], kept["weights"], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("given", [{"settings": {"step": 1e30}}, {"huge": 149}], ids=["step", "a sample of one rank"])
def test_divergence_is_everybodys(pool, given):
    answers = pool(ranks_minibatch.train_with, case(dtype="float32", epochs=20, **given), None, None, None)
    assert {answer["error"] for answer in answers} == {"DivergenceError"}
    assert len({answer["text"] for answer in answers}) == 1
    assert {answer["whole"] for answer in answers} == {False}


@pytest.mark.parametrize("seed", range(3))
def test_ctrl_c_at_any_moment_ends_all_alike_and_all_can_go_on(pool, seed):
    choice = random.Random(100 * pool.size + seed)
    given = case(epochs=100_000, settings={"batch_size": 30}, fit={})
    arguments = (choice.randrange(pool.size), choice.uniform(0, 0.3), signal.SIGINT, seed % 2 == 1)
    answers = pool(ranks_minibatch.train_until, given, *arguments)
    for stopped, gone_on in answers:
        assert stopped["reason"] == "interrupted"
        assert {**stopped, "history": None} == {**answers[0][0], "history": None}
        assert gone_on["bits"] == answers[0][1]["bits"]
        assert len(gone_on["history"]) == len(stopped["history"]) + 1 == len(answers[0][1]["history"])


SAVED = {
    "weights": (case(epochs=4, weighted=True, validation="parts", settings={"batch_size": 20}), 8),
    "labels, best": (
        case(epochs=4, loss="cross_entropy", validation="parts", settings={"step": 2.0}, fit={"restore_best": True}),
        7,
    ),
}


@pytest.mark.parametrize("name", SAVED)
def test_a_run_stopped_within_an_epoch_goes_on_in_any_number_of_processes(pools, tmp_path, name):
    (given, batch), serial = SAVED[name], in_one(SAVED[name][0])
    stopped, whole = zip(*pools[2](ranks_minibatch.interrupt_and_save, given, tmp_path / "saved", batch), strict=True)
    assert stopped[0][1] > 0
    assert stopped[0][2] == "interrupted"
    assert_one_run(whole, serial)
    for one, again in zip(whole, pools[2](ranks_minibatch.go_on, given, tmp_path / "saved"), strict=True):
        assert one["bits"] == again["bits"]
    assert_one_run(pools[3](ranks_minibatch.go_on, given, tmp_path / "saved"), serial)
    assert_one_run([ranks_minibatch.go_on(0, 1, given, tmp_path / "saved")], serial)
    ((answers),) = {pools[2](ranks_minibatch.go_on, given, tmp_path / "saved", 1e-9)[0]}
    assert answers[0] == "CheckpointError"
    with pytest.raises(CheckpointError, match="the sha256 of training X"):
        ranks_minibatch.go_on(0, 1, given, tmp_path / "saved", 1e-9)


def test_a_checkpoint_of_one_goes_on_in_several(pool, tmp_path):
    given, batch = SAVED["weights"]
    ranks_minibatch.interrupt_and_save(0, 1, given, tmp_path / "saved", batch)
    assert_one_run(pool(ranks_minibatch.go_on, given, tmp_path / "saved"), in_one(given))


def test_a_checkpoint_of_loaders(pools, tmp_path):
    given = case(validation="parts")
    whole = pools[2](ranks_minibatch.loader_half_way, given, tmp_path / "saved", False)
    again = pools[2](ranks_minibatch.loader_half_way, given, tmp_path / "saved", True)
    assert [answer["bits"] for answer in again] == [answer["bits"] for answer in whole]
    assert_close(whole[0], pools[3](ranks_minibatch.loader_half_way, given, tmp_path / "saved", True)[2])
    assert_close(whole[0], ranks_minibatch.loader_half_way(0, 1, given, tmp_path / "saved", True))


def test_saving_on_one_rank_alone_is_refused_and_not_waited_for(pool, tmp_path):
    answers = pool(ranks_minibatch.save_on_one, case(), tmp_path / "saved")
    assert len(set(answers)) == 1
    assert answers[0][0] == "DistributedError"
    assert "all processes must call fit, step, load and save alike" in answers[0][1]


TIMEOUT = 3.0  # of the process groups that somebody leaves


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_that_is_killed_ends_the_others(tmp_path, size):
    choice, pool = random.Random(size), Pool(size, tmp_path, TIMEOUT)
    try:
        assert pool(ranks_minibatch.train, case(epochs=1))  # connected
        victim = choice.randrange(size)
        pool.begin(ranks_minibatch.train_until, case(epochs=10**6), victim, choice.uniform(0.0, 0.3), signal.SIGKILL)
        for answer in pool.answers([rank for rank in range(size) if rank != victim], patience=30.0):
            assert answer["error"] == "DistributedError"
            assert "lost the other processes" in answer["text"]
            assert answer["seconds"] < 0.3 + TIMEOUT + 10.0
    finally:
        pool.close()


SETTINGS = {"data": "digits", "hidden": (20, 10), "epochs": 8, "batch_size": 500, "checkpoint_every": 1}


@pytest.fixture(scope="module")
def job_of_two(pools, tmp_path_factory):
    folder = tmp_path_factory.mktemp("jobs") / "two"
    assert pools[2](ranks.job, SETTINGS, folder) == [(8, "epochs")] * 2
    return folder


def test_a_job_of_two_is_that_of_one(job_of_two, tmp_path):
    ipdlam_run("train", *options(SETTINGS), "--output", tmp_path / "one")
    for one, two in zip(records(tmp_path / "one"), records(job_of_two), strict=True):
        np.testing.assert_allclose([one.loss, one.train_loss], [two.loss, two.train_loss], rtol=1e-2)
        np.testing.assert_allclose(one.validation_accuracy, two.validation_accuracy, atol=0.02)
    assert (job_of_two / "summary.json").is_file()


@pytest.mark.slow  # the same of a full-batch run is in the default suite
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the workers of torchrun in /proc")
def test_torchrun_starts_a_run_of_epochs_again(job_of_two, tmp_path):
    with launched("-m", "ipdlam", "train", *options(SETTINGS), "--output", tmp_path / "run") as launcher:
        while launcher.poll() is None and len(list((tmp_path / "run" / "checkpoints").glob("iteration-*"))) < 2:
            time.sleep(0.002)
        assert launcher.poll() is None, launcher.communicate()[0]
        os.kill(workers_of(launcher)[1], signal.SIGKILL)
        output = launcher.communicate()[0]
    assert launcher.returncode == 0, output
    assert output.count("error: rank 0 of 2 lost the other processes") == 1, output
    assert "error: rank 1 of 2 lost" not in output  # it was killed, and not the other one
    assert "resumed after epoch" in output
    assert same_model(tmp_path / "run", job_of_two)
    assert without_seconds(tmp_path / "run") == without_seconds(job_of_two)
