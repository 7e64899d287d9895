"""README and docs are true: their code runs, their links lead somewhere, their figures come from results/."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

import tables
from forked import Forked, program
from ipdlam.experiments.page import report_html
from ipdlam.experiments.report import load_contents, report_markdown

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"(<!-- not run: (?P<reason>.+?) -->\n+)?```python\n(?P<code>.*?)```", re.DOTALL)
REPHRASED = (  # sentences that nobody understood at first reading
    "beside its matrix products at the SGEMM rate",
    "the median of those of the seeds",
    "the plan that got there first counts",
    "is better on more of the new tables than not",
    "refuse rows that their runs do not give",
    "is divided by what it is too much",
    "if none of those that were measured was",
    "their time over that of two",
    "there are none that were solved for",
    "one that some of the seeds only have",
)


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[str]:
    return [found["code"] for found in BLOCK.finditer(page.read_text()) if found["reason"] is None]


def run(code: str, folder: Path) -> tuple[int, str]:
    """The exit code of a program, and what it said."""
    if "init_process_group" in code:  # as torchrun would start the only process
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": "0", "WORLD_SIZE": "1"}
        code = f"import os\nos.environ.update({environment})\n{code}"
    (folder / "page.py").write_text(code)
    process = Forked(program, str(folder / "page.py"), cwd=folder)
    said, _ = process.communicate()
    return process.returncode, said


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name)
def test_the_code_of_a_page_runs_as_printed(page, tmp_path):
    # One block after the other in one program, as a reader would type them.
    code, said = run("\n".join(blocks(page)), tmp_path)
    assert code == 0, said


def test_little_code_is_not_run():
    skipped = [name(page) for page in PAGES for found in BLOCK.finditer(page.read_text()) if found["reason"]]
    assert skipped == []


def test_the_readme_is_short_and_its_code_comes_early():
    text = (ROOT / "README.md").read_bytes()
    assert len(text) <= 9000
    assert b"```python" in text.splitlines()[:15]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    made = {ROOT / "docs" / "guide" / "examples.md"}  # by docs/hooks.py
    missing = [
        target
        for target in targets
        if "://" not in target and not (page.parent / target).exists() and (page.parent / target).resolve() not in made
    ]
    assert missing == []


@pytest.mark.parametrize("folder", ["benchmarks", "examples", "docs", "CHANGELOG.md", "CONTRIBUTING.md"])
def test_pages_that_are_named_exist(folder):
    place = ROOT / folder
    files = [place] if place.is_file() else [*place.rglob("*.py"), *place.rglob("*.md")]
    named = {page for file in files for page in re.findall(r"\bdocs/[\w/-]+\.md", file.read_text())}
    assert [page for page in sorted(named) if not (ROOT / page).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_sentences_can_be_understood(page):
    text = " ".join(page.read_text().split())
    assert [phrase for phrase in REPHRASED if phrase in text] == []


@pytest.mark.parametrize("page", tables.PAGES)
def test_figures_come_from_the_results(page):
    text = (ROOT / page).read_text()
    assert "<!-- table " in text
    assert tables.with_tables(text) == text, "run python benchmarks/tables.py"


def test_every_table_is_shown_and_every_page_with_tables_is_kept_true():
    shown = {page: re.findall(r"<!-- table (\w+) -->", page.read_text()) for page in PAGES}
    assert {name(page) for page, found in shown.items() if found} == set(tables.PAGES)
    assert {table for found in shown.values() for table in found} == set(tables.TABLES)


@pytest.mark.skipif(not (ROOT / "results").is_dir(), reason="there is no results/ here, as in a source distribution")
def test_the_report_is_that_of_the_results():
    folder = ROOT / "results"
    contents = load_contents(folder)
    remedy = "run ipdlam report"
    picture = folder / "report.png"
    image = picture.read_bytes()  # as it is: another matplotlib draws other bytes
    assert (folder / "report.md").read_text() == report_markdown(contents, folder, picture), remedy
    same = (folder / "report.html").read_text() == report_html(contents, image)
    assert same is True, remedy  # megabytes: not to be shown


@pytest.mark.parametrize(
    ("result", "found", "changed", "page"),
    [
        ("iteration", r'"ratio_to_products": [0-9.]+', '"ratio_to_products": 0.5', "docs/results/fullbatch.md"),
        (
            "race",
            r'"reached": \{\s*"0.98": \[\s*[0-9]+,\s*[0-9.]+',
            '"reached": {"0.98": [1, 0.5',
            "docs/results/race.md",
        ),
    ],
)
def test_a_changed_result_would_be_noticed(result, found, changed, page, tmp_path, monkeypatch):
    shutil.copytree(ROOT / "results", tmp_path / "results", ignore=shutil.ignore_patterns("unfinished"))
    path = tmp_path / "results" / f"{result}.json"
    path.write_text(re.sub(found, changed, path.read_text()))
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    text = (ROOT / page).read_text()
    assert tables.with_tables(text) != text


@pytest.mark.parametrize("target", ["help", "demo", "test", "test-slow", "check", "bench", "docs", "tables", "clean"])
def test_the_makefile_lists_its_targets(target):
    answer = subprocess.run(["make", "help"], capture_output=True, text=True, cwd=ROOT)
    assert re.search(rf"^{target}\s", answer.stdout, re.MULTILINE)
