"""Several processes train one model: the run of one process, whatever happens to one of them."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import ranks
from costs import iteration_bytes, meeting_bytes
from forked import launched
from ipdlam.checkpoint.format import read_checkpoint
from ipdlam.errors import CheckpointError
from ipdlam.fullbatch.orders import ORDERS
from ipdlam.prox import LOSSES
from ranks import SIZES, WIDTHS, Pool, case, in_one, options, workers_of
from shell import ipdlam_run, records, refused, same_model
from shell import without_seconds as without_seconds_of


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
    "proximity for each sample": case(settings={"weight_proximity": [0.01, 1.0]}, weighted=True),
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


def test_a_group_of_one_has_the_bits_of_no_group(tmp_path):
    pool = Pool(1, tmp_path)
    try:
        (answer,) = pool(ranks.train, case(validation="whole"))
    finally:
        pool.close()
    serial = in_one(case(validation="whole"))
    assert [answer["weights"], answer["z"]] == [serial["weights"], serial["z"]]


def test_all_samples_on_the_last_rank(pool):
    given = case(counts=(0,) * (pool.size - 1) + (ranks.SAMPLES,))
    assert_one_run(pool(ranks.train, given), in_one(given))


def test_state_on_a_disk(pool, tmp_path):
    given = case(settings={"storage": str(tmp_path), "chunk_size": 5})
    assert_one_run(pool(ranks.train, given), in_one(case(settings={"chunk_size": 5})))


def test_a_storage_serves_any_number_of_processes(pools, tmp_path):
    given = case(settings={"storage": str(tmp_path), "chunk_size": 5})
    one = in_one(given)
    for size in SIZES:
        left = tmp_path / f"rank-0-of-{2 + 3 - size}"  # as killed processes leave it
        left.mkdir(exist_ok=True)
        (left / "state.bin").write_bytes(b"z and a of others")
        assert_one_run(pools[size](ranks.train, given), one)
        assert_one_run([in_one(given)], one)
        (left / "state.bin").unlink()


def test_the_code_of_the_page_runs(pool):
    page = Path(__file__).parents[2] / "docs" / "guide" / "distributed.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    answers = pool(ranks.run_page, block)
    assert isinstance(answers[0], list), answers
    assert answers == [answers[0]] * pool.size


@pytest.mark.parametrize("copies", [1, 30])
def test_traffic_is_what_the_module_says_and_knows_nothing_of_the_number_of_samples(pool, copies):
    plain = iteration_bytes(WIDTHS, pool.size, itemsize=8)
    wanted = [plain, plain + meeting_bytes(pool.size) + 8 * 3]  # the second iteration is evaluated
    assert pool(ranks.traffic, case(), copies) == [wanted] * pool.size


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"settings": {"penalty": 0.3}}, "settings penalty"),
        ({"settings": {"order": "increase"}}, "settings order"),
        ({"validation": "whole"}, "validation targets"),
        ({"weighted": True}, "sample_weight"),
        ({"loss": "cross_entropy"}, "settings loss name"),
        ({"dtype": "float32"}, "network"),
        ({"fit": {"evaluate_every": 2}}, "evaluate_every"),
    ],
)
def test_what_is_not_the_same_on_all_ranks_is_named(pool, change, said):
    answers = pool(ranks.start_with, case(), pool.size - 1, change)
    assert len(set(answers)) == 1
    kind, text = answers[0]
    assert kind == "DistributedError"
    assert f"from rank 0 to rank {pool.size - 1}" in text
    assert said in text


def test_bad_data_of_one_rank_are_told_to_all(pool):
    answers = pool(ranks.start_with, case(), 0, {"nan": True})
    assert len(set(answers)) == 1
    assert answers[0][0] == "DistributedError"
    assert answers[0][1].startswith(f"rank 0 of {pool.size} failed: ValueError: X holds nan at (3, 2)")


@pytest.mark.parametrize(
    ("wrong", "said"), [({"patience": 0}, "ValueError: patience"), ({"callbacks": [3]}, "TypeError: callbacks holds 3")]
)
def test_a_wrong_argument_of_one_rank_is_told_to_all(pool, wrong, said):
    answers = pool(ranks.start_with, case(), 1, {"fit": wrong})
    assert len(set(answers)) == 1
    assert answers[0][0] == "DistributedError"
    assert answers[0][1].startswith(f"rank 1 of {pool.size} failed: {said}")


def test_what_fails_before_it_is_sent_leaves_the_weights_of_the_others(pool):
    answers = pool(ranks.spread_without_memory)
    assert answers == [("DistributedError", [rank + 1.0] * 3) for rank in range(pool.size)]


def test_one_rank_speaks(pool, tmp_path):
    answers = sorted(pool(ranks.who_speaks, str(tmp_path)))
    assert answers == [(False, False, True)] * (pool.size - 1) + [(True, False, True)]


def test_no_samples_at_all(pool):
    assert set(pool(ranks.start_with, case(empty=True), None, {})) == {
        ("ValueError", "X is empty on every rank; give at least one sample")
    }


@pytest.mark.parametrize("bad_rank", [0, 1])
def test_a_callback_of_one_rank_stops_all(pool, bad_rank):
    answers = pool(ranks.train_with, case(iterations=9), bad_rank, 3, ranks.stop)
    serial = in_one(case(iterations=3))
    assert_one_run(answers, {**serial, "reason": "enough"} | {"history": serial["history"]})


@pytest.mark.parametrize("bad_rank", [0, 1])
def test_ctrl_c_on_one_rank_stops_all(pool, bad_rank):
    answers = pool(ranks.train_with, case(iterations=9), bad_rank, 3, ranks.press_ctrl_c)
    assert_one_run(answers, {**in_one(case(iterations=3)), "reason": "interrupted"})


@pytest.mark.parametrize("bad_rank", [0, 1])
def test_an_error_of_one_rank_is_raised_on_all(pool, bad_rank):
    answers = pool(ranks.train_with, case(iterations=9), bad_rank, 3, ranks.fail)
    assert {(answer["error"], answer["text"], answer["done"]) for answer in answers} == {
        ("DistributedError", f"rank {bad_rank} of {pool.size} failed: LookupError: no such thing", 3)
    }
    assert answers[bad_rank]["cause"] == "LookupError"


@pytest.mark.parametrize("seed", range(4))
def test_ctrl_c_at_any_moment_ends_all_alike(pool, seed):
    choice = random.Random(100 * pool.size + seed)
    given = case(iterations=100_000, fit={"evaluate_every": 1})
    answers = pool(ranks.train_until, given, choice.randrange(pool.size), choice.uniform(0, 0.3), signal.SIGINT)
    assert {answer["reason"] for answer in answers} == {"interrupted"}, answers
    assert len({len(answer.get("history", ())) for answer in answers}) == 1
    assert_one_run(pool(ranks.train, case()), in_one(case()))  # nothing is out of step


@pytest.mark.parametrize("error", [MemoryError("no room"), OSError("the disk is gone")])
def test_a_rank_that_fails_in_a_pass(pool, error):
    answers = pool(ranks.break_in_a_pass, case(), 1, error)
    text = f"rank 1 of {pool.size} failed: {type(error).__name__}: {error}"
    assert answers == [("DistributedError", text, 1, False)] * pool.size


def test_divergence_is_everybodys(pool):
    given = case(settings={"inertia": 1e200}, iterations=30)
    answers = pool(ranks.train_with, given, None, None, None)
    assert {answer["error"] for answer in answers} == {"DivergenceError"}
    assert len({answer["text"] for answer in answers}) == 1


SAVED = {
    "plain": case(iterations=6, validation="parts"),
    "weights and nested": case(iterations=6, weighted=True, settings={"order": "nested-reverse"}),
    "labels": case(iterations=6, loss="cross_entropy", settings={"chunk_size": 6}),
}


@pytest.mark.parametrize("name", SAVED)
def test_a_checkpoint_of_two_resumes_exactly_in_two_and_close_in_one_and_three(pools, tmp_path, name):
    given, path = SAVED[name], tmp_path / "saved"
    whole = pools[2](ranks.save_half_way, given, path)
    assert_one_run(whole, in_one(given))
    again = pools[2](ranks.go_on, given, path)
    for one, other in zip(whole, again, strict=True):
        assert [one["weights"], one["z"]] == [other["weights"], other["z"]]
        assert without_seconds(one) == without_seconds(other)
    one = ranks.go_on(0, 1, given, path)
    assert_one_run([one], in_one(given))
    assert_one_run(pools[3](ranks.go_on, given, path), in_one(given))
    otherwise = {**given, "counts": (1, 36)}
    assert_one_run(pools[2](ranks.go_on, otherwise, path), in_one(given))


def without_seconds(answer):
    return [{**record, "seconds": None} for record in answer["history"]]


def test_a_checkpoint_of_three_of_which_one_has_no_samples(pools, tmp_path):
    given = SAVED["labels"]
    pools[3](ranks.save_half_way, given, tmp_path / "saved")
    assert_one_run([ranks.go_on(0, 1, given, tmp_path / "saved")], in_one(given))
    assert_one_run(pools[2](ranks.go_on, given, tmp_path / "saved"), in_one(given))


def test_a_checkpoint_of_one_resumes_in_several(pool, tmp_path):
    given = SAVED["labels"]
    ranks.save_half_way(0, 1, given, tmp_path / "saved")
    answers, warned = zip(*pool(ranks.go_on_of_one, given, tmp_path / "saved"), strict=True)
    assert_one_run(answers, in_one(given))
    assert "not checked whether these are its data" in warned[0][0]
    assert warned[1] == []


def test_a_checkpoint_on_other_data_is_refused(pools, tmp_path):
    given, path = SAVED["plain"], tmp_path / "saved"
    pools[2](ranks.save_half_way, given, path)
    for size in SIZES:
        answers = pools[size](ranks.go_on, given, path, 1e-9)
        assert len(set(answers)) == 1
        assert answers[0][0] == "CheckpointError"
        assert "the sha256 of training X" in answers[0][1]
    with pytest.raises(CheckpointError, match="the sha256 of training X"):
        ranks.go_on(0, 1, given, path, 1e-9)


def test_a_folder_that_the_first_rank_cannot_look_into_costs_the_checkpoint_alone(pool, tmp_path):
    answers = pool(ranks.save_badly, case(), tmp_path, 0, "refuse_others")
    assert all("bad was not written: OSError: no space left" in said for said, _ in answers)
    assert_one_run([answer for _, answer in answers], in_one(case()))


@pytest.mark.parametrize("bad_rank", [0, 1])
def test_a_checkpoint_is_whole_or_absent_and_training_goes_on(pool, tmp_path, bad_rank):
    answers = pool(ranks.save_badly, case(), tmp_path, bad_rank)
    assert len({said for said, _ in answers}) == 1
    assert (
        f"rank {bad_rank} of {pool.size} failed: CheckpointError: {tmp_path / 'bad'} was not written" in answers[0][0]
    )
    assert list(tmp_path.iterdir()) == []
    assert_one_run([answer for _, answer in answers], in_one(case()))


def test_saving_on_one_rank_alone_is_refused_and_not_waited_for(pool, tmp_path):
    answers = pool(ranks.save_on_one, case(), tmp_path)
    assert len(set(answers)) == 1
    assert answers[0][0] == "DistributedError"
    assert "rank 0 came to gather and rank 1 to agree" in answers[0][1]


@pytest.mark.parametrize(("light", "other", "said"), [(True, False, "light was False"), (False, True, "path was")])
def test_ranks_that_save_different_things_are_told_and_nothing_is_replaced(pool, tmp_path, light, other, said):
    answers = pool(ranks.save_differently, case(), tmp_path, light, other)
    assert len(set(answers)) == 1
    assert said in answers[0][0]
    assert answers[0][1] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["good"]


def test_what_one_rank_alone_does_is_named(pool, tmp_path):
    for work, said in (
        (ranks.only_one_saves, "rank 0 came to save and rank 1 to go on with a run"),
        (ranks.load_differently, "path was"),
    ):
        answers = pool(work, case(), tmp_path)
        assert len(set(answers)) == 1
        assert answers[0][0] == "DistributedError"
        assert said in answers[0][1]


def test_a_series_of_checkpoints(pool, tmp_path):
    assert pool(ranks.series_of_checkpoints, case(), tmp_path) == [(5, True)] * pool.size
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iteration-00000004", "iteration-00000005"]


TIMEOUT = 3.0  # of the process groups that somebody leaves


@pytest.fixture
def doomed(tmp_path):
    pools = []

    def make(size):
        pools.append(Pool(size, tmp_path, TIMEOUT))
        assert pools[-1](ranks.train, case(iterations=1))  # connected
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


@pytest.mark.parametrize("seed", range(3))
def test_a_rank_that_is_killed_ends_the_others(doomed, seed):
    choice = random.Random(seed)
    pool = doomed(2 + seed % 2)
    victim = choice.randrange(pool.size)
    pool.begin(ranks.train_until, case(iterations=10**6), victim, choice.uniform(0.0, 0.3), signal.SIGKILL)
    for answer in pool.answers([rank for rank in range(pool.size) if rank != victim], patience=30.0):
        assert answer["error"] == "DistributedError"
        assert "lost the other processes" in answer["text"]
        assert "with checkpoints the run goes on from the last one" in answer["text"]
        assert answer["seconds"] < 0.3 + TIMEOUT + 10.0  # much less, on a machine with nothing else to do


def test_a_rank_that_hangs_is_given_up_after_the_timeout(doomed):
    pool = doomed(2)
    pool.begin(ranks.train_with, case(iterations=5), 1, 2, ranks.hang)
    (answer,) = pool.answers([0], patience=30.0)
    assert answer["error"] == "DistributedError"
    assert answer["done"] == 2
    assert TIMEOUT - 0.5 < answer["seconds"] < 2 * TIMEOUT  # and waited for once


def test_a_rank_that_dies_while_all_save_leaves_whole_checkpoints(doomed, tmp_path):
    pool, folder = doomed(2), tmp_path / "checkpoints"
    pool.begin(ranks.save_for_ever, case(), folder)
    time.sleep(random.Random(7).uniform(0.5, 1.0))
    pool.processes[1].kill()
    assert pool.answers([0], patience=30.0)[0]["error"] == "DistributedError"
    for path in folder.iterdir():
        assert path.name.startswith("iteration-")  # nothing unfinished
    given = case(iterations=read_checkpoint(folder).content["run"]["iteration"] + 1)
    assert_one_run([ranks.go_on(0, 1, given, folder)], in_one(given))


SETTINGS = {"data": "digits", "hidden": (30, 20), "iterations": 120, "checkpoint_every": 10, "evaluate_every": 3}


@pytest.fixture(scope="module")
def job_of_two(pools, tmp_path_factory):
    folder = tmp_path_factory.mktemp("jobs") / "two"
    assert pools[2](ranks.job, SETTINGS, folder) == [(120, "iterations")] * 2
    return folder


def test_a_job_of_two_is_that_of_one(job_of_two, tmp_path):
    ipdlam_run("train", *options(SETTINGS), "--output", tmp_path / "one")
    for one, two in zip(records(tmp_path / "one"), records(job_of_two), strict=True):
        tolerance = 1e-4 if one.iteration <= 10 else 1e-2  # rounding of float32 grows with the iterations
        np.testing.assert_allclose([one.objective, one.lyapunov], [two.objective, two.lyapunov], rtol=tolerance)
        assert (one.train_loss is None) == (two.train_loss is None)
    assert (job_of_two / "summary.json").is_file()
    one, two = (load_file(folder / "model.safetensors") for folder in (tmp_path / "one", job_of_two))
    assert one.keys() == two.keys()


@pytest.mark.parametrize("bad_ranks", [(0, 1), (0,), (1,)])
def test_a_disk_that_fails_ends_a_job_with_its_model_written(pools, tmp_path, bad_ranks):
    settings = {**SETTINGS, "storage": str(tmp_path / "state"), "iterations": 5}
    answers = pools[2](ranks.job_on_a_full_disk, settings, tmp_path / "run", bad_ranks)
    kind = "StorageError" if len(bad_ranks) == 2 else "DistributedError"
    assert [answer[0] for answer in answers] == [kind] * 2, answers
    assert all("the disk is full" in text for _, text, _ in answers)
    assert len(load_file(tmp_path / "run" / "model.safetensors")) == 6
    assert_one_run(pools[2](ranks.train, case()), in_one(case()))  # nothing is out of step


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the workers of torchrun in /proc")
def test_torchrun_starts_again_from_the_last_checkpoint(job_of_two, tmp_path):
    run = tmp_path / "run"
    with launched("-m", "ipdlam", "train", *options(SETTINGS), "--output", run) as launcher:
        while launcher.poll() is None and len(list((run / "checkpoints").glob("iteration-*"))) < 2:
            time.sleep(0.002)
        assert launcher.poll() is None, launcher.communicate()[0]
        os.kill(workers_of(launcher)[1], signal.SIGKILL)
        output = launcher.communicate()[0]
    assert launcher.returncode == 0, output
    assert output.count("error: rank 0 of 2 lost the other processes") == 1, output
    assert "error: rank 1 of 2 lost" not in output  # it was killed, and not the other one
    assert "resumed after iteration" in output
    assert output.count("120/120") == 1  # one process speaks
    assert same_model(run, job_of_two)
    assert without_seconds_of(run) == without_seconds_of(job_of_two)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--then=adam"], "one stage"),
        ([], "give an --output"),
        (None, "torchrun is for ipdlam train"),
    ],
)
def test_what_torchrun_cannot_do_is_refused_at_once(monkeypatch, arguments, said):
    for name, value in {"RUN_ID": "x", "RESTART_COUNT": "0", "MAX_RESTARTS": "1"}.items():
        monkeypatch.setenv(f"TORCHELASTIC_{name}", value)
    monkeypatch.setenv("RANK", "0")
    command = ["datasets"] if arguments is None else ["train", "digits", *arguments]
    assert said in refused(*command)
