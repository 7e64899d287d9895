"""z and a on a disk, chunk by chunk: while one chunk is worked on, the last is written and the next one read.

The file is a sequence of records, one for every chunk, so that a pass goes through it from beginning to end. A record
holds every block twice, one slot for each generation; a pass changes what the slots mean and moves no numbers from one
to the other. Two records are in memory: one is worked on, the other is written and then filled by a thread, with
explicit reads and writes, which bound the memory and report a failing disk as an error (a memory map would end the
process). Rows have the width and the alignment of those in memory, so that all products have the same bits.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ipdlam.fullbatch.disk_folder import StateFolder
from ipdlam.fullbatch.memory import Access, Chunk, Place, Shard
from ipdlam.fullbatch.orders import Block
from ipdlam.network.linalg import padded_width
from ipdlam.network.mlp import Network
from ipdlam.network.samples import Samples

PAGE = 4096  # bytes; slots start at multiples of it


@dataclass(frozen=True)
class Layout:
    """Where the rows of a state are: ``records`` of so many ``bytes``, with ``rows`` samples each."""

    samples: int
    rows: int  # the last record may hold fewer
    bytes: int

    @property
    def records(self) -> int:
        return -(-self.samples // self.rows)

    @property
    def size(self) -> int:
        return self.records * self.bytes

    def rows_of(self, record: int) -> int:
        return min(self.rows, self.samples - record * self.rows)


class Slot:
    """All samples' rows of one generation of a block, in a file: read and written some rows at a time, as copies."""

    def __init__(self, folder: StateFolder, layout: Layout, offset: int, width: int, dtype: torch.dtype) -> None:
        self.folder, self.layout, self.offset, self.dtype = folder, layout, offset, dtype
        self.shape = torch.Size((layout.samples, width))
        self.row_bytes = padded_width(width, dtype) * dtype.itemsize

    def numel(self) -> int:
        return self.shape.numel()

    def element_size(self) -> int:
        return self.dtype.itemsize

    def view(self, record: Tensor, rows: int) -> Tensor:
        """The first rows of this slot in a record that is in memory."""
        whole = record[self.offset : self.offset + rows * self.row_bytes].view(self.dtype)
        return whole.view(rows, -1)[:, : self.shape[1]]

    def load(self, number: int, record: Tensor) -> None:
        """Fill this slot of a record from the file."""
        self.folder.read(self._place(number), self._bytes(record, self.layout.rows_of(number)))

    def store(self, number: int, record: Tensor) -> None:
        """Write this slot of a record to the file."""
        self.folder.write(self._place(number), self._bytes(record, self.layout.rows_of(number)))

    def __getitem__(self, rows: slice, /) -> Tensor:
        found = torch.empty(len(range(*rows.indices(self.shape[0]))), self.shape[1], dtype=self.dtype)
        for start, stop, place in self._pieces(rows):
            piece = torch.empty((stop - start) * self.row_bytes, dtype=torch.uint8)
            self.folder.read(place, piece.numpy().data)
            found[start:stop] = piece.view(self.dtype).view(stop - start, -1)[:, : self.shape[1]]
        return found

    def __setitem__(self, rows: slice, values: Tensor, /) -> None:
        for start, stop, place in self._pieces(rows):
            piece = torch.zeros((stop - start) * self.row_bytes, dtype=torch.uint8)
            piece.view(self.dtype).view(stop - start, -1)[:, : self.shape[1]] = values[start:stop]
            self.folder.write(place, piece.numpy().data)

    def _place(self, record: int, row: int = 0) -> int:
        return record * self.layout.bytes + self.offset + row * self.row_bytes

    def _bytes(self, record: Tensor, rows: int) -> memoryview:
        return record[self.offset : self.offset + rows * self.row_bytes].numpy().data

    def _pieces(self, rows: slice) -> Iterator[tuple[int, int, int]]:
        """What of some consecutive rows lies in one record: from and to which of them, and where in the file."""
        first, last, _ = rows.indices(self.shape[0])
        start = first
        while start < last:
            record, row = divmod(start, self.layout.rows)
            stop = min(last, start - row + self.layout.rows)
            yield start - first, stop - first, self._place(record, row)
            start = stop


class DiskShard(Shard[Slot]):
    """The state in files of the folder ``storage``, which is this process's as long as the shard lives."""

    def __init__(self, network: Network, samples: Samples, chunk_size: int, storage: Path) -> None:
        super().__init__(network, samples, chunk_size)
        self.current, self.previous = {}, {}
        if network.device.type != "cpu":
            raise ValueError(f"storage is for models on the CPU, but this one is on {network.device}; move one of them")
        rows = min(chunk_size, len(samples))
        offsets, end = [], 0
        for width in self.widths.values():
            for _ in range(2):
                offsets.append(end)
                end += -(-rows * padded_width(width, network.dtype) * network.dtype.itemsize // PAGE) * PAGE
        layout = Layout(len(samples), rows, end)
        content = {
            "network": network.to_dict(),
            "samples": len(samples),
            "chunk_size": rows,
            "data": samples.fingerprint(),
        }
        self.folder = StateFolder(storage, content, layout.size)
        self.layout = layout
        for n, (block, width) in enumerate(self.widths.items()):
            for number, generation in enumerate((self.current, self.previous)):
                generation[block] = Slot(self.folder, layout, offsets[2 * n + number], width, network.dtype)
        self._records: list[Tensor] = []  # in memory: one to work on, one to write and to read
        self._thread: ThreadPoolExecutor | None = None  # of the last pass

    def chunks(self, access: Access | None = None) -> Generator[Chunk, None, None]:
        everything = self.places()
        reads, writes = (everything, everything) if access is None else (access.reads, access.writes)
        loaded, stored = (sorted(map(self._slot, places), key=lambda slot: slot.offset) for places in (reads, writes))

        def turn(record: Tensor, done: int | None, wanted: int | None) -> None:
            """Write a record that has been worked on, and fill its memory with one to come."""
            if done is not None:
                for slot in stored:
                    slot.store(done, record)
            if wanted is not None and wanted < self.layout.records:
                for slot in loaded:
                    slot.load(wanted, record)

        records = self._in_memory()
        self._thread = thread = ThreadPoolExecutor(1, thread_name_prefix="ipdlam-storage")
        try:
            turns: list[Future[None]] = [thread.submit(turn, record, None, n) for n, record in enumerate(records)]
            for number, rows in enumerate(self.samples.rows(self.chunk_size)):
                record = records[number % 2]
                turns[number % 2].result()  # an error of the disk is raised here
                yield self._chunk(rows, record, reads | writes)
                turns[number % 2] = thread.submit(turn, record, number, number + 2)
            for last in turns:
                last.result()
        finally:
            thread.shutdown(wait=True, cancel_futures=True)

    def note(self, progress: str) -> None:
        self.folder.note(progress)

    def close(self) -> None:
        if self._thread is not None:  # it has ended, unless a second Ctrl-C came while it was waited for
            self._thread.shutdown(wait=True, cancel_futures=True)
        self._records = []
        self.folder.close()

    def _slot(self, place: Place) -> Slot:
        return (self.current if place.generation == "current" else self.previous)[place.block]

    def _chunk(self, rows: slice, record: Tensor, places: frozenset[Place]) -> Chunk:
        """The views of a record in memory; a block that the pass did not name is not there, and missed aloud."""
        count = rows.stop - rows.start
        chunk = Chunk(self.samples, rows, {Block("a", 0): self.samples.inputs(rows)}, {})
        for place in places:
            views = chunk.current if place.generation == "current" else chunk.previous
            views[place.block] = self._slot(place).view(record, count)
        return chunk

    def _in_memory(self) -> list[Tensor]:
        """Two records, which start at a page as those in the file do; made once, for memory is costly to come by."""
        if not self._records:
            for _ in range(2):
                room = torch.zeros(self.layout.bytes + PAGE, dtype=torch.uint8)
                start = -room.data_ptr() % PAGE
                self._records.append(room[start : start + self.layout.bytes])
        return self._records
