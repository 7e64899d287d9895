"""What trainers see of a model, whatever it is made of: its weights by layer, its precision and device, its hooks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ipdlam.errors import UnsupportedModelError
from ipdlam.network.linalg import all_finite

START_ANEW = "call start(X, y) to train the model as it is"


class Weights(NamedTuple):
    """All that training changes in a model: W and b by layer, and running statistics by name."""

    W: dict[int, Tensor]
    b: dict[int, Tensor | None]
    statistics: dict[str, Tensor] = {}  # noqa: RUF012 (never changed: most models have none)

    def named(self, prefix: str = "") -> dict[str, Tensor]:
        """By name, without the biases that are not there."""
        found = {f"{prefix}W{l}": tensor for l, tensor in self.W.items()}
        found |= {f"{prefix}b{l}": tensor for l, tensor in self.b.items() if tensor is not None}
        return found | {f"{prefix}{name}": tensor for name, tensor in self.statistics.items()}


class ModelView(ABC):
    """A model as layers with parameters, numbered from 1 in the order in which they compute."""

    model: nn.Module
    kind: tuple[torch.dtype, torch.device]  # when the model was read
    inputs: int | None  # numbers a sample has, where the first layer says so
    outputs: int  # numbers the model gives for a sample

    @abstractmethod
    def __init__(self, model: nn.Module) -> None:
        """Read the model; what cannot be trained is refused by name, place and remedy."""

    @abstractmethod
    def __len__(self) -> int:
        """L, the number of layers."""

    @abstractmethod
    def weight(self, layer: int) -> Tensor:
        """``W_l``, the model's own."""

    @abstractmethod
    def bias(self, layer: int) -> Tensor | None:
        """``b_l``, the model's own."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The architecture in plain JSON types."""

    @abstractmethod
    def refuse_replaced(self) -> None:
        """Refuse a model in which something was replaced since it was read: it would not be trained."""

    @property
    @abstractmethod
    def chunk_size(self) -> int:
        """Rows to a chunk when the user does not say."""

    @property
    def numbers(self) -> range:
        """1 ... L."""
        return range(1, len(self) + 1)

    @property
    def takes_words(self) -> bool:
        """Whether samples are rows of integers, which stay what they are."""
        return False

    @property
    def flattens(self) -> bool:
        """Whether a sample of any shape is taken as a row of numbers."""
        return False

    def try_on(self, X: Tensor) -> None:  # noqa: B027 (a perceptron has said it all)
        """Refuse samples that the model cannot take, before any work."""

    def blocks(self, layer: int) -> int:
        """How many matrices that do not see each other ``W_l`` is made of."""
        return 1

    def place(self, layer: int) -> str:
        """Where the layer stands in the model, for messages."""
        return f"layer {layer}"

    def statistics(self) -> dict[str, Tensor]:
        """Running statistics by name: the model's own."""
        return {}

    @property
    def dtype(self) -> torch.dtype:
        return self.weight(1).dtype

    @property
    def device(self) -> torch.device:
        return self.weight(1).device

    def in_full_precision(self) -> AbstractContextManager[Any]:
        """What is computed inside has the model's own precision, also where the caller has autocast switched on."""
        return torch.autocast(self.device.type, enabled=False)

    def refuse_changes(self, *, hooks: bool) -> None:
        """Refuse to go on with a model that is no longer the one that was read: what was replaced is not trained.

        ``hooks`` may be there where the model itself is called.
        """
        if not hooks:
            self.refuse_hooks()
        self.refuse_replaced()
        if (self.dtype, self.device) != self.kind:
            raise RuntimeError(
                f"the model is {self.dtype} on {self.device}, but was {self.kind[0]} on {self.kind[1]} when the run "
                f"was started; {START_ANEW}"
            )

    def refuse_beyond(self, **settings: float) -> None:
        """Refuse settings that the numbers of the model are multiplied by, and cannot hold."""
        for name, value in settings.items():
            if value > torch.finfo(self.dtype).max:
                raise ValueError(f"{name} is {value:g}, which is beyond {self.dtype}; give less, or a model in float64")

    def refuse_hooks(self) -> None:
        """Refuse forward hooks: the updates of the method do not call them, and a forward pass to evaluate would."""
        for name, module in self.model.named_modules():
            if module._forward_hooks or module._forward_pre_hooks:
                where = f"module {name} ({type(module).__name__})" if name else "the model"
                raise UnsupportedModelError(
                    f"{where} has a forward hook, which the updates of the method do not call; remove it until the "
                    "training is over (the handle that registering it gave has remove())"
                )

    def own(self) -> Weights:
        """The model's own weights and statistics, no copies."""
        W = {l: self.weight(l) for l in self.numbers}
        return Weights(W, {l: self.bias(l) for l in self.numbers}, self.statistics())

    def refuse_broken(self) -> None:
        """Refuse weights that hold NaN or infinity."""
        own = self.own()
        for l in self.numbers:
            for name, tensor in (("weight", own.W[l]), ("bias", own.b[l])):
                # A sum is cheap and tells; only that of finite numbers may overflow all the same.
                if tensor is not None and not all_finite(tensor) and not bool(torch.isfinite(tensor).all()):
                    raise UnsupportedModelError(
                        f"{self.place(l)}: its {name} holds NaN or infinity; initialise the model again"
                    )

    def read(self) -> Weights:
        """Copies of the weights, biases and statistics."""
        self.refuse_broken()
        own = self.own()
        return Weights(
            {l: W.clone() for l, W in own.W.items()},
            {l: None if b is None else b.clone() for l, b in own.b.items()},
            {name: tensor.clone() for name, tensor in own.statistics.items()},
        )

    def write(
        self, W: dict[int, Tensor], b: dict[int, Tensor | None], statistics: dict[str, Tensor] | None = None
    ) -> None:
        """Copy weights, biases and statistics into the model, in place, all of them even if Ctrl-C comes in between."""
        try:
            self._copy(W, b, statistics or {})
        except KeyboardInterrupt:
            self._copy(W, b, statistics or {})
            raise

    @torch.no_grad()
    def _copy(self, W: dict[int, Tensor], b: dict[int, Tensor | None], statistics: dict[str, Tensor]) -> None:
        own = self.own()
        for l, tensor in W.items():
            own.W[l].copy_(tensor)
        for l, tensor_or_none in b.items():
            bias = own.b[l]
            if bias is not None and tensor_or_none is not None:
                bias.copy_(tensor_or_none)
        for name, tensor in statistics.items():
            own.statistics[name].copy_(tensor)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, the model computes as it does for a user: Dropout is off, BatchNorm has its running statistics."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in flags:
            module.training = False
        yield
    finally:
        for module, flag in flags:
            module.training = flag
