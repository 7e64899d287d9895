"""What a full-batch run remembers: two generations of every variable, the sums over samples, what was measured."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from ipdlam.checkpoint.format import OwnRows, RowStore
from ipdlam.distributed.group import Span
from ipdlam.errors import StorageError
from ipdlam.fullbatch.disk import DiskShard
from ipdlam.fullbatch.memory import Access, Chunk, MemoryShard, Shard
from ipdlam.fullbatch.moments import MomentSums
from ipdlam.fullbatch.orders import Block
from ipdlam.network.linalg import aligned_empty
from ipdlam.network.mlp import Network
from ipdlam.network.model import ModelView, Weights
from ipdlam.network.objective import Objective
from ipdlam.network.samples import Samples
from ipdlam.training.state import RunState


@dataclass(frozen=True)
class Iterate:
    """The variables of the method by layer; rows of ``z`` and ``a`` are samples."""

    z: dict[int, Tensor]
    a: dict[int, Tensor]
    W: dict[int, Tensor]
    b: dict[int, Tensor | None]


@dataclass
class Variables:
    """z and a of all samples, in ``shard``, W and b, two generations of each; the sums that the next W and b need."""

    shard: Shard[Any]
    W: dict[int, Tensor]
    b: dict[int, Tensor | None]
    W_previous: dict[int, Tensor]
    b_previous: dict[int, Tensor | None]
    sums: dict[int, MomentSums]

    @classmethod
    def allocate(
        cls,
        network: Network,
        samples: Samples,
        chunk_size: int,
        storage: Path | None = None,
        *,
        constant_input: bool = True,
    ) -> Self:
        """The model's weights, and z and a that hold nothing yet; they live in the folder ``storage``.

        ``constant_input`` says that all sums over samples are of the same ones, so that those of X are taken once.
        """
        shard: Shard[Any]
        if storage is None or len(samples) == 0:
            shard = MemoryShard(network, samples, chunk_size)
        else:
            shard = DiskShard(network, samples, chunk_size, storage)
        W, b, _ = network.read()
        W_previous, b_previous, _ = network.read()
        sums = {
            l: MomentSums(
                network[l].outputs,
                network[l].inputs,
                network.dtype,
                network.device,
                name=f"layer {l}, {network.place(l)}",
                constant_input=constant_input and l == 1,
            )
            for l in network.numbers
        }
        return cls(shard, W, b, W_previous, b_previous, sums)

    @classmethod
    def begin(
        cls,
        network: Network,
        samples: Samples,
        chunk_size: int,
        storage: Path | None = None,
        *,
        constant_input: bool = True,
    ) -> Self:
        """Initialise z and a by one forward pass of the model as it is; both generations are the same."""
        variables = cls.allocate(network, samples, chunk_size, storage, constant_input=constant_input)
        new = Access(reads=frozenset(), writes=variables.shard.places())
        try:
            with contextlib.closing(variables.shard.chunks(new)) as chunks:
                for chunk in chunks:
                    variables.forward(network, chunk)
        except BaseException:
            variables.shard.close()
            raise
        return variables

    def forward(self, network: Network, chunk: Chunk) -> None:
        """Make z and a of a chunk those of the forward pass, in both generations."""
        for l in network.numbers:
            z = chunk.z(l).copy_(self.preactivation(chunk, l))
            chunk.previous[Block("z", l)].copy_(z)
            if l < len(network):
                a = chunk.a(l).copy_(network.activation(l).value(z))
                chunk.previous[Block("a", l)].copy_(a)

    def preactivation(self, chunk: Chunk, l: int) -> Tensor:
        """``a_(l-1) W_l^T + b_l``."""
        a, W, bias = chunk.a(l - 1), self.W[l], self.b[l]
        P = aligned_empty(a.shape[0], W.shape[0], W.dtype, W.device)
        return torch.mm(a, W.mT, out=P) if bias is None else torch.addmm(bias, a, W.mT, out=P)

    def tensors(self, span: Span | None = None) -> dict[str, RowStore]:
        """All of it but the current W and b, by name; rows of samples are numbered as those of all processes."""

        def of_all(rows: RowStore) -> RowStore:
            return rows if span is None else OwnRows(rows, span)

        found: dict[str, RowStore] = {**Weights(self.W_previous, self.b_previous).named("previous.")}
        found |= {str(block): of_all(tensor) for block, tensor in self.shard.current.items()}
        found |= {f"previous.{block}": of_all(tensor) for block, tensor in self.shard.previous.items()}
        for l, sums in self.sums.items():
            found |= {f"moments{l}.{name}": tensor for name, tensor in sums.tensors().items()}
        return found

    def counters(self) -> dict[str, Any]:
        """What the sums over samples count, in plain JSON types."""
        return {"moments": {str(l): sums.counters() for l, sums in self.sums.items()}}

    def restore(self, counters: dict[str, Any]) -> None:
        """Make the sums those with these counters, to be filled."""
        for l, sums in self.sums.items():
            sums.restore(counters["moments"][str(l)])

    def iterate(self, ahead: frozenset[Block]) -> Iterate:
        """Copies of the variables; those of the blocks ``ahead`` are a generation behind the current one."""
        generation = {
            block: self.shard.previous if block in ahead else self.shard.current for block in self.shard.current
        }
        tensors = {block: tensors[block][:].clone() for block, tensors in generation.items()}
        return Iterate(
            z={block.layer: tensor for block, tensor in tensors.items() if block.kind == "z"},
            a={block.layer: tensor for block, tensor in tensors.items() if block.kind == "a"},
            W={l: W.clone() for l, W in self.W.items()},
            b={l: None if b is None else b.clone() for l, b in self.b.items()},
        )


@dataclass
class FullBatchState(RunState):
    """The variables of Algorithm 1; the model is only written to when an iteration is finished."""

    variables: Variables
    objective: Objective | None = None

    def last_weights(self) -> Weights:
        return Weights(self.variables.W, self.variables.b)

    def tensors(self) -> dict[str, RowStore]:
        return {**super().tensors(), **self.variables.tensors(None if self.spans is None else self.spans[0])}

    def counters(self) -> dict[str, Any]:
        assert self.objective is not None
        own = {"objective": dataclasses.asdict(self.objective)}
        return {**super().counters(), **own, **self.variables.counters()}

    def restore(self, counters: dict[str, Any], network: ModelView) -> None:
        super().restore(counters, network)
        self.objective = Objective.from_dict(counters["objective"])
        self.variables.restore(counters)

    def close(self) -> None:
        super().close()
        self.variables.shard.close()

    @contextlib.contextmanager
    def under_way(self, *, opening: bool = False) -> Iterator[None]:
        """What fails in the middle of an iteration leaves no run to go on with; z and a on a disk say how far it is.

        The ``opening`` is the part of the first iteration that a start makes.
        """
        self.whole = False
        try:
            self.variables.shard.note(f"iteration {self.iteration + 1} is under way")
            yield
            if not opening:
                self.variables.shard.note(f"iteration {self.iteration + 1} is complete")
        except StorageError as error:
            self.close()
            self.history.stop_reason = "storage"
            raise StorageError(
                f"{error}. The model holds the weights of iteration {self.iteration} (the best ones with "
                "restore_best); start begins from them"
            ) from error
