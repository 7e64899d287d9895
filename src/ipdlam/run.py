"""The state of a run: two generations of every variable, and what has been measured."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from ipdlam.checks import check_number
from ipdlam.history import History, Record
from ipdlam.inputs import Samples
from ipdlam.linalg import aligned_empty
from ipdlam.loop import Progress
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


def named(prefix: str, W: dict[int, Tensor], b: dict[int, Tensor | None]) -> dict[str, Tensor]:
    """Weights and biases by name, without the biases that are not there."""
    found = {f"{prefix}W{l}": tensor for l, tensor in W.items()}
    return found | {f"{prefix}b{l}": tensor for l, tensor in b.items() if tensor is not None}


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
    progress: Progress = field(default_factory=Progress)
    history: History = field(default_factory=History)
    objective: Objective | None = None
    iteration: int = 0
    seconds: float = 0.0
    _fingerprints: dict[str, Any] | None = None
    whole: bool = False  # False while an iteration is under way: what it leaves half done cannot be continued

    @classmethod
    def allocate(cls, network: Network, samples: Samples, validation: Samples | None, chunk_size: int) -> Self:
        """A run with the model's weights, whose z and a hold nothing yet."""
        W, b = network.read()
        W_previous, b_previous = network.read()
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
        return cls(Shard(network, samples, chunk_size), validation, W, b, W_previous, b_previous, sums)

    @classmethod
    def begin(cls, network: Network, samples: Samples, validation: Samples | None, chunk_size: int) -> Self:
        """Initialise z and a by one forward pass of the model as it is; both generations are the same."""
        run = cls.allocate(network, samples, validation, chunk_size)
        for chunk in run.shard.chunks():
            for l in network.numbers:
                z = chunk.z(l).copy_(run.preactivation(chunk, l))
                chunk.previous[Block("z", l)].copy_(z)
                if l < len(network):
                    a = chunk.a(l).copy_(network.activation(l).value(z))
                    chunk.previous[Block("a", l)].copy_(a)
        return run

    def weights(self) -> dict[str, Tensor]:
        """The weights and biases of the last iterate, by name."""
        return named("", self.W, self.b)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor on which the rest of the run depends, by name: the run's own, no copies."""
        found = self.weights() | named("previous.", self.W_previous, self.b_previous)
        found |= {str(block): tensor for block, tensor in self.shard.current.items()}
        found |= {f"previous.{block}": tensor for block, tensor in self.shard.previous.items()}
        for l, sums in self.sums.items():
            found |= {f"moments{l}.{name}": tensor for name, tensor in sums.tensors().items()}
        if self.progress.best_weights is not None:
            found |= named("best.", *self.progress.best_weights)
        return found

    def fingerprints(self) -> dict[str, Any]:
        """What tells the data of this run from others."""
        if self._fingerprints is None:
            validation = None if self.validation is None else self.validation.fingerprint()
            self._fingerprints = {"training": self.shard.samples.fingerprint(), "validation": validation}
        return self._fingerprints

    def counters(self) -> dict[str, Any]:
        """Everything else on which the rest of the run depends, in plain JSON types."""
        assert self.objective is not None
        return {
            "iteration": self.iteration,
            "seconds": self.seconds,
            "objective": dataclasses.asdict(self.objective),
            "history": [record.to_dict() for record in self.history],
            "best_score": self.progress.best_score,
            "has_best_weights": self.progress.best_weights is not None,
            "unimproved": self.progress.unimproved,
            "moments": {str(l): sums.counters() for l, sums in self.sums.items()},
        }

    def restore(self, counters: dict[str, Any], network: Network) -> None:
        """Make this the run with these counters, whose :meth:`tensors` remain to be filled."""
        self.iteration, self.seconds = int(counters["iteration"]), float(counters["seconds"])
        if self.iteration != len(counters["history"]):
            raise ValueError(f"it is of iteration {self.iteration}, but has {len(counters['history'])} records")
        if counters["best_score"] is not None:
            check_number("best_score", counters["best_score"])
        self.objective = Objective.from_dict(counters["objective"])
        self.history = History(Record.from_dict(fields) for fields in counters["history"])
        best_weights = network.read() if counters["has_best_weights"] else None
        self.progress = Progress(counters["best_score"], best_weights, int(counters["unimproved"]))
        for l, sums in self.sums.items():
            sums.restore(counters["moments"][str(l)])

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
