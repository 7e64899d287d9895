"""From a PyTorch model to nodes: ``torch.fx`` follows its forward pass once, and every operation becomes a node."""

from __future__ import annotations

import inspect
import operator
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from ipdlam.errors import UnsupportedModelError
from ipdlam.network import nodes
from ipdlam.network.layers import KINDS, in_training
from ipdlam.prox import ACTIVATIONS, Activation

REMEDIES = {
    "MultiheadAttention": "write it with nn.Linear layers and functional.scaled_dot_product_attention",
    "PReLU": "use LeakyReLU, whose slope is fixed",
    "LSTM": "recurrent layers are not supported",
    "GRU": "recurrent layers are not supported",
    "RNN": "recurrent layers are not supported",
    "Bilinear": "use Linear layers",
    "ConvTranspose2d": "use Upsample and Conv2d",
    "AlphaDropout": "use Dropout: its draws are saved with a run, those of others are not",
    "FeatureAlphaDropout": "use Dropout: its draws are saved with a run, those of others are not",
    "RReLU": "use LeakyReLU: RReLU draws a slope for every number",
}

# Functions and methods with the modules that do the same; their arguments are those of the module's constructor.
AS_MODULES: dict[Any, type[nn.Module]] = {
    functional.relu: nn.ReLU, torch.relu: nn.ReLU, "relu": nn.ReLU, torch.relu_: nn.ReLU, "relu_": nn.ReLU,
    functional.relu_: nn.ReLU,
    functional.leaky_relu: nn.LeakyReLU, functional.leaky_relu_: nn.LeakyReLU,
    functional.hardtanh: nn.Hardtanh, functional.hardtanh_: nn.Hardtanh, functional.relu6: nn.ReLU6,
    functional.sigmoid: nn.Sigmoid, torch.sigmoid: nn.Sigmoid, "sigmoid": nn.Sigmoid, torch.special.expit: nn.Sigmoid,
    functional.tanh: nn.Tanh, torch.tanh: nn.Tanh, "tanh": nn.Tanh,
    functional.softplus: nn.Softplus,
    functional.gelu: nn.GELU, functional.silu: nn.SiLU, functional.elu: nn.ELU, functional.elu_: nn.ELU,
    functional.selu: nn.SELU, functional.selu_: nn.SELU, torch.selu: nn.SELU,
    functional.mish: nn.Mish, functional.hardswish: nn.Hardswish,
    functional.max_pool1d: nn.MaxPool1d, functional.max_pool2d: nn.MaxPool2d, torch.max_pool1d: nn.MaxPool1d,
    torch.max_pool2d: nn.MaxPool2d,
    functional.dropout: nn.Dropout, torch.dropout: nn.Dropout, functional.dropout2d: nn.Dropout2d,
    functional.dropout1d: nn.Dropout1d,
}  # fmt: skip
SAME_ORDER = (
    torch.flatten, torch.reshape, torch.unsqueeze, torch.squeeze, torch.unflatten, "flatten", "reshape", "view",
    "unsqueeze", "squeeze", "unflatten", "contiguous", nn.Flatten, nn.Unflatten,
)  # fmt: skip
SUMS = (operator.add, operator.iadd, torch.add, "add", "add_", "__add__", "__radd__", "__iadd__")
# Maps that torch gives a derivative of zero, or that stop it: no wish passes, and a layer below is refused by name.
NO_SLOPE = (
    torch.round, torch.floor, torch.ceil, torch.trunc, torch.fix, torch.sign, torch.sgn, torch.detach,
    "round", "floor", "ceil", "trunc", "fix", "sign", "sgn", "detach",
    torch.heaviside, torch.floor_divide, operator.floordiv, operator.ifloordiv, "heaviside", "floor_divide",
    torch.zeros_like, torch.ones_like, torch.full_like, torch.empty_like,
    "new_zeros", "new_ones", "new_full", "new_empty", "new_tensor",
)  # fmt: skip
NO_TENSORS = ("size", "dim", "numel", "ndimension", torch.numel, len)
NO_TENSOR_ATTRIBUTES = ("shape", "ndim", "dtype", "device", "requires_grad", "is_cuda", "itemsize")
NOT_IN_PLACE = {
    operator.iadd: operator.add, operator.isub: operator.sub, operator.imul: operator.mul,
    operator.itruediv: operator.truediv, operator.imatmul: operator.matmul, operator.ipow: operator.pow,
    operator.ifloordiv: operator.floordiv,
}  # fmt: skip
OF_NUMBERS = ("_operator", "builtins", "math")  # modules whose functions make numbers of numbers
DROPOUTS = {nn.Dropout: False, nn.Dropout1d: True, nn.Dropout2d: True, nn.Dropout3d: True}
POOLS = {nn.MaxPool1d: 1, nn.MaxPool2d: 2}


def unwrapped(model: nn.Module) -> nn.Module:
    """The model itself, where it was compiled or handed to several devices or processes."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DataParallel", "DistributedDataParallel"):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


@contextmanager
def as_in_training(model: nn.Module) -> Iterator[None]:
    """A model that is in evaluation mode as a whole is trained all the same; single modules keep theirs."""
    flags = [(module, module.training) for module in model.modules()]
    if not model.training:
        model.train()
    try:
        yield
    finally:
        for module, flag in flags:
            module.training = flag


TRACING = threading.Lock()  # a tracer replaces what nn.Module does when it is called, for all threads
HERE = threading.local()  # whether this thread is the one that traces


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Other threads wait until this model has been read; a model within another one's would wait for itself."""
    if getattr(HERE, "traces", False):
        raise UnsupportedModelError(
            "the forward pass of the model makes a trainer, or reads a model, while it is being read itself; make the "
            "trainer outside of forward"
        )
    with TRACING:
        HERE.traces = True
        try:
            yield
        finally:
            HERE.traces = False


GRAD = "ipdlam_grad"  # what is known about a traced node: whether torch would have followed its derivative


class Tracer(fx.Tracer):
    """One that leaves alone models of other threads, and what is in layers and activations that the registries know."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if threading.get_ident() != self.thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if threading.get_ident() != self.thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """A node that knows whether it stands under ``torch.no_grad``, which is no operation that could be seen."""
        node = super().create_node(*args, **kwargs)
        node.meta[GRAD] = torch.is_grad_enabled()
        return node

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        known = type(m) in KINDS or any(type(m) is getattr(kind, "module", None) for kind in ACTIVATIONS.values())
        return known or super().is_leaf_module(m, module_qualified_name)


def place_of(name: str, module: nn.Module) -> str:
    """How messages call a module of a model."""
    return f"module {name} ({type(module).__name__})"


def trace(model: nn.Module) -> list[nodes.Node]:
    """The nodes of a model, in the order in which they compute; the first is its input, the last its output."""
    if not isinstance(model, nn.Module):
        raise UnsupportedModelError(f"model must be an nn.Module, got {type(model).__name__}")
    if type(model) in KINDS:
        model = nn.Sequential(model)
    known = set(vars(model))
    try:
        with one_at_a_time(), as_in_training(model), torch.enable_grad():  # whatever the caller's mode is
            traced = Tracer().trace(model, defaults_of(model))
        return Reader(model, traced).read()
    except UnsupportedModelError:
        raise
    except Exception as error:
        raise UnsupportedModelError(why_untraceable(model, error)) from error
    finally:  # tensors that forward makes are kept in the model by the tracer, and in its node by us
        for name in set(vars(model)) - known:
            delattr(model, name)


def defaults_of(model: nn.Module) -> dict[str, Any]:
    """The arguments of the forward pass that nobody gives: they are what they are by default."""
    parameters = inspect.signature(model.forward).parameters.values()
    return {item.name: item.default for item in parameters if item.default is not inspect.Parameter.empty}


def why_untraceable(model: nn.Module, error: Exception) -> str:
    """What stands in the way of tracing, and on which line of the user's."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/torch/" not in frame.filename]
    frames = [frame for frame in frames if not frame.filename.endswith("network/trace.py")]
    where = f" at line {frames[-1].lineno} of {frames[-1].filename} ({frames[-1].line})" if frames else ""
    reason = str(error).splitlines()[0].partition(". ")[0] if str(error) else type(error).__name__
    if reason.startswith("'len'"):
        reason, remedy = "it takes the len of a tensor", "write x.shape[0] instead of len(x)"
    else:
        remedy = (
            "what it does must not depend on the numbers or the shape it gets: move such a branch or check out of the "
            "model, or give the model without it"
        )
    return f"the forward pass of {type(model).__name__} cannot be followed by torch.fx{where}: {reason}; {remedy}"


class Reader:
    """Makes nodes of what was traced, one after the other."""

    def __init__(self, model: nn.Module, traced: fx.Graph) -> None:
        self.model, self.traced = model, traced
        self.modules = dict(model.named_modules())
        self.activations = {kind.module: kind for kind in ACTIVATIONS.values() if hasattr(kind, "module")}
        self.numbers: dict[fx.Node, int] = {}
        self.found: list[nodes.Node] = []
        self.owners: dict[int, str] = {}  # places of layers by module

    def read(self) -> list[nodes.Node]:
        """All nodes that the output depends on."""
        needed = self._needed()
        inputs = [node for node in self.traced.nodes if node.op == "placeholder"]
        if len(inputs) != 1:
            given = ", ".join(str(node.target) for node in inputs) or "none"
            others = [node for node in inputs[1:] if not node.args]
            if others or not inputs:
                raise UnsupportedModelError(
                    f"the model takes {len(inputs)} inputs ({given}), but the method trains models of one; put them "
                    "together in one tensor, and take it apart in forward"
                )
        for node in self.traced.nodes:
            if node.op == "output":
                return self._ended(node)
            if node in needed:
                self._add(node, self._made(node))
        raise UnsupportedModelError("the model gives nothing")

    def _needed(self) -> set[fx.Node]:
        """The nodes that the output depends on."""
        output = next(node for node in self.traced.nodes if node.op == "output")
        needed, left = set(), [output]
        while left:
            node = left.pop()
            if node not in needed:
                needed.add(node)
                left += node.all_input_nodes
        return needed

    def _ended(self, node: fx.Node) -> list[nodes.Node]:
        result = node.args[0]
        if not isinstance(result, fx.Node):
            kind = (
                f"{type(result).__name__} of {len(result)}" if isinstance(result, (tuple, list, dict)) else "constant"
            )
            raise UnsupportedModelError(
                f"the model gives a {kind}, but one tensor with a row of outputs for each sample is needed; let "
                "forward return that alone"
            )
        if self.numbers[result] != len(self.found) - 1:  # the nodes after it are not needed, but for their order
            self._add(node, nodes.Same("output", (self.numbers[result],)))
        return self.found

    def _add(self, node: fx.Node, made: nodes.Node) -> None:
        made.passes = made.passes and node.meta.get(GRAD, True)
        self.numbers[node] = len(self.found)
        self.found.append(made)

    def _made(self, node: fx.Node) -> nodes.Node:
        if node.op == "placeholder":
            if self.found and node.args:  # an argument with a default, which is all that it ever is
                value = node.args[0]
                return nodes.Constant(str(node.target), lambda: value)
            return nodes.Input("input", ())
        if node.op == "get_attr":
            return self._attribute(node)
        if node.op == "call_module":
            return self._module(node)
        return self._function(node)

    def _attribute(self, node: fx.Node) -> nodes.Node:
        name = str(node.target)
        owner, _, last = name.rpartition(".")
        module = self.model.get_submodule(owner)
        if isinstance(getattr(module, last), nn.Parameter) and getattr(module, last).requires_grad:
            raise UnsupportedModelError(
                f"parameter {name} is used outside of a layer that the method knows ({known_layers()}); keep it in "
                "such a layer, or freeze it (requires_grad=False)"
            )
        value = getattr(module, last)
        if not isinstance(value, nn.Parameter) and last not in module._buffers:  # made in forward
            return nodes.Constant(name, lambda: value)
        return nodes.Constant(name, lambda: getattr(module, last))

    def _module(self, node: fx.Node) -> nodes.Node:
        name, module = str(node.target), self.modules[str(node.target)]
        place, sources = place_of(name, module), self._sources(node)
        if type(module) in KINDS and (type(module) not in NORMS or has_weight(module) or has_statistics(module)):
            if id(module) in self.owners:
                raise UnsupportedModelError(
                    f"{place} is used twice in the forward pass; layers that share their weights are not supported"
                )
            self.owners[id(module)] = name
            return KINDS[type(module)](place, sources, module, self.model)
        if any(True for _ in module.parameters()):
            kind = type(module).__name__
            remedy = REMEDIES.get(kind, f"layers with parameters are {known_layers()}")
            raise UnsupportedModelError(f"{place} is not supported: {remedy}")
        return self._parameterless(place, sources, module, node, lambda: in_training(module, self.model))

    def _parameterless(
        self, place: str, sources: Sequence[int], module: nn.Module, node: fx.Node, active: Callable[[], bool]
    ) -> nodes.Node:
        kind = type(module)
        if kind.__name__ in REMEDIES:
            raise UnsupportedModelError(f"{place} is not supported: {REMEDIES[kind.__name__]}")
        if module._buffers.get("running_mean") is not None:
            raise UnsupportedModelError(
                f"{place} is not supported: it keeps running statistics, as BatchNorm1d and BatchNorm2d alone may"
            )
        if kind is nn.Identity:
            return nodes.Same(place, sources)
        if kind in self.activations:
            return nodes.Activate(place, sources, self._activation(place, module))
        if kind in POOLS and not module.return_indices:
            window = {name: getattr(module, name) for name in ("kernel_size", "padding", "dilation", "ceil_mode")}
            window["stride"] = module.kernel_size if module.stride is None else module.stride
            return nodes.MaxPool(place, sources, POOLS[kind], window)
        if kind in DROPOUTS:
            return nodes.Dropout(place, sources, float(module.p), DROPOUTS[kind], active)  # type: ignore[arg-type]
        arguments = self._arguments(node)
        called = nodes.Reshape if kind in SAME_ORDER else nodes.Local
        return called(place, sources, module, arguments, repr(module))

    def _activation(self, place: str, module: nn.Module) -> Activation:
        try:
            return self.activations[type(module)].from_module(module)
        except ValueError as error:
            raise UnsupportedModelError(f"{place}: {error}") from error

    def _function(self, node: fx.Node) -> nodes.Node:
        """A function or a method of a tensor, by what it does."""
        target, sources = node.target, self._sources(node)
        name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        place = f"{name} in forward"
        kind = AS_MODULES.get(target)
        if kind is not None and isinstance(node.args[0] if node.args else None, fx.Node):
            return self._as_module(node, kind, place, sources)
        if isinstance(target, str) and target.endswith("_") and not target.endswith("__") and target not in SUMS:
            raise UnsupportedModelError(
                f"{place} changes a tensor in place, which other layers may need as it was; write "
                f"x = x.{target[:-1]}(...)"
            )
        if target in (torch.cat, torch.concat, torch.concatenate) and self._parts(node) is not None:
            return self._concatenation(node, place)
        if target is operator.getitem and isinstance(node.args[1], int) and self._is_tuple(node.args[0]):
            return nodes.Pick(place, sources[:1], node.args[1])
        called: type[nodes.Call] = nodes.Local
        if self._gives_no_tensor(node):
            called = nodes.Plain
        elif target in SAME_ORDER:
            called = nodes.Reshape
        elif target in SUMS and not node.kwargs and len(node.args) == 2 and node.args[0] is not node.args[1]:
            called = nodes.Add
        function = _method(target) if node.op == "call_method" else _function_of(target)
        signature = f"{name}({', '.join(_word(part) for part in node.args)}{_named(node.kwargs)})"
        made = called(place, sources, function, self._arguments(node), signature)
        is_data = target is getattr and node.args[1] == "data"  # another word for detach
        made.passes = made.passes and target not in NO_SLOPE and not is_data
        return made

    def _gives_no_tensor(self, node: fx.Node) -> bool:
        """Whether a result is a shape, a number or the like, or made of nothing else."""
        if node.target is getattr:
            return node.args[1] in NO_TENSOR_ATTRIBUTES
        given = node.all_input_nodes
        plain = bool(given) and all(isinstance(self.found[self.numbers[source]], nodes.Plain) for source in given)
        return node.target in NO_TENSORS or (plain and getattr(node.target, "__module__", "") in OF_NUMBERS)

    def _as_module(self, node: fx.Node, kind: type[nn.Module], place: str, sources: Sequence[int]) -> nodes.Node:
        """A function that does what a module does, with the module's arguments."""
        target: Any = node.target
        values: dict[str, Any] = dict(node.kwargs)
        rest = list(node.args[1:])
        if rest:
            names = _names_of(target, kind)
            values |= dict(zip(names, rest, strict=False))
        if any(isinstance(value, fx.Node) for value in values.values()):
            raise UnsupportedModelError(f"{place}: its settings are worked out in the forward pass; give numbers")
        active = bool(values.pop("training", values.pop("train", target not in (torch.dropout,))))
        values.pop("inplace", None)
        if kind in (nn.MaxPool1d, nn.MaxPool2d) and values.get("return_indices"):
            raise UnsupportedModelError(f"{place}: return_indices is not supported")
        parameters = inspect.signature(kind.__init__).parameters
        module = kind(**{name: value for name, value in values.items() if name in parameters})
        return self._parameterless(place, sources, module, node, lambda: active)

    def _parts(self, node: fx.Node) -> list[fx.Node] | None:
        """What is put together, where it is a list of tensors and not the result of a node."""
        parts = node.args[0] if node.args else node.kwargs.get("tensors")
        listed = isinstance(parts, (list, tuple)) and all(isinstance(part, fx.Node) for part in parts)
        return list(parts) if listed else None  # type: ignore[arg-type]

    def _concatenation(self, node: fx.Node, place: str) -> nodes.Node:
        dim: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", node.kwargs.get("axis", 0))
        return nodes.Concatenate(place, [self.numbers[part] for part in self._parts(node) or ()], int(dim))

    def _is_tuple(self, node: Any) -> bool:
        """Whether a node gives several tensors: known functions do."""
        several = ("chunk", "split", "unbind", "tensor_split", "topk", "sort", "max", "min", "split_with_sizes")
        if not isinstance(node, fx.Node):
            return False
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if name in ("max", "min"):
            return len(node.args) > 1 or bool(node.kwargs)
        return name in several and node.op != "call_module"

    def _sources(self, node: fx.Node) -> list[int]:
        return [self.numbers[source] for source in node.all_input_nodes]

    def _arguments(self, node: fx.Node) -> Callable[[Sequence[Any]], tuple[tuple[Any, ...], Mapping[str, Any]]]:
        """Puts values of the sources into the places of the call."""
        places = {source: place for place, source in enumerate(node.all_input_nodes)}
        positional, named = node.args, node.kwargs

        def filled(values: Sequence[Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
            def value(source: fx.Node) -> Any:
                return values[places[source]]

            return fx.node.map_arg(positional, value), fx.node.map_arg(named, value)

        return filled


NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm)


def has_weight(module: nn.Module) -> bool:
    """Whether a norm has scales of its own."""
    return module._parameters.get("weight") is not None


def has_statistics(module: nn.Module) -> bool:
    """Whether a norm works on the statistics of a batch, which no map of single samples does."""
    return isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d))


def known_layers() -> str:
    """The layers with parameters that can be trained, in words."""
    return ", ".join(kind.__name__ for kind in KINDS)


def _method(name: Any) -> Callable[..., Any]:
    if name == "view":  # of what lies in memory in another order than the user thinks
        name = "reshape"
    return lambda first, *rest, **named: getattr(first, name)(*rest, **named)


def _function_of(target: Any) -> Callable[..., Any]:
    function: Callable[..., Any] = NOT_IN_PLACE.get(target, target)
    return function


def _names_of(function: Any, kind: type[nn.Module]) -> list[str]:
    """The names of a function's arguments after the first; where it does not say, those of the module."""
    if kind in POOLS:
        return ["kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"]
    if function is torch.dropout:
        return ["p", "train"]
    try:
        return list(inspect.signature(function).parameters)[1:]
    except (TypeError, ValueError):
        return [name for name in inspect.signature(kind.__init__).parameters if name != "self"]


def _word(argument: Any) -> str:
    """An argument in a signature; the numbers of nodes are in their sources."""
    if isinstance(argument, fx.Node):
        return "_"
    if isinstance(argument, (list, tuple)):
        return f"[{', '.join(_word(part) for part in argument)}]"
    return "tensor" if isinstance(argument, Tensor) else repr(argument)


def _named(arguments: Mapping[str, Any]) -> str:
    return "".join(f", {name}={_word(value)}" for name, value in arguments.items())
