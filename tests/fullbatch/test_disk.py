"""State on a disk: the bits of a run in memory; folders recognised or refused; disks that fail."""

from __future__ import annotations

import errno
import gc
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

import ipdlam
from forked import Forked, call
from ipdlam import DLAM, IPDLAM, StorageError
from ipdlam.checkpoint.format import seal
from ipdlam.fullbatch import disk as diskshard
from ipdlam.fullbatch import disk_folder as diskstate
from problems import assert_same_runs, make_data, make_model, same, without_seconds
from programs import importable
from shell import ipdlam_run, records, refused, same_model, summary

HERE = importable(__file__)
WIDTHS = (6, 8, 7, 3)
X, Y = make_data(90, 6, 3, loss="cross_entropy", dtype=torch.float32)
WEIGHT = torch.rand(90, generator=torch.Generator().manual_seed(1)) + 0.1
VALIDATION = make_data(31, 6, 3, loss="cross_entropy", seed=7, dtype=torch.float32)
FILES = [".lock", "state.bin", "storage.json"]


def model_of(seed=0, dtype=torch.float32):
    return make_model(WIDTHS, seed=seed, dtype=dtype)


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def storage_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("ipdlam-storage")]


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    assert storage_threads() == []


# --- the same bits ---------------------------------------------------------------------------------------------------

CASES = {
    "reverse": {"order": "reverse", "chunk_size": 16},
    "increase": {"order": "increase", "chunk_size": 16},
    "nested": {"order": "nested-reverse", "chunk_size": 16},
    "blocks": {"order": ["W1", "z1", "a1", "z2", "W2", "a2", "z3", "W3"], "chunk_size": 45},
    "other blocks": {"order": ["a2", "W3", "z3", "a1", "W1", "z2", "W2", "z1"], "chunk_size": 16},
    "ragged, odd": {"chunk_size": 7},
    "three rows at a time": {"chunk_size": 3},
    "one chunk": {"chunk_size": 90},
    "default chunks": {},
    "proximity for each sample": {"weight_proximity": (0.01, 1.0), "chunk_size": 16},
    "no proximity": {"inertia": 0.0, "proximity": 0.0, "order": "nested-reverse", "chunk_size": 16},
    "real loss": {"loss": "cross_entropy", "chunk_size": 32, "regularizer": ["ridge", None, "l1"]},
}


@pytest.mark.parametrize("case", CASES)
def test_the_bits_are_those_of_a_run_in_memory(tmp_path, case):
    dtype = torch.float64 if case in ("increase", "other blocks", "ragged, odd") else torch.float32
    more = {"sample_weight": WEIGHT if case in ("nested", "ragged, odd") else None, "validation_data": VALIDATION}
    memory, disk = (IPDLAM(model_of(dtype=dtype), **CASES[case], **place) for place in ({}, {"storage": tmp_path}))
    for trainer in (memory, disk):
        trainer.fit(X, Y, iterations=4, restore_best=True, **more)
    assert_same_runs(memory, disk)
    for kind in ("z", "a", "W", "b"):
        one, other = getattr(memory.iterate(), kind), getattr(disk.iterate(), kind)
        assert all(torch.equal(one[l], other[l]) for l in one)
    for trainer in (memory, disk):
        trainer.continue_fit(iterations=2)
    assert_same_runs(memory, disk)


def test_dlam_too(tmp_path):
    runs = [DLAM(model_of(), regularizer=None, chunk_size=20, **place) for place in ({}, {"storage": str(tmp_path)})]
    for run in runs:
        run.fit(X, Y, iterations=4)
    assert_same_runs(*runs)


def arrays_of(tmp_path):
    """The same samples in every form that is read some rows at a time."""
    numbers = X.numpy()
    np.save(tmp_path / "rows.npy", numbers)
    np.save(tmp_path / "columns.npy", np.asfortranarray(numbers))
    np.save(tmp_path / "double.npy", numbers.astype(np.float64))
    np.save(tmp_path / "foreign.npy", numbers.astype(">f4"))
    (tmp_path / "raw").write_bytes(b"\0" * 20 + numbers.tobytes())
    loaded = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("rows", "columns", "double")}
    return {
        **loaded,
        "foreign": np.load(tmp_path / "foreign.npy", mmap_mode="r"),
        "raw, unaligned": np.memmap(tmp_path / "raw", np.float32, "r", 20, numbers.shape),
        "private": np.load(tmp_path / "rows.npy", mmap_mode="c"),
        "numpy": numbers,
        "reversed twice": numbers[::-1].copy()[::-1],
        "tensor": X.double(),
    }


def test_memory_mapped_samples_of_any_type(tmp_path):
    np.save(tmp_path / "y.npy", Y.numpy().astype(np.uint8))
    labels = np.load(tmp_path / "y.npy", mmap_mode="r")
    for name, array in arrays_of(tmp_path).items():
        memory, disk = (IPDLAM(model_of(), chunk_size=16, storage=place) for place in (None, tmp_path / "state"))
        for trainer in (memory, disk):
            trainer.fit(array, labels, iterations=3, sample_weight=WEIGHT)
        assert_same_runs(memory, disk)
        assert disk._state.fingerprints() == memory._state.fingerprints(), name
        disk.close()


def test_real_targets_are_read_by_chunk_too(tmp_path):
    inputs, targets = make_data(90, 6, 3, dtype=torch.float32)
    np.save(tmp_path / "y.npy", targets.numpy().astype(np.float64))
    runs = IPDLAM(model_of(), chunk_size=16), IPDLAM(model_of(), chunk_size=16, storage=tmp_path / "state")
    runs[0].fit(inputs, targets.double(), iterations=3)
    runs[1].fit(inputs, np.load(tmp_path / "y.npy", mmap_mode="r"), iterations=3)
    assert_same_runs(*runs)
    assert runs[1]._state.samples.y.device.type == "meta"  # nothing of it is in memory


def test_the_samples_are_not_copied(tmp_path, monkeypatch):
    np.save(tmp_path / "X.npy", X.numpy().astype(np.float64))
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    seen = []
    real = ipdlam.network.samples.as_tensor
    monkeypatch.setattr(
        ipdlam.network.samples, "as_tensor", lambda name, array: seen.append(len(array)) or real(name, array)
    )
    monkeypatch.setattr(ipdlam.network.samples, "ROWS_AT_A_TIME", 20)
    trainer = IPDLAM(model_of(), chunk_size=16, storage=tmp_path / "state")
    trainer.fit(mapped, X.double().numpy()[:, :3], iterations=2)
    assert max(seen) <= 20
    assert trainer._state.samples.X.device.type == "meta"


def status(field):
    """A line of what Linux says of this process, in bytes."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


ON_LINUX = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")


@ON_LINUX
def test_pages_of_mapped_samples_are_given_back(tmp_path):
    np.save(tmp_path / "X.npy", np.ones((20000, 500), np.float32))  # 40 MB
    rows = ipdlam.network.samples.MappedRows("X", np.load(tmp_path / "X.npy", mmap_mode="r"), lambda rows, first: rows)
    before, total, most = status("RssFile"), 0.0, 0
    for part in rows:
        total += float(part.sum(dtype=torch.float64))
        most = max(most, status("RssFile") - before)
    assert total == 20000 * 500
    assert most < 25_000_000  # of 8 MB at a time, with those read ahead


BOUNDED = """
import os, sys
sys.path[:0] = sys.argv[2].split(os.pathsep)
from test_disk import IPDLAM, make_data, make_model, status, torch
X, y = make_data(20000, 4, 2, dtype=torch.float32)
trainer = IPDLAM(make_model((4, 1000, 2), dtype=torch.float32), chunk_size=500, storage=sys.argv[1])
before = status("VmRSS")
trainer.fit(X, y, iterations=1, evaluate_every=9)
print(trainer._state.variables.shard.layout.size, status("VmHWM") - before)
"""


@ON_LINUX
def test_memory_does_not_grow_with_the_state(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", BOUNDED, str(tmp_path), HERE]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    state, grown = map(int, answer.stdout.split())
    assert state > 300_000_000
    assert grown < 0.6 * state


def test_all_of_the_state_chunk_by_chunk(tmp_path):
    trainer = IPDLAM(model_of(), chunk_size=16, storage=tmp_path)
    trainer.fit(X, Y, iterations=2)
    before = {name: tensor[:] for name, tensor in trainer._state.tensors().items()}
    for chunk in trainer._state.variables.shard.chunks():  # reads and writes everything
        for block, rows in chunk.previous.items():
            assert torch.equal(rows, before[f"previous.{block}"][chunk.rows])
            assert torch.equal(chunk.current[block], before[str(block)][chunk.rows])
    assert all(torch.equal(tensor[:], before[name]) for name, tensor in trainer._state.tensors().items())


def test_a_disk_that_cannot_take_space_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", failing_after(0, errno.EOPNOTSUPP, None))
    IPDLAM(model_of(), storage=tmp_path).fit(X, Y, iterations=1)
    monkeypatch.setattr(os, "posix_fallocate", failing_after(0, errno.ENOSPC, None))
    with pytest.raises(StorageError, match=r"could not be allocated: No space left on device; make room"):
        IPDLAM(model_of(), storage=tmp_path).fit(X, Y, iterations=1)
    assert names(tmp_path) == [".lock"]


def test_the_process_may_change_its_folder(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    trainer = IPDLAM(model_of(), storage="state")
    trainer.fit(X, Y, iterations=1)
    monkeypatch.chdir(tmp_path / "elsewhere")
    trainer.continue_fit(iterations=1)
    trainer.close()
    assert names(tmp_path / "state") == [".lock"]
    assert names(tmp_path / "elsewhere") == []


def write_idx(path, array, code):
    head = bytes([0, 0, code, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(head + array.tobytes())
    return path


def test_idx_files_are_mapped_as_the_loader_reads_them(tmp_path):
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (60, 2, 3), np.uint8)
    labels = generator.integers(0, 3, 60, np.uint8)
    write_idx(tmp_path / "train-images-idx3-ubyte", images, 0x08)
    write_idx(tmp_path / "train-labels-idx1-ubyte", labels, 0x08)
    data = ipdlam.datasets.load(tmp_path)
    inputs = ipdlam.datasets.map_idx(tmp_path / "train-images-idx3-ubyte")
    targets = ipdlam.datasets.map_idx(str(tmp_path / "train-labels-idx1-ubyte"))
    assert inputs.shape == (60, 6)
    runs = [IPDLAM(model_of(), chunk_size=16) for _ in range(2)]
    runs.append(IPDLAM(model_of(), chunk_size=16, storage=tmp_path / "state"))
    runs[0].fit(data.X, data.y, iterations=2)
    for run in runs[1:]:
        run.fit(inputs, targets, iterations=2, validation_data=(inputs, targets))
    assert same(runs[0].model, runs[1].model)
    assert_same_runs(*runs[1:])


@pytest.mark.parametrize(("code", "kind"), [(0x09, "i1"), (0x0B, ">i2"), (0x0C, ">i4"), (0x0D, ">f4"), (0x0E, ">f8")])
def test_idx_files_of_every_type(tmp_path, code, kind):
    images = np.arange(-30, 30).reshape(10, 2, 3).astype(kind)
    mapped = ipdlam.datasets.map_idx(write_idx(tmp_path / "images", images, code))
    assert torch.equal(mapped[slice(2, 5)], torch.tensor(images.astype(np.float32).reshape(10, 6)[2:5]))


def test_idx_files_that_cannot_be_mapped(tmp_path):
    import gzip

    path = write_idx(tmp_path / "images", np.zeros((4, 3), np.uint8), 0x08)
    content = path.read_bytes()
    (tmp_path / "images.gz").write_bytes(gzip.compress(content))
    with pytest.raises(ipdlam.DataError, match=r"gunzip -k images.gz"):
        ipdlam.datasets.map_idx(tmp_path / "images.gz")
    for damaged in (content[:-1], content + b"\0", content[:5], b""):
        path.write_bytes(damaged)
        with pytest.raises(ipdlam.DataError, match="not a sound IDX file"):
            ipdlam.datasets.map_idx(path)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e300])
def test_bad_numbers_are_refused_by_place(tmp_path, monkeypatch, bad):
    monkeypatch.setattr(ipdlam.network.samples, "ROWS_AT_A_TIME", 20)
    wrong = X.double().numpy()
    wrong[47, 2] = bad
    trainer = IPDLAM(model_of(), storage=tmp_path / "state")
    with pytest.raises(ValueError, match=r"X holds .* at \(47, 2\), which is not a finite torch.float32"):
        trainer.start(wrong, Y)
    with pytest.raises(ValueError, match=r"validation X holds .* at \(47, 2\)"):
        trainer.start(X, Y, validation_data=(wrong, Y))
    with pytest.raises(ValueError, match="label 3 at 4"):
        trainer.start(X, torch.where(torch.arange(90) == 4, 3, Y))
    with pytest.raises(TypeError, match="X must be a torch tensor or a numpy array, got list"):
        trainer.start(X.tolist(), Y)
    assert not (tmp_path / "state").exists()


# --- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["reverse", "nested-reverse"])
@pytest.mark.parametrize(("before", "after"), [("disk", "memory"), ("memory", "disk"), ("disk", "disk")])
def test_a_run_goes_on_in_memory_or_on_disk(tmp_path, monkeypatch, order, before, after):
    monkeypatch.setattr(ipdlam.checkpoint.format, "PART_BYTES", 1000)  # parts that lie across chunks
    data = {"sample_weight": WEIGHT, "validation_data": VALIDATION}
    straight = IPDLAM(model_of(), order=order, chunk_size=16)
    straight.fit(X, Y, iterations=6, **data)
    places = {"disk": tmp_path / "state", "memory": None}
    first = IPDLAM(model_of(), order=order, chunk_size=16, storage=places[before])
    first.fit(X, Y, iterations=3, **data)
    first.save(tmp_path / "saved")
    first.close()
    second = IPDLAM.load(tmp_path / "saved", model_of(seed=3), X, Y, storage=places[after], **data)
    assert without_seconds(second.continue_fit(iterations=3)) == without_seconds(straight.history)
    assert_same_runs(straight, second)


def test_a_checkpoint_that_does_not_fit_leaves_nothing_behind(tmp_path):
    IPDLAM(model_of()).fit(X, Y, iterations=1)
    trainer = IPDLAM(model_of())
    trainer.fit(X, Y, iterations=1)
    trainer.save(tmp_path / "saved")
    with pytest.raises(ipdlam.CheckpointError, match="does not fit"):
        IPDLAM.load(tmp_path / "saved", model_of(), X + 1, Y, storage=tmp_path / "state")
    assert names(tmp_path / "state") == [".lock"]
    light = IPDLAM.load(tmp_path / "saved", model_of(), storage=tmp_path / "state")  # weights alone
    light.fit(X, Y, iterations=1)
    assert names(tmp_path / "state") == FILES


def test_saving_reads_a_part_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(ipdlam.checkpoint.format, "PART_BYTES", 600)
    trainer = IPDLAM(model_of(), chunk_size=16, storage=tmp_path / "state")
    trainer.fit(X, Y, iterations=1)
    largest = []
    real = diskshard.Slot.__getitem__

    def read(slot, rows):
        largest.append(rows.stop - rows.start)
        return real(slot, rows)

    monkeypatch.setattr(diskshard.Slot, "__getitem__", read)
    trainer.save(tmp_path / "saved")
    assert len(largest) > 10
    assert max(largest) < 60


# --- the folder ------------------------------------------------------------------------------------------------------


def test_the_files_last_as_long_as_the_run(tmp_path):
    folder = tmp_path / "new" / "state"
    trainer = IPDLAM(model_of(), storage=folder)
    assert not folder.exists()
    trainer.fit(X, Y, iterations=1)
    assert names(folder) == FILES
    assert (folder / "state.bin").stat().st_blocks * 512 >= (folder / "state.bin").stat().st_size  # all of it is taken
    manifest = json.loads((folder / "storage.json").read_text())
    assert manifest["progress"] == "iteration 1 is complete"
    assert manifest["process"] == os.getpid()
    trainer.fit(X, Y, iterations=1)  # another run in its place
    trainer.close()
    assert names(folder) == [".lock"]
    with pytest.raises(RuntimeError, match="no run has been started"):
        trainer.step()
    trainer.fit(X, Y, iterations=1)
    del trainer
    gc.collect()
    assert names(folder) == [".lock"]


def test_what_is_closed_is_not_read(tmp_path):
    trainer = IPDLAM(model_of(), storage=tmp_path)
    trainer.fit(X, Y, iterations=1)
    tensors = trainer._state.tensors()
    trainer.close()
    with pytest.raises(StorageError, match="has been closed"):
        tensors["z1"][:]


def test_a_folder_is_used_by_one_trainer_at_a_time(tmp_path):
    first, second = (IPDLAM(model_of(), storage=tmp_path) for _ in range(2))
    first.fit(X, Y, iterations=1)
    with pytest.raises(StorageError, match=r"in use by another trainer of this process; give another folder"):
        second.fit(X, Y, iterations=1)
    first.continue_fit(iterations=1)
    first.close()
    second.fit(X, Y, iterations=1)


def die_in(folder, moment):
    """What the process does that ends, or stops, in the middle."""
    trainer = IPDLAM(model_of(), chunk_size=16, storage=folder)

    def die():
        print("dying", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP if moment == "alive" else signal.SIGKILL)

    if moment == "pass":
        stores, real = [], diskshard.Slot.store

        def store(slot, number, record):
            stores.append(number)
            die() if len(stores) == 100 else real(slot, number, record)

        diskshard.Slot.store = store
    trainer.fit(X, Y, iterations=9, callbacks=[lambda r: die() if r.iteration == 2 and moment != "pass" else None])


def killed(folder, moment):
    return Forked(call, __file__, "die_in", str(folder), moment)


@pytest.mark.parametrize("moment", ["pass", "iteration"])
def test_what_a_killed_run_leaves_is_recognised(tmp_path, moment):
    process = killed(tmp_path, moment)
    assert process.wait(60) == -signal.SIGKILL, process.stdout.read()
    process.communicate()
    assert names(tmp_path) == FILES
    progress = json.loads((tmp_path / "storage.json").read_text())["progress"]
    assert ("under way" if moment == "pass" else "iteration 2 is complete") in progress
    # A run on something else is refused, and leaves it as it is.
    content = (tmp_path / "state.bin").read_bytes()
    others = [(X + 1, model_of(), {}), (X, make_model((6, 8, 5, 3), dtype=torch.float32), {})]
    others += [(X, model_of(), {"chunk_size": 8}), (X[:60], model_of(), {}), (X, model_of(dtype=torch.float64), {})]
    for inputs, model, more in others:
        trainer = IPDLAM(model, **{"chunk_size": 16, "storage": tmp_path, **more})
        with pytest.raises(StorageError, match=rf"process {process.pid} left \(iteration \d .*\), a run on.*remove"):
            trainer.fit(inputs, Y[: len(inputs)], iterations=1)
        assert (tmp_path / "state.bin").read_bytes() == content
    # The same run takes the space over, and reads nothing of it.
    memory, disk = (IPDLAM(model_of(), chunk_size=16, **place) for place in ({}, {"storage": tmp_path}))
    for trainer in (memory, disk):
        trainer.fit(X, Y, iterations=3)
    assert_same_runs(memory, disk)


def test_a_living_process_is_not_disturbed(tmp_path):
    process = killed(tmp_path, "alive")
    try:
        assert process.stdout.readline() == "dying\n", process.stdout.read()
        with pytest.raises(StorageError, match=f"in use by process {process.pid}; give another folder"):
            IPDLAM(model_of(), chunk_size=16, storage=tmp_path).fit(X, Y, iterations=1)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    IPDLAM(model_of(), chunk_size=16, storage=tmp_path).fit(X, Y, iterations=1)


def leave(folder):
    """What a killed run would leave."""
    trainer = IPDLAM(model_of(), chunk_size=16, storage=folder)
    trainer.fit(X, Y, iterations=1)
    left = {name: (folder / name).read_bytes() for name in ("state.bin", "storage.json")}
    trainer.close()
    for name, content in left.items():
        (folder / name).write_bytes(content)
    return left


def test_a_damaged_manifest_is_refused(tmp_path):
    manifest = leave(tmp_path)["storage.json"]
    flipped = [
        manifest[:place] + bytes([manifest[place] ^ 1]) + manifest[place + 1 :]
        for place in range(20, len(manifest), 41)
    ]
    cut = [manifest[: len(manifest) * part // 10] for part in range(10)]
    for damaged in (*flipped, *cut, b"[" * 10**5, b"{}", b"null", b"3", manifest + b" " * (1 << 21)):
        (tmp_path / "storage.json").write_bytes(damaged)
        with pytest.raises(StorageError, match=r"storage\.json is (damaged|'ipdlam|').*(remove it|give another)"):
            IPDLAM(model_of(), chunk_size=16, storage=tmp_path).start(X, Y)
    assert names(tmp_path) == FILES
    (tmp_path / "storage.json").write_bytes(manifest)
    IPDLAM(model_of(), chunk_size=16, storage=tmp_path).start(X, Y)


@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("name", [".lock", ".unfinished-storage.json", "storage.json", "state.bin"])
def test_links_and_pipes_in_the_folder_do_no_harm(tmp_path, name, kind):
    precious, folder = tmp_path / "thesis.txt", tmp_path / "state"
    precious.write_text("ten years of work")
    folder.mkdir()
    if name == "state.bin":
        leave(folder)
        (folder / name).unlink()
    (folder / name).symlink_to(precious) if kind == "link" else os.mkfifo(folder / name)
    trainer = IPDLAM(model_of(), chunk_size=16, storage=folder)
    if name == ".unfinished-storage.json":
        trainer.fit(X, Y, iterations=1)
        trainer.close()
        assert names(folder) == [".lock"]
    else:
        with pytest.raises(StorageError, match=r"remove it|give another folder"):
            trainer.start(X, Y)
    assert precious.read_text() == "ten years of work"


def test_another_version_is_refused(tmp_path):
    manifest = json.loads(leave(tmp_path)["storage.json"])
    del manifest["sha256"]
    (tmp_path / "storage.json").write_text(seal({**manifest, "version": 2}))
    with pytest.raises(StorageError, match=r"version 2; this version of ipdlam knows 'ipdlam storage', version 1"):
        IPDLAM(model_of(), chunk_size=16, storage=tmp_path).start(X, Y)


@pytest.mark.parametrize("size", [0, 5000, 10**6])
def test_a_leftover_of_another_length_is_not_read(tmp_path, size):
    leave(tmp_path)
    os.truncate(tmp_path / "state.bin", size)
    memory, disk = (IPDLAM(model_of(), chunk_size=16, **place) for place in ({}, {"storage": tmp_path}))
    for trainer in (memory, disk):
        trainer.fit(X, Y, iterations=2)
    assert_same_runs(memory, disk)


def test_other_folders_are_refused_and_left_alone(tmp_path):
    leave(tmp_path / "state")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    (tmp_path / "unknown").mkdir()
    (tmp_path / "unknown" / "state.bin").write_text("somebody's")
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "state.bin").symlink_to(tmp_path / "file")
    shutil.copy(tmp_path / "state" / "storage.json", tmp_path / "link")
    expected = {
        "thesis": r"holds other files \(chapter.tex\); give a new or an empty folder",
        "unknown": r"state\.bin without a storage\.json",
        "file": "could not be made",
        "link": "could not be allocated",
    }
    for name, message in expected.items():
        with pytest.raises(StorageError, match=message):
            IPDLAM(model_of(), chunk_size=16, storage=tmp_path / name).fit(X, Y, iterations=1)
    assert names(tmp_path / "thesis") == ["chapter.tex"]
    assert names(tmp_path / "unknown") == ["state.bin"]
    assert (tmp_path / "file").read_text() == "no folder"


# --- disks that fail -------------------------------------------------------------------------------------------------


def test_a_disk_without_room_is_met_before_any_work(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(StorageError, match=r"needs \d+\.\d kB and the disk has 1\.0 kB left; make room"):
        IPDLAM(model_of(), storage=tmp_path).fit(X, Y, iterations=1)
    assert names(tmp_path) == [".lock"]


def test_the_system_refuses_the_space(tmp_path):
    """A real error of the system: no file may be longer than so many bytes."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20000, before[1]))
    try:
        with pytest.raises(StorageError, match=r"could not be allocated: File too large; .*ulimit -f"):
            IPDLAM(model_of(), storage=tmp_path).fit(X, Y, iterations=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert names(tmp_path) == [".lock"]
    IPDLAM(model_of(), storage=tmp_path).fit(X, Y, iterations=1)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_a_disk_that_is_full_after_all(tmp_path):
    """A real ENOSPC in the middle of an iteration: the file is replaced by the device that is always full."""
    twin, trainer = IPDLAM(model_of(), chunk_size=16), IPDLAM(model_of(), chunk_size=16, storage=tmp_path)
    twin.fit(X, Y, iterations=2)
    trainer.fit(X, Y, iterations=2)
    full = os.open("/dev/full", os.O_RDWR)
    os.dup2(full, trainer._state.variables.shard.folder._file)
    os.close(full)
    with pytest.raises(StorageError, match=r"No space left on device; make room.*the weights of iteration 2"):
        trainer.step()
    assert same(trainer.model, twin.model)
    assert names(tmp_path) == [".lock"]


def failing_after(calls, number, real):
    left = [calls]

    def call(*arguments):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(number, os.strerror(number))
        return real(*arguments)

    return call


@pytest.mark.parametrize("calls", [0, 3, 20])
@pytest.mark.parametrize(
    ("function", "number"), [("pwritev", errno.ENOSPC), ("pwritev", errno.EIO), ("preadv", errno.EIO)]
)
def test_an_error_in_a_pass_leaves_the_last_weights(tmp_path, monkeypatch, function, number, calls):
    twin, trainer = IPDLAM(model_of(), chunk_size=16), IPDLAM(model_of(), chunk_size=16, storage=tmp_path)
    twin.fit(X, Y, iterations=2)
    trainer.fit(X, Y, iterations=2)
    with monkeypatch.context() as patch:
        patch.setattr(os, function, failing_after(calls, number, getattr(os, function)))
        with pytest.raises(StorageError, match=rf"{os.strerror(number)}; .*weights of iteration 2") as caught:
            trainer.continue_fit(iterations=3)
    assert caught.value.__cause__.__cause__.errno == number
    assert trainer.history.stop_reason == "storage"
    assert same(trainer.model, twin.model)
    assert len(trainer.history) == 2
    assert names(tmp_path) == [".lock"]
    assert storage_threads() == []
    with pytest.raises(RuntimeError, match=r"did not end; call start\(X, y\)"):
        trainer.step()
    trainer.fit(X, Y, iterations=1)  # from the weights it has
    twin.fit(X, Y, iterations=1)
    assert_same_runs(twin, trainer)


@pytest.mark.parametrize("calls", [0, 9])
def test_an_error_at_the_start_leaves_nothing_behind(tmp_path, monkeypatch, calls):
    trainer = IPDLAM(model_of(), chunk_size=16, storage=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", failing_after(calls, errno.ENOSPC, os.pwritev))
        with pytest.raises(StorageError, match="No space left"):
            trainer.fit(X, Y, iterations=1)
    assert names(tmp_path) == [".lock"]
    assert same(trainer.model, model_of())


def test_writes_and_reads_in_pieces(tmp_path, monkeypatch):
    """The system may do less than it is asked for."""
    real = {name: getattr(os, name) for name in ("preadv", "pwritev")}
    for name, plain in real.items():
        monkeypatch.setattr(os, name, lambda file, parts, at, plain=plain: plain(file, [parts[0][:100]], at))
    memory, disk = (IPDLAM(model_of(), chunk_size=16, **place) for place in ({}, {"storage": tmp_path}))
    for trainer in (memory, disk):
        trainer.fit(X, Y, iterations=2)
    assert_same_runs(memory, disk)


def test_a_file_that_is_cut_short_is_noticed(tmp_path):
    trainer = IPDLAM(model_of(), chunk_size=16, storage=tmp_path)
    trainer.fit(X, Y, iterations=2)
    os.truncate(tmp_path / "state.bin", 9000)
    with pytest.raises(StorageError, match=r"state\.bin ends at byte \d+, it has been cut short"):
        trainer.step()


def test_a_folder_that_vanished(tmp_path):
    trainer = IPDLAM(model_of(), storage=tmp_path / "state")
    trainer.fit(X, Y, iterations=1)
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(StorageError, match="does not exist"):
        trainer.step()


def test_a_failing_disk_while_saving_loses_nothing(tmp_path, monkeypatch):
    twin, trainer = IPDLAM(model_of(), chunk_size=16), IPDLAM(model_of(), chunk_size=16, storage=tmp_path / "state")
    trainer.fit(X, Y, iterations=2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", failing_after(2, errno.EIO, os.preadv))
        with pytest.raises(ipdlam.CheckpointError, match=r"saved was not written: StorageError: .*Input/output error"):
            trainer.save(tmp_path / "saved")
    trainer.step()
    twin.fit(X, Y, iterations=3)
    assert same(twin.model, trainer.model)


def test_ctrl_c_in_a_pass(tmp_path, monkeypatch):
    twin, trainer = IPDLAM(model_of(), chunk_size=16), IPDLAM(model_of(), chunk_size=16, storage=tmp_path)
    twin.fit(X, Y, iterations=2)
    real, left = diskshard.DiskShard._chunk, [60]

    def chunk(*arguments):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return real(*arguments)

    def interrupted(record):
        if record.iteration == 2:
            left[0] = 3

    monkeypatch.setattr(diskshard.DiskShard, "_chunk", chunk)
    history = trainer.fit(X, Y, iterations=9, callbacks=[interrupted])
    assert history.stop_reason == "interrupted"
    assert same(trainer.model, twin.model)
    assert storage_threads() == []
    trainer.fit(X, Y, iterations=1)


def test_a_slow_disk_changes_nothing(tmp_path, monkeypatch):
    """Reading ahead and writing behind never overtake the work, whichever is slower."""
    real = diskshard.Slot.store
    monkeypatch.setattr(diskshard.Slot, "store", lambda *arguments: time.sleep(0.002) or real(*arguments))
    memory, disk = (IPDLAM(model_of(), chunk_size=16, **place) for place in ({}, {"storage": tmp_path}))
    for trainer in (memory, disk):
        trainer.fit(X, Y, iterations=2)
    assert_same_runs(memory, disk)


def test_a_forked_child_leaves_the_files_alone(tmp_path):
    trainer = IPDLAM(model_of(), storage=tmp_path)
    trainer.fit(X, Y, iterations=1)
    folder = trainer._state.variables.shard.folder
    diskstate.remove(tmp_path, folder._file, None, os.getpid() + 1)  # what the end of a child would call
    assert names(tmp_path) == FILES
    trainer.step()


# --- the command line ------------------------------------------------------------------------------------------------


def test_the_command_line(tmp_path):
    options = ("--hidden", "12,12", "--limit", "200", "--checkpoint-every", "1", "--quiet")
    memory, disk, state = tmp_path / "memory", tmp_path / "disk", tmp_path / "state"
    ipdlam_run("train", "digits", *options, "--iterations", 2, "--output", memory)
    ipdlam_run("train", "digits", *options, "--iterations", 2, "--output", disk, "--storage", state)
    gc.collect()  # the process of a command would end here
    assert names(state) == [".lock"]
    ipdlam_run("train", "--resume", disk, "--iterations", 4, "--quiet")
    gc.collect()
    ipdlam_run("train", "--resume", memory, "--iterations", 4, "--quiet", "--storage", state)  # may change on the way
    assert same_model(memory, disk)
    gc.collect()
    assert names(state) == [".lock"]
    (state / "other").write_text("")
    message = refused("train", "digits", "--storage", state, "--output", tmp_path / "no", code=1)
    assert "holds other files (other)" in message
    assert not (tmp_path / "no").exists()
    message = refused("train", "digits", "--method", "minibatch", "--storage", state)
    assert "storage means nothing to minibatch" in message


def test_the_command_line_keeps_the_model_of_a_disk_that_failed(tmp_path, monkeypatch):
    run, calls = tmp_path / "run", 600
    monkeypatch.setattr(os, "pwritev", failing_after(calls, errno.ENOSPC, os.pwritev))
    options = ("--hidden", "12,12", "--limit", "200", "--chunk-size", "20", "--iterations", 500)
    message = refused(
        "train",
        "digits",
        *options,
        "--checkpoint",
        "none",
        "--quiet",
        "--output",
        run,
        "--storage",
        tmp_path / "state",
        code=1,
    )
    done = len(records(run))
    assert "No space left on device; make room on the disk, or give another folder." in message
    assert f"The model holds the weights of iteration {done} " in message
    assert 1 < done < 500
    assert summary(run)["stop_reason"] == "storage"
    assert (run / "model.safetensors").is_file()
