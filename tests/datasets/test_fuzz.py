"""Readers under random and mutated files: the right array or a DataError, and nothing else."""

from __future__ import annotations

import csv
import gzip
import io
import math
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ipdlam.datasets import idx, load, read_inputs, sources, tables
from ipdlam.errors import DataError

# The folder is shared by the examples of a test; each overwrites its one file.
fuzz = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

CODES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


@st.composite
def idx_files(draw):
    """The bytes of a sound IDX file."""
    code = draw(st.sampled_from(list(CODES)))
    shape = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    size = math.prod(shape) * np.dtype(CODES[code]).itemsize
    content = draw(st.binary(min_size=size, max_size=size))
    return bytes([0, 0, code, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + content


@st.composite
def mutations(draw, contents):
    """A file with bytes changed, cut off or added."""
    content = bytearray(draw(contents))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(len(content) - 1, 0)))
        how = draw(st.sampled_from(["change", "cut", "insert", "append"]))
        if how == "change" and content:
            content[place] = draw(st.integers(0, 255))
        elif how == "cut":
            del content[place:]
        elif how == "insert":
            content[place:place] = draw(st.binary(max_size=5))
        else:
            content += draw(st.binary(max_size=5))
    return bytes(content)


def expected(content):
    """What bytes mean by the definition of the format; None if they are no IDX file."""
    if content[:2] == idx.GZIP:
        try:
            content = gzip.decompress(content)
        except Exception:
            return None
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in CODES or content[3] == 0:
        return None
    start = 4 + 4 * content[3]
    if len(content) < start:
        return None
    shape = struct.unpack(f">{content[3]}I", content[4:start])
    kind = np.dtype(CODES[content[2]])
    if len(content) - start != math.prod(shape) * kind.itemsize:
        return None
    try:
        return np.frombuffer(content, kind, offset=start).reshape(shape)
    except ValueError:  # more than numpy can hold
        return None


def check_idx(path, content):
    path.write_bytes(content)
    wanted = expected(content)
    tracemalloc.start()
    try:
        if wanted is None:
            with pytest.raises(DataError, match=r"byte|numpy"):
                idx.read_idx(path)
        else:
            read = idx.read_idx(path)
            assert read.dtype == wanted.dtype.newbyteorder("=")
            assert read.shape == wanted.shape
            assert read.tobytes() == wanted.astype(read.dtype).tobytes()
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert taken < 10 * idx.CHUNK, f"{taken} bytes were taken for a file of {len(content)}"


@fuzz
@given(content=idx_files(), compressed=st.booleans())
def test_sound_idx_files_are_read(tmp_path, content, compressed):
    assert expected(content) is not None
    check_idx(tmp_path / "file", gzip.compress(content) if compressed else content)


@fuzz
@given(content=st.one_of(st.binary(max_size=60), st.binary(max_size=60).map(lambda tail: b"\0\0" + tail)))
def test_random_bytes_as_idx(tmp_path, content):
    check_idx(tmp_path / "file", content)


@fuzz
@given(content=mutations(idx_files()), compressed=st.booleans())
def test_mutated_idx_files(tmp_path, content, compressed):
    check_idx(tmp_path / "file", gzip.compress(content) if compressed else content)


@fuzz
@given(content=mutations(idx_files().map(gzip.compress)))
def test_mutated_gzip_files(tmp_path, content):
    check_idx(tmp_path / "file", content)


@fuzz
@given(content=mutations(idx_files()))
def test_folders_and_checksums_take_any_bytes(tmp_path, content):
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError):
        load(tmp_path)  # the images are not the labels, whatever they are
    assert sources.damage(tmp_path / name, sources.CATALOGUE["mnist"].files[0]) is not None


# Tables


def attempt(function, path, **options):
    """What was read, or None if the file was refused by name; any other exception is a failure."""
    try:
        return function(path, **options)
    except DataError as error:
        message = str(error)
    assert str(path) in message
    return None


words = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8)
numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)


def quoted(rows, delimiter):
    stream = io.StringIO(newline="")
    csv.writer(stream, delimiter=delimiter).writerows(rows)
    return stream.getvalue()


@fuzz
@given(
    text=st.one_of(words, st.text("0123456789.eE-+,;\t\n\r\"' _naif", max_size=60)),
    label=st.sampled_from([None, 0, "a"]),
)
@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_random_text(tmp_path, name, text, label):
    (tmp_path / name).write_bytes(text.encode())
    data = attempt(load, tmp_path / name, label=label)
    if data is not None:
        assert data.X.isfinite().all()
        assert len(data.X) == len(data.y) > 0
        assert data.X.shape[1] > 0
    X = attempt(read_inputs, tmp_path / name, label=label)
    assert X is None or X.isfinite().all()


@fuzz
@given(content=st.binary(max_size=60))
def test_random_bytes_as_a_table(tmp_path, content):
    (tmp_path / "a.csv").write_bytes(content)
    data = attempt(load, tmp_path / "a.csv")
    assert data is None or data.X.isfinite().all()


@fuzz
@given(
    data=st.data(),
    names=st.lists(words.map(str.strip), min_size=2, max_size=4, unique=True),
    count=st.integers(1, 6),
    delimiter=st.sampled_from([",", "\t"]),
    compressed=st.booleans(),
)
def test_tables_survive(tmp_path, data, names, count, delimiter, compressed):
    """Names and labels with commas, quotes and ends of lines in them come back, whichever column holds the labels."""
    place = data.draw(st.integers(0, len(names) - 1))
    # Without a name that is no number, the first row could not be told from the others; with both it may be a sample.
    features = [name for index, name in enumerate(names) if index != place]
    assume(any(map(tables.is_name, features)))
    assume(all(tables.number(name) is None for name in names))
    assume(tables.number(names[place]) is None)
    X = data.draw(
        st.lists(st.lists(numbers, min_size=len(features), max_size=len(features)), min_size=count, max_size=count)
    )
    label = words.map(str.strip).filter(lambda text: text and tables.number(text) is None)
    labels = data.draw(st.lists(label, min_size=count, max_size=count))
    rows = [[*map(repr, row[:place]), label, *map(repr, row[place:])] for row, label in zip(X, labels, strict=True)]
    content = quoted([names, *rows], delimiter).encode()
    path = tmp_path / ((".csv" if delimiter == "," else ".tsv").join(["table", ".gz" * compressed]))
    path.write_bytes(gzip.compress(content) if compressed else content)
    read = load(path, label=data.draw(st.sampled_from([place, place - len(names), names[place]])))
    assert np.array_equal(read.X.numpy(), np.array(X, np.float32))
    assert read.columns == tuple(features)
    assert [read.classes[index] for index in read.y] == labels
    assert list(read.classes) == sorted(set(labels))
    assert np.array_equal(read_inputs(path, read.columns).numpy(), read.X.numpy())
    assert np.array_equal(read_inputs(path, label=names[place]).numpy(), read.X.numpy())


@fuzz
@given(rows=st.lists(st.tuples(numbers, numbers, st.integers(-(2**62), 2**62)), min_size=1, max_size=8))
def test_tables_of_numbers_survive(tmp_path, rows):
    (tmp_path / "a.csv").write_text(quoted(rows, ","))
    read = load(tmp_path / "a.csv")
    assert np.array_equal(read.X.numpy(), np.array([row[:2] for row in rows], np.float32))
    assert [int(read.classes[index]) for index in read.y] == [row[2] for row in rows]
    real = load(tmp_path / "a.csv", task="regression")
    assert np.array_equal(real.y.numpy(), np.array([row[2:] for row in rows], np.float64).astype(np.float32))


def archive(X, y):
    stream = io.BytesIO()
    np.savez(stream, X=np.array(X, np.float32).reshape(-1, 1), y=np.array(y, np.int64))
    return stream.getvalue()


@fuzz
@given(content=mutations(st.just(archive([1, 2, 3], [0, 1, 0]))))
def test_mutated_archives(tmp_path, content):
    (tmp_path / "a.npz").write_bytes(content)
    data = attempt(load, tmp_path / "a.npz")
    assert data is None or len(data.X) == len(data.y) > 0
