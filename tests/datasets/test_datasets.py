"""Data sets: what is read is what was written, and what is damaged is refused by file and place."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import http.server
import logging
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pooch
import pytest
import torch

from idxfiles import CODES, idx_bytes, write_idx
from ipdlam import datasets
from ipdlam.datasets import idx, load, read_inputs, sources
from ipdlam.errors import DataError


def write_text(path, text, encoding="utf-8"):
    content = text.encode(encoding)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def refusal(function, *arguments, **options):
    with pytest.raises(DataError) as caught:
        function(*arguments, **options)
    return str(caught.value)


def make_folder(folder, training=5, test=3, side=2, suffix=".gz", prefix="t10k", labels=3):
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(training)
    for part, count in (("train", training), (prefix, test)):
        images = generator.integers(0, 256, (count, side, side)).astype(np.uint8)
        write_idx(folder / f"{part}-images-idx3-ubyte{suffix}", images, bool(suffix))
        goals = (np.arange(count) % labels).astype(np.uint8)
        write_idx(folder / f"{part}-labels-idx1-ubyte{suffix}", goals, bool(suffix))
    return folder


def is_ready(tensor):
    """Whether a tensor is contiguous, in memory of its own that torch aligned."""
    return tensor.is_contiguous() and tensor.storage_offset() == 0 and tensor.data_ptr() % 64 == 0


# The embedded digits


def test_digits_are_those_of_scikit_learn():
    original = pytest.importorskip("sklearn.datasets").load_digits()
    data = load("digits")
    X, y = torch.cat([data.X, data.X_test]), torch.cat([data.y, data.y_test])
    assert np.array_equal(X.numpy(), (original.data / 16).astype(np.float32))
    assert np.array_equal(y.numpy(), original.target)


def test_digits_are_ready_to_train_on():
    data = load("digits")
    assert data.X.shape == (1347, 64)
    assert data.X_test.shape == (450, 64)
    assert data.X.dtype == torch.float32
    assert data.y.dtype == torch.int64
    assert (float(data.X.min()), float(data.X.max())) == (0.0, 1.0)
    assert data.classes == tuple("0123456789")
    assert (data.name, data.kind, data.columns) == ("digits", "images", None)
    assert all(is_ready(tensor) for tensor in (data.X, data.y, data.X_test, data.y_test))


def test_the_embedded_file_is_small_and_holds_bytes():
    assert datasets.digits.path().stat().st_size < 100_000
    with np.load(datasets.digits.path(), allow_pickle=False) as content:
        assert {name: (content[name].dtype.name, content[name].shape) for name in content.files} == {
            "images": ("uint8", (1797, 64)),
            "labels": ("uint8", (1797,)),
        }


def test_loading_digits_imports_neither_scikit_learn_nor_pooch():
    code = (
        "import sys, ipdlam.datasets; ipdlam.datasets.load('digits'); "
        "sys.exit(', '.join(sorted({'sklearn', 'pooch', 'requests'} & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


# IDX files


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 4), (2, 1, 2, 1, 3), (0,), (3, 0)])
@pytest.mark.parametrize("kind", CODES)
def test_idx_arrays_survive(tmp_path, kind, shape, compressed):
    array = (np.random.default_rng(0).standard_normal(shape) * 50).astype(kind)
    # The name says the opposite of the content, which is what counts.
    read = idx.read_idx(write_idx(tmp_path / ("a" if compressed else "a.gz"), array, compressed))
    assert read.dtype == np.dtype(kind)
    assert read.dtype.isnative
    assert read.shape == shape
    assert np.array_equal(read, array)


def test_idx_of_several_gzip_members(tmp_path):
    content = idx_bytes(np.arange(10, dtype=np.uint8))
    (tmp_path / "a.gz").write_bytes(gzip.compress(content[:6]) + gzip.compress(content[6:]))
    assert idx.read_idx(tmp_path / "a.gz").tolist() == list(range(10))


WHOLE = idx_bytes(np.arange(6, dtype=np.int16).reshape(2, 3))  # 12 bytes of header, 12 of content


@pytest.mark.parametrize(
    ("content", "byte", "reason"),
    [
        (b"", 0, "ends at byte 0, within the 4 bytes"),
        (WHOLE[:3], 3, "ends at byte 3, within the 4 bytes"),
        (b"\x01" + WHOLE[1:], 0, "is 0x01"),
        (b"\x00\x07" + WHOLE[2:], 1, "is 0x07"),
        (b"P1", 0, "is 0x50"),
        (b"\x00\x00\x0a" + WHOLE[3:], 2, "0x0a is not a known type"),
        (b"\x00\x00\x0b\x00", 3, "the number of dimensions is 0"),
        (WHOLE[:4], 4, "ends at byte 4, within the sizes of its 2 dimensions"),
        (WHOLE[:11], 11, "ends at byte 11, within the sizes"),
        (WHOLE[:12], 12, "ends at byte 12, but its header promises 24"),
        (WHOLE[:-1], 23, "ends at byte 23, but its header promises 24"),
        (WHOLE + b"\x00", 24, "goes on after byte 24"),
        (b"\x00\x00\x08\xff" + struct.pack(">I", 1) * 255 + b"\x01", 3, "has 255 dimensions"),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_damaged_idx_files_are_refused_by_byte(tmp_path, content, byte, reason, compressed):
    path = tmp_path / "some-file"
    path.write_bytes(gzip.compress(content) if compressed else content)
    message = refusal(idx.read_idx, path)
    assert str(path) in message
    assert f"byte {byte}:" in message
    assert reason in message
    assert "again" in message


@pytest.mark.parametrize("sizes", [(2**32 - 1,), (2**32 - 1,) * 2, (2**32 - 1,) * 3, (2**31, 2**31, 4)])
@pytest.mark.parametrize("compressed", [False, True])
def test_absurd_sizes_are_refused_before_memory_is_taken(tmp_path, monkeypatch, sizes, compressed):
    content = bytes([0, 0, 0x0E, len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes) + bytes(100)
    (tmp_path / "big").write_bytes(gzip.compress(content) if compressed else content)
    monkeypatch.setattr(idx.np, "empty", lambda *arguments: pytest.fail("memory was taken"))
    message = refusal(idx.read_idx, tmp_path / "big")
    assert f"promises {4 + 4 * len(sizes) + 8 * np.prod([int(size) for size in sizes], dtype=object)}" in message


def test_an_empty_array_of_absurd_shape_is_refused(tmp_path):
    content = bytes([0, 0, 0x08, 4]) + struct.pack(">4I", 0, 2**32 - 1, 2**32 - 1, 2**32 - 1)
    (tmp_path / "empty").write_bytes(content)
    assert "byte 3" in refusal(idx.read_idx, tmp_path / "empty")


def test_a_gzip_bomb_is_read_no_further_than_promised(tmp_path, monkeypatch):
    (tmp_path / "bomb").write_bytes(gzip.compress(idx_bytes(np.zeros(10, np.uint8)) + bytes(50_000_000)))
    taken = []
    original = gzip.GzipFile.read
    monkeypatch.setattr(gzip.GzipFile, "read", lambda self, size=-1: taken.append(size) or original(self, size))
    assert "goes on after byte 18" in refusal(idx.read_idx, tmp_path / "bomb")
    assert all(size >= 0 for size in taken)
    assert sum(taken) == 4 + 4 + 10 + 1


def test_a_truncated_gzip_file_is_refused_at_its_end(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, 1000).astype(np.uint8)
    whole = gzip.compress(idx_bytes(noise))
    for end in (3, 9, 12, 500, len(whole) - 9, len(whole) - 1):
        (tmp_path / "cut.gz").write_bytes(whole[:end])
        message = refusal(idx.read_idx, tmp_path / "cut.gz")
        assert "cut.gz is cut short" in message
        assert f"byte {end}," in message


@pytest.mark.parametrize(("place", "how"), [(-6, "CRC"), (-1, "length"), (2, "compression method")])
def test_a_damaged_gzip_file_is_refused(tmp_path, place, how):
    content = bytearray(gzip.compress(idx_bytes(np.arange(9, dtype=np.uint8))))
    content[place] ^= 0x55
    (tmp_path / "bad.gz").write_bytes(content)
    message = refusal(idx.read_idx, tmp_path / "bad.gz")
    assert "bad.gz is a damaged gzip file, at or before byte" in message
    assert how in message


def test_what_is_no_file_is_refused(tmp_path):
    assert "is a folder" in refusal(idx.read_idx, tmp_path)
    assert "absent cannot be read: No such file" in refusal(idx.read_idx, tmp_path / "absent")
    os.mkfifo(tmp_path / "pipe")
    assert "pipe is a device or pipe" in refusal(idx.read_idx, tmp_path / "pipe")


# Folders of IDX files


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("prefix", ["t10k", "test"])
def test_a_folder_of_idx_files(tmp_path, suffix, prefix):
    data = load(make_folder(tmp_path / "own", suffix=suffix, prefix=prefix))
    images = idx.read_idx(tmp_path / "own" / f"train-images-idx3-ubyte{suffix}")
    assert np.array_equal(data.X.numpy(), images.reshape(5, 4).astype(np.float32) / np.float32(255))
    assert data.y.tolist() == [0, 1, 2, 0, 1]
    assert data.X_test.shape == (3, 4)
    assert data.y_test.tolist() == [0, 1, 2]
    assert data.classes == ("0", "1", "2")
    assert (data.kind, data.source) == ("images", str(tmp_path / "own"))
    assert all(is_ready(tensor) for tensor in (data.X, data.y, data.X_test, data.y_test))


def test_names_with_a_dot_and_a_folder_without_a_test(tmp_path):
    write_idx(tmp_path / "train-images.idx3-ubyte", np.full((2, 2, 2), 51, np.uint8))
    write_idx(tmp_path / "train-labels.idx1-ubyte", np.array([1, 0], np.uint8))
    data = load(tmp_path)
    assert torch.allclose(data.X, torch.full((2, 4), 0.2))
    assert data.X_test is None
    assert data.y_test is None


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "float32", "float64"])
def test_only_bytes_are_scaled(tmp_path, kind):
    images = np.array([[[-2, 100]], [[3, 4]]], kind)
    write_idx(tmp_path / "train-images-idx3-any", images)
    write_idx(tmp_path / "train-labels-idx1-any", np.array([0, 300], np.int32))
    data = load(tmp_path)
    assert data.X.tolist() == [[-2, 100], [3, 4]]
    assert len(data.classes) == 301


def test_test_labels_count_for_the_classes(tmp_path):
    make_folder(tmp_path)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", np.array([0, 7, 1], np.uint8), True)
    assert load(tmp_path).classes == tuple("01234567")


def test_other_counts_are_refused_with_both_files(tmp_path):
    make_folder(tmp_path)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", np.zeros(4, np.uint8), True)
    message = refusal(load, tmp_path)
    assert f"{tmp_path / 't10k-images-idx3-ubyte.gz'} holds 3 images" in message
    assert f"{tmp_path / 't10k-labels-idx1-ubyte.gz'} holds 4 labels" in message
    assert "byte 4" in message


@pytest.mark.parametrize(
    ("name", "array", "reason"),
    [
        ("train-labels", np.zeros((5, 1), np.uint8), "byte 3: labels must have 1 dimension"),
        ("train-labels", np.zeros(5, np.float32), "byte 2: labels must be whole numbers"),
        ("train-labels", np.array([0, 1, -1, 0, 0], np.int16), "byte 12: label -1"),
        ("train-labels", np.array([0, 1, 65536, 0, 0], np.int32), "byte 16: label 65536"),
        ("train-images", np.zeros(5, np.uint8), "byte 3: images need at least 2 dimensions"),
        ("train-images", np.zeros((5, 0, 2), np.uint8), "byte 8: dimension 1"),
        ("train-images", np.array([[0, 1]] * 4 + [[np.nan, 1]], np.float64), "byte 76: pixel nan"),
        ("train-images", np.array([[0, 1]] * 4 + [[0, 1e39]], np.float64), "byte 84: pixel 1e+39"),
        ("t10k-images", np.zeros((3, 5), np.uint8), "4 pixels an image"),
    ],
)
def test_unfit_arrays_are_refused(tmp_path, name, array, reason):
    make_folder(tmp_path, suffix="")
    path = tmp_path / (f"{name}-idx3-ubyte" if "images" in name else f"{name}-idx1-ubyte")
    write_idx(path, array)
    message = refusal(load, tmp_path)
    assert str(path) in message
    assert reason in message


def test_missing_files_are_named(tmp_path):
    message = refusal(load, tmp_path)
    assert f"{tmp_path} has no file of train images and train labels" in message
    assert idx.NAMES in message
    make_folder(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    assert "no file of test labels" in refusal(load, tmp_path)


def test_plain_files_come_before_gzipped_and_t10k_before_test(tmp_path):
    make_folder(tmp_path, training=5)
    make_folder(tmp_path, training=6, suffix="")
    make_folder(tmp_path, training=6, test=2, prefix="test", suffix="")
    data = load(tmp_path)
    assert (len(data.X), len(data.X_test)) == (6, 3)


# Named data sets: where they are found


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """No data set is anywhere on this machine, and the cache is in ``tmp_path``."""
    monkeypatch.delenv("IPDLAM_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    for name, source in sources.CATALOGUE.items():
        folders = tuple(str(tmp_path / "system") + folder for folder in source.folders)
        monkeypatch.setitem(sources.CATALOGUE, name, dataclasses.replace(source, folders=folders))
    return tmp_path


def test_the_order_of_the_search(nowhere, monkeypatch):
    monkeypatch.setenv("IPDLAM_DATA", str(nowhere / "variable"))
    search = functools.partial(sources.find, "fashion-mnist", nowhere / "given")
    # From the last place to the first: each comes before those that were there already.
    for place in (
        nowhere / "system" / "usr/share/dataset-fashion-mnist",
        nowhere / "cache" / "ipdlam" / "fashion-mnist",
        nowhere / "variable",
        nowhere / "variable" / "fashion-mnist",
        nowhere / "given",
        nowhere / "given" / "fashion-mnist",
    ):
        assert search() != place
        make_folder(place)
        assert search() == place
    assert sources.find("mnist", nowhere / "elsewhere") == nowhere / "variable"


def test_the_folder_of_debian_is_for_fashion_only():
    assert Path("/usr/share/dataset-fashion-mnist") in sources.locations("fashion-mnist")
    assert Path("/usr/share/dataset-fashion-mnist") not in sources.locations("mnist")


@pytest.mark.parametrize("missing", ["train-images", "train-labels", "t10k-images", "t10k-labels"])
def test_a_folder_with_a_file_missing_is_not_taken(nowhere, missing):
    make_folder(nowhere / "mnist")
    assert sources.find("mnist", nowhere) == nowhere / "mnist"
    next((nowhere / "mnist").glob(f"{missing}*")).unlink()
    assert sources.find("mnist", nowhere) is None


def test_one_data_set_is_not_taken_for_another(nowhere, monkeypatch):
    folder = make_folder(nowhere / "data")
    content = gzip.decompress((folder / "t10k-labels-idx1-ubyte.gz").read_bytes())
    mine = sources.File("t10k-labels-idx1-ubyte", len(content), hashlib.sha256(content).hexdigest())
    source = dataclasses.replace(sources.CATALOGUE["mnist"], files=(mine,))
    monkeypatch.setitem(sources.CATALOGUE, "mnist", source)
    assert sources.find("mnist", folder) == folder
    assert sources.find("fashion-mnist", folder) is None


def test_an_empty_variable_is_no_folder(nowhere, monkeypatch):
    monkeypatch.setenv("IPDLAM_DATA", "")
    assert sources.locations("mnist") == [nowhere / "cache" / "ipdlam" / "mnist"]


def test_home_is_expanded(nowhere, monkeypatch):
    monkeypatch.setenv("HOME", str(nowhere))
    monkeypatch.setenv("IPDLAM_DATA", "~/data")
    assert sources.locations("mnist")[0] == nowhere / "data" / "mnist"


@pytest.mark.filterwarnings("ignore:.* holds other data than those known as")
def test_a_named_data_set_has_its_names(nowhere):
    make_folder(nowhere / "fashion-mnist")
    data = load("fashion-mnist", nowhere)
    assert len(data.classes) == 10
    assert (data.classes[0], data.classes[9]) == ("T-shirt/top", "ankle boot")
    assert data.source == str(nowhere / "fashion-mnist")
    make_folder(nowhere / "fashion-mnist", training=12, labels=12)
    assert load("fashion-mnist", nowhere).classes == tuple(str(index) for index in range(12))


def test_other_files_than_the_known_ones_are_warned_about_by_name(nowhere, monkeypatch):
    folder = make_folder(nowhere / "mnist")
    own = [
        sources.File(path.name.removesuffix(".gz"), len(content), hashlib.sha256(content).hexdigest())
        for path in sorted(folder.iterdir())
        if (content := gzip.decompress(path.read_bytes()))
    ]
    known = dataclasses.replace(sources.CATALOGUE["mnist"], files=tuple(own))
    monkeypatch.setitem(sources.CATALOGUE, "mnist", known)
    assert len(load("mnist", nowhere).X) == 5  # no warning: they are the known ones
    images = np.zeros((5, 2, 2), np.uint8)
    write_idx(folder / "train-images-idx3-ubyte.gz", images, True)
    with pytest.warns(UserWarning, match=r"mnist holds other data than those known as mnist: the sha256 of ") as found:
        data = load("mnist", nowhere)
    assert float(data.X.sum()) == 0.0  # they are used
    (warning,) = found
    assert "sha256 of train-images-idx3-ubyte.gz is another" in str(warning.message)
    assert load(folder).X.shape == (5, 4)  # a path is no name: nothing is known of it


def test_offline_never_downloads_and_says_what_to_do(nowhere, monkeypatch):
    monkeypatch.setattr(pooch, "retrieve", lambda *arguments, **options: pytest.fail("a download"))
    (nowhere / "given").mkdir()
    message = refusal(load, "mnist", nowhere / "given", offline=True)
    for part in (str(nowhere / "given"), str(nowhere / "cache"), "IPDLAM_DATA", "--data-dir", "--offline"):
        assert part in message


def test_a_folder_that_was_named_must_be_there(nowhere, monkeypatch):
    """Although the data would be found in the cache, or downloaded."""
    monkeypatch.setattr(pooch, "retrieve", lambda *arguments, **options: pytest.fail("a download"))
    make_folder(nowhere / "cache" / "ipdlam" / "mnist")
    message = refusal(load, "mnist", nowhere / "absent")
    assert message.startswith(
        f"mnist cannot be searched for: data_dir (--data-dir) is {nowhere / 'absent'}, which does not exist; set it to "
        "a folder that holds mnist/train-images-idx3-ubyte.gz and the other files, or do without it"
    )
    monkeypatch.setenv("IPDLAM_DATA", str(nowhere / "file"))
    assert f"IPDLAM_DATA is {nowhere / 'file'}, which does not exist; set it to" in refusal(load, "mnist")
    (nowhere / "file").write_text("")
    assert f"IPDLAM_DATA is {nowhere / 'file'}, which is a file; set it to" in refusal(load, "mnist")
    assert "which is a file" in datasets.listing()[1].remedy


@pytest.mark.filterwarnings("ignore:.* holds other data than those known as")
def test_a_folder_that_is_not_searched_need_not_be_there(nowhere, monkeypatch):
    monkeypatch.setenv("IPDLAM_DATA", str(nowhere / "absent"))
    assert load("digits", nowhere / "absent").source == "embedded in ipdlam"
    assert load(make_folder(nowhere / "own"), nowhere / "absent").source == str(nowhere / "own")
    make_folder(nowhere / "mnist")
    assert load("mnist", nowhere).source == str(nowhere / "mnist")  # found before the variable is looked at


@pytest.mark.filterwarnings("ignore:.* holds other data than those known as")
def test_an_empty_folder_that_was_named_is_only_the_first_place(nowhere):
    make_folder(nowhere / "cache" / "ipdlam" / "mnist")
    (nowhere / "given").mkdir()
    assert load("mnist", nowhere / "given").source == str(nowhere / "cache" / "ipdlam" / "mnist")


def test_the_listing_says_where_or_what_to_do(nowhere):
    make_folder(nowhere / "mnist")
    digits, mnist, fashion, cifar = datasets.listing(nowhere)
    assert (digits.name, mnist.name, fashion.name, cifar.name) == datasets.NAMES
    assert digits.found.is_file()
    assert mnist[2:] == (nowhere / "mnist", "")
    assert fashion.found is None
    assert "IPDLAM_DATA" in fashion.remedy
    assert "30 MB" in fashion.remedy
    assert all(entry.description for entry in (digits, mnist, fashion, cifar))


# Downloads, from a server of our own


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        answer = self.server.answers.get(self.path)
        if answer is None:
            self.send_error(404)
            return
        body, length = answer
        self.send_response(200)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(nowhere, monkeypatch):
    """A small MNIST with the mirrors "/a/", "/b/" and "/c/", of which none holds anything yet."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    made = make_folder(nowhere / "made")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.answers, running.asked = {}, []
        running.bodies = {path.name: path.read_bytes() for path in made.iterdir()}
        contents = {name: gzip.decompress(body) for name, body in running.bodies.items()}
        files = tuple(
            sources.File(name.removesuffix(".gz"), len(content), hashlib.sha256(content).hexdigest())
            for name, content in sorted(contents.items())
        )
        mirrors = tuple(f"http://127.0.0.1:{running.server_port}/{letter}/" for letter in "abc")
        source = dataclasses.replace(sources.CATALOGUE["mnist"], files=files, mirrors=mirrors)
        monkeypatch.setitem(sources.CATALOGUE, "mnist", source)
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def serve(server, mirror, change=lambda body: body, missing=0):
    """Let a mirror give every file, changed, and announced longer by the bytes that go missing."""
    for name, body in server.bodies.items():
        changed = change(body)
        server.answers[f"/{mirror}/{name}"] = (changed, len(changed) + missing)


# pooch leaves the closing of its connection to the collector of garbage.
downloads = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
KEPT = [f"{part}-{kind}-ubyte.gz" for part in ("t10k", "train") for kind in ("images-idx3", "labels-idx1")]


def kept(nowhere):
    return sorted(path.name for path in (nowhere / "cache" / "ipdlam" / "mnist").iterdir())


@downloads
def test_a_truncated_a_wrong_and_a_right_mirror(server, nowhere, capfd):
    serve(server, "a", lambda body: body[:-10], missing=10)
    serve(server, "b", lambda body: gzip.compress(b"not what was asked for"))
    serve(server, "c")
    level = pooch.get_logger().level
    data = load("mnist")
    assert data.source == str(nowhere / "cache" / "ipdlam" / "mnist")
    assert torch.equal(data.X, load(nowhere / "made").X)
    assert kept(nowhere) == KEPT
    # All mirrors for the first file, and the one that worked for the others.
    assert [path.split("/")[1] for path in server.asked] == ["a", "b", "c", "c", "c", "c"]
    assert capfd.readouterr() == ("", "")
    assert pooch.get_logger().level == level
    # What was downloaded is found from now on.
    server.asked.clear()
    assert load("mnist", offline=True).source == data.source
    assert server.asked == []


@downloads
def test_every_mirror_that_failed_is_named_with_its_reason(server, nowhere):
    serve(server, "a", lambda body: body[:-10], missing=10)
    serve(server, "b", lambda body: gzip.compress(gzip.decompress(body)[:-1] + b"\xff"))
    message = refusal(load, "mnist")
    first = server.asked[0].split("/")[-1]
    reasons = {letter: message.split(f"/{letter}/{first}: ")[1].split("; http")[0] for letter in "abc"}
    assert "10 more expected" in reasons["a"]
    assert "wrong content, sha256" in reasons["b"]
    assert "404" in reasons["c"]
    assert "IPDLAM_DATA" in message
    assert kept(nowhere) == []


@downloads
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda body: body[: len(body) // 2], "is cut short"),
        (lambda body: body[:-6] + b"\xff" + body[-5:], "damaged gzip"),
        (lambda body: gzip.compress(gzip.decompress(body)[:-1]), "bytes instead of"),
        (lambda body: gzip.compress(gzip.decompress(body) + bytes(5_000_000)), "more than"),
        (lambda body: b"<html>404, kindly</html>", "wrong content"),
    ],
)
def test_wrong_content_is_never_kept(server, nowhere, change, reason):
    serve(server, "a", change)
    assert reason in refusal(sources.fetch, "mnist")
    assert kept(nowhere) == []
    assert sources.find("mnist") is None


def test_no_more_is_unpacked_than_a_file_should_hold(tmp_path, monkeypatch):
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(20_000_000)))
    taken = []
    original = gzip.GzipFile.read
    monkeypatch.setattr(gzip.GzipFile, "read", lambda self, size=-1: taken.append(size) or original(self, size))
    reason = sources.damage(tmp_path / "bomb.gz", sources.File("bomb", 1000, ""))
    assert reason == "wrong content, more than 1000 bytes instead of 1000"
    assert taken == [idx.CHUNK]


@downloads
def test_a_server_that_decompressed_the_files_is_as_good(server, nowhere):
    serve(server, "a", gzip.decompress)
    assert torch.equal(load("mnist").X, load(nowhere / "made").X)


@downloads
def test_an_interrupted_download_leaves_nothing_that_is_found(server, nowhere, monkeypatch):
    serve(server, "a")
    original, calls = pooch.retrieve, []

    def interrupted(url, **options):
        # On the same disk, so that giving a file its name is one step.
        assert Path(options["path"]).parent == nowhere / "cache" / "ipdlam" / "mnist"
        calls.append(url)
        if len(calls) == 3:
            (Path(options["path"]) / options["fname"]).write_bytes(b"\x1f\x8b half of it")
            raise KeyboardInterrupt
        return original(url, **options)

    monkeypatch.setattr(pooch, "retrieve", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load("mnist")
    assert kept(nowhere) == KEPT[:2]
    assert sources.find("mnist") is None
    monkeypatch.setattr(pooch, "retrieve", original)
    server.asked.clear()
    assert len(load("mnist").X) == 5
    assert [path.split("/")[-1] for path in server.asked] == KEPT[2:], "what was whole is not asked for again"


@downloads
def test_what_a_killed_download_leaves_is_not_found(server, nowhere):
    # As if the machine had stopped: nobody removed the folder of the download.
    left = make_folder(nowhere / "cache" / "ipdlam" / "mnist" / ".download-x")
    assert sources.find("mnist") is None
    serve(server, "a")
    assert load("mnist").source == str(left.parent)


@downloads
def test_a_damaged_file_in_the_cache_is_replaced(server, nowhere):
    serve(server, "a")
    folder = sources.fetch("mnist")
    (folder / KEPT[1]).write_bytes(b"damaged")
    (folder / KEPT[2]).unlink()
    sources.fetch("mnist")
    assert len(load("mnist").X) == 5


@downloads
def test_the_bar_is_drawn_only_if_asked_for(server, capfd):
    serve(server, "a")
    load("mnist", progress=True)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "100%" in captured.err


def test_a_cache_that_cannot_be_written_is_named(nowhere):
    (nowhere / "cache").write_text("a file where the folder should be")
    message = refusal(sources.fetch, "mnist")
    assert str(nowhere / "cache" / "ipdlam" / "mnist") in message
    assert "IPDLAM_DATA" in message


def test_the_logger_is_restored_after_an_error():
    logger = logging.getLogger("test_datasets")
    logger.setLevel(logging.DEBUG)
    levels = []

    def fail():
        with sources.quiet(logger):
            levels.append(logger.level)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [*levels, logger.level] == [logging.WARNING, logging.DEBUG]


# What load accepts


@pytest.mark.parametrize("name", ["no-such-data", "MNIST", "digit"])
def test_an_unknown_name_is_refused_with_the_known_ones(name):
    message = refusal(load, name)
    for part in (repr(name), *datasets.NAMES, "IDX", ".npz", ".csv", ".tsv"):
        assert part in message
    assert ("Did you mean" in message) == (name != "no-such-data")


@pytest.mark.parametrize("name", ["absent.csv", "some/folder", "./absent"])
def test_a_path_that_does_not_exist_is_said_so(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert f"{name} does not exist" in refusal(load, name)


def test_a_file_of_no_known_format_is_refused(tmp_path):
    message = refusal(load, write_text(tmp_path / "notes.txt", "1,2"))
    assert "notes.txt is of no known format" in message
    assert ".tsv" in message


def test_arguments_that_mean_nothing_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.zeros((2, 2)), y=np.zeros(2))
    with pytest.raises(ValueError, match="task must be one of auto, classification, regression, got 'guess'"):
        load("digits", task="guess")
    with pytest.raises(ValueError, match=r"dtype must be torch.float32 or torch.float64, got torch.int8"):
        load("digits", dtype=torch.int8)
    with pytest.raises(ValueError, match="task is 'regression', but the labels of digits"):
        load("digits", task="regression")
    for name in ("digits", str(tmp_path / "a.npz")):
        with pytest.raises(ValueError, match="label is for the columns"):
            load(name, label=0)


# Text tables

FLOWERS = "length,width,kind\n5.1,3.5,setosa\n7,3.2,versicolor\n4.9,3,setosa\n"


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.tsv", "a.TSV", "a.tsv.gz"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_table_with_a_header(tmp_path, name, encoding):
    text = FLOWERS.replace(",", "\t") if ".tsv" in name.lower() else FLOWERS
    data = load(write_text(tmp_path / name, text, encoding))
    assert torch.equal(data.X, torch.tensor([[5.1, 3.5], [7, 3.2], [4.9, 3]]))
    assert data.y.tolist() == [0, 1, 0]
    assert data.y.dtype == torch.int64
    assert data.classes == ("setosa", "versicolor")
    assert data.columns == ("length", "width")
    assert (data.kind, data.X_test, data.y_test) == ("table", None, None)
    assert is_ready(data.X)


def test_a_table_without_a_header(tmp_path):
    data = load(write_text(tmp_path / "a.csv", "1,2,0\r\n\r\n3,4,1\r\n   \r\n"))
    assert data.X.tolist() == [[1, 2], [3, 4]]
    assert data.y.tolist() == [0, 1]
    assert data.columns is None


def test_a_header_of_numbers_is_known_by_the_name_of_the_label(tmp_path):
    data = load(write_text(tmp_path / "a.csv", "0,1,target\n5,6,1\n7,8,0\n"))
    assert data.X.tolist() == [[5, 6], [7, 8]]
    assert data.columns == ("0", "1")
    assert data.classes == ("0", "1")
    # Other features, or text among the other labels as well: it is a class.
    assert load(write_text(tmp_path / "b.csv", "0,2,cat\n5,6,1\n7,8,3\n")).classes == ("1", "3", "cat")
    assert load(write_text(tmp_path / "b.csv", "0,1,cat\n5,6,1\n7,8,dog\n")).classes == ("1", "cat", "dog")


def test_a_header_of_numbers_over_labels_of_text(tmp_path):
    rows = "5.1,3.5,1.4,a\n6.2,2.9,4.3,b\n4.9,3.0,1.4,a\n6.4,3.2,4.5,b\n"
    data = load(write_text(tmp_path / "a.csv", f"0,1,2,kind\n{rows}"))
    assert (data.columns, data.classes, len(data.X)) == (("0", "1", "2"), ("a", "b"), 4)
    assert load(write_text(tmp_path / "a.csv", f"0,1,2,kind\n{rows}"), drop=["1"]).columns == ("0", "2")


@pytest.mark.parametrize(
    ("first", "rows"),
    [
        ("0,1,a", "5,6,a\n7,8,b\n9,9,b\n"),  # a class of others
        ("0,1,c", "5,6,a\n7,8,b\n9,9,b\n"),  # the only one of its class, as another is
        ("0,2,c", "5,6,a\n7,8,a\n"),  # it does not count
        ("0,c", "5,a\n7,a\n"),  # one feature counts by chance
    ],
)
def test_a_first_row_of_numbers_that_may_be_a_sample_is_one(tmp_path, first, rows):
    data = load(write_text(tmp_path / "a.csv", f"{first}\n{rows}"))
    assert data.columns is None
    assert len(data.X) == rows.count("\n") + 1
    assert data.classes[int(data.y[0])] == first[-1]


@pytest.mark.parametrize(("label", "place"), [("b", 1), (1, 1), (-2, 1), ("1", 1), ("a", 0), (-3, 0), (None, 2)])
def test_the_label_by_name_or_number(tmp_path, label, place):
    data = load(write_text(tmp_path / "a.csv", "a,b,c\n1,2,3\n4,5,6\n"), label=label)
    assert data.columns == tuple(name for name in "abc" if name != "abc"[place])
    assert data.classes == (("1", "4"), ("2", "5"), ("3", "6"))[place]
    assert data.X.tolist() == [[value for value in row if value != row[place]] for row in ([1, 2, 3], [4, 5, 6])]


def test_a_column_may_be_called_by_a_number(tmp_path):
    data = load(write_text(tmp_path / "a.csv", "x,0,1\n1,2,3\n4,5,6\n"), label="0")
    assert data.columns == ("x", "1")


def test_quoted_cells(tmp_path):
    data = load(write_text(tmp_path / "a.csv", '"a, b","c ""d"""\n"1","two\nlines"\n"2","x, y"\n'))
    assert data.columns == ("a, b",)
    assert data.X.tolist() == [[1], [2]]
    assert data.classes == ("two\nlines", "x, y")


@pytest.mark.parametrize(
    ("labels", "task", "classes", "y"),
    [
        (["10", "9", "10"], "auto", ("9", "10"), [1, 0, 1]),
        (["10", "9", "x"], "auto", ("10", "9", "x"), [0, 1, 2]),
        (["1_0", "1", "2"], "auto", ("1", "1_0", "2"), [1, 0, 2]),
        ([f"{2**70}", "1", "2"], "auto", None, [[2.0**70], [1], [2]]),
        (["1.0", "1", "1e0"], "auto", ("1",), [0, 0, 0]),
        (["0.5", "1", "2"], "auto", None, [[0.5], [1], [2]]),
        (["0.5", "1", "2"], "classification", ("0.5", "1", "2"), [0, 1, 2]),
        (["3", "1", "2"], "regression", None, [[3], [1], [2]]),
        ([f"{2**53 + 1}", f"{2**53}", "-1"], "auto", ("-1", f"{2**53}", f"{2**53 + 1}"), [2, 1, 0]),
    ],
)
def test_what_labels_are(tmp_path, labels, task, classes, y):
    text = "".join(f"0.5,{label}\n" for label in labels)
    data = load(write_text(tmp_path / "a.csv", text), task=task)
    assert data.classes == classes
    assert data.y.tolist() == y
    assert data.y.dtype == (torch.float32 if classes is None else torch.int64)


@pytest.mark.parametrize(("count", "expected"), [(100, 1), (101, 2)])
def test_many_whole_numbers_are_real_targets(tmp_path, count, expected):
    data = load(write_text(tmp_path / "a.csv", "".join(f"0,{index}\n" for index in range(count))))
    assert data.y.ndim == expected


@pytest.mark.parametrize(
    ("text", "options", "reasons"),
    [
        ("", {}, ["is empty"]),
        ("\n\n  \n", {}, ["is empty"]),
        ("a,b\n", {}, ["has a header but no rows"]),
        ("1|2\n3|4\n", {}, ["has one column", "','"]),
        ("a,b\n1,2\nx,4\n", {}, ["line 3", "column 'a'", "'x'"]),
        ("a,b\n1,2\n\n,4\n", {}, ["line 4", "column 'a'", "''"]),
        (",2\n1,2\n", {}, ["line 1", "column 0", "''"]),
        ("1,2\n1_0,2\n", {}, ["line 2", "column 0", "'1_0'"]),
        ("1,2\nnan,2\n", {}, ["line 2", "column 0", "'nan'", "finite"]),
        ("1,2\n-inf,2\n", {}, ["line 2", "'-inf'", "finite"]),
        ("1,2\n1e39,2\n", {}, ["line 2", "'1e39'", "finite"]),
        ("1,2\n3\n", {}, ["line 2 has 1 cells", "has 2"]),
        ("1,2\n3,4,5\n", {}, ["line 2 has 3 cells", "has 2"]),
        ('a,b\n"1",2\n"two\nlines",2\n', {}, ["line 3", "two"]),
        ('a,b\n1,"x\ny"\nz,2\n', {}, ["line 4", "column 'a'", "'z'"]),
        ('a,b\n"x\ny",2\n1,2\n', {}, ["line 2", "column 'a'"]),
        ("a,b\n1,\n", {}, ["line 2", "column 'b'", "not a label"]),
        ("a,b\n1,nan\n2,3\n", {}, ["line 2", "column 'b'", "'nan'"]),
        ("a,b\n1,1\n2,1e39\n", {"task": "regression"}, ["line 3", "'1e39'", "finite"]),
        ("a,b\n1,0.5\n2,1e300\n", {}, ["line 3", "'1e300'", "finite"]),
        ("a,b\n1,1\n2,red\n", {"task": "regression"}, ["line 3", "column 'b'", "'red'"]),
        ("a,b\n1,1\n", {"label": "c"}, ["no column 'c'", "a, b"]),
        ("1,2\n1,1\n", {"label": "c"}, ["no header row", "'c'", "0 ... 1"]),
        ("a,b\n1,1\n", {"label": 2}, ["no column 2", "0 ... 1", "a, b"]),
        ("a,b\n1,1\n", {"label": -3}, ["no column -3"]),
        ("a,b,a\n1,1,1\n", {"label": "a"}, ["2 columns 'a'"]),
        ("b,b\n1,1\n", {}, ["2 columns 'b'"]),
        ('a,b\n1,"2\n', {}, ["line 2"]),
        ('a,b\n1,"2"x\n', {}, ["line 2"]),
        ("a,b\n1," + "9" * 200_000 + "\n", {}, ["line 2", "field larger"]),
    ],
)
def test_bad_tables_are_refused_by_place(tmp_path, text, options, reasons):
    path = write_text(tmp_path / "bad.csv", text)
    message = refusal(load, path, **options)
    assert str(path) in message
    for reason in reasons:
        assert reason in message


@pytest.mark.parametrize("gap", ["NA", "?", "", "N/A", "null", "-", "n.a."])
@pytest.mark.parametrize("place", [0, 1])
def test_a_gap_in_the_first_row_loses_no_sample(tmp_path, gap, place):
    cells = ["1.5", "2.5"]
    cells[place] = gap
    path = write_text(tmp_path / "a.csv", f"{','.join(cells)}\n3,4\n5,6\n")
    for options in ({}, {"label": "kind"}, {"columns": ("a", "b")}):
        message = refusal(read_inputs, path, **options)
        assert f"line 1, column {place}" in message or "line 1 may be a header or a sample" in message
        assert repr(gap) in message
        assert "eplace" in message
    rows = "3,4,red\n5,6,blue\n"
    message = refusal(load, write_text(tmp_path / "b.csv", f"{','.join(cells)},red\n{rows}"))
    assert repr(gap) in message
    assert "line 1" in message


@pytest.mark.parametrize("gap", ["NA", "?", "", "None"])
def test_a_first_row_of_gaps_is_no_header(tmp_path, gap):
    path = write_text(tmp_path / "a.csv", f"{gap},{gap}\n3,4\n")
    assert f"line 1, column 0 (from 0): {gap!r} is not a finite number" in refusal(read_inputs, path)


def test_a_header_of_names_and_numbers_is_known_by_the_label_or_the_columns(tmp_path):
    path = write_text(tmp_path / "a.csv", "x,2019,kind\n1,2,red\n3,4,blue\n")
    message = refusal(load, path)
    assert "line 1 may be a header or a sample" in message
    assert "'x' in column 0 (from 0) is text" in message
    assert "'2019' in column 1 is a number" in message
    assert "label by its name" in message
    data = load(path, label="kind")
    assert data.columns == ("x", "2019")
    assert data.X.tolist() == [[1, 2], [3, 4]]
    inputs = write_text(tmp_path / "b.csv", "x,2019\n1,2\n")
    assert read_inputs(inputs, columns=data.columns).tolist() == [[1, 2]]
    assert "may be a header or a sample" in refusal(read_inputs, inputs)


def test_a_header_may_hold_gaps(tmp_path):
    data = load(write_text(tmp_path / "a.csv", ",x,NA,kind\n0,1,2,red\n1,3,4,blue\n"))
    assert data.columns == ("", "x", "NA")
    assert data.X.tolist() == [[0, 1, 2], [1, 3, 4]]


def test_text_that_is_not_utf8_is_refused(tmp_path):
    path = write_text(tmp_path / "a.csv", "größe,b\n1,2\n", "latin-1")
    assert "a.csv is not UTF-8 text" in refusal(load, path)


def test_a_truncated_gzip_table_is_refused(tmp_path):
    path = write_text(tmp_path / "a.csv.gz", FLOWERS)
    path.write_bytes(path.read_bytes()[:-4])
    assert "a.csv.gz is cut short" in refusal(load, path)


# Archives of numpy


@pytest.mark.parametrize("name", ["X", "x"])
def test_an_archive_with_a_test(tmp_path, name):
    generator = np.random.default_rng(0)
    X, X_test = generator.standard_normal((5, 2, 3)), generator.standard_normal((2, 2, 3))
    arrays = {name: X, "y": np.array([7, 3, 3, 7, 3]), f"{name}_test": X_test, "y_test": np.array([[3], [9]])}
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    data = load(tmp_path / "a.npz")
    assert np.array_equal(data.X.numpy(), X.reshape(5, 6).astype(np.float32))
    assert np.array_equal(data.X_test.numpy(), X_test.reshape(2, 6).astype(np.float32))
    assert data.y.tolist() == [1, 0, 0, 1, 0]
    assert data.y_test.tolist() == [0, 2]
    assert data.classes == ("3", "7", "9")
    assert (data.kind, data.columns) == ("table", None)
    assert all(is_ready(tensor) for tensor in (data.X, data.y, data.X_test, data.y_test))


@pytest.mark.parametrize(
    ("y", "task", "classes", "expected"),
    [
        (np.array([10, 9, 10], np.uint16), "auto", ("9", "10"), [1, 0, 1]),
        (np.array([True, False, True]), "auto", ("False", "True"), [1, 0, 1]),
        (np.array(["b", "a", "ü"]), "auto", ("a", "b", "ü"), [1, 0, 2]),
        (np.array([b"b", b"a", "ü".encode()]), "auto", ("a", "b", "ü"), [1, 0, 2]),
        (np.array([1.0, 2.0, 1.0]), "auto", None, [[1], [2], [1]]),
        (np.array([1.0, 2.0, 1.0]), "classification", ("1", "2"), [0, 1, 0]),
        (np.array([1, 2, 1]), "regression", None, [[1], [2], [1]]),
        (np.array([[1, 2], [3, 4], [5, 6.5]]), "auto", None, [[1, 2], [3, 4], [5, 6.5]]),
    ],
)
def test_what_the_labels_of_an_archive_are(tmp_path, y, task, classes, expected):
    np.savez(tmp_path / "a.npz", X=np.eye(3), y=y)
    data = load(tmp_path / "a.npz", task=task)
    assert data.classes == classes
    assert data.y.tolist() == expected
    assert data.y.dtype == (torch.float32 if classes is None else torch.int64)


@pytest.mark.parametrize(
    ("change", "task", "reason"),
    [
        ({"X": None}, "auto", "no array X; it holds y"),
        ({"X": None, "y": None, "z": np.zeros(1)}, "auto", "no array X and y; it holds z"),
        ({"X_test": np.eye(3)}, "auto", "no array y_test"),
        ({"X": np.zeros(3)}, "auto", "shape (3,)"),
        ({"X": np.array(1.0)}, "auto", "shape ()"),
        ({"X": np.zeros((3, 0))}, "auto", "shape (3, 0)"),
        ({"X": np.eye(3, dtype=complex)}, "auto", "complex128"),
        ({"X": np.array([[1, 2], [3, np.nan], [1, 1]])}, "auto", "X holds nan at (1, 1)"),
        ({"X": np.array([[1, 2], [3, 1], [1e39, 1]])}, "auto", "X holds 1e+39 at (2, 0)"),
        ({"y": np.arange(4)}, "auto", "X has 3 rows, but y has 4"),
        ({"X_test": np.eye(3), "y_test": np.arange(2)}, "auto", "X_test has 3 rows, but y_test has 2"),
        ({"X_test": np.eye(2), "y_test": np.arange(2)}, "auto", "X and X_test differ"),
        ({"X_test": np.eye(3), "y_test": np.array(list("abc"))}, "auto", "one holds text"),
        ({"y": np.eye(3, dtype=int)}, "auto", "argmax"),
        ({"y": np.array(3)}, "auto", "shape ()"),
        ({"y": np.array(3.5)}, "auto", "shape ()"),
        ({"y": np.array([0.5, 1, 2])}, "classification", "y holds 0.5 at 0"),
        ({"y": np.array([0, np.nan, 2])}, "classification", "y holds nan at 1"),
        ({"y": np.array([0, np.nan, 2])}, "auto", "y holds nan at (1, 0)"),
        ({"y": np.array(list("abc"))}, "regression", "y must be rows of real numbers"),
        ({"y": np.array([{}, 1, 2], object)}, "auto", "Python objects"),
    ],
)
def test_bad_archives_are_refused(tmp_path, change, task, reason):
    arrays = {"X": np.eye(3), "y": np.arange(3), **change}
    np.savez(tmp_path / "bad.npz", **{name: array for name, array in arrays.items() if array is not None})
    message = refusal(load, tmp_path / "bad.npz", task=task)
    assert str(tmp_path / "bad.npz") in message
    assert reason in message


def test_nothing_is_ever_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    trap = np.empty(1, object)
    trap[0] = Trap()
    np.savez(tmp_path / "a.npz", X=trap, y=trap)
    trap.dump(tmp_path / "b.npz")
    for name in ("a.npz", "b.npz"):
        assert name in refusal(load, tmp_path / name)
        assert name in refusal(read_inputs, tmp_path / name)
    assert not (tmp_path / "sprung").exists()


def test_other_content_under_the_name_of_an_archive(tmp_path):
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, np.eye(2))
    assert "a.npz cannot be read as an .npz archive" in refusal(load, tmp_path / "a.npz")


# Inputs for prediction


def test_inputs_of_a_table_with_a_header(tmp_path):
    path = write_text(tmp_path / "a.csv", "b,kind,a\n1,x,2\n3,y,4\n")
    assert read_inputs(path, columns=("a", "b")).tolist() == [[2, 1], [4, 3]]
    assert read_inputs(path, label="kind").tolist() == [[1, 2], [3, 4]]
    assert read_inputs(path, columns=("b", "a"), label="kind").tolist() == [[1, 2], [3, 4]]
    assert "line 2, column 'kind': 'x'" in refusal(read_inputs, path)
    message = refusal(read_inputs, path, columns=("a", "c"))
    assert "no column 'c'" in message
    assert "b, kind, a" in message


def test_inputs_of_a_table_without_a_header(tmp_path):
    path = write_text(tmp_path / "a.csv", "1,2\n3,4\n")
    for options in ({}, {"columns": ("a", "b")}, {"label": "kind"}, {"label": -1}):
        assert read_inputs(path, **options).tolist() == [[1, 2], [3, 4]]
    message = refusal(read_inputs, path, columns=("a", "b", "c"))
    assert "2 columns and no header" in message
    assert "a, b, c" in message


def test_inputs_with_a_header_of_numbers(tmp_path):
    path = write_text(tmp_path / "a.csv", "1,0\n5,6\n")
    assert read_inputs(path, columns=("0", "1")).tolist() == [[6, 5]]


def test_inputs_of_one_column(tmp_path):
    assert read_inputs(write_text(tmp_path / "a.csv", "1\n\n2\n")).tolist() == [[1], [2]]
    assert "no column but 'kind'" in refusal(read_inputs, write_text(tmp_path / "b.csv", "kind\n1\n"), label="kind")


def test_inputs_of_archives_and_images(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.eye(2))
    assert read_inputs(tmp_path / "a.npz").tolist() == [[1, 0], [0, 1]]
    path = write_idx(tmp_path / "images.gz", np.full((2, 1, 2), 255, np.uint8), True)
    assert read_inputs(path).tolist() == [[1, 1], [1, 1]]
    assert is_ready(read_inputs(path))
    assert "byte 0" in refusal(read_inputs, write_text(tmp_path / "notes.txt", "hello"))


# The real ones

at_hand = pytest.mark.skipif(
    not os.environ.get("IPDLAM_DATA") or sources.find("mnist") is None, reason="MNIST not found through IPDLAM_DATA"
)


@at_hand
def test_real_mnist():
    data = load("mnist", offline=True)
    assert data.X.shape == (60000, 784)
    assert data.images[1].shape == (10000, 1, 28, 28)
    assert data.X_test.shape == (10000, 784)
    assert data.y.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.y_test.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert (float(data.X.min()), float(data.X.max())) == (0.0, 1.0)
    assert is_ready(data.X)


@at_hand
@pytest.mark.parametrize("name", sources.CATALOGUE)
def test_the_checksums_are_those_of_the_real_files(name):
    folder = sources.find(name)
    if folder is None:
        pytest.skip(f"{name} not found through IPDLAM_DATA")
    for file in sources.CATALOGUE[name].files:
        assert sources.damage(next(folder.glob(f"{file.name}*")), file) is None
    others = [other for other in sources.CATALOGUE if other != name]
    assert [sources.holds(folder, other) for other in others] == [False] * len(others)
