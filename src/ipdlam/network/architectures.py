"""Networks for images by name: what ``ipdlam train --network`` and the benchmarks are about.

Each takes pictures ``(N, channels, height, width)`` and gives ``outputs`` numbers for each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Union

from torch import Tensor, nn

Shape = tuple[int, int, int]  # channels, height, width


def halved(shape: Shape, times: int) -> int:
    """The pixels that so many max-pools leave of a picture."""
    _, height, width = shape
    left = (height >> times) * (width >> times)
    if not left:
        raise ValueError(f"{times} max-pools leave nothing of {height} x {width} pixels")
    return left


def cnn(shape: Shape, outputs: int) -> nn.Sequential:
    """Two convolutions of 32 and 64 channels, each with a max-pool, and a hidden layer of 128 units."""
    channels = shape[0]
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Flatten(),
        *(nn.Linear(64 * halved(shape, 2), 128), nn.ReLU()),
        nn.Linear(128, outputs),
    )


def vgg5(shape: Shape, outputs: int) -> nn.Sequential:
    """Four convolutions of 128, 256, 512 and 512 channels, each with a max-pool, and a Linear layer."""
    channels = shape[0]
    modules: list[nn.Module] = []
    for wide in (128, 256, 512, 512):
        modules += [nn.Conv2d(channels, wide, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        channels = wide
    return nn.Sequential(*modules, nn.Flatten(), nn.Linear(channels * halved(shape, 4), outputs))


class Block(nn.Module):
    """Two convolutions with norms, and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The block and its shortcut, added."""
        found = self.relu(self.bn1(self.conv1(x)))
        found = self.bn2(self.conv2(found))
        added: Tensor = self.relu(found + self.shortcut(x))
        return added


def resnet8(shape: Shape, outputs: int) -> nn.Sequential:
    """A convolution, residual blocks of 16, 32 and 64 channels, a mean over all pixels, and a Linear layer."""
    return nn.Sequential(
        *(nn.Conv2d(shape[0], 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, outputs)),
    )


ARCHITECTURES: dict[str, Callable[[Shape, int], Union[nn.Sequential, nn.Module]]] = {
    "cnn": cnn,
    "vgg5": vgg5,
    "resnet8": resnet8,
}
"""Name to a function of the shape of a picture and the number of outputs."""
