"""``ipdlam evaluate``, ``ipdlam predict`` and ``ipdlam datasets``: what a trained model and a data set are worth."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from ipdlam.runs.config import ConfigError

DataDir = Annotated[
    Optional[str],  # noqa: UP045 (typer evaluates it)
    typer.Option(metavar="TEXT", help="where to look for named data sets first"),
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
Network = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(metavar="FILE:FUNCTION", help="the function that made its network, where that was one of yours"),
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a run, or its model.safetensors")]


def evaluate(
    run: Run,
    data: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="DATA", help="other data than the run's own: a name, a file or a folder"),
    ] = None,
    data_dir: DataDir = None,
    network: Network = None,
    as_json: AsJson = False,
) -> None:
    """Loss and accuracy of a trained model on the data of its run, or on other data.

    Examples:

      ipdlam evaluate runs/mnist

      ipdlam evaluate runs/mnist --data fashion-mnist
    """
    from ipdlam.runs.predict import evaluate_run

    found = evaluate_run(run, data, data_dir, network)
    if as_json:
        from ipdlam.training.history import plain

        print(json.dumps(plain(found)))
        return
    from rich.console import Console
    from rich.table import Table

    from ipdlam.cli.display import ERRORS, number, percent

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    classes = all("r2" not in scores for scores in found.values())
    for column in ("", "samples", "mean loss", *(["accuracy"] if classes else ERRORS.values())):
        table.add_column(column, justify="right" if column else "left")
    for name, scores in found.items():
        told = [percent(scores["accuracy"])] if classes else [number(scores[key]) for key in ERRORS]
        table.add_row(name, str(scores["samples"]), f"{scores['loss']:.4g}", *told)
    Console(highlight=False, markup=False).print(table)


def predict(
    run: Run,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="inputs: IDX images, .npz with X, .csv or .tsv")],
    output: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="write there instead of to the screen"),
    ] = None,
    scores: Annotated[bool, typer.Option("--scores", help="add the outputs of the network, one column each")] = False,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="add the probability of every class, one column each")
    ] = False,
    network: Network = None,
) -> None:
    """Predictions of a trained model as CSV, one line for every sample.

    Of a table, what was done to its columns in training is done again: texts, gaps, scales.

    Examples:

      ipdlam predict runs/mnist t10k-images-idx3-ubyte.gz

      ipdlam predict runs/iris new.csv --probabilities --output predicted.csv
    """
    from ipdlam.checkpoint.files import write_file
    from ipdlam.runs.predict import predict_file

    if output is not None and output.exists():
        raise ConfigError(f"output {output} exists already; remove it or choose another name")
    header, rows = predict_file(run, file, scores=scores, probabilities=probabilities, network=network)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    if output is None:
        sys.stdout.write(text.getvalue())
    else:
        write_file(output, text.getvalue().encode())
        what = ", ".join(header[:4]) + (f" and {len(header) - 4} more" if len(header) > 4 else "")
        print(f"{len(rows)} predictions ({what}) are in {output}")


def datasets(data_dir: DataDir = None) -> None:
    """The data sets with a name, and where each was found or what to do.

    Besides names, every command takes a folder of IDX files, a .npz file with X and y, or a .csv or .tsv table.
    """
    from rich.console import Console
    from rich.table import Table

    from ipdlam.datasets import listing

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("name", "what", "where"):
        table.add_column(column, overflow="fold")
    for name, description, path, remedy in listing(data_dir):
        where = "part of ipdlam" if name == "digits" else f"not found; {remedy}" if path is None else str(path)
        table.add_row(name, description, where)
    Console(highlight=False, markup=False).print(table)
