"""The report: all experiments of a folder on one page that needs nothing else, and the same as Markdown."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from ipdlam.checkpoint.files import write_file
from ipdlam.experiments import page
from ipdlam.experiments.contents import (
    WARM_UP,
    Content,
    Group,
    by_experiment,
    counts,
    environments,
    grouped,
    load_contents,
    missing,
    plural,
    reading_label,
)
from ipdlam.experiments.overview import MARK as PICTURE_MARK
from ipdlam.experiments.overview import TITLE as OVERVIEW_TITLE
from ipdlam.experiments.overview import overview_picture, table_overview
from ipdlam.experiments.page import TITLE
from ipdlam.experiments.paper.setup import LETTER
from ipdlam.experiments.summary import five_sentences, why_it_changed
from ipdlam.experiments.tables import Table, attributed, claim_table, markdown
from ipdlam.runs.config import ConfigError

__all__ = ["Content", "load_contents", "report_markdown", "verdict_markdown", "write_report"]

MARK = "<!-- Made by ipdlam report. -->"
GROUP_HEADINGS = ("claim, and the reading", "experiment, scale", "paper and rule, and ours", "verdict")
WARNING = (
    "**These are smoke runs: a tiny network on 8 by 8 digits. They show that everything works and prove nothing "
    "about the paper.**"
)


def write_report(folder: Path, output: Path) -> tuple[list[Content], list[Path]]:
    """Write the page, the same as Markdown beside it, and the picture that opens both; the results, and the files.

    Each file is the old one or the whole new one. A file that is no report is not replaced. Without runs of Table 1
    there is no picture.
    """
    if output.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"output must end in .html, got {str(output)!r}")
    beside, picture = output.with_suffix(".md"), output.with_suffix(".png")
    refuse_to_replace(output, page.MARK)
    refuse_to_replace(beside, MARK)
    contents = load_contents(folder)
    overview, image, drawn = table_overview(contents), None, []
    if overview is not None:
        refuse_to_replace(picture, PICTURE_MARK)
        image, drawn = overview_picture(overview, picture), [picture]
    write_file(beside, report_markdown(contents, beside.parent, *drawn).encode())
    write_file(output, page.report_html(contents, image).encode())
    return contents, [output, beside, *drawn]


def refuse_to_replace(path: Path, mark: str) -> None:
    """Refuse a name that something else has than a file of a report."""
    if path.exists() and not (path.is_file() and mark.encode() in path.read_bytes()[:1000]):
        raise ConfigError(f"output would replace {path}, which is of no report; remove it or choose another name")


def verdict_markdown(contents: Sequence[Content]) -> str:
    """What became of each claim, as a table of Markdown: a line for the claim, and below it one for each verdict."""
    rows = [row for group in grouped(contents) for row in group_rows(group)]
    cells = tuple(tuple(map(text, row)) for row in rows)  # what is empty stays so: a claim has no verdict of its own
    return markdown(Table(GROUP_HEADINGS, cells, (False,) * len(GROUP_HEADINGS)))


def group_rows(group: Group) -> list[tuple[str, ...]]:
    """The claim, where it is from, what is said and the rule; then each reading and scale, ours and the verdict."""
    said, rule = group.claim["paper"], group.claim["rule"]
    words = " ".join(part for part in (f"The paper: {said}." if said else "", f"Rule: {rule}" if rule else "") if part)
    rows: list[tuple[str, ...]] = [(f"**{attributed(group.claim)}**", group.experiment, words, "")]
    for verdict in group.verdicts:
        scale = verdict.scale if verdict.part is None else f"{verdict.scale} ({verdict.part})"
        rows.append((reading_label(verdict.reading), scale, verdict.claim["ours"], verdict.claim["verdict"]))
    return rows


def report_markdown(contents: Sequence[Content], base: Path, overview: Path | None = None) -> str:
    """The whole report; pictures, with that of Table 1 at ``overview``, are linked as seen from the folder ``base``."""
    parts = [MARK, f"# {TITLE}", *([WARNING] if contents[0].scale == WARM_UP else [])]
    parts.append("\n".join(f"- **{ask}.** {text(told)}" for ask, told in five_sentences(contents).items()))
    if overview is not None:
        parts.append(f"![{OVERVIEW_TITLE}]({link(overview, base)})")
    parts += ["## Verdicts", markdown(counts(contents))]
    if missing(contents):
        parts.append(f"Not made yet: {', '.join(missing(contents))}.")
    parts.append(verdict_markdown(contents))
    before = False
    for group in by_experiment(contents):
        if group[0].reading == LETTER and not before:
            before = True
            parts += ["## What we reported before, and why it changed", text(why_it_changed(contents))]
        parts += [f"## {text(group[0].experiment.title)}", text(group[0].experiment.about)]
        for content in group:
            parts += experiment_markdown(content, base)
    parts += ["## Measured on", "\n".join(f"- {text(line)}" for line in environments(contents))]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def link(path: Path, base: Path) -> str:
    """The way to a file from a folder."""
    return quote(Path(os.path.relpath(path, base)).as_posix())


def experiment_markdown(content: Content, base: Path) -> list[str]:
    """One experiment at one scale."""
    made = "" if content.part is None else f", {content.part}"
    return [
        f"### {content.scale.capitalize()} scale ({plural(content.data['seeds'], 'seed')}{made})",
        *([markdown(plain(claim_table(content.claims)))] if content.claims else []),
        f"![{text(content.experiment.title)}, {content.scale} scale]({link(content.picture, base)})",
        markdown(plain(content.table)),
        f"Accuracies in percent. `{content.data['command']}`{f' ({content.warning})' if content.warning else ''}; "
        f"{text('; '.join(environments([content])))}.",
    ]


def plain(table: Table) -> Table:
    """The same table, its text safe in Markdown."""
    rows = tuple(tuple(text(cell) or "-" for cell in row) for row in table.rows)
    return Table(tuple(map(text, table.headings)), rows, table.numeric)


def text(words: str) -> str:
    """Words that hold no HTML, make no link and begin no new line of Markdown."""
    return " ".join(words.split()).replace("&", "&amp;").replace("<", "&lt;").replace("](", "]&#40;")
