"""The nodes with parameters: how they compute, pull, and what a step of their weights is made of.

Every layer is linear in its weights: its outputs are ``rows W^T + b`` for some rows of its inputs (a convolution's are
its patches, a norm's the normalised numbers). ``product`` is the wish for the outputs times these rows, which is what
back-propagation calls the gradient; ``memory_rows`` are what the metric of the weights is made of.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ipdlam.errors import UnsupportedModelError
from ipdlam.network.arithmetic import PLAIN, Products
from ipdlam.network.blocks import BlockLinear, block_product, merge, split
from ipdlam.network.nodes import Drawing, Node, Pulling, Wish

GOLDEN = 0.6180339887498949
aten = torch.ops.aten


def in_training(module: nn.Module, model: nn.Module) -> bool:
    """Whether a module is to compute as in training: not if it alone was put in evaluation mode.

    A model that is in that mode as a whole is trained all the same.
    """
    return module.training or not model.training


class LayerNode(Node):
    """A node with a weight and perhaps a bias; those that are frozen stay as they are."""

    diagonal = False  # whether the metric has a number for every weight instead of a matrix
    per_row = True  # whether each row of the inputs is one row of the metric, and has one row of outputs
    blocks = 1  # layers side by side that it is made of, each with a part of its inputs and a metric of its own
    arithmetic = PLAIN  # how the graph takes products

    def __init__(self, place: str, sources: Sequence[int], module: nn.Module, model: nn.Module) -> None:
        super().__init__(place, sources)
        self.module, self.model = module, model  # and the model that it is a part of

    @property
    def weight(self) -> Tensor:
        """W, the model's own."""
        weight: Tensor | None = self.module.weight  # type: ignore[assignment]
        return weight if weight is None else weight.detach()  # type: ignore[return-value]  # a norm may have none

    @property
    def bias(self) -> Tensor | None:
        """b, the model's own."""
        bias: Tensor | None = self.module.bias if hasattr(self.module, "bias") else None  # type: ignore[assignment]
        return None if bias is None else bias.detach()

    @property
    def products(self) -> Products:
        """How products with its weight are taken: the pass, the pull and the gradient, but no measured effects."""
        return PLAIN if self.arithmetic is PLAIN else self.arithmetic.of(self.weight)

    def steps(self, kind: str) -> bool:
        """Whether its ``weight`` or ``bias`` is to be trained."""
        parameter = self.module._parameters.get(kind)
        return parameter is not None and parameter.requires_grad

    @property
    def trains(self) -> bool:
        """Whether any of it is."""
        return self.steps("weight") or self.steps("bias")

    @property
    def width(self) -> int:
        """Inputs of a row: what one output is a sum of."""
        weight = self.weight
        return math.prod(weight.shape[1:])

    @abstractmethod
    def memory_rows(self, x: Tensor, batch: int, rows: int, positions: Tensor | None) -> Tensor:
        """Rows of the inputs, as many for each sample, that say how they vary.

        ``batch`` is the number of the batch, which has so many ``rows`` on all processes together; ``positions`` are
        those of the samples here among them, None where all are here, or where the inputs are made of no sample.
        """

    @abstractmethod
    def product(self, wish: Tensor, x: Tensor, kept: Any) -> tuple[Tensor, Tensor | None]:
        """The sum over rows of wish times inputs, as a matrix, and that of the wishes where a bias is to be trained."""

    @abstractmethod
    def effect(self, x: Tensor, kept: Any, change: Tensor, shift: Tensor | None) -> Tensor:
        """What a change of the weights, as a matrix, and of the bias does to the outputs."""

    def statistics(self) -> dict[str, Tensor]:
        """Running statistics by name: the model's own."""
        return {}

    def commit(self, kept: Any) -> None:
        """Take the batch of a pass into the running statistics."""

    def describe(self) -> dict[str, Any]:
        shape = None if self.weight is None else list(self.weight.shape)
        module = type(self.module).__name__
        return {**super().describe(), "module": module, "weight": shape, "bias": self.bias is not None}


class LinearNode(LayerNode):
    """``z = a W^T + b`` for every row of numbers; a sample may have several."""

    def run(self, inputs: Sequence[Any], drawing: Drawing | None) -> tuple[Any, Any]:
        products = self.products
        W = products.operand(self.weight)
        z = products.affine(functional.linear, inputs[0], W, self.bias)
        return z, None if drawing is None or products.narrow is None else W  # the pull needs it again

    def pull(self, wish: Any, inputs: Sequence[Any], output: Any, kept: Any, pulling: Pulling) -> Sequence[Wish | None]:
        return (self.products.mm(wish, self.weight if kept is None else kept),)

    def memory_rows(self, x: Tensor, batch: int, rows: int, positions: Tensor | None) -> Tensor:
        return x.reshape(-1, x.shape[-1])

    def product(self, wish: Tensor, x: Tensor, kept: Any) -> tuple[Tensor, Tensor | None]:
        wish, x = wish.reshape(-1, wish.shape[-1]), x.reshape(-1, x.shape[-1])
        return self.products.mm(wish.mT, x), wish.sum(0) if self.steps("bias") else None

    def effect(self, x: Tensor, kept: Any, change: Tensor, shift: Tensor | None) -> Tensor:
        return functional.linear(x, change, shift)

    @property
    def inputs(self) -> int:
        """How many numbers a row of its inputs has."""
        return self.blocks * self.width

    def split(self, x: Tensor) -> Tensor:
        """Rows of numbers, inputs or outputs, as those of every block: one more dimension where there are several."""
        return x

    def merge(self, x: Tensor) -> Tensor:
        """The rows of every block as rows of numbers again."""
        return x


class BlockLinearNode(LinearNode):
    """Linear layers side by side: rows of each block are rows of a metric of its own."""

    module: BlockLinear

    def __init__(self, place: str, sources: Sequence[int], module: nn.Module, model: nn.Module) -> None:
        super().__init__(place, sources, module, model)
        self.blocks = self.module.blocks

    @property
    def products(self) -> Products:
        return PLAIN

    def run(self, inputs: Sequence[Any], drawing: Drawing | None) -> tuple[Any, Any]:
        return block_product(inputs[0], self.weight, self.bias, self.blocks), None

    def pull(self, wish: Any, inputs: Sequence[Any], output: Any, kept: Any, pulling: Pulling) -> Sequence[Wish | None]:
        return (merge(torch.bmm(self.split(wish), self.weight.view(self.blocks, -1, self.width))),)

    def memory_rows(self, x: Tensor, batch: int, rows: int, positions: Tensor | None) -> Tensor:
        return self.split(x)

    def product(self, wish: Tensor, x: Tensor, kept: Any) -> tuple[Tensor, Tensor | None]:
        total = wish.sum(0) if self.steps("bias") else None
        return torch.bmm(self.split(wish).mT, self.split(x)).flatten(0, 1), total

    def effect(self, x: Tensor, kept: Any, change: Tensor, shift: Tensor | None) -> Tensor:
        return block_product(x, change, shift, self.blocks)

    def split(self, x: Tensor) -> Tensor:
        return split(x, self.blocks)

    def merge(self, x: Tensor) -> Tensor:
        return merge(x)


class ConvNode(LayerNode):
    """A convolution, which is a linear layer on patches: ``C k k`` inputs a row, one row for each position."""

    per_row = False
    POSITIONS = 2048  # rows of the memory from a batch, some of each image

    def __init__(self, place: str, sources: Sequence[int], module: nn.Module, model: nn.Module) -> None:
        super().__init__(place, sources, module, model)
        assert isinstance(module, (nn.Conv1d, nn.Conv2d))
        if module.padding_mode != "zeros":
            raise UnsupportedModelError(
                f"{place}: padding_mode {module.padding_mode!r} is not supported; use 'zeros', or pad before the layer"
            )
        self.groups, self.dims = module.groups, 1 if isinstance(module, nn.Conv1d) else 2
        self.stride, self.dilation = list(module.stride), list(module.dilation)
        kernel = list(module.kernel_size)
        if isinstance(module.padding, str):
            total = [d * (k - 1) if module.padding == "same" else 0 for d, k in zip(self.dilation, kernel, strict=True)]
            if any(number % 2 for number in total):
                raise UnsupportedModelError(
                    f"{place}: padding 'same' of a kernel of {kernel} is not the same on both sides; use an odd kernel"
                )
            self.padding = [number // 2 for number in total]
        else:
            self.padding = [int(number) for number in module.padding]

    def run(self, inputs: Sequence[Any], drawing: Drawing | None) -> tuple[Any, Any]:
        return self.products.affine(self._convolve, inputs[0], self.weight, self.bias, after=self.dims), None

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        convolve = functional.conv1d if self.dims == 1 else functional.conv2d
        return convolve(channels_last(x), weight, bias, self.stride, self.padding, self.dilation, self.groups)

    def _adjoint(self, wish: Tensor, x: Tensor, which: int) -> Tensor:
        """The wish for the inputs (0) or the product with them (1)."""
        products, W = self.products, self.weight
        window = (self.stride, self.padding, self.dilation, False, [0] * self.dims, self.groups)
        operands = (products.operand(wish), channels_last(products.operand(x)), products.operand(W))
        found = aten.convolution_backward(*operands, [len(W)], *window, [which == 0, which == 1, False])
        return products.result(found[which])

    def pull(self, wish: Any, inputs: Sequence[Any], output: Any, kept: Any, pulling: Pulling) -> Sequence[Wish | None]:
        return (self._adjoint(wish, inputs[0], 0),)

    def memory_rows(self, x: Tensor, batch: int, rows: int, positions: Tensor | None) -> Tensor:
        """Patches at positions that differ from image to image and from batch to batch."""
        if self.dims == 1:
            x = x.unsqueeze(-2)
        two = [[1, *self.stride], [0, *self.padding], [1, *self.dilation], [1, *self.weight.shape[2:]]]
        stride, padding, dilation, kernel = ([int(n) for n in values[-2:]] for values in two)
        x = functional.pad(x, (padding[1], padding[1], padding[0], padding[0]))
        reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
        high, wide = ((x.shape[2 + i] - reach[i]) // stride[i] + 1 for i in (0, 1))
        s = x.stride()
        patches = x.as_strided(
            (x.shape[0], high, wide, x.shape[1], *kernel),
            (s[0], s[2] * stride[0], s[3] * stride[1], s[1], s[2] * dilation[0], s[3] * dilation[1]),
        )
        each = max(1, min(high * wide, self.POSITIONS // max(1, rows)))
        here = torch.arange(len(x), device=x.device)
        samples = here if positions is None else positions  # a sample has the same patches wherever it is held
        numbers = (samples.unsqueeze(1) * each + torch.arange(each, device=x.device)).flatten()
        spread = ((numbers.double() + 1.0) * GOLDEN + batch * GOLDEN * GOLDEN) % 1.0
        position = (spread * (high * wide)).long().clamp_max_(high * wide - 1)
        found = patches[here.repeat_interleave(each), position // wide, position % wide]
        return found.reshape(-1, self.width)  # groups share a metric: their patches are rows of one kind

    def product(self, wish: Tensor, x: Tensor, kept: Any) -> tuple[Tensor, Tensor | None]:
        product = self._adjoint(wish, x, 1)
        # torch's own kernel takes the sum, too, in three times as long.
        total = wish.sum([0, *range(2, wish.ndim)]) if self.steps("bias") else None
        return product.reshape(len(product), -1), total

    def effect(self, x: Tensor, kept: Any, change: Tensor, shift: Tensor | None) -> Tensor:
        return self._convolve(x, change.reshape(self.weight.shape), shift)

    def describe(self) -> dict[str, Any]:
        own = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "groups": self.groups}
        return {**super().describe(), **own}


def channels_last(x: Tensor) -> Tensor:
    """Pictures with the channels of a pixel side by side, which is how processors like them.

    Convolutions hand the layout on: here they take some 0.7 of the time, and a max-pool a tenth.
    """
    if x.ndim != 4 or x.device.type != "cpu":
        return x
    if x.shape[1] == 1 and x.is_contiguous():  # either layout; the strides say which one is meant
        return x.as_strided(x.shape, (x.stride(0), 1, x.stride(2), x.stride(3)))
    return x.contiguous(memory_format=torch.channels_last)


class NormNode(LayerNode):
    """A normalisation, and a scale and a shift for each number: a diagonal linear layer on what is normalised.

    What is normalised has mean 0 and deviation 1, so that the metric of the scales is the identity.
    """

    diagonal = True
    per_row = False
    _pulled: tuple[Tensor, Tensor] | None = None  # a wish and its pull, which one kernel gives with the product

    def memory_rows(self, x: Tensor, batch: int, rows: int, positions: Tensor | None) -> Tensor:
        return x.new_zeros(0, 1)

    @property
    def width(self) -> int:
        return 1

    @abstractmethod
    def _adjoint(self, wish: Tensor, x: Tensor, kept: Any, mask: list[bool]) -> Sequence[Tensor]:
        """The wish for the inputs, the sum of wish times normalised inputs, and the sum of the wishes."""

    @abstractmethod
    def _normalised(self, x: Tensor, kept: Any) -> Tensor:
        """The first samples as they are before scale and shift."""

    def _spread(self, numbers: Tensor, like: Tensor) -> Tensor:
        """One number for each scale, in the shape of the inputs."""
        return numbers

    def pull(self, wish: Any, inputs: Sequence[Any], output: Any, kept: Any, pulling: Pulling) -> Sequence[Wish | None]:
        if self._pulled is not None and self._pulled[0] is wish:
            pulled, self._pulled = self._pulled[1], None
            return (pulled,)
        return (self._adjoint(wish, inputs[0], kept, [True, False, False])[0],)

    def product(self, wish: Tensor, x: Tensor, kept: Any) -> tuple[Tensor, Tensor | None]:
        pulled, product, total = self._adjoint(wish, x, kept, [any(self.wanted), True, True])
        self._pulled = (wish, pulled) if any(self.wanted) else None
        return product, total if self.steps("bias") else None

    def effect(self, x: Tensor, kept: Any, change: Tensor, shift: Tensor | None) -> Tensor:
        moved = self._normalised(x, kept) * self._spread(change, x)
        return moved if shift is None else moved + self._spread(shift, x)


class BatchNormNode(NormNode):
    """BatchNorm1d and 2d, by the statistics of the batch; running statistics are kept as PyTorch keeps them."""

    module: Any
    sees_rows = False  # whether a sample has one number of a channel; known when the graph was tried

    def __init__(self, place: str, sources: Sequence[int], module: nn.Module, model: nn.Module) -> None:
        super().__init__(place, sources, module, model)
        self.eps = float(self.module.eps)

    @property
    def by_batch(self) -> bool:
        """Whether the statistics are the batch's; a module that was put in evaluation mode has its own."""
        return in_training(self.module, self.model) or self.module.running_mean is None

    def run(self, inputs: Sequence[Any], drawing: Drawing | None) -> tuple[Any, Any]:
        x = inputs[0]
        if (drawing is None and self.module.running_mean is not None) or not self.by_batch:
            mean, deviation = self.module.running_mean, self.module.running_var
            found = functional.batch_norm(x, mean, deviation, self.weight, self.bias, False, 0.0, self.eps)
            return found, (mean.clone(), (deviation + self.eps).rsqrt(), False, 0)
        count = x.numel() // max(1, x.shape[1])
        if count <= 1:
            raise ValueError(
                f"{self.place} needs more than one number of a channel, and got the shape {tuple(x.shape)}: leave out "
                "batches of one sample (another batch_size, or drop_last=True of a DataLoader), or use GroupNorm"
            )
        found, mean, inverse = aten.native_batch_norm(x, self.weight, self.bias, None, None, True, 0.0, self.eps)
        return found, (mean, inverse, True, count)

    def _adjoint(self, wish: Tensor, x: Tensor, kept: Any, mask: list[bool]) -> Sequence[Tensor]:
        mean, inverse, by_batch, _ = kept
        if by_batch:
            found: Sequence[Tensor] = aten.native_batch_norm_backward(
                wish, x, self.weight, None, None, mean, inverse, True, self.eps, mask
            )
            return found
        axes = [axis for axis in range(x.ndim) if axis != 1]
        scale = inverse if self.module.weight is None else self.weight * inverse
        pulled = wish * self._spread(scale, x) if mask[0] else wish.new_zeros(0)
        product = (wish * self._normalised(x, kept)).sum(axes) if mask[1] else wish.new_zeros(0)
        return pulled, product, wish.sum(axes) if mask[2] else wish.new_zeros(0)

    def _normalised(self, x: Tensor, kept: Any) -> Tensor:
        mean, inverse, _, _ = kept
        return (x - self._spread(mean, x)) * self._spread(inverse, x)

    def _spread(self, numbers: Tensor, like: Tensor) -> Tensor:
        return numbers.reshape(1, -1, *(1,) * (like.ndim - 2))

    def statistics(self) -> dict[str, Tensor]:
        names = ("running_mean", "running_var", "num_batches_tracked")
        found = {name: getattr(self.module, name) for name in names}
        return {name: tensor.view(-1) for name, tensor in found.items() if tensor is not None}  # a file has rows

    def commit(self, kept: Any) -> None:
        mean, inverse, by_batch, count = kept
        module = self.module
        if not by_batch or module.running_mean is None:
            return
        module.num_batches_tracked.add_(1)
        new = 1.0 / float(module.num_batches_tracked) if module.momentum is None else float(module.momentum)
        variance = inverse.pow(-2).sub_(self.eps).mul_(count / (count - 1.0))
        module.running_mean.lerp_(mean.to(module.running_mean), new)
        module.running_var.lerp_(variance.to(module.running_var), new)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "eps": self.eps, "momentum": self.module.momentum}


class LayerNormNode(NormNode):
    """LayerNorm over the last dimensions of each sample."""

    module: Any

    def run(self, inputs: Sequence[Any], drawing: Drawing | None) -> tuple[Any, Any]:
        shape, module = list(self.module.normalized_shape), self.module
        found, mean, inverse = aten.native_layer_norm(inputs[0], shape, self.weight, self.bias, module.eps)
        return found, (mean, inverse)

    def _adjoint(self, wish: Tensor, x: Tensor, kept: Any, mask: list[bool]) -> Sequence[Tensor]:
        shape, bias = list(self.module.normalized_shape), self.bias
        if bias is None:
            bias = torch.zeros_like(self.weight)
        found: Sequence[Tensor] = aten.native_layer_norm_backward(
            wish.contiguous(), x, shape, *kept, self.weight, bias, mask
        )
        return found

    def _normalised(self, x: Tensor, kept: Any) -> Tensor:
        return functional.layer_norm(x, list(self.module.normalized_shape), eps=self.module.eps)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "eps": self.module.eps}


class GroupNormNode(NormNode):
    """GroupNorm over groups of channels of each sample."""

    module: Any

    def run(self, inputs: Sequence[Any], drawing: Drawing | None) -> tuple[Any, Any]:
        x = inputs[0].contiguous()
        found, mean, inverse = aten.native_group_norm(x, self.weight, self.bias, *self._sizes(x), self.module.eps)
        return found, (mean, inverse)

    def _sizes(self, x: Tensor) -> tuple[int, int, int, int]:
        samples, channels = x.shape[:2]
        return samples, channels, math.prod(x.shape[2:]), self.module.num_groups

    def _adjoint(self, wish: Tensor, x: Tensor, kept: Any, mask: list[bool]) -> Sequence[Tensor]:
        found: Sequence[Tensor] = aten.native_group_norm_backward(
            wish.contiguous(), x.contiguous(), *kept, self.weight, *self._sizes(x), mask
        )
        return found

    def _normalised(self, x: Tensor, kept: Any) -> Tensor:
        return functional.group_norm(x, self.module.num_groups, eps=self.module.eps)

    def _spread(self, numbers: Tensor, like: Tensor) -> Tensor:
        return numbers.reshape(1, -1, *(1,) * (like.ndim - 2))

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "groups": self.module.num_groups, "eps": self.module.eps}


class EmbeddingNode(LayerNode):
    """A row of the weight for every word; the metric has the frequency of each."""

    diagonal = True
    per_row = False
    module: Any

    def __init__(self, place: str, sources: Sequence[int], module: nn.Module, model: nn.Module) -> None:
        super().__init__(place, sources, module, model)
        if self.module.max_norm is not None or self.module.scale_grad_by_freq or self.module.sparse:
            raise UnsupportedModelError(
                f"{place}: max_norm, scale_grad_by_freq and sparse are not supported; make the Embedding without them"
            )

    @property
    def width(self) -> int:
        return int(self.weight.shape[0])

    def run(self, inputs: Sequence[Any], drawing: Drawing | None) -> tuple[Any, Any]:
        return functional.embedding(inputs[0], self.weight), None

    def pull(self, wish: Any, inputs: Sequence[Any], output: Any, kept: Any, pulling: Pulling) -> Sequence[Wish | None]:
        return (None,)

    def memory_rows(self, x: Tensor, batch: int, rows: int, positions: Tensor | None) -> Tensor:
        return x.reshape(-1)

    def product(self, wish: Tensor, x: Tensor, kept: Any) -> tuple[Tensor, Tensor | None]:
        words, wish = x.reshape(-1), wish.reshape(-1, wish.shape[-1])
        product = torch.zeros_like(self.weight).index_add_(0, words, wish)
        if self.module.padding_idx is not None:
            product[self.module.padding_idx].zero_()
        return product, None

    def effect(self, x: Tensor, kept: Any, change: Tensor, shift: Tensor | None) -> Tensor:
        return functional.embedding(x, change)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "padding_idx": self.module.padding_idx}


KINDS: dict[type[nn.Module], type[LayerNode]] = {
    nn.Linear: LinearNode,
    BlockLinear: BlockLinearNode,
    nn.Conv1d: ConvNode,
    nn.Conv2d: ConvNode,
    nn.BatchNorm1d: BatchNormNode,
    nn.BatchNorm2d: BatchNormNode,
    nn.LayerNorm: LayerNormNode,
    nn.GroupNorm: GroupNormNode,
    nn.Embedding: EmbeddingNode,
}
"""The modules with parameters that can be trained, and their nodes."""
