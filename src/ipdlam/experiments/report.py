"""The report: all experiments of a folder on one page that needs nothing else, and the same as Markdown."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from ipdlam.config import ConfigError
from ipdlam.experiments import page
from ipdlam.experiments.contents import (
    WARM_UP,
    Content,
    by_experiment,
    counts,
    environments,
    load_contents,
    missing,
    plural,
    verdicts,
)
from ipdlam.experiments.page import TITLE
from ipdlam.experiments.tables import Table, claim_table, markdown
from ipdlam.storage import write_file

__all__ = ["Content", "load_contents", "report_markdown", "verdict_markdown", "write_report"]

MARK = "<!-- Made by ipdlam report. -->"
WARNING = (
    "**These are smoke runs: a tiny network on 8 by 8 digits. They show that everything works and prove nothing "
    "about the paper.**"
)


def write_report(folder: Path, output: Path) -> tuple[list[Content], Path]:
    """Write the page and, beside it, the Markdown; what they are made of, and the path of the Markdown.

    Either file is the old one or the whole new one. A file that is no report is not replaced.
    """
    if output.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"output must end in .html, got {str(output)!r}")
    beside = output.with_suffix(".md")
    for path, mark in ((output, page.MARK), (beside, MARK)):
        if path.exists() and not (path.is_file() and mark.encode() in path.read_bytes()[:1000]):
            raise ConfigError(f"output would replace {path}, which is no report; remove it or choose another name")
    contents = load_contents(folder)
    write_file(beside, report_markdown(contents, beside.parent).encode())
    write_file(output, page.report_html(contents).encode())
    return contents, beside


def verdict_markdown(contents: Sequence[Content]) -> str:
    """What became of each claim, as a table of Markdown."""
    rows = []
    for verdict in verdicts(contents):
        scale = verdict.scale if verdict.part is None else f"{verdict.scale} ({verdict.part})"
        rows.append((verdict.experiment, scale, *claim_table([verdict.claim]).rows[0]))
    headings = ("experiment", "scale", *claim_table([]).headings)
    return markdown(plain(Table(headings, tuple(rows), (False,) * len(headings))))


def report_markdown(contents: Sequence[Content], base: Path) -> str:
    """The whole report; pictures are linked as seen from the folder ``base``."""
    parts = [MARK, f"# {TITLE}", *([WARNING] if contents[0].scale == WARM_UP else []), markdown(counts(contents))]
    parts += ["Measured on:", "\n".join(f"- {text(line)}" for line in environments(contents))]
    if missing(contents):
        parts.append(f"Not made yet: {', '.join(missing(contents))}.")
    parts += ["## Verdicts", verdict_markdown(contents)]
    for group in by_experiment(contents):
        parts += [f"## {text(group[0].experiment.title)}", text(group[0].experiment.about)]
        for content in group:
            parts += experiment_markdown(content, base)
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def experiment_markdown(content: Content, base: Path) -> list[str]:
    """One experiment at one scale."""
    link = quote(Path(os.path.relpath(content.picture, base)).as_posix())
    made = "" if content.part is None else f", {content.part}"
    return [
        f"### {content.scale.capitalize()} scale ({plural(content.data['seeds'], 'seed')}{made})",
        *([markdown(plain(claim_table(content.claims)))] if content.claims else []),
        f"![{text(content.experiment.title)}, {content.scale} scale]({link})",
        markdown(plain(content.table)),
        f"Accuracies in percent. `{content.data['command']}`{f' ({content.warning})' if content.warning else ''}; "
        f"{text('; '.join(environments([content])))}.",
    ]


def plain(table: Table) -> Table:
    """The same table, its text safe in Markdown."""
    rows = tuple(tuple(text(cell) or "-" for cell in row) for row in table.rows)
    return Table(tuple(map(text, table.headings)), rows, table.numeric)


def text(words: str) -> str:
    """Words that hold no HTML and begin no new line of Markdown."""
    return " ".join(words.split()).replace("&", "&amp;").replace("<", "&lt;")
