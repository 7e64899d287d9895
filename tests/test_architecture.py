"""The shape of the code: a module imports only what stands above it, and the habits of the house are kept."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ipdlam

PACKAGE = Path(ipdlam.__file__).parent
LONGEST = 400

# From the ground up. A module may import those before it, and nothing else of the package.
LAYERS = [
    "ipdlam.version",
    "ipdlam.errors",
    "ipdlam.checks",
    "ipdlam.distributed.group",
    "ipdlam.distributed.group",
    "ipdlam.distributed.torchrun",
    "ipdlam.runs.config",
    "ipdlam.runs.config",
    "ipdlam.checkpoint.files",
    "ipdlam.checkpoint.format",
    "ipdlam.checkpoint.together",
    "ipdlam.fullbatch.disk_folder",
    "ipdlam.prox.base",
    "ipdlam.prox.certificate",
    "ipdlam.prox.search",
    "ipdlam.prox.smooth",
    "ipdlam.prox.activations",
    "ipdlam.prox.softmax",
    "ipdlam.prox.losses",
    "ipdlam.prox.regularizers",
    "ipdlam.prox",
    "ipdlam.network.linalg",
    "ipdlam.fullbatch.proximal_gradient",
    "costs",
    "ipdlam.fullbatch.moments",
    "ipdlam.network.mlp",
    "ipdlam.network.samples",
    "ipdlam.minibatch.batch",
    "ipdlam.distributed.agreement",
    "ipdlam.network.samples",
    "ipdlam.fullbatch.orders",
    "ipdlam.fullbatch.memory",
    "ipdlam.fullbatch.disk",
    "ipdlam.network.objective",
    "ipdlam.fullbatch.updates",
    "ipdlam.fullbatch.schedules",
    "ipdlam.minibatch.input_memory",
    "ipdlam.minibatch.sweep",
    "ipdlam.minibatch.rescale",
    "ipdlam.fullbatch.settings",
    "ipdlam.minibatch.step",
    "ipdlam.training.history",
    "ipdlam.training.evaluation",
    "ipdlam.training.loop",
    "ipdlam.training.state",
    "ipdlam.training.trainer",
    "ipdlam.fullbatch.state",
    "ipdlam.fullbatch.passes",
    "ipdlam.network.initialise",
    "ipdlam.fullbatch.trainer",
    "ipdlam.minibatch.state",
    "ipdlam.minibatch.epoch",
    "ipdlam.minibatch.epoch",
    "ipdlam.minibatch.trainer",
    "ipdlam.runs.model_file",
    "ipdlam.estimators.scaling",
    "ipdlam.estimators.stopping",
    "ipdlam.estimators.onnx",
    "ipdlam.estimators.parameters",
    "ipdlam.estimators.perceptron",
    "ipdlam.estimators.classifier",
    "ipdlam.estimators.regressor",
    "ipdlam.estimators",
    "ipdlam.runs.environment",
    "ipdlam.datasets.digits",
    "ipdlam.datasets.idx",
    "ipdlam.datasets.tables",
    "ipdlam.datasets.sources",
    "ipdlam.datasets",
    "ipdlam.baselines.protocol",
    "ipdlam.baselines.optimizers",
    "ipdlam.baselines.bcd",
    "ipdlam.baselines.dladmm",
    "ipdlam.baselines.batch_by_batch",
    "ipdlam.baselines",
    "ipdlam.training.plots",
    "ipdlam.training.callbacks",
    "ipdlam.runs.folder",
    "ipdlam.runs.problem",
    "ipdlam.runs.job",
    "ipdlam.runs.job",
    "ipdlam.runs.predict",
    "ipdlam.runs.compare",
    "ipdlam.experiments.claims",
    "ipdlam.experiments.spec",
    "ipdlam.experiments.paper.setup",
    "ipdlam.experiments.paper.table1",
    "ipdlam.experiments.paper.readings",
    "ipdlam.experiments.paper.fig1",
    "ipdlam.experiments.paper.fig2",
    "ipdlam.experiments.paper.fig3",
    "ipdlam.experiments.paper.order",
    "ipdlam.experiments.paper.deep",
    "ipdlam.experiments.paper.decay",
    "ipdlam.experiments.paper.penalty",
    "ipdlam.experiments.paper.defaults",
    "ipdlam.experiments.paper.weights",
    "ipdlam.experiments.paper.warmup",
    "ipdlam.experiments.paper.bcd",
    "ipdlam.experiments",
    "ipdlam.experiments.tables",
    "ipdlam.experiments.store",
    "ipdlam.experiments.make",
    "ipdlam.experiments.contents",
    "ipdlam.experiments.overview",
    "ipdlam.experiments.summary",
    "ipdlam.experiments.page_style",
    "ipdlam.experiments.page_words",
    "ipdlam.experiments.page",
    "ipdlam.experiments.report",
    "ipdlam.cli.options",
    "ipdlam.cli.signals",
    "ipdlam.cli.processes",
    "ipdlam.cli.display",
    "ipdlam.cli.train",
    "ipdlam.cli.inspect",
    "ipdlam.cli.compare",
    "ipdlam.cli.reproduce",
    "ipdlam.cli.report",
    "ipdlam.cli",
    "ipdlam.__main__",
    "ipdlam",
]


def module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def is_type_checking(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def run_time_nodes(tree):
    """All nodes, but for what stands under ``if TYPE_CHECKING:``, which is never imported."""
    for child in ast.iter_child_nodes(tree):
        if is_type_checking(child):
            for other in child.orelse:
                yield other
                yield from run_time_nodes(other)
            continue
        yield child
        yield from run_time_nodes(child)


def imports_of(source, name, is_package=False):
    """The modules of this package that a source imports, as full names."""
    found = set()
    for node in run_time_nodes(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "ipdlam"}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = name.split(".") if is_package else name.split(".")[:-1]
                parents = parents[: len(parents) - (node.level - 1)]
                base = ".".join([*parents, *([node.module] if node.module else [])])
            if base.split(".")[0] != "ipdlam":
                continue
            # ``from ipdlam import prox`` imports the submodule, ``from ipdlam.prox import Loss`` the package.
            inner = {f"{base}.{alias.name}" for alias in node.names}
            submodules = {full for full in inner if full in MODULES or full in LAYERS}
            found |= submodules
            if inner - submodules:
                found.add(base)
    return found - {name}


def misplaced(source, name, is_package=False):
    """The imports that stand beside or below the module, or in no list at all."""
    above = LAYERS[: LAYERS.index(name)]
    return sorted(imports_of(source, name, is_package) - set(above))


def parse(name):
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


def test_every_module_has_its_place():
    assert sorted(MODULES) == sorted(LAYERS)


@pytest.mark.parametrize("name", LAYERS)
def test_a_module_imports_only_what_stands_above_it(name):
    path = MODULES[name]
    assert misplaced(path.read_text(encoding="utf-8"), name, path.name == "__init__.py") == []


@pytest.mark.parametrize(
    ("source", "name", "expected"),
    [
        ("from ipdlam.fullbatch.trainer import IPDLAM", "ipdlam.network.mlp", ["ipdlam.fullbatch.trainer"]),
        ("import ipdlam.fullbatch.trainer", "ipdlam.network.mlp", ["ipdlam.fullbatch.trainer"]),
        ("from ipdlam import trainer", "ipdlam.network.mlp", ["ipdlam.fullbatch.trainer"]),
        ("from . import trainer", "ipdlam.network.mlp", ["ipdlam.fullbatch.trainer"]),
        ("from .trainer import IPDLAM", "ipdlam.network.mlp", ["ipdlam.fullbatch.trainer"]),
        ("from ..trainer import IPDLAM", "ipdlam.prox.base", ["ipdlam.fullbatch.trainer"]),
        ("from ipdlam import IPDLAM", "ipdlam.network.mlp", ["ipdlam"]),
        ("from ipdlam.nowhere import thing", "ipdlam.network.mlp", ["ipdlam.nowhere"]),
        ("def f():\n    from ipdlam.training.loop import run_loop", "ipdlam.network.mlp", ["ipdlam.training.loop"]),
        (
            "if TYPE_CHECKING:\n    pass\nelse:\n    import ipdlam.training.loop",
            "ipdlam.network.mlp",
            ["ipdlam.training.loop"],
        ),
        ("if TYPE_CHECKING:\n    from ipdlam.training.history import History", "ipdlam.network.mlp", []),
        ("from ipdlam.prox import Loss\nfrom ipdlam.prox.base import Loss\nimport torch", "ipdlam.network.mlp", []),
    ],
)
def test_the_check_sees_every_kind_of_import(source, name, expected):
    assert misplaced(source, name) == expected


def test_importing_the_package_loads_neither_scikit_learn_nor_matplotlib():
    code = (
        "import sys, ipdlam; ipdlam.IPDLAM, ipdlam.datasets, ipdlam.training.callbacks, ipdlam.baselines; "
        "loaded = {name.split('.')[0] for name in sys.modules}; "
        "assert 'torch' in loaded; "
        "sys.exit(', '.join(sorted(loaded & {'sklearn', 'matplotlib', 'scipy', 'pandas'})) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_the_command_line_answers_without_torch():
    code = "import sys, ipdlam, ipdlam.cli; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0


@pytest.mark.parametrize("name", LAYERS)
def test_no_module_is_longer_than_a_reader_can_hold(name):
    lines = len(MODULES[name].read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST, f"{name} has {lines} lines; split it"


@pytest.mark.parametrize("name", LAYERS)
def test_no_star_imports(name):
    stars = [
        node.lineno
        for node in ast.walk(parse(name))
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)
    ]
    assert stars == []


# The command line speaks, and an estimator that was told verbose=True.
SPEAKERS = ("ipdlam.cli", "ipdlam.estimators.stopping")


@pytest.mark.parametrize("name", [name for name in LAYERS if not name.startswith(SPEAKERS)])
def test_the_library_prints_nothing(name):
    calls = [
        node.lineno
        for node in ast.walk(parse(name))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "sys.stdout.write", "sys.stderr.write")
    ]
    assert calls == []


@pytest.mark.parametrize("name", LAYERS)
def test_nothing_in_the_library_back_propagates(name):
    if name.startswith("ipdlam.baselines"):
        return  # what the method is compared with
    wanted = []
    for node in ast.walk(parse(name)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called.endswith(".backward") or called in ("backward", "grad", "vjp", "jacrev"):
                wanted.append((node.lineno, called))
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith(("torch.autograd", "torch.func")):
            wanted.append((node.lineno, ast.unparse(node)))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("torch.autograd", "torch.func")):
            wanted.append((node.lineno, node.module))
    assert wanted == []


@pytest.mark.parametrize("name", LAYERS)
def test_every_module_says_what_it_is(name):
    assert ast.get_docstring(parse(name))


def test_all_is_true():
    assert len(set(ipdlam.__all__)) == len(ipdlam.__all__)
    missing = [name for name in ipdlam.__all__ if not hasattr(ipdlam, name)]
    assert missing == []
    # What type checkers see, what is imported on demand and what the list says are the same names.
    (seen,) = [node for node in parse("ipdlam").body if is_type_checking(node)]
    bound = {alias.asname or alias.name for node in seen.body for alias in node.names}
    assert set(ipdlam.__all__) == bound | {"__version__"} == set(ipdlam.HOMES) | {"__version__"}
    assert dir(ipdlam) == sorted(ipdlam.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        ipdlam.nonsense  # noqa: B018


def test_all_of_prox_is_true():
    assert [name for name in ipdlam.prox.__all__ if not hasattr(ipdlam.prox, name)] == []


def test_the_interface_of_the_design_is_there():
    promised = {"IPDLAM", "DLAM", "History", "Record", "StopTraining", "DivergenceError", "initialise", "prox"}
    assert promised <= set(ipdlam.__all__)


@pytest.mark.parametrize("name", ipdlam.__all__)
def test_everything_public_has_a_docstring(name):
    thing = getattr(ipdlam, name)
    if name == "__version__":
        assert isinstance(thing, str)
        return
    # A dataclass without a docstring gets its signature for one, which says nothing.
    assert (thing.__doc__ or "").strip()
    assert not (thing.__doc__ or "").startswith(f"{name}(")
