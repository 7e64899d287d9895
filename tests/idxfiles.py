"""IDX files, written by the format's definition and not by the code that reads them."""

from __future__ import annotations

import gzip
import struct

import numpy as np

CODES = {"uint8": 0x08, "int8": 0x09, "int16": 0x0B, "int32": 0x0C, "float32": 0x0D, "float64": 0x0E}


def idx_bytes(array):
    array = np.asarray(array)
    head = bytes([0, 0, CODES[array.dtype.name], array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write_idx(path, array, compressed=False):
    content = idx_bytes(array)
    path.write_bytes(gzip.compress(content) if compressed else content)
    return path
