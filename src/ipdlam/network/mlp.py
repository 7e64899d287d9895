"""A perceptron seen as the layers of the paper's method; what has no exact update is refused by name and position."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ipdlam.errors import UnsupportedModelError
from ipdlam.network.layers import LinearNode
from ipdlam.network.model import START_ANEW, ModelView
from ipdlam.network.nodes import Activate, Constant, Input, Plain, Reshape, Same, describe_activation
from ipdlam.network.trace import place_of, trace, unwrapped
from ipdlam.prox import ACTIVATIONS, Activation, Identity

MINI_BATCHES = "ipdlam.MiniBatchIPDLAM trains models with it"
CHUNK_BYTES = 12_000_000  # a chunk of the widest layer: small enough for the cache, large enough for fast products
MAX_CHUNK = 8192


@dataclass(frozen=True)
class Layer:
    """Layer ``l``: ``z_l = a_(l-1) W_l^T + b_l`` and, but for the last, ``a_l = activation(z_l)``."""

    place: str
    linear: nn.Linear
    activation: Activation | None

    @property
    def marks(self) -> tuple[str, int, dict[str, Any] | None]:
        """What tells this layer from another."""
        activation = None if self.activation is None else describe_activation(self.activation)
        return self.place, id(self.linear), activation

    @property
    def inputs(self) -> int:
        return self.linear.in_features

    @property
    def outputs(self) -> int:
        return self.linear.out_features


class Network(ModelView):
    """The layers of a perceptron, numbered from 1 as in the paper; a Flatten before them takes samples of any shape."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.core = unwrapped(model) if isinstance(model, nn.Module) else model
        self.layers, self._flattens = read_layers(self.core)
        check_parameters(self.layers)
        self.kind = (self.dtype, self.device)
        self.inputs = self.layers[0].inputs
        self.outputs = self.layers[-1].outputs

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, layer: int) -> Layer:
        return self.layers[layer - 1]

    @property
    def flattens(self) -> bool:
        return self._flattens

    @property
    def chunk_size(self) -> int:
        widest = max(max(layer.inputs, layer.outputs) for layer in self.layers)
        return max(64, min(MAX_CHUNK, CHUNK_BYTES // (widest * self.dtype.itemsize)))

    def activation(self, layer: int) -> Activation:
        """The activation of a hidden layer."""
        activation = self[layer].activation
        assert activation is not None
        return activation

    def weight(self, layer: int) -> Tensor:
        return self[layer].linear.weight.detach()

    def bias(self, layer: int) -> Tensor | None:
        bias: Tensor | None = self[layer].linear.bias
        return None if bias is None else bias.detach()

    def place(self, layer: int) -> str:
        return self[layer].place

    def refuse_replaced(self) -> None:
        now, _ = read_layers(self.core)
        for before, layer in zip(self.layers, now, strict=False):
            if before.marks != layer.marks:  # an activation of the user's need not know when it equals another
                what = "is another layer" if before.linear is not layer.linear else "has another name or activation"
                raise RuntimeError(f"{layer.place} {what} than when the run was started; {START_ANEW}")
        if len(now) != len(self.layers):
            raise RuntimeError(
                f"the model has {len(now)} layers, but had {len(self.layers)} when the run was started; {START_ANEW}"
            )

    def to_dict(self) -> dict[str, Any]:
        return {
            "dtype": str(self.dtype).removeprefix("torch."),
            "layers": [
                {
                    "inputs": layer.inputs,
                    "outputs": layer.outputs,
                    "bias": layer.linear.bias is not None,
                    "activation": None if layer.activation is None else describe_activation(layer.activation),
                }
                for layer in self.layers
            ],
        }


def flatten(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The modules of a Sequential in order, nested ones opened, with their places."""
    for name, module in model._modules.items():  # named_children() would hide a module that is used twice
        if type(module) is nn.Sequential:
            yield from flatten(module, f"{prefix}{name}.")
        elif module is not None:
            yield place_of(f"{prefix}{name}", module), module


def read_layers(model: nn.Module) -> tuple[tuple[Layer, ...], bool]:
    """Pairs of Linear and activation, and whether samples are flattened first.

    Two Linear layers in a row have the identity between them.
    """
    if not isinstance(model, nn.Module):
        raise UnsupportedModelError(f"model must be an nn.Module, got {type(model).__name__}")
    if type(model).forward is nn.Sequential.forward:
        pieces, flattens = list(flatten(model)), False
        while pieces and type(pieces[0][1]) in (nn.Flatten, nn.Unflatten):  # one may undo the other
            flattens = flattens or (isinstance(pieces[0][1], nn.Flatten) and pieces[0][1].start_dim == 1)
            pieces = pieces[1:]
    else:
        pieces, flattens = traced_layers(model)
    by_module = {activation.module: activation for activation in ACTIVATIONS.values() if hasattr(activation, "module")}
    found: list[tuple[str, nn.Linear, Activation | None]] = []
    place = ""
    for place, module in pieces:
        if type(module) is nn.Linear:
            if found and found[-1][2] is None:
                found[-1] = (*found[-1][:2], Identity())
            found.append((place, module, None))
        elif type(module) in by_module or isinstance(module, Activation):
            if not found or found[-1][2] is not None:
                raise UnsupportedModelError(
                    f"{place} must follow a Linear layer, "
                    f"but {'another activation stands before it' if found else 'it comes first'}"
                )
            try:
                known = module if isinstance(module, Activation) else by_module[type(module)].from_module(module)
            except ValueError as error:
                raise UnsupportedModelError(f"{place}: {error}") from error
            found[-1] = (*found[-1][:2], known)
        else:
            raise UnsupportedModelError(f"{place} is not supported: {remedy_for(module, by_module)}")
    if not found:
        raise UnsupportedModelError("model holds no Linear layer")
    if found[-1][2] is not None:
        raise UnsupportedModelError(
            f"{place} ends the model, but the last layer must be Linear: the loss acts on z_L itself; remove it"
        )
    return tuple(Layer(place, linear, activation) for place, linear, activation in found), flattens


def remedy_for(module: nn.Module, activations: Iterable[type[nn.Module]]) -> str:
    """What to do about a module that the paper's method has no exact update for."""
    if isinstance(module, (nn.Softmax, nn.LogSoftmax)):
        return 'remove it: loss="cross_entropy" applies the softmax itself'
    if isinstance(module, nn.Flatten):
        return "it can only come first"
    try:
        trace(nn.Sequential(module))
    except UnsupportedModelError as error:  # by no method of the library
        return str(error).rpartition(" is not supported: ")[2]
    known = ", ".join(sorted(kind.__name__ for kind in activations))
    return f"the paper's method has Linear layers and the activations {known} alone; {MINI_BATCHES}"


def traced_layers(model: nn.Module) -> tuple[list[tuple[str, Any]], bool]:
    """The same of a model with a forward of its own, if that is a chain."""
    found: list[tuple[str, Any]] = []
    flattens = False
    for number, node in enumerate(trace(model)):
        chained = [source for source in node.sources if source == number - 1]
        if isinstance(node, Input):
            continue
        if isinstance(node, (LinearNode, Activate, Same)) and not node.passes:
            raise UnsupportedModelError(
                f"{node.place} stands under torch.no_grad in forward, but the method updates every layer; write it "
                "without, or use ipdlam.MiniBatchIPDLAM, which keeps layers that are frozen"
            )
        if isinstance(node, Reshape) and not found:
            flattens = True
        elif isinstance(node, Same) and chained:
            continue
        elif isinstance(node, LinearNode) and (chained or (flattens and not found)):
            found.append((node.place, node.module))
        elif isinstance(node, Activate) and chained:
            found.append((node.place, node.activation))
        elif not isinstance(node, (Plain, Constant)):  # such as x.shape of x.view(x.shape[0], -1)
            raise UnsupportedModelError(
                f"{node.place} is not supported: the paper's method has Linear layers and activations alone, one after "
                f"the other; {MINI_BATCHES}"
            )
    return found, flattens


def check_parameters(layers: tuple[Layer, ...]) -> None:
    """Refuse frozen, shared, half-precision, meta and mixed parameters, and layers that do not fit together."""
    owners: dict[int, str] = {}
    first = layers[0].linear.weight
    for layer, before in zip(layers, (None, *layers[:-1]), strict=True):
        if layer.inputs == 0 or layer.outputs == 0:
            raise UnsupportedModelError(
                f"{layer.place} has {layer.inputs} inputs and {layer.outputs} outputs; it needs one"
            )
        if before is not None and before.outputs != layer.inputs:
            raise UnsupportedModelError(
                f"{before.place} has {before.outputs} outputs but {layer.place} takes {layer.inputs} inputs"
            )
        for kind in ("weight", "bias"):
            check_parameter(layer.place, layer.linear, kind, first, owners, frozen=False)


def check_parameter(
    place: str, module: nn.Module, kind: str, first: Tensor, owners: dict[int, str], *, frozen: bool
) -> None:
    """Refuse a parameter that cannot be changed in place, or is not of the kind of the ``first`` one.

    ``owners`` are those seen so far, by address. Where ``frozen`` ones are allowed, they stay as they are.
    """
    where = f"{place}: its {kind}"
    parameter = module._parameters.get(kind)
    if parameter is None:
        if isinstance(getattr(module, kind, None), Tensor):
            raise UnsupportedModelError(f"{where} is computed from other parameters; remove the parametrization")
        return
    if parameter.device.type == "meta":
        raise UnsupportedModelError(
            f"{where} is on the meta device and holds no values; call model.to_empty(device='cpu') and initialise it"
        )
    if parameter.is_inference() and not torch.is_inference_mode_enabled():
        raise UnsupportedModelError(
            f"{where} was made in torch.inference_mode() and cannot be changed outside of it; make the model "
            "without that mode, or take copy.deepcopy(model)"
        )
    if parameter.dtype not in (torch.float32, torch.float64):
        raise UnsupportedModelError(f"{where} is {parameter.dtype}; call model.float() or model.double()")
    if not frozen and not parameter.requires_grad:
        raise UnsupportedModelError(
            f"{where} is frozen (requires_grad=False), but the method updates every layer; unfreeze it, or use "
            "ipdlam.MiniBatchIPDLAM, which keeps it as it is"
        )
    if (parameter.dtype, parameter.device) != (first.dtype, first.device):
        raise UnsupportedModelError(
            f"{where} is {parameter.dtype} on {parameter.device}, "
            f"the first layer is {first.dtype} on {first.device}; use one of each"
        )
    if parameter.data_ptr() in owners and parameter.numel():
        raise UnsupportedModelError(
            f"{where} is shared with {owners[parameter.data_ptr()]}; tied weights are not supported"
        )
    owners[parameter.data_ptr()] = f"the {kind} of {place}"
