"""What a person, a log file or a program sees of a run under way."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ipdlam.baselines import BackPropagation
from ipdlam.checkpoint.files import readable
from ipdlam.minibatch.trainer import MiniBatchIPDLAM
from ipdlam.runs.environment import peak_memory
from ipdlam.runs.job import counted
from ipdlam.training.history import plain

if TYPE_CHECKING:
    from ipdlam.runs.job import Job
    from ipdlam.training.history import History, Record


ERRORS = {"r2": "R²", "rmse": "RMSE", "mae": "MAE"}  # of a regression


def percent(accuracy: float | None) -> str:
    """An accuracy, or a dash where there is none."""
    return "-" if accuracy is None else f"{100 * accuracy:.2f} %"


def score(accuracy: float | None, loss: float | None) -> str:
    """The accuracy, or the mean loss where there are no classes, or a dash where it was not evaluated."""
    if accuracy is not None or loss is None:
        return percent(accuracy)
    return f"loss {loss:.4g}"


def number(value: float | None, digits: int = 4) -> str:
    """A score, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}g}"


def scored(record: Record) -> str:
    """What :attr:`Record.score` stands for: the validation data, or else the training samples."""
    if record.validation_loss is not None:
        return score(record.validation_accuracy, record.validation_loss)
    return score(record.train_accuracy, record.train_loss)


def heading(job: Job) -> str:
    """What is trained on what."""
    return f"{job.methods} on {job.problem.heading}"


def stage_line(job: Job) -> str:
    """What the second stage does."""
    optimizer = job.optimizer
    assert optimizer is not None
    return (
        f"{job.stage} after {job.unit} {job.handover}: {job.config.second_epochs} epochs, rate "
        f"{optimizer.learning_rate:g}, batches of {optimizer.batch_size}"
    )


def gap(record: Record, gaps: tuple[float, ...]) -> str:
    """The sum over the layers, or a dash for an optimizer, which has no gaps."""
    return f"{sum(gaps):.3g}" if record.optimizer is None else "-"


def batch_line(job: Job) -> str | None:
    """How mini-batches are made, where the method goes by them."""
    trainer = job.trainer
    if isinstance(trainer, MiniBatchIPDLAM):
        plan = f"{job.total} epochs, batches of {trainer.batch_size}, step {trainer.settings.step:g}"
        return f"{plan} (--method ipdlam is the method of the paper, on all samples at once)"
    if isinstance(trainer, BackPropagation):
        return f"{job.total} epochs, batches of {trainer.batch_size}, rate {trainer.learning_rate:g}"
    return None


def checkpoint_line(job: Job) -> str | None:
    """How often and how large."""
    config = job.config
    if config.checkpoint == "none":
        return None
    size = readable(job.trainer.checkpoint_bytes(light=config.checkpoint == "light"))
    return f"checkpoints: {config.checkpoint}, every {config.checkpoint_every} {job.unit}s, {size} each, two are kept"


class Outlet:
    """A stream that goes silent, instead of ending the program, when it cannot be written to: a log on a full disk.

    That nobody reads it any more is another matter, and still raises ``BrokenPipeError``.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.lost: OSError | None = None  # why nothing is written any more

    def write(self, text: str) -> int:
        with self.unfailing():
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self.unfailing():
            self.stream.flush()

    @contextlib.contextmanager
    def unfailing(self) -> Iterator[None]:
        """Go silent where the system refuses."""
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            self.lost = self.lost or error
            with contextlib.suppress(OSError):  # of a stream without a file
                silence(self.stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class PipeConsole(Console):
    """A console that goes silent, instead of ending the program, when whoever reads it has gone."""

    unheard = False

    def on_broken_pipe(self) -> None:
        silence(sys.stdout)
        self.quiet = self.unheard = True


def silence(stream: Any) -> None:
    """What is still written to a closed pipe goes nowhere."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def silenced(outlet: Outlet) -> str:
    """Why there is less output than expected."""
    assert outlet.lost is not None
    return f"the output could not be written ({outlet.lost.strerror or outlet.lost}), and the run went on without it"


class Quiet:
    """Nothing but warnings."""

    unheard = False  # whether whoever read the output has gone

    def __init__(self) -> None:
        self.outlet: Any = Outlet(sys.stdout)  # all of a file that is needed
        errors: Any = Outlet(sys.stderr)
        self.errors = Console(file=errors, highlight=False, soft_wrap=True)

    def begin(self, job: Job, history: History) -> None: ...

    def stage(self, job: Job) -> None: ...

    def record(self, record: Record) -> None: ...

    def note(self, text: str) -> None: ...

    def warn(self, text: str) -> None:
        self.errors.print(f"warning: {text}", style="yellow", markup=False)

    def close(self) -> None: ...

    def end(self, job: Job, history: History) -> None:
        """Say at least that something could not be said."""
        if self.outlet.lost is not None:
            Quiet.warn(self, f"{silenced(self.outlet)}; every {job.unit} is in {job.folder.history}")


class Silent(Quiet):
    """Nothing at all: another process speaks."""

    def warn(self, text: str) -> None: ...


class Json(Quiet):
    """One JSON object a line on standard output."""

    def write(self, event: str, **fields: Any) -> None:
        try:
            print(json.dumps(plain({"event": event, **fields})), file=self.outlet, flush=True)
        except BrokenPipeError:
            silence(sys.stdout)
            self.unheard = True

    def begin(self, job: Job, history: History) -> None:
        light = job.config.checkpoint == "light"
        size = None if job.config.checkpoint == "none" else job.trainer.checkpoint_bytes(light=light)
        config = job.config.to_dict()
        self.write("begin", run=str(job.folder.path), config=config, done=len(history), checkpoint_bytes=size)

    def stage(self, job: Job) -> None:
        assert job.optimizer is not None
        settings = job.optimizer.settings_dict()
        self.write("stage", after=job.handover, epochs=job.config.second_epochs, settings=settings)

    def record(self, record: Record) -> None:
        self.write("iteration", **record.to_dict(), peak_memory=peak_memory())

    def note(self, text: str) -> None:
        self.write("note", text=text)

    def warn(self, text: str) -> None:
        self.write("warning", text=text)

    def end(self, job: Job, history: History) -> None:
        self.write("end", run=str(job.folder.path), stop_reason=history.stop_reason, iterations=len(history))
        super().end(job, history)


class Lines(Quiet):
    """One plain line an iteration, for logs and pipes."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__()
        self.console = PipeConsole(file=self.outlet, highlight=False, soft_wrap=True) if console is None else console
        self.total = 0
        self.prefix = ""  # the stage, where there are two
        self.constrained = True  # whether the method has constraints, and gaps between their sides

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)
        self.unheard = getattr(self.console, "unheard", False)

    def begin(self, job: Job, history: History) -> None:
        self.name_stage(job)
        self.constrained = job.unit == "iteration"
        stage = batch_line(job) if job.handover is None else stage_line(job)
        for line in (heading(job), f"run folder: {job.folder.path}", checkpoint_line(job), stage):
            if line is not None:
                self.say(line)

    def name_stage(self, job: Job) -> None:
        self.total = job.total
        self.prefix = "" if job.config.then is None else f"{job.stage} "

    def stage(self, job: Job) -> None:
        self.name_stage(job)
        self.note(stage_line(job))

    def record(self, record: Record) -> None:
        gaps = f"  gaps {gap(record, record.linear_gap)} {gap(record, record.activation_gap)}"
        self.say(
            f"{self.prefix}{record.iteration:>{len(str(self.total))}}/{self.total}  Phi {record.objective:.4g}"
            f"{gaps if self.constrained else ''}"
            f"  train {score(record.train_accuracy, record.train_loss)}"
            f"  validation {score(record.validation_accuracy, record.validation_loss)}"
            f"  {record.seconds:.1f} s  peak {readable(peak_memory())}"
        )

    def note(self, text: str) -> None:
        self.say(text)

    def end(self, job: Job, history: History) -> None:
        folder = job.folder
        if history:
            best, last = history.best, history[-1]
            where = job.problem.split.scored_on if job.problem.split.validation is not None else "training samples"
            kept = "the best iterate was kept" if job.config.restore_best else "the last iterate was kept"
            if best is not None:
                self.say(f"best on the {where}: {scored(best)} at {job.unit} {best.iteration}; {kept}")
            errors = job.problem.errors(job.model)
            if errors is not None:
                told = ", ".join(f"{name} {number(errors[key])}" for key, name in ERRORS.items())
                self.say(f"{told} on the {where}, in their own units")
            self.say(
                f"{counted(job.config, history)}, {last.seconds:.1f} s of training, ended by: {history.stop_reason}"
            )
        for label, path in (("model", folder.model), ("curves", folder.curves)):
            if path.is_file():
                self.say(f"{label + ':':8}{path}")
        super().end(job, history)


class Screen(Lines):
    """A bar with the time left and the figures of the last iteration, redrawn in place."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(console)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
            console=self.console,
            expand=True,
            speed_estimate_period=3600.0,  # iterations may take minutes
        )
        self.figures: Any = Text("")
        self.message: Text | None = None
        self.best: Record | None = None
        self.validated = "validation"
        self.live = Live(console=self.console, get_renderable=self.render, refresh_per_second=4)

    def render(self) -> Group:
        return Group(self.progress, self.figures, *([self.message] if self.message else []))

    def note(self, text: str) -> None:
        """Below the figures while they are on the screen: above them it would tear the bar."""
        if not self.live.is_started:
            return super().note(text)
        self.message = Text(text, style="dim")
        self.live.refresh()

    def begin(self, job: Job, history: History) -> None:
        super().begin(job, history)
        self.figures = Text(f"first {job.unit} …", style="dim")
        if job.problem.split.validation is not None:
            self.validated = "test" if job.problem.split.scored_on == "test set" else "held out"
        self.add_bar(job, len(history))
        for record in history:
            self.keep_best(record)
        self.live.start()

    def add_bar(self, job: Job, done: int) -> None:
        """A bar for the present stage, which counts from its own beginning."""
        self.before = job.handover or 0
        name = job.unit if job.config.then is None else job.stage
        self.task = self.progress.add_task(name, total=job.total - self.before, completed=done - self.before)

    def stage(self, job: Job) -> None:
        self.progress.stop_task(self.task)  # its time stands still
        self.add_bar(job, job.handover or 0)
        super().stage(job)

    def keep_best(self, record: Record) -> None:
        if record.score is not None and (self.best is None or record.score > (self.best.score or 0.0)):
            self.best = record

    def record(self, record: Record) -> None:
        self.keep_best(record)
        self.progress.update(self.task, completed=record.iteration - self.before)
        best = "-" if self.best is None else f"{scored(self.best)} at {self.best.iteration}"
        columns = [
            [
                ("Phi", f"{record.objective:.4g}"),
                ("penalty", f"{record.penalty:.3g}" if record.optimizer is None else "-"),
                ("peak memory", readable(peak_memory())),
            ],
            [
                ("linear gap", gap(record, record.linear_gap)),
                ("activation gap", gap(record, record.activation_gap)),
                ("training time", f"{record.seconds:.1f} s"),
            ],
            [
                ("training", score(record.train_accuracy, record.train_loss)),
                (self.validated, score(record.validation_accuracy, record.validation_loss)),
                ("best", best),
            ],
        ]
        least = [9, 9, 21]
        if not self.constrained:
            columns[:2] = [[columns[0][0], columns[1][2], columns[0][2]]]
            least = [9, 21]
        # Room for the ^C that a terminal echoes at the end of the last line: a wrap would tear the bar.
        table = Table.grid(padding=(0, 1))
        spare = self.console.width - 80  # the labels and three columns of values take 77, the best score most of them
        if spare < 0:
            columns, least = [[pair for row in zip(*columns, strict=True) for pair in row]], [0]
        for width in least:
            table.add_column(style="dim", no_wrap=True)
            table.add_column(justify="left", no_wrap=True, min_width=width + max(0, min(spare // 3, 12)))
        for row in zip(*columns, strict=True):
            table.add_row(*(text for pair in row for text in pair))
        self.figures = table
        self.live.refresh()

    def close(self) -> None:
        """Leave the last figures on the screen and give the cursor back."""
        self.live.stop()


def choose(*, quiet: bool, as_json: bool) -> Quiet:
    """The display that fits where the output goes."""
    if as_json:
        return Json()
    if quiet:
        return Quiet()
    return Screen() if sys.stdout.isatty() else Lines()
