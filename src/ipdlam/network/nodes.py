"""What a traced model is made of besides its layers: maps without parameters.

A node computes its output, and pulls: it turns a wish for its outputs (a change that would lower the loss) into one for
its inputs. A linear map pulls by its adjoint. For any other the pull is the minimiser of a subproblem of the method: an
activation has its proximal operator, a max-pool hands the wish to the entry it picked. A wish belongs to whoever made
it and is never changed in place: a sum hands the same one to all summands.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import torch
from torch import Tensor

from ipdlam.checks import fields_of
from ipdlam.errors import UnsupportedModelError
from ipdlam.prox import Activation

Wish = Union[Tensor, dict[int, Tensor]]  # for a value that is a tuple, by position


@dataclass(frozen=True)
class Drawing:
    """Where random numbers come from: those of all rows of a batch, of which ``positions`` are here."""

    generator: torch.Generator | None
    rows: int
    positions: Tensor | None = None

    def kept(self, like: Tensor, shape: tuple[int, ...], probability: float) -> Tensor:
        """Zeros, and 1 / (1 - probability) as often as that; ``shape`` is that of a sample's."""
        whole = torch.empty((self.rows, *shape), dtype=like.dtype)  # drawn where the generator is
        if probability >= 1.0:
            mask = whole.zero_()
        else:
            mask = whole.bernoulli_(1.0 - probability, generator=self.generator).div_(1.0 - probability)
        mask = mask.to(like.device)
        return mask if self.positions is None else mask[self.positions]


@dataclass(frozen=True)
class Pulling:
    """What a pull depends on besides the pass."""

    proximity: float = 1.0  # the weight r of the proximal term of an activation, 1 + delta
    stretch: float = 1.0  # what the wish is to be multiplied by where its size matters


class Node(ABC):
    """One operation of a model; ``sources`` are the numbers of the nodes whose outputs it takes."""

    keeps_inputs = True  # whether a pull, or the step of a layer, needs the inputs again
    linear = True  # whether a pull is proportional to the wish, so that its size does not matter
    passes = True  # whether a wish for its outputs becomes one for its inputs; known when the graph was tried

    def __init__(self, place: str, sources: Sequence[int]) -> None:
        self.place, self.sources = place, tuple(sources)
        self.wanted: tuple[bool, ...] = (True,) * len(self.sources)  # which sources need a wish; the graph says it

    @abstractmethod
    def run(self, inputs: Sequence[Any], drawing: Drawing | None) -> tuple[Any, Any]:
        """The output, and what the pull needs besides inputs and output. ``drawing`` is None in evaluation."""

    @abstractmethod
    def pull(self, wish: Any, inputs: Sequence[Any], output: Any, kept: Any, pulling: Pulling) -> Sequence[Wish | None]:
        """A wish for every source, None where it needs none; of ``inputs`` only those that are kept are there."""

    def describe(self) -> dict[str, Any]:
        """What tells it from another, in plain JSON types."""
        return {"node": type(self).__name__, "sources": list(self.sources)}


class Input(Node):
    """What the model is given."""

    keeps_inputs = False

    def run(self, inputs: Sequence[Any], drawing: Drawing | None) -> tuple[Any, Any]:
        raise TypeError("the input of a graph is given to it")

    def pull(self, wish: Any, inputs: Sequence[Any], output: Any, kept: Any, pulling: Pulling) -> Sequence[Wish | None]:
        return ()


class Constant(Node):
    """What training leaves alone: a buffer, a frozen parameter, an argument of ``forward`` that has a default."""

    keeps_inputs = False

    def __init__(self, place: str, value: Callable[[], Any]) -> None:
        super().__init__(place, ())
        self.value = value

    def run(self, inputs: Sequence[Any], drawing: Drawing | None) -> tuple[Any, Any]:
        return self.value(), None

    def pull(self, wish: Any, inputs: Sequence[Any], output: Any, kept: Any, pulling: Pulling) -> Sequence[Wish | None]:
        return ()


class Activate(Node):
    """An activation: the wish for its inputs is ``argmin_x (sigma(x) - a*)^2 + r (x - z)^2``, less ``z``."""

    linear = False

    def __init__(self, place: str, sources: Sequence[int], activation: Activation) -> None:
        super().__init__(place, sources)
        self.activation = activation

    def run(self, inputs: Sequence[Any], drawing: Drawing | None) -> tuple[Any, Any]:
        return self.activation.value(inputs[0]), None

    def pull(self, wish: Any, inputs: Sequence[Any], output: Any, kept: Any, pulling: Pulling) -> Sequence[Wish | None]:
        z = inputs[0]
        a = self.activation.value(z) if output is None else output
        change = torch.empty_like(z)
        for own, a_part, z_part, wish_part in pieces(change, a, z, wish):
            a_star = torch.add(a_part, wish_part, alpha=pulling.stretch)
            torch.sub(self.activation._prox(a_star, z_part, pulling.proximity), z_part, out=own)
        return (change,)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "activation": describe_activation(self.activation)}


def describe_activation(activation: Activation) -> dict[str, Any]:
    """Its class and parameters in plain JSON types."""
    return {"name": type(activation).__name__, **fields_of(activation)}


PIECE = 1 << 17  # numbers: half a dozen operands of a piece fit a core's cache


def pieces(*tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Operands of one elementwise operation, some numbers at a time, so that they stay in the cache.

    All at once where they are few, or the first one has gaps in memory. Others that do not lie as it does are copied.
    """
    first = tensors[0]
    room = 1 + sum((size - 1) * stride for size, stride in zip(first.shape, first.stride(), strict=True))
    if first.numel() <= PIECE or room != first.numel():
        return [tensors]
    alike = (own if own.stride() == first.stride() else torch.empty_like(first).copy_(own) for own in tensors)
    return zip(*(torch.split(own.as_strided((own.numel(),), (1,)), PIECE) for own in alike), strict=True)


class Same(Node):
    """A map that changes nothing: Identity, or Dropout of nothing."""

    keeps_inputs = False

    def run(self, inputs: Sequence[Any], drawing: Drawing | None) -> tuple[Any, Any]:
        return inputs[0], None

    def pull(self, wish: Any, inputs: Sequence[Any], output: Any, kept: Any, pulling: Pulling) -> Sequence[Wish | None]:
        return (wish,)


class Call(Node):
    """A function, method or module without parameters, called with arguments of which some are outputs of nodes.

    ``arguments(values)`` puts the values of the sources into their places.
    """

    def __init__(
        self,
        place: str,
        sources: Sequence[int],
        function: Callable[..., Any],
        arguments: Callable[[Sequence[Any]], tuple[tuple[Any, ...], Mapping[str, Any]]],
        signature: str,
    ) -> None:
        super().__init__(place, sources)
        self.function, self.arguments, self.signature = function, arguments, signature

    def call(self, values: Sequence[Any]) -> Any:
        """The function of these values."""
        positional, named = self.arguments(values)
        return self.function(*positional, **named)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "call": self.signature}


class Reshape(Call):
    """A map that gives the same numbers, in the same order, another shape."""

    keeps_inputs = False

    def run(self, inputs: Sequence[Any], drawing: Drawing | None) -> tuple[Any, Any]:
        return self.call(inputs), inputs[0].shape

    def pull(self, wish: Any, inputs: Sequence[Any], output: Any, kept: Any, pulling: Pulling) -> Sequence[Wish | None]:
        return (wish.reshape(kept), *(None for _ in self.sources[1:]))


class Plain(Call):
    """A function whose result is no tensor that could be wished for, such as a shape."""

    keeps_inputs = False
    passes = False

    def run(self, inputs: Sequence[Any], drawing: Drawing | None) -> tuple[Any, Any]:
        return self.call(inputs), None

    def pull(self, wish: Any, inputs: Sequence[Any], output: Any, kept: Any, pulling: Pulling) -> Sequence[Wish | None]:
        return tuple(None for _ in self.sources)


class Add(Call):
    """A sum of two, such as a residual connection: either summand gets the whole wish."""

    keeps_inputs = False

    def run(self, inputs: Sequence[Any], drawing: Drawing | None) -> tuple[Any, Any]:
        shapes = [value.shape if isinstance(value, Tensor) else None for value in inputs]
        return self.call(inputs), shapes

    def pull(self, wish: Any, inputs: Sequence[Any], output: Any, kept: Any, pulling: Pulling) -> Sequence[Wish | None]:
        return tuple(
            wish if shape == wish.shape else wish.sum_to_size(shape) if shape is not None and wanted else None
            for shape, wanted in zip(kept, self.wanted, strict=True)
        )


class Concatenate(Node):
    """``torch.cat``: every part gets its part of the wish."""

    keeps_inputs = False

    def __init__(self, place: str, sources: Sequence[int], dim: int) -> None:
        super().__init__(place, sources)
        self.dim = dim

    def run(self, inputs: Sequence[Any], drawing: Drawing | None) -> tuple[Any, Any]:
        return torch.cat(tuple(inputs), self.dim), [part.shape[self.dim] for part in inputs]

    def pull(self, wish: Any, inputs: Sequence[Any], output: Any, kept: Any, pulling: Pulling) -> Sequence[Wish | None]:
        return tuple(wish.split(kept, self.dim))

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "dim": self.dim}


class Pick(Node):
    """One of several results of a node."""

    keeps_inputs = False

    def __init__(self, place: str, sources: Sequence[int], position: int) -> None:
        super().__init__(place, sources)
        self.position = position

    def run(self, inputs: Sequence[Any], drawing: Drawing | None) -> tuple[Any, Any]:
        return inputs[0][self.position], self.position % len(inputs[0])

    def pull(self, wish: Any, inputs: Sequence[Any], output: Any, kept: Any, pulling: Pulling) -> Sequence[Wish | None]:
        return ({kept: wish},)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "position": self.position}


class MaxPool(Node):
    """A maximum over windows: the entry that was picked gets the wish, since no other one has changed the output.

    ``argmin_x ||maxpool(x) - p*||^2 + r ||x - z||^2`` moves it alone as long as it stays the largest.
    """

    keeps_inputs = False

    def __init__(self, place: str, sources: Sequence[int], dims: int, window: dict[str, Any]) -> None:
        super().__init__(place, sources)
        self.dims = dims
        self.window = [_pair(window[name], dims, fill) for name, fill in WINDOW]
        self.ceil_mode = bool(window["ceil_mode"])

    def run(self, inputs: Sequence[Any], drawing: Drawing | None) -> tuple[Any, Any]:
        x = inputs[0]
        if self.dims == 1:  # a picture of height one
            x = x.unsqueeze(-2)
        found, places = torch.ops.aten.max_pool2d_with_indices(x, *self.window, self.ceil_mode)
        return (found.squeeze(-2) if self.dims == 1 else found), (places, _hollow(x))

    def pull(self, wish: Any, inputs: Sequence[Any], output: Any, kept: Any, pulling: Pulling) -> Sequence[Wish | None]:
        places, like = kept
        if self.dims == 1:
            wish = wish.unsqueeze(-2)
        pulled = torch.ops.aten.max_pool2d_with_indices_backward(wish, like(), *self.window, self.ceil_mode, places)
        return (pulled.squeeze(-2) if self.dims == 1 else pulled,)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "window": self.window, "ceil_mode": self.ceil_mode}


WINDOW = (("kernel_size", 1), ("stride", 1), ("padding", 0), ("dilation", 1))


def _pair(value: Any, dims: int, fill: int) -> list[int]:
    """A setting of a window in two dimensions."""
    values = (
        [value] * dims
        if isinstance(value, int)
        else [int(number) for number in value] * (dims if len(value) == 1 else 1)
    )
    return [fill, *values] if dims == 1 else values


def _hollow(x: Tensor) -> Callable[[], Tensor]:
    """A tensor of this shape and layout that holds nothing: kernels ask for the shape of what they do not read."""
    shape, stride, dtype, device = x.shape, x.stride(), x.dtype, x.device
    return lambda: torch.empty_strided(shape, stride, dtype=dtype, device=device)


class Dropout(Node):
    """Zeroes entries, or whole channels, at random in training; the wish passes where the signal did."""

    keeps_inputs = False

    def __init__(
        self, place: str, sources: Sequence[int], probability: float, channels: bool, active: Callable[[], bool]
    ) -> None:
        super().__init__(place, sources)
        self.probability, self.channels, self.active = probability, channels, active

    def run(self, inputs: Sequence[Any], drawing: Drawing | None) -> tuple[Any, Any]:
        x = inputs[0]
        if drawing is None or self.probability == 0.0 or not self.active():
            return x, None
        shape = (x.shape[1], *(1,) * (x.ndim - 2)) if self.channels else tuple(x.shape[1:])
        mask = drawing.kept(x, shape, self.probability)
        return x * mask, mask

    def pull(self, wish: Any, inputs: Sequence[Any], output: Any, kept: Any, pulling: Pulling) -> Sequence[Wish | None]:
        return (wish if kept is None else wish * kept,)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "probability": self.probability, "channels": self.channels}


class Local(Call):
    """Any other map without parameters, pulled by the adjoint of its own derivative at the pass.

    The derivative is that of this one map (``torch.func.vjp``); nothing is traced beyond it. Of several results only
    the real and complex ones have a derivative, and a map that has none, such as a comparison, hands no wish on.
    """

    keeps_inputs = False

    def run(self, inputs: Sequence[Any], drawing: Drawing | None) -> tuple[Any, Any]:
        free = [
            place
            for place, (value, wanted) in enumerate(zip(inputs, self.wanted, strict=True))
            if wanted and all(is_smooth(part) for part in parts_of(value))
        ]
        if drawing is None or not free or not self.passes:
            return self.call(inputs), None

        def at(*given: Any) -> tuple[tuple[Tensor, ...], Any]:
            values = list(inputs)
            for place, value in zip(free, given, strict=True):
                values[place] = value
            found = self.call(values)
            return tuple(part for part in parts_of(found) if is_smooth(part)), found

        primals = (tuple(parts_of(inputs[place])) if is_several(inputs[place]) else inputs[place] for place in free)
        smooth, adjoint, found = torch.func.vjp(at, *primals, has_aux=True)  # type: ignore[misc]
        places = [place for place, part in enumerate(parts_of(found)) if is_smooth(part)]
        return found, (free, adjoint, smooth, places)

    def pull(self, wish: Any, inputs: Sequence[Any], output: Any, kept: Any, pulling: Pulling) -> Sequence[Wish | None]:
        pulled: list[Wish | None] = [None] * len(self.sources)
        if kept is None:
            return pulled
        free, adjoint, smooth, places = kept
        given = wish if isinstance(wish, dict) else {places[0]: wish}
        wishes = tuple(
            given[place] if place in given else torch.zeros_like(part)
            for place, part in zip(places, smooth, strict=True)
        )
        for place, found in zip(free, adjoint(wishes), strict=True):
            pulled[place] = dict(enumerate(found)) if isinstance(found, tuple) else found
        return pulled

    def try_derivative(self, inputs: Sequence[Any]) -> None:
        """Refuse a map that torch has no derivative of, given inputs that it can be called with."""
        own = [value.clone() if isinstance(value, Tensor) else value for value in inputs]  # it may change them
        try:
            output, kept = self.run(own, Drawing(None, 0))
            self.pull({}, own, output, kept, Pulling())
        except RuntimeError as error:
            raise UnsupportedModelError(
                f"{self.place} has no derivative: {str(error).splitlines()[0]}; freeze the layers below it "
                "(requires_grad=False), or write forward without it"
            ) from error


def is_several(value: Any) -> bool:
    """Whether a node gave several results."""
    return isinstance(value, (tuple, list)) and not isinstance(value, torch.Size)


def parts_of(value: Any) -> Sequence[Any]:
    """The results of a node, one by one."""
    return value if is_several(value) else (value,)


def is_smooth(value: Any) -> bool:
    """Whether something is a tensor that could be a little different."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())
