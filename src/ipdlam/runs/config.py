"""The configuration of ``ipdlam train``: one frozen table of settings for the command line, TOML files and saved runs.

Nothing here imports torch, so that help and mistakes are answered at once.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ipdlam import defaults
from ipdlam.checks import LARGEST_RATE, check_integer, check_number
from ipdlam.defaults import LEARNING_RATES
from ipdlam.errors import DataError, UnsupportedModelError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

WHOLE_BATCH: dict[str, Any] = {
    "regularizer": defaults.REGULARIZER,
    "regularizer_strength": None,  # the regularizer's own
    "penalty": defaults.PENALTY,
    "penalty_growth": defaults.PENALTY_GROWTH,
    "penalty_max": defaults.PENALTY_MAX,
    "order": defaults.ORDER,
    "storage": None,  # memory
    "iterations": defaults.ITERATIONS,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "minibatch": {
        "inertia": (defaults.INERTIA,),
        "proximity": defaults.PERCEPTRON["proximity"],
        "penalty": defaults.PENALTY,
        "batch_size": None,  # as suits the number of samples
        "step": defaults.PERCEPTRON["step"],
        "rank": defaults.RANK,
        "output_rank": defaults.OUTPUT_RANK,
        "weight_decay": defaults.WEIGHT_DECAY,
        "precision": defaults.PRECISION,
        "epochs": defaults.EPOCHS,
    },
    "ipdlam": {
        **WHOLE_BATCH,
        "inertia": (defaults.INERTIA,),
        "proximity": defaults.PROXIMITY,
        "weight_proximity": "none",
    },
    "dlam": WHOLE_BATCH,
    "bcd": {"proximity": defaults.BCD_PROXIMITY, "iterations": defaults.ITERATIONS},
    "dladmm": {"penalty": defaults.DLADMM_PENALTY, "iterations": defaults.ITERATIONS},
    **{
        name: {"learning_rate": rate, "batch_size": None, "epochs": defaults.EPOCHS}
        for name, rate in LEARNING_RATES.items()
    },
}
"""Name of a method to the settings that it has and others have not, and what they are where nobody says."""
METHODS = tuple(DEFAULTS)
OURS = ("minibatch", "ipdlam", "dlam")  # the others are what these are held to
OWN = tuple(dict.fromkeys(name for settings in DEFAULTS.values() for name in settings))
"""The settings that some methods have; all others are those of every method."""
MINI_BATCH, FULL_BATCH = (
    tuple(name for name in DEFAULTS[method] if name not in DEFAULTS[other])
    for method, other in (("minibatch", "ipdlam"), ("ipdlam", "minibatch"))
)
"""The settings that one of the two methods has and the other has not: to give one is to choose the method."""

ACTIVATIONS = (
    "relu",
    "leaky_relu",
    "hardtanh",
    "relu6",
    "sigmoid",
    "tanh",
    "softplus",
    "gelu",
    "silu",
    "mish",
    "elu",
    "selu",
    "hardswish",
    "identity",
)
LOSSES = ("squared", "huber", "absolute", "quantile", "hinge", "squared_hinge", "logistic", "cross_entropy")
REGULARIZERS = ("ridge", "l1", "elastic_net", "non_negative", "none")
ORDERS = ("reverse", "increase", "nested-reverse")
NETWORKS = ("cnn", "vgg5", "resnet8")
INITIALISATIONS = ("torch", "he", "paper")
DTYPES = ("float32", "float64")
PRECISIONS = ("float32", "bfloat16")
TASKS = ("auto", "classification", "regression")
CHECKPOINTS = ("exact", "light", "none")
THEN_EPOCHS = 50

USUAL_RATE = LEARNING_RATES[defaults.OPTIMIZER]
RATES = ", ".join(
    [*(f"{name} {rate:g}" for name, rate in LEARNING_RATES.items() if rate != USUAL_RATE), f"others {USUAL_RATE:g}"]
)
BATCHES = f"{defaults.BATCH_SIZE}, or {defaults.BATCH_SIZE_OF_FEW} below {defaults.FEW_SAMPLES} samples"
"""Defaults in words, for ``--help``."""

DATA, NETWORK, METHOD, RUN, OUTPUT = "Data", "Network", "Method", "Run", "Output"
# What an earlier run may go on with otherwise; that its data are the same is seen from the data themselves.
CHANGEABLE = (
    *("iterations", "epochs", "then_epochs", "patience", "target_score", "checkpoint_every", "tensorboard"),
    *("data", "data_dir", "offline"),  # files may have moved; that they are the same is checked by their sha256
    "storage",  # the iterates are the same wherever they are
)
WHOLE = {
    **dict.fromkeys(("iterations", "epochs", "seed", "output_rank"), 0),
    **dict.fromkeys(("evaluate_every", "checkpoint_every", "chunk_size", "patience", "threads", "limit"), 1),
    **dict.fromkeys(("batch_size", "rank", "then_epochs", "then_batch_size"), 1),
}  # the least that a setting may be
NOT_NEGATIVE = (
    *("regularizer_strength", "proximity", "penalty", "penalty_growth", "penalty_max", "step", "weight_decay"),
)
MOST = {"seed": 2**64 - 1, "threads": 1024}  # beyond these torch overflows, or ends the process


class ConfigError(ValueError):
    """A setting that is unknown or out of range."""


@contextmanager
def blamed_on_settings() -> Iterator[None]:
    """What the library refuses inside is the mistake of a setting, unless it is one of the data or of the model."""
    try:
        yield
    except (DataError, UnsupportedModelError):
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from error


def setting(default: Any, panel: str, help: str) -> Any:
    """A field with what ``--help`` says of it."""
    return field(default=default, metadata={"panel": panel, "help": help})


@dataclass(frozen=True)
class TrainConfig:
    """Everything that defines a run of ``ipdlam train``."""

    data: str = setting(
        "digits", DATA, "digits, mnist, fashion-mnist, cifar10, a folder of IDX files, or a .npz, .csv or .tsv file"
    )
    data_dir: str | None = setting(None, DATA, "where to look for named data sets first")
    offline: bool = setting(False, DATA, "never download")
    label: str | None = setting(None, DATA, "the label column of a table, by name or number [default: the last]")
    drop: str | None = setting(None, DATA, "columns of a table to leave out, by name or number, with commas between")
    categories: str | None = setting(
        None, DATA, "columns of a table that hold categories, whatever stands there, by name or number"
    )
    task: str = setting("auto", DATA, f"what the labels are: {', '.join(TASKS)}")
    validation: str = setting(
        "auto", DATA, "what to score on: test, none, or a fraction held out [auto: test if there is one, else 0.2]"
    )
    standardize: bool | None = setting(
        None, DATA, "bring inputs to mean 0 and deviation 1 [default: tables yes, images no]"
    )
    limit: int | None = setting(None, DATA, "use the first so many training samples")

    network: str | None = setting(
        None, NETWORK, f"for images {', '.join(NETWORKS)}, or file.py:function that gives a model [default: --hidden]"
    )
    hidden: tuple[int, ...] = setting((300, 300), NETWORK, "widths of the hidden layers, such as 1500,1500")
    activation: str = setting("relu", NETWORK, ", ".join(ACTIVATIONS))
    initialisation: str = setting("torch", NETWORK, f"{', '.join(INITIALISATIONS)} (paper: N(0, 0.01^2), biases 0.1)")
    dtype: str = setting("float32", NETWORK, ", ".join(DTYPES))
    device: str = setting("cpu", NETWORK, "a torch device")

    method: str | None = setting(
        None,
        METHOD,
        "minibatch; ipdlam: the paper's, on all samples at once; dlam: that without inertia and proximal terms; bcd, "
        f"dladmm; or by back-propagation {', '.join(LEARNING_RATES)} "
        "[default: minibatch; ipdlam if --iterations or another setting of its own is given]",
    )
    loss: str = setting(defaults.LOSS, METHOD, ", ".join(LOSSES))
    regularizer: str | None = setting(None, METHOD, ", ".join(REGULARIZERS))
    regularizer_strength: float | None = setting(None, METHOD, "its strength, for each sample and unit of penalty")
    inertia: tuple[float, ...] | None = setting(
        None, METHOD, "alpha = beta = gamma in the paper, or three: z, weights, a; minibatch has beta alone"
    )
    proximity: float | None = setting(None, METHOD, "delta in the paper")
    weight_proximity: str | None = setting(
        None,
        METHOD,
        "that of W and b for each sample, or two: W, b; none: delta in all, as the paper's W update is printed",
    )
    penalty: float | None = setting(None, METHOD, "rho_0 in the paper")
    penalty_growth: float | None = setting(None, METHOD, "theta in the paper")
    penalty_max: float | None = setting(None, METHOD, "the upper bound of the penalty")
    order: str | None = setting(None, METHOD, f"{', '.join(ORDERS)}, or every block: z2,W2,a1,z1,W1")
    chunk_size: int | None = setting(None, METHOD, "samples visited at a time [default: as suits the cache]")
    batch_size: int | None = setting(None, METHOD, f"of minibatch and the optimizers [default: {BATCHES}]")
    learning_rate: float | None = setting(None, METHOD, f"of an optimizer [default: {RATES}]")
    step: float | None = setting(
        None,
        METHOD,
        "of minibatch: change of outputs by a batch, in their size, times the root of the number of layers "
        f"[default: {defaults.PERCEPTRON['step']:g}; {defaults.NETWORK['step']:g} for a --network]",
    )
    rank: int | None = setting(None, METHOD, "of minibatch: how many directions of a layer's inputs its metric knows")
    output_rank: int | None = setting(
        None, METHOD, "of minibatch: the same of the wishes for a hidden layer's outputs; 0 for none"
    )
    weight_decay: float | None = setting(None, METHOD, "of minibatch: its part of a step shrinks the weights")
    precision: str | None = setting(
        None, METHOD, f"of minibatch: that of the operands of large products: {', '.join(PRECISIONS)}"
    )

    iterations: int | None = setting(None, RUN, "iterations in all, of ipdlam, dlam, bcd or dladmm")
    epochs: int | None = setting(
        None,
        RUN,
        "epochs in all, of minibatch or an optimizer; the steps of minibatch descend over them, and anew over those "
        "that a resumed run gets beyond its plan",
    )
    then: str | None = setting(None, RUN, f"go on with an optimizer: {', '.join(LEARNING_RATES)}")
    then_epochs: int | None = setting(None, RUN, f"epochs of the optimizer [default: {THEN_EPOCHS}]")
    then_learning_rate: float | None = setting(None, RUN, f"its rate [default: {RATES}]")
    then_batch_size: int | None = setting(None, RUN, f"its batches [default: {BATCHES}]")
    restore_best: bool = setting(False, RUN, "keep the weights of the best score instead of the last ones")
    patience: int | None = setting(None, RUN, "stop after so many evaluations without a better score")
    target_score: float | None = setting(None, RUN, "stop at this accuracy (or minus loss)")
    evaluate_every: int = setting(1, RUN, "iterations or epochs from one evaluation to the next")
    seed: int = setting(0, RUN, "of the initial weights, the held-out samples and the order of the batches")
    threads: int | None = setting(None, RUN, "threads of torch [default: all cores]")
    storage: str | None = setting(None, RUN, "a folder for z and a, where memory is too small for them")

    output: str | None = setting(None, OUTPUT, "the run folder [default: runs/<data>-<date>-<time>]")
    checkpoint: str = setting("exact", OUTPUT, f"{', '.join(CHECKPOINTS)}: exact ones resume bit for bit")
    checkpoint_every: int = setting(10, OUTPUT, "iterations or epochs from one checkpoint to the next")
    tensorboard: bool = setting(False, OUTPUT, "write TensorBoard events into the run folder")

    def __post_init__(self) -> None:
        choices = {
            "method": tuple(DEFAULTS),  # open to others
            "activation": ACTIVATIONS,
            "loss": LOSSES,
            "regularizer": REGULARIZERS,
            "initialisation": INITIALISATIONS,
            "dtype": DTYPES,
            "precision": PRECISIONS,
            "task": TASKS,
            "checkpoint": CHECKPOINTS,
        }
        with blamed_on_settings():
            for name, known in choices.items():
                value = getattr(self, name)
                if value not in known and (value is not None or name not in ("method", "regularizer", "precision")):
                    raise ConfigError(f"{name} must be one of {', '.join(known)}, got {value!r}")
            if self.then is not None and self.then not in LEARNING_RATES:
                raise ConfigError(f"then must be one of {', '.join(LEARNING_RATES)}, got {self.then!r}")
            for name, low in WHOLE.items():
                if getattr(self, name) is not None:
                    check_integer(name, getattr(self, name), low)
            for width in self.hidden:
                check_integer("hidden", width, low=1)
            for inertia in self.inertia or ():
                check_number("inertia", inertia, low=0.0)
            for name in NOT_NEGATIVE:
                if getattr(self, name) is not None:
                    check_number(name, getattr(self, name), low=0.0)
            if self.weight_proximity is not None:
                as_weight_proximity(self.weight_proximity)
            for name in ("learning_rate", "then_learning_rate"):
                if getattr(self, name) is not None:
                    check_number(name, getattr(self, name), 0.0, LARGEST_RATE, strict=True)
            if self.target_score is not None:
                check_number("target_score", self.target_score)
        for name, most in MOST.items():
            if (getattr(self, name) or 0) > most:
                raise ConfigError(f"{name} must be at most {most}, got {getattr(self, name)}")
        if self.then is not None and self.then == self.method:
            raise ConfigError(f"then is {self.then}, which is the method itself; give more --epochs, or another method")
        for name in ("then_epochs", "then_learning_rate", "then_batch_size"):
            if self.then is None and getattr(self, name) is not None:
                raise ConfigError(
                    f"{name} is for the optimizer of a second stage, and there is none; say which, such as "
                    "--then adam, or leave it out"
                )
        if self.regularizer_strength is not None and self.regularizer in ("non_negative", "none"):
            raise ConfigError(f"regularizer_strength means nothing to the regularizer {self.regularizer}; leave it out")
        if self.inertia is not None and len(self.inertia) not in (1, 3):
            raise ConfigError(f"inertia must be one number or three (z, weights, a), got {len(self.inertia)}")
        if self.network is not None:
            self._check_network()
        for name in OWN:
            if getattr(self, name) is not None:
                self._check_meaning(name, getattr(self, name))
        if self.precision == "bfloat16" and self.dtype != "float32":
            raise ConfigError(f"precision bfloat16 is for dtype float32, got dtype {self.dtype}; leave out one of them")
        if self.validation not in ("auto", "test", "none"):
            fraction = as_number(self.validation)
            if not 0.0 < fraction < 1.0:
                raise ConfigError(
                    f"validation must be auto, test, none, or a fraction between 0 and 1, got {self.validation!r}"
                )

    def _check_network(self) -> None:
        """Refuse a network that is neither known nor a function in a file, and settings that mean nothing to it."""
        assert self.network is not None
        if self.network not in NETWORKS and not is_function(self.network):
            raise ConfigError(
                f"network must be one of {', '.join(NETWORKS)}, or file.py:function, got {self.network!r}"
            )
        for item in dataclasses.fields(self):
            if item.name in ("hidden", "activation", "initialisation") and getattr(self, item.name) != item.default:
                raise ConfigError(f"{item.name} means nothing to --network {self.network}; leave out one of them")

    def _check_meaning(self, name: str, value: Any) -> None:
        """Refuse a setting of other methods."""
        method, given = self.chosen, shown(value)
        if method == "dlam" and name in ("inertia", "proximity"):
            by_default = value == DEFAULTS["ipdlam"][name]  # as earlier versions wrote it into every file
            if not by_default and any(value if isinstance(value, tuple) else (value,)):
                raise ConfigError(f"{name} means nothing to dlam, which has neither inertia nor proximal terms")
        elif method == "minibatch" and name == "inertia" and len(value) != 1:
            raise ConfigError(f"inertia of minibatch is one number, that of the weights, got {given}; give one number")
        elif name not in DEFAULTS[method]:
            by = self._choice[1]
            why = "" if by is None else f", which {by} selects"
            raise ConfigError(
                f"{name} means nothing to {method}{why}, got {given}; {remedy(name, method, by, self.then)}"
            )

    @property
    def chosen(self) -> str:
        """The method: the one that is named, or that a given setting belongs to, or the one on mini-batches."""
        return self._choice[0]

    @property
    def _choice(self) -> tuple[str, str | None]:
        """The method, and the option that chose it where it was not named."""
        if self.method is not None:
            return self.method, None
        for method, names in (("minibatch", MINI_BATCH), ("ipdlam", FULL_BATCH)):
            given = next((name for name in names if getattr(self, name) is not None), None)
            if given is not None:
                return method, f"--{given.replace('_', '-')}"
        if self.inertia is not None and len(self.inertia) == 3:  # that of z and a, too
            return "ipdlam", "--inertia"
        return "minibatch", None

    @property
    def unit(self) -> str:
        """What the method counts: iterations or epochs."""
        return unit(self.chosen)

    @property
    def rounds(self) -> int:
        """How many of its :attr:`unit` the method makes."""
        return int(self.suited()[f"{self.unit}s"])

    def suited(self) -> dict[str, Any]:
        """The settings that the method has and others have not: as given, or else what suits the method."""
        given = {name: getattr(self, name) for name in DEFAULTS[self.chosen]}
        usual = DEFAULTS[self.chosen]
        if self.network is not None and "step" in usual:
            usual = {**usual, **defaults.NETWORK}
        return {name: usual[name] if value is None else value for name, value in given.items()}

    def resolved(self) -> TrainConfig:
        """The same with all that suits the method filled in: what a run is saved with."""
        return dataclasses.replace(self, method=self.chosen, **self.suited())

    def of_method(self, method: str, **own: Any) -> TrainConfig:
        """The same for another method, without the settings that mean nothing to it and with its ``own``."""
        others = {name: None for name in OWN if name not in DEFAULTS[method]}
        return dataclasses.replace(self, **{**others, "method": method, **own})

    @property
    def second_epochs(self) -> int:
        """How many epochs the optimizer of a second stage makes; none without one."""
        if self.then is None:
            return 0
        return THEN_EPOCHS if self.then_epochs is None else self.then_epochs

    @property
    def second_rate(self) -> float | None:
        """The learning rate of the optimizer of a second stage."""
        if self.then is None or self.then_learning_rate is not None:
            return self.then_learning_rate
        return LEARNING_RATES[self.then]

    def changed(self, given: Mapping[str, Any]) -> TrainConfig:
        """The same with some settings replaced; values may be text, as they come from the command line."""
        kinds = {item.name: str(item.type) for item in dataclasses.fields(self)}
        return dataclasses.replace(self, **{name: convert(name, value, kinds[name]) for name, value in given.items()})

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in self._items()}

    def to_toml(self) -> str:
        """A file that :func:`read_toml` reads; settings that are None are left out."""
        lines, panel = [], ""
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if item.metadata["panel"] != panel:
                panel = item.metadata["panel"]
                lines += ["", f"# {panel}"]
            if value is not None:
                lines.append(f"{item.name} = {toml(value)}")
        return "\n".join(lines[1:]) + "\n"

    def _items(self) -> list[tuple[str, Any]]:
        return [(item.name, getattr(self, item.name)) for item in dataclasses.fields(self)]


def toml(value: Any) -> str:
    """A number, text, truth value or list of them as TOML writes it."""
    if isinstance(value, tuple):
        return f"[{', '.join(toml(item) for item in value)}]"
    if isinstance(value, float):
        return repr(value)
    # JSON's escapes are TOML's, but for characters beyond 16 bits; and TOML wants DEL escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def as_number(text: Any) -> float:
    """The number that text stands for, or NaN."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return math.nan
    except OverflowError:  # a whole number beyond the range of floats
        return math.inf


def as_integer(text: Any) -> int | None:
    """The whole number that text stands for, to the last digit, or None."""
    if isinstance(text, (int, str)):
        with suppress(ValueError):
            return int(text)
    number = as_number(text)  # 1e3 and 2.0
    return int(number) if number.is_integer() else None


def is_storable(text: str) -> bool:
    """Whether a file of settings can hold the text, and the name of a file can be it."""
    return "\0" not in text and text.encode(errors="ignore").decode() == text


def convert(name: str, value: Any, kind: str) -> Any:
    """A value from TOML or from the command line as the type of its field; what does not fit is refused by name."""
    wanted = kind.removesuffix(" | None")
    if value is None:
        return None
    if wanted.startswith("tuple"):
        if isinstance(value, str):
            value = value.strip().removesuffix(",").split(",") if value.strip() else []
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            value = [value]
        if isinstance(value, (list, tuple)):
            return tuple(convert(name, item, "int" if "int" in wanted else "float") for item in value)
    elif wanted == "bool":
        if isinstance(value, bool):
            return value
    elif wanted == "str":
        if isinstance(value, str):
            if not is_storable(value):
                raise ConfigError(f"{name} must be text that UTF-8 can hold, without zero bytes, got {value!r}")
            return value
        if isinstance(value, (int, float)) and not isinstance(value, bool):  # a column number, a fraction
            return str(value)
        if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):  # an order
            return ",".join(value)
    elif not isinstance(value, (bool, list, dict)):
        if wanted == "float" and not math.isnan(number := as_number(value)):
            return number
        if wanted == "int" and (whole := as_integer(value)) is not None:
            return whole
    raise ConfigError(f"{name} must be {describe(wanted)}, got {value!r}")


def describe(kind: str) -> str:
    """A type in words."""
    if kind.startswith("tuple"):
        return "whole numbers with commas between them" if "int" in kind else "numbers with commas between them"
    return {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}[kind]


def read_toml(path: Path) -> dict[str, Any]:
    """The settings in a file; unknown ones are errors."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # of TOML, of UTF-8, of numbers with thousands of digits
        raise ConfigError(f"{path} is not a TOML file: {error}") from error
    known = [item.name for item in dataclasses.fields(TrainConfig)]
    unknown = [key for key in content if key not in known]
    if unknown:
        import difflib

        close = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}"
        raise ConfigError(f"{path} sets {unknown[0]!r}, which is no setting{hint}")
    return content


def is_function(network: str) -> bool:
    """Whether a network is a function in a file."""
    file, _, function = network.rpartition(":")
    return file.endswith(".py") and function.isidentifier()


def unit(method: str) -> str:
    """What a method counts."""
    return "epoch" if "epochs" in DEFAULTS[method] else "iteration"


def as_weight_proximity(text: str) -> tuple[float, ...] | None:
    """The proximal weights of W and b that text stands for: one number or two, or ``none``."""
    if text == "none":
        return None
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) not in (1, 2) or not all(0.0 <= number < math.inf for number in numbers):
        raise ValueError(
            "weight_proximity must be none, a finite number >= 0, or two with a comma between them (W, b), got "
            f"{text!r}"
        )
    return numbers


def remedy(name: str, method: str, selected_by: str | None, then: str | None) -> str:
    """What to do about a setting that a method has not; ``selected_by`` is the option that chose the method."""
    if name == "iterations":
        return "give --epochs instead" + ("" if selected_by is None else f", or leave out {selected_by}")
    if name == "learning_rate":
        return "leave it out, or name an optimizer, such as --method adam"
    if method == "minibatch":
        return "leave it out"
    if name == "epochs":
        return "give --iterations instead, or say --method minibatch"
    if name == "batch_size" and then is not None:
        return f"give --then-batch-size for the batches of {then}, or say --method minibatch"
    return f"say --method {'minibatch' if name in MINI_BATCH else 'ipdlam'}, or leave it out"


def shown(value: Any) -> str:
    """A value as a user would type it."""
    if isinstance(value, tuple):
        return ",".join(shown(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else f"{value}"
