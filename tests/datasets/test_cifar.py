"""CIFAR-10 in its binary layout: found, read, checked and downloaded, with small files of the same layout."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import os
import tarfile
import warnings

import numpy as np
import pooch
import pytest
import torch

from ipdlam import datasets
from ipdlam.datasets import cifar, load, sources
from ipdlam.errors import DataError

NAMES = [*cifar.TRAINING, cifar.TEST]


def record(label, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, 3072, np.uint8)
    return bytes([label]) + pixels.tobytes()


def make_folder(folder, records=3):
    """Six files with the layout of the real ones."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(NAMES):
        (folder / name).write_bytes(b"".join(record((number + i) % 10, seed=10 * number + i) for i in range(records)))
    return folder


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """CIFAR-10 is nowhere on this machine, and the cache is in ``tmp_path``."""
    monkeypatch.delenv("IPDLAM_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    return tmp_path


def know(monkeypatch, folder, **changes):
    """Make the files of a folder those that the catalogue knows."""
    files = tuple(
        sources.File(name, len(content), hashlib.sha256(content).hexdigest())
        for name, content in ((name, (folder / name).read_bytes()) for name in NAMES)
    )
    changed = dataclasses.replace(sources.CATALOGUE["cifar10"], files=files, **changes)
    monkeypatch.setitem(sources.CATALOGUE, "cifar10", changed)


def refusal(function, *arguments, **options):
    with pytest.raises(DataError) as caught:
        function(*arguments, **options)
    return str(caught.value)


def test_the_planes_of_an_image(nowhere, monkeypatch):
    """A label, then red, green and blue, row by row."""
    folder = make_folder(nowhere / "cifar10")
    image = np.zeros((3, 32, 32), np.uint8)
    image[0, 0, 1], image[1, 31, 0], image[2, 5, 6] = 255, 51, 102
    (folder / "test_batch.bin").write_bytes(bytes([7]) + image.tobytes())
    know(monkeypatch, folder)
    data = load("cifar10", nowhere)
    assert data.X.shape == (15, 3072)
    assert data.X_test.shape == (1, 3072)
    assert data.X.dtype == torch.float32
    assert data.y.tolist() == [0, 1, 2, 1, 2, 3, 2, 3, 4, 3, 4, 5, 4, 5, 6]
    assert data.y_test.tolist() == [7]
    assert data.classes[7] == "horse"
    assert (data.kind, data.source) == ("images", str(folder))
    assert data.image_shape == (3, 32, 32)
    shown = data.images[1]
    assert shown.shape == (1, 3, 32, 32)
    assert shown.untyped_storage().data_ptr() == data.X_test.untyped_storage().data_ptr()
    expected = torch.tensor([1.0, 0.2, 0.4])
    torch.testing.assert_close(torch.stack([shown[0, 0, 0, 1], shown[0, 1, 31, 0], shown[0, 2, 5, 6]]), expected)
    assert int((shown != 0).sum()) == 3


def test_the_order_of_the_search(nowhere, monkeypatch):
    monkeypatch.setenv("IPDLAM_DATA", str(nowhere / "variable"))
    # From the last place to the first: each comes before those that were there already.
    for place in (
        nowhere / "cache" / "ipdlam" / "cifar10",
        nowhere / "variable",
        nowhere / "variable" / "cifar-10-batches-bin",
        nowhere / "variable" / "cifar10",
        nowhere / "given" / "cifar10",
    ):
        assert sources.find("cifar10", nowhere / "given") != place
        make_folder(place)
        assert sources.find("cifar10", nowhere / "given") == place
    assert sources.find("mnist", nowhere / "given") is None


@pytest.mark.parametrize("missing", NAMES)
def test_a_folder_with_a_file_missing_is_not_taken(nowhere, missing):
    folder = make_folder(nowhere / "cifar10")
    (folder / missing).unlink()
    assert sources.find("cifar10", nowhere) is None
    message = refusal(cifar.read_folder, folder)
    assert f"has no file {missing}; copy it there" in message
    assert "offline forbids to download it" in refusal(load, "cifar10", nowhere, offline=True)
    assert "holds cifar10/data_batch_1.bin and the other files" in refusal(load, "cifar10", nowhere, offline=True)


@pytest.mark.parametrize(
    "change", [lambda content: content[:-1], lambda content: content + b"\x00", lambda content: b""]
)
def test_a_wrong_size_is_refused_with_the_file(nowhere, change):
    folder = make_folder(nowhere / "cifar10")
    path = folder / "data_batch_3.bin"
    path.write_bytes(change(path.read_bytes()))
    message = refusal(load, "cifar10", nowhere)
    assert str(path) in message
    assert f"has {path.stat().st_size} bytes, which is not a whole number of records of 3073" in message


def test_a_label_above_nine_is_refused_by_byte(nowhere):
    folder = make_folder(nowhere / "cifar10")
    path = folder / "data_batch_2.bin"
    path.write_bytes(record(1) + record(10) + record(2))
    assert f"{path}, byte 3073: label 10 is not in 0 ... 9" in refusal(load, "cifar10", nowhere)


def test_other_files_than_the_known_ones_are_warned_about_by_name(nowhere, monkeypatch):
    folder = make_folder(nowhere / "cifar10")
    know(monkeypatch, folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load("cifar10", nowhere)
    (folder / "data_batch_4.bin").write_bytes(record(3) * 3)
    with pytest.warns(UserWarning, match=r"known as cifar10: the sha256 of data_batch_4\.bin is another") as caught:
        assert load("cifar10", nowhere).y.tolist()[9:12] == [3, 3, 3]
    assert caught[0].filename == __file__


def test_the_listing_names_it(nowhere):
    entry = {entry.name: entry for entry in datasets.listing(nowhere)}["cifar10"]
    assert entry.found is None
    assert "170 MB" in entry.remedy
    make_folder(nowhere / "cifar-10-batches-bin")
    entry = {entry.name: entry for entry in datasets.listing(nowhere)}["cifar10"]
    assert entry.found == nowhere / "cifar-10-batches-bin"


# Downloads, without a network


def pack(folder, names=NAMES, change=lambda content: content):
    """The archive as it is published: the files are in a folder, with some that nobody reads."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in [*names, "readme.html"]:
            content = b"<html>" if name == "readme.html" else change((folder / name).read_bytes())
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return gzip.compress(packed.getvalue())


@pytest.fixture
def published(nowhere, monkeypatch):
    """A function that publishes an archive of small files; they are what the catalogue knows."""
    made = make_folder(nowhere / "made")

    def publish(body, md5=None):
        def retrieve(url, known_hash, fname, path, progressbar):
            assert url == "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
            target = os.path.join(path, fname)
            with open(target, "wb") as file:
                file.write(body)
            if known_hash != f"md5:{hashlib.md5(body).hexdigest()}":
                raise ValueError("the hash of the file does not match the known one")
            return target

        archive = sources.Archive("cifar-10-binary.tar.gz", md5 or hashlib.md5(body).hexdigest())
        know(monkeypatch, made, archive=archive)
        monkeypatch.setattr(pooch, "retrieve", retrieve)

    return made, publish


def test_the_archive_is_unpacked_into_the_cache(published, nowhere):
    made, publish = published
    publish(pack(made))
    data = load("cifar10")
    cache = nowhere / "cache" / "ipdlam" / "cifar10"
    assert data.source == str(cache)
    assert sorted(path.name for path in cache.iterdir()) == sorted(NAMES)
    assert torch.equal(data.X, cifar.read_folder(made).X)
    assert load("cifar10", offline=True).source == str(cache)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda made: pack(made, NAMES[:-1]), "it does not hold test_batch.bin"),
        (lambda made: pack(made, change=lambda content: content[:-1]), "has 9218 bytes instead of 9219"),
        (lambda made: pack(made, change=lambda content: content[:-1] + b"\x00"), "wrong content, sha256"),
        (lambda made: pack(made)[:-100], "ended"),
        (lambda made: b"<html>not found</html>", "could not be opened"),
    ],
)
def test_a_wrong_archive_leaves_nothing(published, nowhere, body, reason):
    made, publish = published
    publish(body(made))
    message = refusal(load, "cifar10")
    assert reason in message
    assert "cifar-10-binary.tar.gz" in message
    assert "set IPDLAM_DATA to a folder that holds cifar10/data_batch_1.bin" in message
    assert list((nowhere / "cache" / "ipdlam" / "cifar10").iterdir()) == []


def test_an_archive_with_another_md5_is_refused(published):
    made, publish = published
    publish(pack(made), md5="0" * 32)
    assert "does not match" in refusal(load, "cifar10")


# Shapes of the others


def test_images_of_the_digits():
    data = load("digits")
    assert data.image_shape == (1, 8, 8)
    images, tests = data.images
    assert images.shape == (1347, 1, 8, 8)
    assert tests.shape == (450, 1, 8, 8)
    assert torch.equal(images.flatten(1), data.X)


def test_a_table_has_no_images(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,b,label\n1,2,x\n3,4,y\n")
    data = load(path)
    assert data.image_shape is None
    with pytest.raises(ValueError, match="is not known to hold images; reshape X"):
        _ = data.images


# The real ones


@pytest.mark.skipif(
    not os.environ.get("IPDLAM_DATA") or sources.find("cifar10") is None,
    reason="CIFAR-10 not found through IPDLAM_DATA",
)
def test_real_cifar10():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = load("cifar10", offline=True)
    assert data.y.bincount().tolist() == [5000] * 10
    assert data.y_test.bincount().tolist() == [1000] * 10
    assert data.X_test.shape == (10000, 3072)
    means = data.images[0].mean((0, 2, 3))
    torch.testing.assert_close(means, torch.tensor([0.4914, 0.4822, 0.4465]), rtol=0.0, atol=1e-4)
