"""The state of a run: two generations of every variable, and what has been measured."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from typing_extensions import Self

from ipdlam.history import History
from ipdlam.inputs import Samples
from ipdlam.linalg import aligned_empty
from ipdlam.moments import MomentSums
from ipdlam.network import Network
from ipdlam.objective import Objective
from ipdlam.orders import Block
from ipdlam.shards import Chunk, Shard


@dataclass(frozen=True)
class Iterate:
    """The variables of the method by layer; rows of ``z`` and ``a`` are samples."""

    z: dict[int, Tensor]
    a: dict[int, Tensor]
    W: dict[int, Tensor]
    b: dict[int, Tensor | None]


@dataclass
class Run:
    """z and a live in ``shard``, W and b here; the model is only written to when an iteration is finished."""

    shard: Shard
    validation: Samples | None
    W: dict[int, Tensor]
    b: dict[int, Tensor | None]
    W_previous: dict[int, Tensor]
    b_previous: dict[int, Tensor | None]
    sums: dict[int, MomentSums]
    history: History = field(default_factory=History)
    objective: Objective | None = None
    iteration: int = 0
    seconds: float = 0.0
    whole: bool = False  # False while an iteration is under way: what it leaves half done cannot be continued

    @classmethod
    def begin(cls, network: Network, samples: Samples, validation: Samples | None, chunk_size: int) -> Self:
        """Initialise z and a by one forward pass of the model as it is; both generations are the same."""
        W, b = network.read()
        sums = {
            l: MomentSums(
                network[l].outputs,
                network[l].inputs,
                network.dtype,
                network.device,
                name=f"layer {l} (module {network[l].name})",
                constant_input=l == 1,
            )
            for l in network.numbers
        }
        run = cls(Shard(network, samples, chunk_size), validation, W, b, dict(W), dict(b), sums)
        for chunk in run.shard.chunks():
            for l in network.numbers:
                z = chunk.z(l).copy_(run.preactivation(chunk, l))
                chunk.previous[Block("z", l)].copy_(z)
                if l < len(network):
                    a = chunk.a(l).copy_(network.activation(l).value(z))
                    chunk.previous[Block("a", l)].copy_(a)
        return run

    def preactivation(self, chunk: Chunk, l: int) -> Tensor:
        """``a_(l-1) W_l^T + b_l``."""
        a, W, bias = chunk.a(l - 1), self.W[l], self.b[l]
        P = aligned_empty(a.shape[0], W.shape[0], W.dtype, W.device)
        return torch.mm(a, W.mT, out=P) if bias is None else torch.addmm(bias, a, W.mT, out=P)

    def iterate(self, ahead: frozenset[Block]) -> Iterate:
        """Copies of the variables; those of the blocks ``ahead`` are a generation behind the current one."""
        generation = {
            block: self.shard.previous if block in ahead else self.shard.current for block in self.shard.current
        }
        tensors = {block: tensors[block].clone() for block, tensors in generation.items()}
        return Iterate(
            z={block.layer: tensor for block, tensor in tensors.items() if block.kind == "z"},
            a={block.layer: tensor for block, tensor in tensors.items() if block.kind == "a"},
            W={l: W.clone() for l, W in self.W.items()},
            b={l: None if b is None else b.clone() for l, b in self.b.items()},
        )
