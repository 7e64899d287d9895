"""README and docs are true: their code runs, their links lead somewhere, their figures come from results/."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tables
from ipdlam.experiments.contents import read_picture
from ipdlam.experiments.overview import table_overview
from ipdlam.experiments.page import report_html
from ipdlam.experiments.report import load_contents, report_markdown

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def test_the_code_of_the_readme_runs_as_printed():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 2
    # One after the other in one program, as a reader would type them.
    answer = subprocess.run([sys.executable, "-c", "\n".join(blocks)], capture_output=True, text=True, cwd=ROOT)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout


def test_the_example_operator_of_contributing_works():
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    answer = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, cwd=ROOT)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("page", ["storage.md", "scaling.md"])
def test_the_code_of_a_page_runs(page):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    answer = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, cwd=ROOT)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("page", tables.PAGES)
def test_figures_come_from_the_results(page):
    text = (ROOT / page).read_text()
    assert "<!-- table " in text
    assert tables.with_tables(text) == text, "run python benchmarks/tables.py"


@pytest.mark.skipif(not (ROOT / "results").is_dir(), reason="there is no results/ here, as in a source distribution")
def test_the_report_is_that_of_the_results():
    folder = ROOT / "results"
    contents = load_contents(folder)
    remedy = "run ipdlam report"
    picture, overview = folder / "report.png", table_overview(contents)
    image = read_picture(
        picture, overview.digest, remedy
    )  # which shows these rows; another matplotlib draws other bytes
    assert (folder / "report.md").read_text() == report_markdown(contents, folder, picture), remedy
    same = (folder / "report.html").read_text() == report_html(contents, image)
    assert same is True, remedy  # megabytes: not to be shown


def test_a_changed_result_would_be_noticed(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "results", tmp_path / "results", ignore=shutil.ignore_patterns("unfinished"))
    path = tmp_path / "results" / "iteration.json"
    path.write_text(re.sub(r'"ratio_to_products": [0-9.]+', '"ratio_to_products": 0.5', path.read_text()))
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    text = (ROOT / "README.md").read_text()
    assert "| measured |" in text
    assert tables.with_tables(text) != text


@pytest.mark.parametrize("target", ["help", "demo", "test", "test-slow", "check", "bench", "docs", "clean"])
def test_the_makefile_lists_its_targets(target):
    answer = subprocess.run(["make", "help"], capture_output=True, text=True, cwd=ROOT)
    assert re.search(rf"^{target}\s", answer.stdout, re.MULTILINE)
