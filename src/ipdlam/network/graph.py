"""A model as a graph of nodes: a forward pass that keeps what a sweep back down needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ipdlam.errors import UnsupportedModelError
from ipdlam.network.arithmetic import PLAIN, Products
from ipdlam.network.layers import BatchNormNode, EmbeddingNode, LayerNode, LinearNode
from ipdlam.network.linalg import all_finite
from ipdlam.network.mlp import CHUNK_BYTES, MAX_CHUNK, check_parameter
from ipdlam.network.model import START_ANEW, ModelView, evaluating
from ipdlam.network.nodes import (
    Activate,
    Drawing,
    Dropout,
    Input,
    Local,
    MaxPool,
    Node,
    Plain,
    Same,
    describe_activation,
    is_smooth,
    parts_of,
)
from ipdlam.network.trace import trace, unwrapped

IMAGE_CHUNK = 250  # samples, where the layers do not say how large they are


@dataclass
class Pass:
    """A forward pass: what every node gave (None where nobody needs it again), and what its pull needs besides."""

    values: list[Any]
    kept: list[Any]
    output: Tensor

    def inputs(self, node: Node) -> list[Any]:
        """What a node was given."""
        return [self.values[source] for source in node.sources]


class Graph(ModelView):
    """The nodes of any model that ``torch.fx`` can trace, and its layers, numbered in the order they compute."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.core = unwrapped(model)
        self.nodes = pooled_before_activation(trace(self.core))
        self.layers = tuple(node for node in self.nodes if isinstance(node, LayerNode) and node.weight is not None)
        self._check_layers()
        self.consumers = [0] * len(self.nodes)
        for node in self.nodes:
            for source in node.sources:
                self.consumers[source] += 1
        self.positions = {l: self.nodes.index(layer) for l, layer in enumerate(self.layers, start=1)}  # among the nodes
        self.layer_at = {number: l for l, number in self.positions.items()}
        self.activations = tuple(number for number, node in enumerate(self.nodes) if isinstance(node, Activate))
        self.kind = (self.dtype, self.device)
        self.marks = self._mark()
        self._find_paths()
        self.last = self._last_layer()
        self.chain = self._read_chain()
        first = self.layers[0]
        self.inputs = first.inputs if self.chain is not None and isinstance(first, LinearNode) else None
        self._outputs = None if self.last is None else len(self.layers[self.last - 1].weight)
        self.sample_shape: tuple[int, ...] = (self.inputs or 0,)
        self.tried = False  # on samples of that shape
        self.arithmetic = PLAIN

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, or what comes out of a pickle, is traced anew: nodes hold functions, which cannot be saved."""
        return reread, (self.model, self._outputs, self.sample_shape)

    def multiply(self, products: Products) -> None:
        """Take the products of all layers so from here on."""
        if products is self.arithmetic:  # as in nearly every step
            return
        self.arithmetic = products
        for layer in self.layers:
            layer.arithmetic = products

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, layer: int) -> LayerNode:
        return self.layers[layer - 1]

    @property
    def outputs(self) -> int:  # type: ignore[override]
        if self._outputs is None:
            raise RuntimeError("the model has not been tried on samples yet")
        return self._outputs

    @property
    def known_outputs(self) -> int:
        """:attr:`outputs`, or 0 before any sample has been seen."""
        return self._outputs or 0

    def weight(self, layer: int) -> Tensor:
        return self[layer].weight

    def bias(self, layer: int) -> Tensor | None:
        return self[layer].bias

    def blocks(self, layer: int) -> int:
        return self[layer].blocks

    def place(self, layer: int) -> str:
        return self[layer].place

    def statistics(self) -> dict[str, Tensor]:
        keepers = [node for node in self.nodes if isinstance(node, BatchNormNode)]
        return {
            f"{name}{number}": tensor
            for number, node in enumerate(keepers, start=1)
            for name, tensor in node.statistics().items()
        }

    @property
    def takes_words(self) -> bool:
        return any(isinstance(node, EmbeddingNode) and node.sources == (0,) for node in self.nodes)

    @property
    def draws(self) -> bool:
        """Whether a pass in training needs random numbers."""
        return any(isinstance(node, Dropout) for node in self.nodes)

    @property
    def matrices(self) -> int:
        """How many layers mix their inputs: norms and embeddings do not."""
        return max(1, sum(not layer.diagonal for layer in self.layers))

    @property
    def chunk_size(self) -> int:
        if self.chain is None:
            return IMAGE_CHUNK
        widest = max(max(layer.width, len(layer.weight)) for layer in self.layers)
        return max(64, min(MAX_CHUNK, CHUNK_BYTES // (widest * self.dtype.itemsize)))

    def run(
        self,
        X: Tensor,
        drawing: Drawing | None = None,
        before: Callable[[Node, list[Any]], None] | None = None,
        after: Callable[[int, Node, list[Any], Any], None] | None = None,
    ) -> Pass:
        """The model on a batch; without ``drawing`` as in evaluation, and nothing is kept for a sweep.

        ``before`` is called with each node and its inputs, ``after`` also with its number and its output.
        """
        values: list[Any] = [None] * len(self.nodes)
        kept: list[Any] = [None] * len(self.nodes)
        left = list(self.consumers)
        values[0] = X
        for number, node in enumerate(self.nodes):
            if isinstance(node, Input):
                continue
            inputs = [values[source] for source in node.sources]
            if before is not None:
                before(node, inputs)
            try:
                values[number], kept[number] = node.run(inputs, drawing)
            except (RuntimeError, IndexError, TypeError) as error:
                shape, usual = tuple(X.shape[1:]), self.sample_shape
                changed = f"; samples before were of the shape {usual}, keep to it" if self.tried else ""
                raise ValueError(
                    f"{node.place} cannot take what it is given, for samples of the shape {shape}: "
                    f"{str(error).splitlines()[0]}{changed if shape != usual else ''}"
                ) from error
            if after is not None:
                after(number, node, inputs, values[number])
            del inputs
            for source in node.sources:
                left[source] -= 1
                if not left[source] and (drawing is None or not self.needed_again[source]):
                    values[source] = None
        return Pass(values, kept, values[-1])

    def try_on(self, X: Tensor) -> None:
        """Learn how many outputs a sample has, and refuse samples that the model cannot take, before any work.

        The nodes must give what the model gives. They would not where forward changes a tensor in place that is used
        again: its nodes have the tensor as it was.
        """
        if self.tried and tuple(X.shape[1:]) == self.sample_shape:
            return
        some = X[:2]

        def look(node: Node, inputs: list[Any]) -> None:
            if isinstance(node, BatchNormNode):
                node.sees_rows = math.prod(inputs[0].shape[2:]) == 1
            if isinstance(node, (LayerNode, Dropout)) and self.is_of_samples(node) and len(inputs[0]) != len(some):
                raise UnsupportedModelError(
                    f"{node.place} gets {tuple(inputs[0].shape)} for {len(some)} samples, whose first dimension is not "
                    "that of the samples; keep it so, and let Linear layers take (N, ..., features)"
                )

        def note(number: int, node: Node, inputs: list[Any], output: Any) -> None:
            node.passes = node.passes and any(is_smooth(part) for part in parts_of(output))
            if isinstance(node, Local):
                node.try_derivative(inputs)

        arithmetic = self.arithmetic
        self.multiply(PLAIN)  # to be compared with the model
        try:
            outputs = self.run(some, before=look, after=note).output
        finally:
            self.multiply(arithmetic)
        if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != len(some):
            shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ValueError(
                f"the model gives {shape} for samples of the shape {tuple(some.shape)}, but a row of outputs for "
                "each sample, (N, outputs), is needed; flatten, pool or pick in forward"
            )
        if self._outputs is not None and outputs.shape[1] != self._outputs:
            raise ValueError(f"the model gives {outputs.shape[1]} outputs a sample, and gave {self._outputs} before")
        with evaluating(self.core), torch.no_grad():
            wanted = self.core(some.clone())
        self._refuse_nan(some, outputs)
        most = float(wanted.abs().nan_to_num().max())
        if not torch.allclose(outputs, wanted, rtol=1e-3, atol=1e-3 * most, equal_nan=True):
            raise UnsupportedModelError(
                "the model gives other outputs than its operations one by one: its forward pass changes a tensor in "
                "place (inplace=True, +=, add_) that is used again; write it without"
            )
        self._refuse_unreached()
        self._outputs, self.sample_shape, self.tried = outputs.shape[1], tuple(X.shape[1:]), True

    def _refuse_unreached(self) -> None:
        """Refuse a model in which no wish reaches some layer that is to be trained."""
        reached = [False] * len(self.nodes)
        reached[-1] = True
        for number in range(len(self.nodes) - 1, 0, -1):
            for source in self.nodes[number].sources if reached[number] and self.nodes[number].passes else ():
                reached[source] = True
        for layer, number in zip(self.layers, self.positions.values(), strict=True):
            if layer.trains and not (reached[number] and layer.passes):
                raise UnsupportedModelError(
                    f"{layer.place}: nothing that the loss wishes for reaches it, since what follows has no "
                    "derivative, or it stands under torch.no_grad; freeze it (requires_grad=False), or write forward "
                    "otherwise"
                )

    def _refuse_nan(self, some: Tensor, outputs: Tensor) -> None:
        """Refuse a model that gives NaN for samples that hold none, and say where it comes from."""
        if not bool(outputs.isnan().any()) or bool(some.isnan().any()):
            return
        self.refuse_broken()

        def look(number: int, node: Node, inputs: list[Any], output: Any) -> None:
            if is_smooth(output) and not all_finite(output):
                raise ValueError(
                    f"{node.place} gives NaN or infinity before any training; scale the samples, or write forward "
                    "otherwise"
                )

        self.run(some, after=look)

    def refuse_single(self, batch_size: int, samples: int) -> None:
        """Refuse batches of so many samples whose last one is a single sample that a BatchNorm cannot take."""
        if (samples - 1) % batch_size:
            return
        for node in self.nodes:
            if isinstance(node, BatchNormNode) and node.by_batch and node.sees_rows:
                raise ValueError(
                    f"batch_size {batch_size} leaves one sample of {samples} for the last batch, and {node.place} "
                    "needs more than one; choose another batch_size, or use LayerNorm"
                )

    def is_of_samples(self, node: Node) -> bool:
        """Whether what a node is given depends on the samples; positions of words do not."""
        left, seen = list(node.sources), set()
        while left:
            number = left.pop()
            if number == 0:
                return True
            if number not in seen and not isinstance(self.nodes[number], Plain):
                seen.add(number)
                left += self.nodes[number].sources
        return False

    def commit(self, passed: Pass) -> None:
        """Take the batch of a pass into the running statistics."""
        for node, kept in zip(self.nodes, passed.kept, strict=True):
            if isinstance(node, BatchNormNode):
                node.commit(kept)

    def refuse_replaced(self) -> None:
        now = self._mark()
        if now == self.marks:
            return
        before = dict(self.marks)
        for name, mark in now:
            if before.get(name) != mark:
                raise RuntimeError(
                    f"module {name} is another one, or has other settings, than when the run was started, or others of "
                    f"its parameters are frozen; {START_ANEW}"
                )
        raise RuntimeError(
            f"the model has {len(now)} modules, but had {len(before)} when the run was started; {START_ANEW}"
        )

    def to_dict(self) -> dict[str, Any]:
        dtype = str(self.dtype).removeprefix("torch.")
        if self.chain is not None:  # as a perceptron is described everywhere
            return {"dtype": dtype, "layers": self.chain}
        return {"dtype": dtype, "nodes": [node.describe() for node in self.nodes]}

    def _mark(self) -> list[tuple[str, Any]]:
        """What tells the modules from others, and their settings; cheap enough for every batch."""
        return [(name, (id(module), _settings(module), _frozen(module))) for name, module in self.core.named_modules()]

    def _check_layers(self) -> None:
        """Refuse parameters that cannot be trained in place, or are those of another layer."""
        if not self.layers:
            raise UnsupportedModelError("model holds no layer with parameters")
        owners: dict[int, str] = {}
        first = self.layers[0]
        for layer in self.layers:
            for kind in ("weight", "bias"):
                check_parameter(layer.place, layer.module, kind, first.weight, owners, frozen=True)
            if not all(layer.weight.shape):
                raise UnsupportedModelError(f"{layer.place} has a weight of shape {tuple(layer.weight.shape)}")
        if not any(layer.trains for layer in self.layers):
            raise UnsupportedModelError("every layer of the model is frozen (requires_grad=False); unfreeze one")
        last = self.nodes[-1]
        if isinstance(last, Activate) or last.place.endswith(("Softmax)", "softmax in forward")):
            raise UnsupportedModelError(
                f"{last.place} ends the model, but the loss acts on what stands before it; remove it"
                + (' (loss="cross_entropy" applies the softmax itself)' if "oftmax" in last.place else "")
            )
        trained = {id(parameter) for layer in self.layers for parameter in layer.module.parameters()}
        for name, parameter in self.core.named_parameters():
            if id(parameter) not in trained and parameter.requires_grad:
                raise UnsupportedModelError(
                    f"parameter {name} has no part in the outputs, so that no wish reaches it; remove it, or freeze it "
                    "(requires_grad=False)"
                )

    def _find_paths(self) -> None:
        """Which nodes need a wish: those with a layer to be trained below or in them."""
        leads = [False] * len(self.nodes)
        for number, node in enumerate(self.nodes):
            node.wanted = tuple(leads[source] and node.passes for source in node.sources)
            leads[number] = any(node.wanted) or (isinstance(node, LayerNode) and node.trains)
        self.needed_again = [False] * len(self.nodes)
        for number, node in enumerate(self.nodes):
            if node.keeps_inputs and leads[number]:
                for source in node.sources:
                    self.needed_again[source] = True
        self.needed_again[-1] = True

    def _last_layer(self) -> int | None:
        """The number of the Linear layer whose outputs are the model's, if there is one."""
        node = self.nodes[-1]
        while isinstance(node, Same):
            node = self.nodes[node.sources[0]]
        if isinstance(node, LinearNode) and node.trains:
            return self.layers.index(node) + 1
        return None

    def _read_chain(self) -> list[dict[str, Any]] | None:
        """The layers of a perceptron: Linear layers, each with an activation but for the last; else None."""
        found: list[dict[str, Any]] = []
        for number, node in enumerate(self.nodes[1:], start=1):
            if node.sources != (number - 1,) or not node.passes:
                return None
            if isinstance(node, LinearNode):
                if found and found[-1]["activation"] is None:
                    found[-1]["activation"] = {"name": "Identity"}
                inputs, outputs, bias = node.inputs, len(node.weight), node.bias is not None
                if found and found[-1]["outputs"] != inputs:
                    before = self.layers[len(found) - 1].place
                    raise UnsupportedModelError(
                        f"{before} has {found[-1]['outputs']} outputs but {node.place} takes {inputs} inputs"
                    )
                found.append({"inputs": inputs, "outputs": outputs, "bias": bias, "activation": None})
                if node.blocks > 1:
                    found[-1]["blocks"] = node.blocks
            elif isinstance(node, Activate) and found and found[-1]["activation"] is None:
                found[-1]["activation"] = describe_activation(node.activation)
            elif not isinstance(node, Same):
                return None
        return found


def reread(model: nn.Module, outputs: int | None, sample_shape: tuple[int, ...]) -> Graph:
    """The graph of a model that has been tried on samples."""
    graph = Graph(model)
    graph._outputs, graph.sample_shape = outputs, sample_shape
    return graph


def _settings(module: nn.Module) -> tuple[Any, ...]:
    """The plain settings of a module: numbers, words and their tuples."""
    names = module.__constants__ if hasattr(module, "__constants__") else ()
    return tuple(getattr(module, name, None) for name in names)  # type: ignore[union-attr]


def _frozen(module: nn.Module) -> tuple[str, ...]:
    """The parameters of a module, not of those inside, that are not to be trained."""
    return tuple(name for name, own in module._parameters.items() if own is not None and not own.requires_grad)


MONOTONE = ("ReLU", "LeakyReLU", "Hardtanh", "ReLU6", "Sigmoid", "Tanh", "Softplus", "ELU", "SELU")


def pooled_before_activation(found: Sequence[Node]) -> tuple[Node, ...]:
    """The same model with a max-pool before a rising activation instead of after it.

    The largest number stays the largest, so the outputs are the same, and the activation, whose proximal operator is
    the dearest thing about it, has only the numbers that were picked to work on.
    """
    ordered = list(found)
    consumers: dict[int, int] = {}
    for node in ordered:
        for source in node.sources:
            consumers[source] = consumers.get(source, 0) + 1
    for number, pool in enumerate(ordered):
        if not isinstance(pool, MaxPool):
            continue
        before = pool.sources[0]
        activation = ordered[before]
        if not isinstance(activation, Activate) or consumers[before] > 1:
            continue
        if type(activation.activation).__name__ in MONOTONE:
            pool.sources, activation.sources = activation.sources, (before,)
            ordered[before], ordered[number] = pool, activation
    return tuple(ordered)


def as_drawing(graph: Graph, generator: torch.Generator | None, rows: int, positions: Tensor | None) -> Drawing:
    """Where the random numbers of a pass in training come from."""
    return Drawing(generator if graph.draws else None, rows, positions)
