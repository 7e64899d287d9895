"""``ipdlam train``."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from ipdlam.cli.options import with_settings
from ipdlam.cli.processes import by_torchrun, check_shareable, is_restart, timeout
from ipdlam.cli.signals import StopSignals
from ipdlam.errors import DivergenceError, OutOfMemoryError
from ipdlam.runs.config import ConfigError, TrainConfig, read_toml


@with_settings(item.name for item in dataclasses.fields(TrainConfig))
def train(
    settings: dict[str, Any],
    config: Annotated[
        Optional[Path],  # noqa: UP045 (typer evaluates it)
        typer.Option(metavar="FILE", help="read settings from a TOML file; options override it", rich_help_panel="Run"),
    ] = None,
    resume: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="RUN", help="go on with an earlier run where it stopped", rich_help_panel="Run"),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="print nothing but warnings", rich_help_panel="Output")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="print a JSON object for every iteration or epoch", rich_help_panel="Output"),
    ] = False,
) -> None:
    """Train a network by alternating minimisation.

    Examples:

      ipdlam train mnist

      ipdlam train mnist --hidden 500,500 --batch-size 512 --epochs 20 --output runs/mnist

      ipdlam train mnist --method ipdlam --hidden 1500,1500 --iterations 200

      ipdlam train measurements.csv --label species --loss cross_entropy

      ipdlam train mnist --epochs 3 --then adam --then-epochs 10

      ipdlam train --resume runs/mnist

    torchrun --nproc-per-node=2 -m ipdlam train mnist --output runs/shared trains in two processes.

    It trains on mini-batches. --method ipdlam is the method of the paper, on all samples at once.

    Ctrl-C finishes the iteration or epoch, writes a checkpoint and stops; --resume goes on from there, bit for bit.
    """
    if resume is not None and config is not None:
        raise ConfigError("--resume takes the settings of the run; leave out --config")
    if resume is None and config is None and "data" not in settings:
        raise ConfigError("say what to train on: ipdlam train digits (or mnist, fashion-mnist, a file or a folder)")
    given = {} if config is None else read_toml(config)
    if resume is None:  # before torch is loaded: mistakes are answered at once
        resolved = TrainConfig().changed({**given, **settings})
        if by_torchrun():
            check_shareable(resolved)
    seconds = timeout()

    from ipdlam.cli.display import Silent, choose
    from ipdlam.distributed.group import SERIAL
    from ipdlam.distributed.torchrun import is_remembered, join, leave, remember
    from ipdlam.runs.folder import RunFolder
    from ipdlam.runs.job import Job, finished, resumed_config

    group = join(seconds) if by_torchrun() else SERIAL
    with contextlib.ExitStack() as parting:
        if by_torchrun():
            parting.callback(leave)
        display = choose(quiet=quiet, as_json=as_json) if group.is_first else Silent()
        output = None if resume is not None or resolved.output is None else Path(os.path.expanduser(resolved.output))
        # A folder that was there before torchrun's first attempt is another run's.
        if output is not None and is_restart() and is_run(output) and is_remembered(str(output)):
            resume = output
            settings = {name: value for name, value in {**given, **settings}.items() if name != "output"}

        def find() -> tuple[RunFolder, TrainConfig, str | None]:
            """Where the run is or will be, its settings, and what to say if it is over."""
            if resume is None:
                return RunFolder.new(resolved), resolved, None
            folder = RunFolder.open(resume)
            earlier = resumed_config(folder, settings)
            return folder, earlier, finished(folder, earlier)

        folder, resolved, over = group.first_does(find)
        if output is not None:
            remember(str(output))
        if over is not None:
            display.note(over)
            return
        if by_torchrun():
            check_shareable(resolved.changed({"output": str(folder.path)}))
        display.note(f"reading {resolved.data} ...")
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *details, **more: display.warn(str(message))
            with group.telling():
                job = Job(resolved, folder, progress=not (quiet or as_json), group=group)
            with StopSignals(display.note, lambda: display.unheard, job.unit) as stop:
                try:
                    with group.telling():
                        history = job.run(display, resume=resume is not None, stop=stop)
                except (DivergenceError, OutOfMemoryError) as error:
                    display.close()
                    display.end(job, error.history)
                    raise
                finally:
                    display.close()
        display.end(job, history)
    if stop.received is not None and history.stop_reason in (stop.received.name, "interrupted"):
        display.note(f"to go on: ipdlam train --resume {job.folder.path}")
        raise typer.Exit(128 + stop.received)


def is_run(path: Path) -> bool:
    """Whether a run has begun in a folder."""
    return (path / "config.toml").is_file()
