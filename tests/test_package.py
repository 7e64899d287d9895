"""The package as it is given away: a wheel and a source distribution that install and work by themselves."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WORKS = "import ipdlam; print(ipdlam.__file__); print(len(ipdlam.datasets.load('digits').X), ipdlam.IPDLAM.__name__)"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Both, built from a copy: the tree itself stays as it is."""
    folder = tmp_path_factory.mktemp("package")
    ignored = shutil.ignore_patterns(".git", ".venv", "*.egg-info", "__pycache__", "results", "tests", "runs", "site")
    shutil.copytree(ROOT, folder / "tree", ignore=ignored)
    script = (
        "from setuptools import build_meta\n"
        f"print(build_meta.build_sdist({str(folder)!r}))\nprint(build_meta.build_wheel({str(folder)!r}))"
    )
    answer = subprocess.run([sys.executable, "-c", script], cwd=folder / "tree", capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return folder


def test_the_wheel_works_where_nothing_else_is(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
        names = archive.namelist()
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "docs"))]
    assert {"ipdlam/py.typed", "ipdlam/datasets/digits.npz", "ipdlam/fullbatch/trainer.py"} <= set(names)
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    answer = subprocess.run(
        [sys.executable, "-c", WORKS], cwd=tmp_path, capture_output=True, text=True, env=environment
    )
    assert answer.stdout.split() == [str(tmp_path / "ipdlam" / "__init__.py"), "1347", "IPDLAM"], answer.stderr


def test_the_source_distribution_holds_what_a_wheel_is_built_from(built):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as content:
        names = {name.partition("/")[2] for name in content.getnames()}
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "src/ipdlam/__init__.py",
        "src/ipdlam/datasets/digits.npz",
    } <= names
