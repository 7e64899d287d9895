"""``ipdlam report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer


def report(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="where ipdlam reproduce left its results")] = Path(
        "results"
    ),
    output: Annotated[
        Optional[Path],  # noqa: UP045 (typer evaluates it)
        typer.Option(metavar="FILE", help="the page, FOLDER/report.html if not given; the Markdown goes beside it"),
    ] = None,
) -> None:
    """Put all results on one page: the paper's claims with verdicts, pictures, tables and commands.

    Every result is first checked against its stored runs. The page is one file that needs no network; the same stands
    in a Markdown file beside it, with the picture that opens both as a PNG file. An earlier report is replaced.

    Examples:

      ipdlam report

      ipdlam report results --output report.html
    """
    from rich.console import Console

    from ipdlam.experiments.contents import counted
    from ipdlam.experiments.report import write_report

    page = folder / "report.html" if output is None else output
    contents, written = write_report(folder, page)
    console = Console(highlight=False, soft_wrap=True, markup=False)
    for line in counted(contents):
        console.print(line)
    console.print(", ".join(map(str, written)))
