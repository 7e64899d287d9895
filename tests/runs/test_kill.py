"""Nothing that was trained is lost: runs killed at any moment and resumed end with the bits of an undisturbed one."""

from __future__ import annotations

import json
import random
import signal
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

from forked import command
from ipdlam.cli.signals import StopSignals
from ipdlam.errors import StopTraining

ITERATIONS = 40
OPTIONS = ["--hidden", "40,40", "--iterations", str(ITERATIONS), "--checkpoint-every", "1", "--chunk-size", "500"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    generator = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "samples.npz"
    X = generator.normal(size=(5000, 20)).astype(np.float32)
    np.savez(path, X=X, y=(X[:, 0] + X[:, 1] ** 2 > 1).astype(np.int64))
    return path


@pytest.fixture(scope="module")
def undisturbed(data):
    run = data.parent / "undisturbed"
    process = command("train", str(data), *OPTIONS, "--output", str(run))
    output = process.communicate()[0]
    assert process.returncode == 0, output
    return run


def weights(run):
    return load_file(run / "model.safetensors")


def history(run):
    lines = (run / "history.jsonl").read_text().splitlines()
    return [{**json.loads(line), "seconds": None} for line in lines]


def assert_same_run(one, other):
    a, b = weights(one), weights(other)
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])
    assert history(one) == history(other)


def iterations_done(run):
    path = run / "history.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def wait_until(process, condition):
    """False if the process ended first."""
    while process.poll() is None:
        if condition():
            return True
        time.sleep(0.0005)
    return False


@pytest.mark.parametrize("many", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_at_many_moments_and_resumed(data, undisturbed, tmp_path, many):
    run = tmp_path / "run"
    moments = random.Random(4)
    process = command("train", str(data), *OPTIONS, "--output", str(run))
    kills = inside = 0
    while kills < many:
        target = iterations_done(run) + moments.randint(1, 3)
        assert wait_until(process, lambda target=target: iterations_done(run) >= target), process.stdout.read()
        if kills % 2 == 0:  # while a checkpoint is being written
            assert wait_until(process, lambda: any(run.glob("checkpoints/.unfinished-*/state*"))), process.stdout.read()
        else:
            time.sleep(moments.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += 1
        inside += any((run / "checkpoints").glob(".unfinished-*"))
        process = command("train", "--resume", str(run))
    output = process.communicate()[0]
    assert process.returncode == 0, output
    assert inside >= many // 3  # the kills did come in the middle of writing
    assert_same_run(run, undisturbed)
    # What the kills left unfinished has gone; two checkpoints are kept.
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert names == ["iteration-00000039", "iteration-00000040"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_finishes_the_iteration_and_writes_a_checkpoint(data, undisturbed, tmp_path, number, code):
    run = tmp_path / "run"
    options = [*OPTIONS, "--checkpoint-every", "1000"]
    process = command("train", str(data), *options, "--output", str(run))
    assert wait_until(process, lambda: iterations_done(run) >= 3), process.stdout.read()
    process.send_signal(number)
    output = process.communicate()[0]
    assert process.returncode == code, output
    assert f"to go on: ipdlam train --resume {run}" in output
    done = iterations_done(run)
    assert 3 <= done < ITERATIONS
    assert [path.name for path in (run / "checkpoints").iterdir()] == [f"iteration-{done:08}"]
    assert json.loads((run / "summary.json").read_text())["stop_reason"] == signal.Signals(number).name
    assert (run / "model.safetensors").is_file()
    resumed = command("train", "--resume", str(run))
    output = resumed.communicate()[0]
    assert resumed.returncode == 0, output
    assert f"resumed after iteration {done}" in output
    assert_same_run(run, undisturbed)


def test_a_disk_that_is_full_in_the_middle_of_a_run(data, undisturbed, tmp_path):
    """No file may grow beyond a limit, as on a full disk: checkpoints fail, are reported, and training goes on."""
    limit = 300_000  # the model fits, a checkpoint does not
    run = tmp_path / "run"
    process = command("train", str(data), *OPTIONS, "--output", str(run), file_limit=limit)
    output = process.communicate()[0]
    assert process.returncode == 0, output
    assert "was not written" in output
    assert "Nothing in memory is lost" in output
    assert not list((run / "checkpoints").iterdir())
    assert_same_run(run, undisturbed)


def test_a_reader_that_goes_away(data, undisturbed, tmp_path):
    """``ipdlam train ... | head -3``: the run stops as for a signal, and can go on."""
    run = tmp_path / "run"
    process = command("train", str(data), *OPTIONS, "--checkpoint-every", "1000", "--output", str(run))
    for _ in range(3):
        process.stdout.readline()
    process.stdout.close()
    assert process.wait() == 128 + signal.SIGPIPE
    assert len(list((run / "checkpoints").glob("iteration-*"))) == 1
    resumed = command("train", "--resume", str(run))
    output = resumed.communicate()[0]
    assert resumed.returncode == 0, output
    assert_same_run(run, undisturbed)


def test_a_signal_in_the_middle_of_a_line_still_stops_the_run():
    """What writes a line cannot be called again in its middle; the word to the user is then left out."""

    def busy(text):
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name=1>")

    with StopSignals(busy) as stop:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(StopTraining, match="SIGTERM"):
            stop(None)


def test_a_second_sigterm_does_not_cost_the_checkpoint(data, tmp_path):
    run = tmp_path / "run"
    options = [*OPTIONS, "--iterations", "2000", "--checkpoint-every", "2000"]
    process = command("train", str(data), *options, "--output", str(run))
    assert wait_until(process, lambda: iterations_done(run) >= 2), process.stdout.read()
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    output = process.communicate()[0]
    assert process.returncode == 143, output
    assert len(list((run / "checkpoints").glob("iteration-*"))) == 1


def test_two_processes_never_share_a_folder(data, tmp_path):
    options = [*OPTIONS, "--iterations", "2000", "--checkpoint-every", "2000"]
    first = command("train", str(data), *options, "--output", "run", cwd=tmp_path)
    assert wait_until(first, lambda: iterations_done(tmp_path / "run") >= 2), first.stdout.read()
    second = command("train", "--resume", "run", "--iterations", "3000", cwd=tmp_path)
    output = second.communicate()[0]
    assert second.returncode == 2
    assert "another process is training in run" in output
    first.send_signal(signal.SIGTERM)
    first.communicate()
    assert first.returncode == 143
    # Runs that start in the same second without a name get a folder each.
    quick = ["--hidden", "3", "--iterations", "1", "--checkpoint", "none", "--quiet"]
    together = [command("train", str(data), *quick, cwd=tmp_path) for _ in range(3)]
    outputs = [process.communicate()[0] for process in together]
    assert [process.returncode for process in together] == [0, 0, 0], outputs
    assert len(list((tmp_path / "runs").glob("*/model.safetensors"))) == 3


def test_a_run_goes_on_from_another_folder(data, tmp_path):
    """Data given by a relative path are found again."""
    quick = ["--hidden", "3", "--checkpoint-every", "1"]
    run = command("train", data.name, *quick, "--iterations", "2", "--output", str(tmp_path / "run"), cwd=data.parent)
    assert run.wait() == 0, run.stdout.read()
    run.communicate()
    again = command("train", "--resume", "run", "--iterations", "3", cwd=tmp_path)
    output = again.communicate()[0]
    assert again.returncode == 0, output
    assert "resumed after iteration 2" in output


def test_a_second_ctrl_c_before_the_first_checkpoint_starts_over(data, undisturbed, tmp_path):
    run = tmp_path / "run"
    process = command("train", str(data), *OPTIONS, "--checkpoint-every", "1000", "--output", str(run))
    assert wait_until(process, lambda: iterations_done(run) >= 2), process.stdout.read()
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    process.communicate()
    if not list((run / "checkpoints").glob("iteration-*")):  # else the iteration ended between the two
        assert json.loads((run / "summary.json").read_text())["stop_reason"] == "interrupted"
    resumed = command("train", "--resume", str(run))
    output = resumed.communicate()[0]
    assert resumed.returncode == 0, output
    assert_same_run(run, undisturbed)


# --- two stages -------------------------------------------------------------------------------------------------------

TWO_STAGES = [*OPTIONS, "--iterations", "6", "--then", "adam", "--then-epochs", "34", "--then-batch-size", "128"]


@pytest.fixture(scope="module")
def undisturbed_stages(data):
    run = data.parent / "stages"
    process = command("train", str(data), *TWO_STAGES, "--output", str(run))
    output = process.communicate()[0]
    assert process.returncode == 0, output
    return run


def epochs_done(run):
    """Also while a line is being written."""
    path = run / "history.jsonl"
    return path.read_text().count('"optimizer": "adam"') if path.exists() else 0


def test_killed_in_either_stage_and_resumed(data, undisturbed_stages, tmp_path):
    run = tmp_path / "run"
    moments = random.Random(7)
    process = command("train", str(data), *TWO_STAGES, "--output", str(run))
    stages = []
    for kills, target in enumerate((1, 5, 9, 18)):
        assert wait_until(process, lambda target=target: iterations_done(run) >= target), process.stdout.read()
        if kills % 2 == 0:  # while a checkpoint is being written
            assert wait_until(process, lambda: any(run.glob("checkpoints/.unfinished-*"))), process.stdout.read()
        else:
            time.sleep(moments.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        stages.append("adam" if epochs_done(run) else "ipdlam")
        process = command("train", "--resume", str(run))
    output = process.communicate()[0]
    assert process.returncode == 0, output
    assert (stages[0], stages[2:]) == ("ipdlam", ["adam"] * 2)
    assert_same_run(run, undisturbed_stages)
    assert json.loads((run / "summary.json").read_text())["stop_reason"] == "then_epochs"
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert names == ["iteration-00000039", "iteration-00000040"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_second_stage(data, undisturbed_stages, tmp_path, number, code):
    run = tmp_path / "run"
    process = command("train", str(data), *TWO_STAGES, "--checkpoint-every", "1000", "--output", str(run))
    assert wait_until(process, lambda: epochs_done(run) >= 2), process.stdout.read()
    process.send_signal(number)
    output = process.communicate()[0]
    assert process.returncode == code, output
    done = iterations_done(run)
    assert 8 <= done < 40
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert names == ["iteration-00000006", f"iteration-{done:08}"]  # the first stage's last one, and this one
    assert (run / "model.safetensors").is_file()
    resumed = command("train", "--resume", str(run))
    output = resumed.communicate()[0]
    assert resumed.returncode == 0, output
    assert f"resumed after iteration {done}, with adam" in output
    assert_same_run(run, undisturbed_stages)


def test_a_second_ctrl_c_in_the_second_stage_goes_back_to_the_first(data, undisturbed_stages, tmp_path):
    run = tmp_path / "run"
    process = command("train", str(data), *TWO_STAGES, "--checkpoint-every", "1000", "--output", str(run))
    assert wait_until(process, lambda: epochs_done(run) >= 2), process.stdout.read()
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert (run / "model.safetensors").is_file()
    assert "iteration-00000006" in [path.name for path in (run / "checkpoints").iterdir()]
    resumed = command("train", "--resume", str(run))
    output = resumed.communicate()[0]
    assert resumed.returncode == 0, output
    assert_same_run(run, undisturbed_stages)
