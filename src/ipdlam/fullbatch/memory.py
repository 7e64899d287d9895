"""Where z and a live: two generations of every sample's rows, visited chunk by chunk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from torch import Tensor

from ipdlam.checkpoint.format import RowStore
from ipdlam.fullbatch.orders import Block
from ipdlam.network.linalg import aligned_empty
from ipdlam.network.mlp import Network
from ipdlam.network.samples import Samples

S = TypeVar("S", bound=RowStore)


@dataclass
class Chunk:
    """Views of some rows. An update writes over ``previous``, the generation before; ``swap`` makes it current."""

    samples: Samples
    rows: slice
    current: dict[Block, Tensor]
    previous: dict[Block, Tensor]

    @property
    def weight(self) -> Tensor | None:
        """How much each row counts; None where all count alike."""
        return None if self.samples.weight is None else self.samples.weight[self.rows]

    def z(self, layer: int) -> Tensor:
        return self.current[Block("z", layer)]

    def a(self, layer: int) -> Tensor:
        """The activations of a layer; those of layer 0 are the inputs."""
        return self.current[Block("a", layer)]

    def swap(self, block: Block) -> None:
        self.current[block], self.previous[block] = self.previous[block], self.current[block]


class Place(NamedTuple):
    """One generation of a block, as a pass finds it: ``current`` or ``previous``."""

    generation: str
    block: Block


@dataclass(frozen=True)
class Access:
    """What a pass needs of the state, and what it changes: the rest need not be moved where that costs time."""

    reads: frozenset[Place]
    writes: frozenset[Place]


class Shard(ABC, Generic[S]):
    """The state of one process's samples; ``S`` is what holds the rows of a block."""

    current: dict[Block, S]
    previous: dict[Block, S]

    def __init__(self, network: Network, samples: Samples, chunk_size: int) -> None:
        self.samples = samples
        self.chunk_size = chunk_size
        self.widths = {Block("z", l): network[l].outputs for l in network.numbers}
        self.widths |= {Block("a", l): network[l].outputs for l in network.numbers if l < len(network)}

    @abstractmethod
    def chunks(self, access: Access | None = None) -> Generator[Chunk, None, None]:
        """Every row once, in order, with what ``access`` names; with everything where it is None.

        Whoever may leave the loop early closes the iterator.
        """

    def swap(self, blocks: Iterable[Block]) -> None:
        """Make the new generation of some blocks current, once all chunks have written theirs."""
        for block in blocks:
            self.current[block], self.previous[block] = self.previous[block], self.current[block]

    def places(self) -> frozenset[Place]:
        """Both generations of every block."""
        return frozenset(Place(generation, block) for generation in ("current", "previous") for block in self.widths)

    def note(self, progress: str) -> None:
        """Say how far the run is, where somebody may look for it."""

    def close(self) -> None:
        """Give back what the state takes; nothing can be read any more."""


class MemoryShard(Shard[Tensor]):
    """The state in memory."""

    def __init__(self, network: Network, samples: Samples, chunk_size: int) -> None:
        super().__init__(network, samples, chunk_size)

        def allocate() -> dict[Block, Tensor]:
            return {
                block: aligned_empty(len(samples), width, network.dtype, network.device)
                for block, width in self.widths.items()
            }

        self.current, self.previous = allocate(), allocate()

    def chunks(self, access: Access | None = None) -> Generator[Chunk, None, None]:
        for rows in self.samples.rows(self.chunk_size):
            current = {block: tensor[rows] for block, tensor in self.current.items()}
            current[Block("a", 0)] = self.samples.inputs(rows)
            previous = {block: tensor[rows] for block, tensor in self.previous.items()}
            yield Chunk(self.samples, rows, current, previous)
