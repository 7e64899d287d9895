"""The documentation site builds without a warning, shows the whole interface and loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import ipdlam
from ipdlam import baselines, datasets, estimators, prox

ROOT = Path(__file__).parent.parent
MISSING = [module for module in ("mkdocs", "material", "mkdocstrings") if find_spec(module) is None]
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}; pip install '.[docs]'"),
    pytest.mark.skipif(not (ROOT / "mkdocs.yml").exists(), reason="there is no mkdocs.yml here"),
]
PUBLIC = [
    *(f"ipdlam.{name}" for name in ipdlam.__all__ if name not in ipdlam.MODULES and name != "__version__"),
    *(f"ipdlam.prox.{name}" for name in prox.__all__),
    *(f"ipdlam.estimators.{name}" for name in estimators.__all__),
    *(f"ipdlam.baselines.{name}" for name in baselines.__all__),
    *(f"ipdlam.datasets.{name}" for name in datasets.__all__),
    *(f"ipdlam.callbacks.{name}" for name in ("Checkpoints", "TensorBoard")),
    "ipdlam.plots.curves",
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    answer = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {page.relative_to(site).as_posix(): page.read_text() for page in site.rglob("*.html")}


def test_every_page_is_in_the_navigation(pages):
    assert len(pages) > 40
    assert 'href="guide/runs.html"' in pages["index.html"]
    assert 'href="changelog.html"' in pages["index.html"]


def test_the_reference_shows_the_whole_interface(pages):
    reference = "".join(text for page, text in pages.items() if page.startswith("reference/"))
    shown = set(re.findall(r'id="([\w.]+)"', reference))
    assert [name for name in PUBLIC if name not in shown] == []


def test_docstrings_are_readable(pages):
    for page, text in pages.items():
        if page.startswith("reference/"):
            words = re.sub(r"<[^>]+>", "", text)
            assert re.findall(r":(?:class|meth|func|data|attr|mod):", words) == [], page
            assert "autoref" not in re.sub(r'class="autorefs?[^"]*"', "", text), page
            assert "<blockquote>" not in text, page  # a doctest that was taken for one


def test_parameters_have_their_own_defaults(pages):
    words = " ".join(re.sub(r"<[^>]+>", " ", pages["reference/trainers.html"]).split())
    assert re.search(r"penalty_max \( float , default: 1000000.0 \)", words)


def test_nothing_is_loaded_from_elsewhere(pages):
    for page, text in pages.items():
        if page != "results/report.html":  # one file that holds everything
            assert re.findall(r'(?:src|href)="(?:https?:)?//[^"]+\.(?:js|css|woff2?)[^"]*"', text) == [], page
            assert "fonts.g" not in text, page


def test_pictures_are_part_of_the_site(site, pages):
    for page, text in pages.items():
        for source in re.findall(r'<img [^>]*src="([^":]+)"', text):
            assert (site / page).parent.joinpath(source).exists(), (page, source)
