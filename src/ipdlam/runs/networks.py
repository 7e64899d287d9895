"""The networks of ``--network``: one of the library's by name, or what a function in a file of the user's gives."""

from __future__ import annotations

import importlib.util
import inspect
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ipdlam.network.architectures import ARCHITECTURES
from ipdlam.runs.config import ConfigError


@dataclass(frozen=True)
class NamedNetwork:
    """A network, and the shape of what it takes; rows of numbers are given that shape first."""

    name: str  # of the library, or file.py:function
    shape: tuple[int, ...]

    def make(self, outputs: int, seed: int) -> nn.Sequential:
        """The network with the weights that PyTorch draws after ``torch.manual_seed(seed)``."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = self._make(outputs)
        return nn.Sequential(nn.Unflatten(1, self.shape) if len(self.shape) > 1 else nn.Identity(), network)

    def shapes(self, outputs: int) -> dict[str, tuple[int, ...]]:
        """Those of its tensors, by name."""
        with torch.device("meta"):
            made = self.make(outputs, 0)
        return {name: tuple(tensor.shape) for name, tensor in made.state_dict().items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {"name": self.name, "shape": list(self.shape)}

    @classmethod
    def from_dict(cls, fields: Any, given: str | None) -> NamedNetwork:
        """The inverse; code of a file is run only where the user has ``given`` it."""
        name, shape = str(fields["name"]), tuple(int(number) for number in fields["shape"])
        if name not in ARCHITECTURES and given is None:
            raise ValueError(f"its network is made by {name}, whose code is not run unasked; say --network {name}")
        return cls(name if given is None else given, shape)

    def _make(self, outputs: int) -> nn.Module:
        if self.name not in ARCHITECTURES:
            return self._from_file(outputs)
        if len(self.shape) != 3:
            raise ConfigError(
                f"network {self.name} is for images; use --hidden for tables, or --network file.py:function"
            )
        channels, height, width = self.shape
        try:
            return ARCHITECTURES[self.name]((channels, height, width), outputs)
        except (RuntimeError, ValueError, ZeroDivisionError) as error:
            raise ConfigError(f"network {self.name} is too deep for images of {height} x {width}: {error}") from error

    def _from_file(self, outputs: int) -> nn.Module:
        file, _, function = self.name.rpartition(":")
        path = Path(os.path.expanduser(file))
        if not path.is_file():
            raise ConfigError(f"network {self.name}: there is no file {path}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
            make = getattr(module, function)
            takes = len(inspect.signature(make).parameters)
            model = make() if takes == 0 else make(self.shape, outputs)
        except Exception as error:
            raise ConfigError(f"network {self.name} cannot be made: {type(error).__name__}: {error}") from error
        if not isinstance(model, nn.Module):
            raise ConfigError(f"network {self.name} gives a {type(model).__name__}, but must give an nn.Module")
        self._try_out(model, outputs)
        return model

    def _try_out(self, model: nn.Module, outputs: int) -> None:
        """Refuse a model of other inputs or outputs before anything is trained."""
        if next(model.parameters(), torch.empty(0)).is_meta:
            return
        first = torch.zeros(2, *self.shape)
        try:
            with torch.no_grad():
                found = tuple(model.eval()(first).shape)
        except Exception as error:
            raise ConfigError(
                f"network {self.name} cannot take samples of the shape {self.shape}: {str(error).splitlines()[0]}"
            ) from error
        finally:
            model.train()
        if found != (2, outputs):
            raise ConfigError(
                f"network {self.name} gives outputs of the shape {found} for two samples, but (2, {outputs}) is needed"
            )
