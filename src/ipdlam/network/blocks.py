"""Linear layers side by side that do not see each other: as one module, whose products are taken together."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class BlockLinear(nn.Module):
    """So many Linear layers, each with its own part of the inputs and of the outputs: ``(N, blocks inputs)`` in.

    The weight has a row for each output, as that of a convolution with groups: the matrix of a layer after that of
    another.

    >>> layer = BlockLinear(2, 3, 1)
    >>> x = torch.ones(4, 6)
    >>> one = nn.functional.linear(x[:, 3:], layer.weight[1:], layer.bias[1:])
    >>> torch.allclose(layer(x)[:, 1:], one)
    True
    """

    __constants__ = ("blocks", "inputs", "outputs")

    def __init__(self, blocks: int, inputs: int, outputs: int, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.blocks, self.inputs, self.outputs = blocks, inputs, outputs
        self.weight = nn.Parameter(torch.zeros(blocks * outputs, inputs, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(blocks * outputs, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return block_product(x, self.weight, self.bias, self.blocks)


def split(x: Tensor, blocks: int) -> Tensor:
    """``(N, blocks d)`` as ``(blocks, N, d)``: the same numbers, none of them moved."""
    return torch.unflatten(x, 1, (blocks, -1)).transpose(0, 1)


def merge(x: Tensor) -> Tensor:
    """``(blocks, N, d)`` as ``(N, blocks d)``."""
    return x.transpose(0, 1).reshape(x.shape[1], -1)


def block_product(x: Tensor, W: Tensor, b: Tensor | None, blocks: int) -> Tensor:
    """``x_k W_k^T + b_k`` of every block ``k``."""
    matrices = W.view(blocks, -1, W.shape[1]).mT
    if b is None:
        return merge(torch.bmm(split(x, blocks), matrices))
    return merge(torch.baddbmm(b.view(blocks, 1, -1), split(x, blocks), matrices))
