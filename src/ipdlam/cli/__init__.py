"""The command line: parsing and printing only. Torch is imported when a command runs, so that help comes at once.

A file for each command; ``options`` makes those of ``train`` from the settings in ``ipdlam.runs.config``, ``display``
is what a person, a log or a program sees of a run. Imported here: everything. Begin with ``train``.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from typing import Annotated, NoReturn

import typer

from ipdlam.cli.compare import compare
from ipdlam.cli.inspect import datasets, evaluate, predict
from ipdlam.cli.processes import by_torchrun, speaks_of
from ipdlam.cli.report import report
from ipdlam.cli.reproduce import reproduce
from ipdlam.cli.train import train
from ipdlam.errors import (
    DataError,
    DistributedError,
    DivergenceError,
    FileError,
    OutOfMemoryError,
    SolveError,
    UnsupportedModelError,
    is_out_of_memory,
)
from ipdlam.runs.config import ConfigError
from ipdlam.version import __version__

app = typer.Typer(
    name="ipdlam",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (train, compare, reproduce, report, evaluate, predict, datasets):
    app.command()(command)


def show_version(wanted: bool) -> None:
    """Print the version and stop."""
    if wanted:
        print(f"ipdlam {__version__}")
        raise typer.Exit


@app.callback()
def overview(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Train neural networks by alternating minimisation instead of back-propagation.

    First steps:

      ipdlam datasets

      ipdlam train digits

      ipdlam train mnist --hidden 1500,1500 --iterations 50 --output runs/mnist

      ipdlam train mnist --batch-size 512 --epochs 10
    """
    if by_torchrun() and context.invoked_subcommand != "train":
        raise ConfigError(f"torchrun is for ipdlam train; start ipdlam {context.invoked_subcommand} without it")


def main() -> NoReturn:
    """Run the command line; what a user can mend is one line, not a traceback.

    It leaves with 2 where the command cannot be done as it was given: its words, or the data or the model that it
    names. It leaves with 1 where what was right failed: the machine, or the files of a run or of a result.
    """
    make_streams_sound()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *details, **more: print(f"warning: {message}", file=sys.stderr)
            app()
    except (ConfigError, DataError, UnsupportedModelError) as error:
        fail(error, 2)
    except DivergenceError as error:
        fail(error, 3)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except (FileError, DistributedError, SolveError, ImportError, OSError, OutOfMemoryError) as error:
        fail(error, 1)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        fail(MemoryError("there is not enough memory; use a smaller network or fewer samples"), 1)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)


def make_streams_sound() -> None:
    """Streams that were closed lead nowhere, and characters that a terminal does not have become question marks."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (as long as the program lives)
        with contextlib.suppress(AttributeError):  # what stands in for a stream need not have an encoding
            getattr(sys, name).reconfigure(errors="replace")


def fail(error: Exception, code: int) -> NoReturn:
    """Say what is wrong and leave with a code."""
    if speaks_of(error):
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(code)
