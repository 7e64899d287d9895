"""The shape of the house: rooms import downwards only, and its habits are kept."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

import ipdlam

PACKAGE = Path(ipdlam.__file__).parent

# Room -> rooms it may import, besides itself; a module that stands in no folder is a room of its own.
GROUND = ("errors", "checks", "version", "defaults")
NUMERICS = (*GROUND, "prox", "network", "distributed", "checkpoint", "training")
METHODS = (*NUMERICS, "fullbatch", "minibatch")
PRODUCT = (*METHODS, "baselines", "estimators", "datasets", "runs")
MAY_IMPORT = {
    **dict.fromkeys(GROUND, ()),
    "prox": GROUND,
    "network": (*GROUND, "prox"),
    "distributed": (*GROUND, "prox", "network"),
    "checkpoint": (*GROUND, "prox", "network", "distributed"),
    "training": (*GROUND, "prox", "network", "distributed", "checkpoint"),
    "fullbatch": NUMERICS,
    "minibatch": NUMERICS,
    "baselines": METHODS,
    "estimators": METHODS,
    "datasets": (*GROUND, "network", "checkpoint"),
    "runs": (*METHODS, "baselines", "estimators", "datasets"),
    "experiments": PRODUCT,
    "cli": (*PRODUCT, "experiments"),
    "__main__": ("cli",),
}

# What is not so yet: a module, and the room that it should not know. A line that has become untrue fails the test,
# so that this list only gets shorter.
KNOWN = {
    ("ipdlam.errors", "training"),  # for type checkers alone
}
# Rooms whose docstring does not say yet where to begin; it only gets shorter, too.
WITHOUT_A_BEGINNING: set[str] = set()


def module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


def room_of(module):
    """The folder below the package; ``None`` for the package itself, which shows what all rooms hold."""
    return module.split(".")[1] if "." in module else None


def is_type_checking(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def nodes_of(tree, at_run_time):
    """All nodes; at run time, without what stands under ``if TYPE_CHECKING:``, which is never imported."""
    for child in ast.iter_child_nodes(tree):
        if at_run_time and is_type_checking(child):
            for other in child.orelse:
                yield other
                yield from nodes_of(other, at_run_time)
            continue
        yield child
        yield from nodes_of(child, at_run_time)


def imports_of(source, name, is_package=False, at_run_time=False):
    """The modules of this package that a source imports, as full names."""
    found = set()
    for node in nodes_of(ast.parse(source), at_run_time):
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
            submodules = inner & set(MODULES)
            found |= submodules
            if inner - submodules:
                found.add(base)
    return found - {name}


def misplaced(source, name, is_package=False):
    """The rooms that a module imports and should not know; the package itself is none that a module may import."""
    room = room_of(name)
    found = {room_of(imported) for imported in imports_of(source, name, is_package)}
    return sorted(str(other) for other in found - {room, *MAY_IMPORT[room]})


def source_of(name):
    return MODULES[name].read_text(encoding="utf-8")


@functools.cache
def parse(name):
    return ast.parse(source_of(name))


def is_package(name):
    return MODULES[name].name == "__init__.py"


# --- rooms ----------------------------------------------------------------------------------------------------------


def test_every_room_has_its_line():
    assert {room_of(name) for name in MODULES} - {None} == set(MAY_IMPORT), "MAY_IMPORT names the rooms of the house"


def test_the_matrix_goes_downwards_only():
    """No room may import one that may import it, over any number of rooms."""
    above = {room: set(others) for room, others in MAY_IMPORT.items()}
    for _ in MAY_IMPORT:
        for room, others in above.items():
            above[room] = others.union(*(above[other] for other in others))
    assert [room for room, others in above.items() if room in others] == []


def test_rooms_import_downwards_only():
    found = {
        (name, other)
        for name in MODULES
        if name != "ipdlam"
        for other in misplaced(source_of(name), name, is_package(name))
    }
    assert sorted(found - KNOWN) == [], "imports that MAY_IMPORT does not allow"
    assert sorted(KNOWN - found) == [], "these are mended: take them out of KNOWN"


@pytest.mark.parametrize(
    ("source", "name", "expected"),
    [
        ("from ipdlam.fullbatch.trainer import IPDLAM", "ipdlam.network.mlp", ["fullbatch"]),
        ("import ipdlam.fullbatch.trainer", "ipdlam.network.mlp", ["fullbatch"]),
        ("from ipdlam import fullbatch", "ipdlam.network.mlp", ["fullbatch"]),
        ("from .. import fullbatch", "ipdlam.network.mlp", ["fullbatch"]),
        ("from ..fullbatch.trainer import IPDLAM", "ipdlam.prox.base", ["fullbatch"]),
        ("from ipdlam import IPDLAM", "ipdlam.network.mlp", ["None"]),
        ("from ipdlam.nowhere import thing", "ipdlam.network.mlp", ["nowhere"]),
        ("def f():\n    from ipdlam.training.loop import run_loop", "ipdlam.network.mlp", ["training"]),
        ("if TYPE_CHECKING:\n    from ipdlam.training.loop import run_loop", "ipdlam.network.mlp", ["training"]),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    import ipdlam.training", "ipdlam.network.mlp", ["training"]),
        ("from ipdlam.fullbatch import updates", "ipdlam.minibatch.step", ["fullbatch"]),
        ("from ipdlam.runs import job\nfrom ipdlam.cli import app", "ipdlam.datasets.idx", ["cli", "runs"]),
        ("from . import history\nfrom .samples import Samples", "ipdlam.network.mlp", []),
        ("from ipdlam.prox import Loss\nfrom ipdlam.prox.base import Loss\nimport torch", "ipdlam.network.mlp", []),
    ],
)
def test_the_check_sees_every_kind_of_import(source, name, expected):
    assert misplaced(source, name) == expected


def test_no_two_modules_import_each_other():
    """Not even within a room, and over any number of modules; what only type checkers read does not count."""
    left = {name: imports_of(source_of(name), name, is_package(name), at_run_time=True) for name in MODULES}
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    assert sorted(left) == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_lives_there_and_where_to_begin(room):
    text = ast.get_docstring(parse(f"ipdlam.{room}")) or ""
    begins = "Begin" in text and "Imported here:" in " ".join(text.split())
    if room in WITHOUT_A_BEGINNING:
        assert not begins, f"take {room} out of WITHOUT_A_BEGINNING"
        assert text
    else:
        assert begins, (
            "what lives there, what is imported there ('Imported here: ...') and where to begin ('Begin ...')"
        )


# --- what happens at import -----------------------------------------------------------------------------------------

IMPORTS = """
import sys
import ipdlam, ipdlam.cli
assert not {"torch", "numpy"} & set(sys.modules), "the command line waits for torch"
for name in ipdlam.__all__:
    getattr(ipdlam, name)
loaded = {name.split(".")[0] for name in sys.modules}
assert "torch" in loaded
assert not loaded & {"sklearn", "matplotlib", "scipy", "pandas"}, loaded
import importlib, random, matplotlib, numpy, pooch, rich.progress, sklearn.base, torch  # rich draws
def everything_global():
    drawn = torch.get_rng_state().tolist(), repr(numpy.random.get_state()), random.getstate()
    return drawn, torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()
before = everything_global()
for name in sys.argv[1:]:
    importlib.import_module(name)
assert everything_global() == before, "an import draws random numbers, or changes what is global"
"""


def test_imports_are_light_and_leave_everything_global_alone():
    """Neither scikit-learn nor matplotlib with the package, no torch with the command line, no random numbers."""
    modules = [name for name in MODULES if name != "ipdlam.__main__"]  # which runs the command
    command = [sys.executable, "-c", IMPORTS, *modules]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


# --- habits ---------------------------------------------------------------------------------------------------------


def all_modules(check):
    """What a check of one syntax tree finds wrong, by module."""
    return {name: found for name in MODULES if (found := check(name, parse(name)))}


def calls_of(tree):
    return [(node.lineno, ast.unparse(node.func)) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def test_no_star_imports():
    def check(name, tree):
        found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        return [node.lineno for node in found if any(alias.name == "*" for alias in node.names)]

    assert all_modules(check) == {}


# The command line speaks, and an estimator that was told verbose=True.
SPEAKERS = ("ipdlam.cli", "ipdlam.estimators.stopping")


def test_the_library_prints_nothing():
    def check(name, tree):
        loud = ("print", "sys.stdout.write", "sys.stderr.write")
        return [] if name.startswith(SPEAKERS) else [call for call in calls_of(tree) if call[1] in loud]

    assert all_modules(check) == {}


def back_propagates(tree):
    """Where a graph is asked for, or gradients are taken."""
    wanted = []
    for line, called in calls_of(tree):
        if called.endswith(".backward") or called in ("backward", "grad", "vjp", "jacrev"):
            wanted.append((line, called))
        if called.endswith("enable_grad"):
            wanted.append((line, called))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith(("torch.autograd", "torch.func")):
            wanted.append((node.lineno, ast.unparse(node)))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("torch.autograd", "torch.func")):
            wanted.append((node.lineno, node.module))
        if isinstance(node, ast.keyword) and node.arg == "requires_grad" and ast.unparse(node.value) != "False":
            wanted.append((node.value.lineno, "requires_grad="))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".requires_grad_"):
            switched_off = [ast.unparse(given) for given in node.args] == ["False"] and not node.keywords
            wanted += [] if switched_off else [(node.lineno, "requires_grad_")]
        if isinstance(node, ast.Attribute) and node.attr == "requires_grad" and isinstance(node.ctx, ast.Store):
            wanted.append((node.lineno, "requires_grad is set"))
    return wanted


def test_nothing_in_the_library_back_propagates():
    """But for one call: the adjoint of a single map without parameters that no node knows, such as attention.

    Reading a model asks torch where it would follow derivatives, and follows none.
    """

    def check(name, tree):
        return [] if name.startswith("ipdlam.baselines") else back_propagates(tree)

    found = {name: [called for _, called in calls] for name, calls in all_modules(check).items()}
    adjoint, reading = found.pop("ipdlam.network.nodes"), found.pop("ipdlam.network.trace")
    assert (set(adjoint), reading, found) == ({"torch.func.vjp", "torch.func"}, ["torch.enable_grad"], {})
    assert back_propagates(parse("ipdlam.baselines.optimizers"))  # what the method is compared with: the check sees it


@pytest.mark.parametrize(
    "source",
    [
        "loss.backward()",
        "torch.autograd.grad(loss, W)",
        "from torch.func import vjp",
        "W.requires_grad_()",
        "W.requires_grad_(True)",
        "W.requires_grad = True",
        "torch.zeros(3, requires_grad=True)",
        "with torch.enable_grad(): pass",
    ],
)
def test_the_check_sees_every_kind_of_gradient(source):
    assert back_propagates(ast.parse(source))
    assert not back_propagates(ast.parse("W.requires_grad_(False)\nif W.requires_grad: pass"))


GLOBAL_DRAWS = ("torch.manual_seed", "torch.seed", "random.seed", "np.random.seed", "numpy.random.seed")
DRAWS = ("torch.rand", "torch.randn", "torch.randint", "torch.randperm", "torch.normal")
OWN = ("np.random.default_rng", "np.random.RandomState", "numpy.random.default_rng", "numpy.random.RandomState")


def draws_from_the_global_state(tree):
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            drawn = called in DRAWS and "generator" not in {keyword.arg for keyword in node.keywords}
            numpys = called.startswith(("np.random.", "numpy.random.")) and called not in OWN
            if called in GLOBAL_DRAWS or drawn or numpys:
                found.append((node.lineno, called))
    return found


def test_the_library_draws_from_generators_of_its_own():
    """But for modules of torch that draw from nothing else, each within ``fork_rng``: Dropout, and initial weights."""
    found = all_modules(lambda name, tree: [called for _, called in draws_from_the_global_state(tree)])
    seeded = ["torch.manual_seed"]
    assert found == {"ipdlam.baselines.optimizers": seeded, "ipdlam.runs.networks": seeded}
    for name in found:
        assert "torch.random.fork_rng(devices=[])" in MODULES[name].read_text()
    for source in ("torch.manual_seed(0)", "torch.randn(3)", "np.random.random()"):
        assert draws_from_the_global_state(ast.parse(source))


def test_every_module_says_what_it_is():
    assert all_modules(lambda name, tree: None if ast.get_docstring(tree) else "no docstring") == {}


# --- the interface --------------------------------------------------------------------------------------------------


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
