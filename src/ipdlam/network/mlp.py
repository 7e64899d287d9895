"""An ``nn.Sequential`` seen as the layers of the method; what has no exact update is refused by name and position."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ipdlam.checks import fields_of
from ipdlam.errors import UnsupportedModelError
from ipdlam.prox import ACTIVATIONS, Activation, Identity

REMEDIES = {
    "Dropout": "remove it; against overfitting, MiniBatchIPDLAM has weight_decay, IPDLAM has regularizer, and fit of "
    "both has patience with validation_data",
    "BatchNorm1d": "remove it and standardise the inputs. MiniBatchIPDLAM brings the outputs of each layer to mean "
    "0 and deviation 1 when it starts",
    "Softmax": 'remove it: loss="cross_entropy" applies the softmax itself',
    "LogSoftmax": 'remove it: loss="cross_entropy" applies the softmax itself',
    "Flatten": "remove it and give X as a matrix, X.reshape(len(X), -1)",
}


START_ANEW = "call start(X, y) to train the model as it is"


@dataclass(frozen=True)
class Layer:
    """Layer ``l``: ``z_l = a_(l-1) W_l^T + b_l`` and, but for the last, ``a_l = activation(z_l)``."""

    name: str
    linear: nn.Linear
    activation: Activation | None

    @property
    def marks(self) -> tuple[str, int, dict[str, Any] | None]:
        """What tells this layer from another."""
        activation = None if self.activation is None else describe_activation(self.activation)
        return self.name, id(self.linear), activation

    @property
    def inputs(self) -> int:
        return self.linear.in_features

    @property
    def outputs(self) -> int:
        return self.linear.out_features


class Network:
    """The layers of a model, numbered from 1 as in the paper."""

    def __init__(self, model: nn.Sequential) -> None:
        self.model = model
        self.layers = read_layers(model)
        check_parameters(self.layers)
        self.kind = (self.dtype, self.device)

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, layer: int) -> Layer:
        return self.layers[layer - 1]

    @property
    def numbers(self) -> range:
        """1 ... L."""
        return range(1, len(self.layers) + 1)

    @property
    def dtype(self) -> torch.dtype:
        return self.layers[0].linear.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.layers[0].linear.weight.device

    @property
    def inputs(self) -> int:
        return self.layers[0].inputs

    @property
    def outputs(self) -> int:
        return self.layers[-1].outputs

    def activation(self, layer: int) -> Activation:
        """The activation of a hidden layer."""
        activation = self[layer].activation
        assert activation is not None
        return activation

    def weight(self, layer: int) -> Tensor:
        """``W_l``, the model's own."""
        return self[layer].linear.weight.detach()

    def bias(self, layer: int) -> Tensor | None:
        """``b_l``, the model's own."""
        bias: Tensor | None = self[layer].linear.bias
        return None if bias is None else bias.detach()

    def in_full_precision(self) -> AbstractContextManager[Any]:
        """What is computed inside has the model's own precision, also where the caller has autocast switched on."""
        return torch.autocast(self.device.type, enabled=False)

    def refuse_changes(self, *, hooks: bool) -> None:
        """Refuse to go on with a model that is no longer the one that was read: what was replaced is not trained.

        ``hooks`` may be there where the model itself is called.
        """
        if not hooks:
            self.refuse_hooks()
        now = read_layers(self.model)
        for before, layer in zip(self.layers, now, strict=False):
            if before.marks != layer.marks:  # an activation of the user's need not know when it equals another
                what = "is another layer" if before.linear is not layer.linear else "has another name or activation"
                raise RuntimeError(f"module {layer.name} {what} than when the run was started; {START_ANEW}")
        if len(now) != len(self.layers):
            raise RuntimeError(
                f"the model has {len(now)} layers, but had {len(self.layers)} when the run was started; {START_ANEW}"
            )
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

    def to_dict(self) -> dict[str, Any]:
        """The architecture in plain JSON types."""
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

    def read(self) -> tuple[dict[int, Tensor], dict[int, Tensor | None]]:
        """Copies of the weights and biases, by layer."""
        for layer in self.layers:
            for name, parameter in layer.linear.named_parameters():
                if not bool(torch.isfinite(parameter.detach()).all()):
                    raise UnsupportedModelError(
                        f"module {layer.name} (Linear): its {name} holds NaN or infinity; initialise the model again"
                    )
        W = {l: self[l].linear.weight.detach().clone() for l in self.numbers}
        b = {l: None if self[l].linear.bias is None else self[l].linear.bias.detach().clone() for l in self.numbers}
        return W, b

    def write(self, W: dict[int, Tensor], b: dict[int, Tensor | None]) -> None:
        """Copy weights and biases into the model, in place, all of them even if Ctrl-C comes in between."""
        try:
            self._copy(W, b)
        except KeyboardInterrupt:
            self._copy(W, b)
            raise

    @torch.no_grad()
    def _copy(self, W: dict[int, Tensor], b: dict[int, Tensor | None]) -> None:
        for l in self.numbers:
            linear, bias = self[l].linear, b[l]
            linear.weight.copy_(W[l])
            if bias is not None:
                linear.bias.copy_(bias)


def describe_activation(activation: Activation) -> dict[str, Any]:
    """Its class and parameters in plain JSON types."""
    return {"name": type(activation).__name__, **fields_of(activation)}


def flatten(model: nn.Sequential, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The modules of a Sequential in order, nested ones opened, with their dotted positions."""
    for name, module in model._modules.items():  # named_children() would hide a module that is used twice
        if type(module) is nn.Sequential:
            yield from flatten(module, f"{prefix}{name}.")
        elif module is not None:
            yield f"{prefix}{name}", module


def read_layers(model: nn.Sequential) -> tuple[Layer, ...]:
    """Pairs of Linear and activation; two Linear layers in a row have the identity between them."""
    if not isinstance(model, nn.Sequential) or type(model).forward is not nn.Sequential.forward:
        raise UnsupportedModelError(
            f"model must be an nn.Sequential of Linear layers and activations, got {type(model).__name__}"
        )
    by_module = {activation.module: activation for activation in ACTIVATIONS.values() if hasattr(activation, "module")}
    found: list[tuple[str, nn.Linear, Activation | None]] = []
    for name, module in flatten(model):
        if type(module) is nn.Linear:
            if found and found[-1][2] is None:
                found[-1] = (*found[-1][:2], Identity())
            found.append((name, module, None))
        elif type(module) in by_module:
            if not found or found[-1][2] is not None:
                raise UnsupportedModelError(
                    f"module {name} ({type(module).__name__}) must follow a Linear layer, "
                    f"but {'another activation stands before it' if found else 'it comes first'}"
                )
            try:
                found[-1] = (*found[-1][:2], by_module[type(module)].from_module(module))
            except ValueError as error:
                raise UnsupportedModelError(f"module {name} ({type(module).__name__}): {error}") from error
        else:
            kind = type(module).__name__
            remedy = REMEDIES.get(
                kind, f"the method knows Linear layers and {', '.join(sorted(m.__name__ for m in by_module))}"
            )
            raise UnsupportedModelError(f"module {name} ({kind}) is not supported: {remedy}")
    if not found:
        raise UnsupportedModelError("model holds no Linear layer")
    if found[-1][2] is not None:
        raise UnsupportedModelError(
            f"module {name} ({type(module).__name__}) ends the model, but the last layer must be Linear: "
            "the loss acts on z_L itself; remove it"
        )
    return tuple(Layer(name, linear, activation) for name, linear, activation in found)


def check_parameters(layers: tuple[Layer, ...]) -> None:
    """Refuse frozen, shared, half-precision, meta and mixed parameters, and layers that do not fit together."""
    owners: dict[int, str] = {}
    first = layers[0].linear.weight
    for layer, before in zip(layers, (None, *layers[:-1]), strict=True):
        if layer.inputs == 0 or layer.outputs == 0:
            raise UnsupportedModelError(
                f"module {layer.name} (Linear) has {layer.inputs} inputs and {layer.outputs} outputs; it needs one"
            )
        if before is not None and before.outputs != layer.inputs:
            raise UnsupportedModelError(
                f"module {before.name} has {before.outputs} outputs but module {layer.name} takes {layer.inputs} inputs"
            )
        for kind in ("weight", "bias"):
            where = f"module {layer.name} (Linear): its {kind}"
            parameter = layer.linear._parameters.get(kind)
            if parameter is None:
                if getattr(layer.linear, kind, None) is not None:
                    raise UnsupportedModelError(
                        f"{where} is computed from other parameters; remove the parametrization"
                    )
                continue
            if parameter.device.type == "meta":
                raise UnsupportedModelError(
                    f"{where} is on the meta device and holds no values; "
                    "call model.to_empty(device='cpu') and initialise it"
                )
            if parameter.is_inference() and not torch.is_inference_mode_enabled():
                raise UnsupportedModelError(
                    f"{where} was made in torch.inference_mode() and cannot be changed outside of it; make the model "
                    "without that mode, or take copy.deepcopy(model)"
                )
            if parameter.dtype not in (torch.float32, torch.float64):
                raise UnsupportedModelError(f"{where} is {parameter.dtype}; call model.float() or model.double()")
            if not parameter.requires_grad:
                raise UnsupportedModelError(
                    f"{where} is frozen (requires_grad=False), but the method updates every layer; unfreeze it"
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
            owners[parameter.data_ptr()] = f"module {layer.name} ({kind})"
