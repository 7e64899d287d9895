"""What MkDocs does not do by itself: pages and pictures from outside docs/, and links that lead to them.

The pages are also read in the repository, so their links are those of the repository: ``../../results/demo.png`` or
``../../examples/save_and_resume.py``. Here each of them is turned into a link within the site.
"""

from __future__ import annotations

import html
import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
PAGES = {  # page of the site: file of the repository
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
EXAMPLES = "guide/examples.md"
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCE = re.compile(r"^(```.*?^```)", re.DOTALL | re.MULTILINE)


def on_files(files, config):
    """Add the pages at the root, the examples, and the results."""
    for page, source in PAGES.items():
        text = inward((ROOT / source).read_text(), source, page)
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, EXAMPLES, content=examples_page()))
    for picture in sorted((ROOT / "results").glob("*.png")):
        files.append(File.generated(config, f"results/pictures/{picture.name}", abs_src_path=str(picture)))
    report = ROOT / "results" / "report.html"
    if report.exists():
        files.append(File.generated(config, "results/report.html", abs_src_path=str(report)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Links of a page in docs/ that lead out of it."""
    uri = page.file.src_uri
    return markdown if uri in PAGES or uri == EXAMPLES else inward(markdown, f"docs/{uri}", uri)


def on_page_content(content, page, config, files):
    """Names of pages in docstrings, such as docs/method/theory.md, as links."""

    def linked(found: re.Match[str]) -> str:
        target = files.get_file_from_path(found[1])
        if target is None or target.page is None:
            return found[0]
        title = html.escape(target.page.title or found[1])
        return f'<a href="{target.url_relative_to(page.file)}">{title}</a>'

    return re.sub(r"(?<![\w/\"])docs/([\w/-]+\.md)", linked, content)


def inward(text: str, source: str, page: str) -> str:
    """The text of a file of the repository with its links led to where their targets are in the site."""

    def led(found: re.Match[str]) -> str:
        target, hash_, anchor = found[2].partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return found[0]
        goal = os.path.normpath(PurePosixPath(source).parent / target).replace(os.sep, "/")
        inside = place_of(goal)
        if inside is None:
            return found[0]  # MkDocs says what is wrong with it
        if goal.startswith("examples/"):
            anchor, hash_ = PurePosixPath(goal).name.replace(".", ""), "#"
        return f"{found[1]}{os.path.relpath(inside, PurePosixPath(page).parent)}{hash_}{anchor}{found[3]}"

    parts = FENCE.split(text)  # code is left alone
    return "".join(part if part.startswith("```") else LINK.sub(led, part) for part in parts)


def place_of(goal: str) -> str | None:
    """Where a file of the repository is in the site."""
    for page, source in PAGES.items():
        if goal == source:
            return page
    if goal.startswith("docs/"):
        return goal.removeprefix("docs/")
    if goal.startswith("examples/"):
        return EXAMPLES
    if goal.startswith("results/") and goal.endswith(".png"):
        return f"results/pictures/{goal.removeprefix('results/')}"
    return {"results/report.md": "results/report.html", "results/report.html": "results/report.html"}.get(goal)


def examples_page() -> str:
    """Every file of examples/, with its first sentence."""
    parts = ["# Examples", "", "The tests run these files as they are."]
    for path in sorted((ROOT / "examples").glob("*.py")):
        parts += ["", f"## {path.name}", "", "```python", path.read_text().rstrip(), "```"]
    return "\n".join(parts) + "\n"
