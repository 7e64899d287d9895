"""The rows and claims of experiments as tables of text: for the terminal, for Markdown and for the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ipdlam.experiments.claims import PAPER, QUESTION, divergence
from ipdlam.experiments.spec import Column, Experiment

CLAIM_HEADINGS = ("claim", "paper", "ours", "verdict")


@dataclass(frozen=True)
class Table:
    """Text in rows; numbers are set to the right."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]


def result_table(experiment: Experiment, content: Mapping[str, Any]) -> Table:
    """What was measured, one row for each run, or for all its seeds; columns that hold nothing are left out."""
    shown = experiment.shown(content["means"])
    several = len({row["seeds"] for row in shown}) > 1
    columns = [*experiment.columns, *([Column("seeds", "seeds", "count")] if several else [])]
    rows = [[cell(column, row) for column in columns] for row in shown]
    kept = [place for place in range(len(columns)) if any(row[place] for row in rows)]
    return Table(
        tuple(columns[place].heading for place in kept),
        tuple(tuple(row[place] for place in kept) for row in rows),
        tuple(columns[place].kind != "text" for place in kept),
    )


def claim_table(claims: Sequence[Mapping[str, str]]) -> Table:
    """What is said, what was measured, and the verdict."""
    rows = tuple((attributed(claim), claim["paper"], claim["ours"], claim["verdict"]) for claim in claims)
    return Table(CLAIM_HEADINGS, rows, (False,) * len(CLAIM_HEADINGS))


def attributed(claim: Mapping[str, str]) -> str:
    """The claim; where it is not the paper that says it, who does."""
    own = claim["source"] in (PAPER, QUESTION)
    return claim["claim"] if own else f"{claim['claim']} ({claim['source']})"


def cell(column: Column, row: Mapping[str, Any]) -> str:
    """A value as text; the range over the seeds follows a mean."""
    value = row.get(column.key)
    if column.key == "objective" and row["diverged"]:
        return divergence(row)
    if value is None:
        return ""
    text = written(column.kind, value)
    low, high = row.get(f"{column.key}_range", (value, value))
    return text if low == high else f"{text} ({written(column.kind, low)} to {written(column.kind, high)})"


def written(kind: str, value: Any) -> str:
    """A value in the digits that its kind deserves."""
    if isinstance(value, str):
        return value
    if kind in ("percent", "points"):
        return f"{100.0 * value:.2f}"
    if kind == "number":
        return f"{value:.3g}"
    if kind == "seconds":
        return f"{value:.1f}" if value < 10.0 else f"{value:.0f}"
    if kind == "count":
        return f"{value:.0f}"
    return str(value)


def markdown(table: Table) -> str:
    """A table of GitHub's Markdown."""
    rule = ["---:" if numeric else "---" for numeric in table.numeric]
    lines = [table.headings, rule, *table.rows]
    return "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines) + "\n"
