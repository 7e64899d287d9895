"""A training job: from a configuration to a run folder with a trained model, resumed where it was stopped."""

from __future__ import annotations

import gc
import json
import os
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

from ipdlam.baselines import BackPropagation
from ipdlam.checkpoint.files import read_plain
from ipdlam.checkpoint.format import Checkpoint, discard, in_series, refuse_unread, series
from ipdlam.checkpoint.together import read_together
from ipdlam.checks import differences
from ipdlam.distributed.group import SERIAL, Group
from ipdlam.errors import (
    CheckpointError,
    DistributedError,
    DivergenceError,
    FileError,
    OutOfMemoryError,
    StorageError,
    is_out_of_memory,
)
from ipdlam.runs.config import CHANGEABLE, ConfigError, TrainConfig, blamed_on_settings
from ipdlam.runs.environment import environment
from ipdlam.runs.folder import RunFolder
from ipdlam.runs.problem import Problem
from ipdlam.training.callbacks import Checkpoints, TensorBoard, summary_writer
from ipdlam.training.history import History, Record
from ipdlam.training.loop import Callback, Stopping
from ipdlam.training.plots import curves
from ipdlam.training.trainer import Trainer, saved_as

T = TypeVar("T")


class Watcher(Protocol):
    """Whoever wants to know how a job is going."""

    def begin(self, job: Job, history: History) -> None: ...

    def stage(self, job: Job) -> None: ...

    def record(self, record: Record) -> None: ...

    def note(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...


def kept_going(save: Callable[[T], None], watcher: Watcher, *, once: bool = False) -> Callable[[T], None]:
    """A save whose failure is reported, every time or ``once``: training is not worth losing for it."""
    failed = False

    def attempt(given: T) -> None:
        nonlocal failed
        try:
            save(given)
        except (FileError, OSError) as error:
            if not (once and failed):
                watcher.warn(str(error))
            failed = True

    return attempt


class Job:
    """One run of one configuration in one folder; data and network are made, and checked, before the folder is.

    The processes of a ``group`` each have a job, for their part of the samples; the first of them writes the folder.
    """

    def __init__(
        self, config: TrainConfig, folder: RunFolder, *, progress: bool = False, group: Group = SERIAL
    ) -> None:
        self.config = config = config.resolved()
        self.folder = folder
        self._lock: IO[str] | None = None  # holds the folder
        check_apart(config, folder)
        if config.tensorboard:
            summary_writer()
        self.group = group
        if not group.is_first:
            group.agree()  # the first may have to download the data
        self.problem = Problem(config, progress=progress and group.is_first)
        if group.is_first:
            group.agree()
        self.split = self.problem.split.part(group.rank, group.size) if group.size > 1 else self.problem.split
        self.model = self.problem.make_model()
        self.trainer: Trainer[Any] = self.problem.make_trainer(self.model)  # of the present stage
        self.optimizer = self.problem.make_optimizer(self.model)  # of the second stage, where there is one

    @property
    def methods(self) -> str:
        """What trains, in a few words."""
        return self.config.chosen + ("" if self.config.then is None else f", then {self.config.then}")

    @property
    def title(self) -> str:
        """What is trained, in a line."""
        return f"{self.methods} on {self.problem.title}"

    @property
    def stage(self) -> str:
        """The method or optimizer of the present stage."""
        return self.trainer.optimizer or self.config.chosen

    @property
    def unit(self) -> str:
        """What the method, in the first stage, counts; the epochs of an optimizer go on with its count."""
        return self.config.unit

    @property
    def handover(self) -> int | None:
        """How many iterations came before the second stage, or None in the first one."""
        if self.trainer is not self.optimizer:
            return None
        found = handover_of(self.config, self.trainer.history)
        return len(self.trainer.history) if found is None else found

    @property
    def total(self) -> int:
        """How many iterations there will be at the end of the present stage, if nothing ends it earlier."""
        return self.config.rounds if self.handover is None else self.handover + self.config.second_epochs

    def run(self, watcher: Watcher, *, resume: bool, stop: Callback) -> History:
        """Train to the end of the configuration, or until ``stop`` raises ``StopTraining`` after an iteration."""
        try:
            return self._run(watcher, resume, stop)
        finally:
            if self._lock is not None:
                self._lock.close()

    def _run(self, watcher: Watcher, resume: bool, stop: Callback) -> History:
        config = self.config
        if resume:
            self._claim(new=False)
        with blamed_on_settings():
            if not (resume and self._resume(watcher)):
                self._start()
        if not resume:  # a run that cannot start leaves no folder
            self._claim(new=True)
        folder = self.folder
        self.group.first_does(lambda: self._open_folder(watcher, resume))
        callbacks: list[Callback] = []
        if self.group.is_first:
            callbacks = [kept_going(folder.append, watcher, once=True), watcher.record]
        tensorboard = None
        if config.tensorboard and self.group.is_first:
            tensorboard = TensorBoard(folder.path / "tensorboard", purge_step=len(self.trainer.history) + 1)
            callbacks.append(kept_going(tensorboard, watcher))
        try:
            history = self._train(watcher, callbacks, stop)
            if hands_over(config, self.handover, history.stop_reason):
                self._hand_over(watcher)
                history = self._train(watcher, callbacks, stop)
        except (DivergenceError, StorageError, DistributedError) as error:
            lost = isinstance(error, DistributedError) and error.lost  # they are started again, from a checkpoint
            if self.group.is_first and not lost:
                history = error.history if isinstance(error, DivergenceError) else self.trainer.history
                kept_going(partial(self._finish, watcher=watcher), watcher)(history)  # the error is what matters
            raise
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise self._out_of_memory(error, watcher) from error
        finally:
            if tensorboard is not None:
                tensorboard.close()
        self.group.first_does(lambda: self._finish(history, watcher))
        return history

    def _open_folder(self, watcher: Watcher, resume: bool) -> None:
        """Write what is known at the beginning."""
        self.folder.create(self.config, new=not resume)
        self._note_environment(watcher)
        self.folder.write_history(self.trainer.history)
        watcher.begin(self, self.trainer.history)

    def _train(self, watcher: Watcher, callbacks: list[Callback], stop: Callback) -> History:
        """Train to the end of the present stage, and write a checkpoint of it."""
        config, folder, trainer = self.config, self.folder, self.trainer
        checkpoints = None
        if config.checkpoint != "none":
            light = config.checkpoint == "light"
            checkpoints = Checkpoints(trainer, folder.checkpoints, every=config.checkpoint_every, light=light)
            callbacks = [*callbacks, kept_going(checkpoints, watcher)]
        ended = ending(
            config, trainer.history, self.handover
        )  # it may have been killed between its end and what follows
        stopping = Stopping(
            len(trainer.history) if ended is not None else self.total,
            config.restore_best,
            config.patience,
            config.target_score,
            config.evaluate_every,
        )
        history = trainer.go_on(stopping, [*callbacks, stop])
        if ended is not None:
            history.stop_reason = ended
        elif history.stop_reason == "iterations":
            history.stop_reason = f"{self.unit}s" if self.handover is None else "then_epochs"
        saved = self.group.first_does(in_series(folder.checkpoints, len(history)).exists)
        if checkpoints is not None and not saved and history.stop_reason != "interrupted":  # perhaps half-way
            kept_going(checkpoints.save, watcher)(len(history))
        return history

    def _hand_over(self, watcher: Watcher) -> None:
        """Begin the second stage, from the weights that the first one leaves in the model."""
        assert self.optimizer is not None
        kept_going(self.problem.describe(self.model).save, watcher)(self.folder.model)  # whatever becomes of the second
        split = self.problem.split
        self.optimizer.start(split.X, split.y, validation_data=split.validation, after=self.trainer)
        self.trainer.close()
        self.trainer = self.optimizer
        gc.collect()  # z and a may be gigabytes, and torch makes an optimizer with cycles that hold the callers' frames
        watcher.stage(self)

    def _start(self) -> None:
        split = self.split
        try:
            self.trainer.start(split.X, split.y, validation_data=split.validation)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if self.config.chosen == "minibatch":
                raise ConfigError("there is not enough memory for the network; use a smaller hidden") from error
            numbers = 4 * sum(self.config.hidden) * len(split.X)
            raise ConfigError(
                f"there is not enough memory: z and a of {len(split.X)} samples are {numbers:.3g} numbers; "
                f"{self._memory_remedy()}"
            ) from error

    def _out_of_memory(self, error: BaseException, watcher: Watcher) -> OutOfMemoryError:
        """What to raise where memory runs out on the way; the last weights are saved, as after divergence."""
        history = self.trainer.history
        traceback.clear_frames(error.__traceback__)  # what the iteration holds makes room for what follows
        self.trainer.close()
        if self.group.is_first:
            kept_going(partial(self._finish, watcher=watcher), watcher)(history)
        return OutOfMemoryError(
            f"memory ran out after {counted(self.config, history)}; the last weights are in {self.folder.model}, and "
            f"--resume {self.folder.path} goes on from the last checkpoint, or from the beginning if there is none. To "
            f"need less, {self._memory_remedy()}",
            history,
        )

    def _memory_remedy(self) -> str:
        """What to change where there is too little memory."""
        if self.trainer.optimizer is not None or self.config.chosen == "minibatch":
            return "use a smaller hidden, or smaller batches"
        if self.config.storage is None:
            return "keep z and a on a disk with --storage, or use a smaller hidden or limit"
        return "use a smaller hidden, limit or chunk_size"

    def _claim(self, *, new: bool) -> None:
        """Hold the folder; where its name was not given and another run was quicker, take the next one."""
        self.folder = self.group.first_does(lambda: self._claimed(new))

    def _claimed(self, new: bool) -> RunFolder:
        while True:
            try:
                self._lock = self.folder.claim(new=new)
                return self.folder
            except ConfigError:
                if not new or self.config.output is not None:
                    raise
                self.folder = RunFolder.new(self.config)

    def _note_environment(self, watcher: Watcher) -> None:
        """Write where the run was begun; a resumed one says what differs, for it may not have the same bits."""
        folder, now = self.folder, environment()
        try:
            before = json.loads(read_plain(folder.environment))
            if not isinstance(before, dict):
                raise ValueError("it holds no table")
        except (OSError, ValueError, RecursionError):
            folder.write_json(folder.environment, now)
            return
        told = ("ipdlam", "torch", "numpy", "processor", "threads")
        changed = differences({key: before.get(key) for key in told}, {key: now[key] for key in told}, "")
        if changed:
            watcher.warn(f"the run was begun elsewhere, so its last bits may differ: {'; '.join(changed)}")

    def _resume(self, watcher: Watcher) -> bool:
        """Take up the newest whole checkpoint; False where there is none yet."""
        folder, split = self.folder, self.split
        found = series(folder.checkpoints) if folder.checkpoints.is_dir() else []
        again = self.config.checkpoint == "exact" and folder.was_cut_short  # before its first checkpoint
        if not found and folder.model.is_file() and not again:
            raise CheckpointError(
                f"{folder.path} holds a model but no checkpoint to go on from; start a new run, with --checkpoint exact"
            )
        if not found:
            watcher.note(f"no checkpoint was written yet: starting from the first {self.unit}")
            return False
        checkpoint = read_together(self.group, folder.checkpoints)
        newer = [path for path in found if path > checkpoint.path]
        self.group.first_does(lambda: refuse_unread(newer))
        if checkpoint.content.get("kind") == "light":
            raise CheckpointError(
                f"{folder.path} has light checkpoints, which hold the weights alone: it cannot go on where it stopped; "
                "start a new run, with --checkpoint exact"
            )
        if self.optimizer is not None and is_by(checkpoint, self.optimizer):
            self.trainer = self.optimizer
        self.trainer.take_up(checkpoint, split.X, split.y, validation_data=split.validation)
        check_first_stage(folder.read_config(), self.config, self.handover)
        for path in newer if self.group.is_first else ():  # they are damaged, and it was said
            discard(path)
        stage = "" if self.config.then is None else f", with {self.stage}"
        watcher.note(f"resumed after {self.unit} {len(self.trainer.history)}{stage}")
        return True

    def _finish(self, history: History, watcher: Watcher) -> None:
        """Write the model and what became of the run."""
        folder, trained = self.folder, self.problem.describe(self.model)
        try:
            trained.save(folder.model)
        except FileError as error:
            refuge = Path(tempfile.mkdtemp(prefix="ipdlam-")) / folder.model.name
            trained.save(refuge)
            raise FileError(f"{error}. The trained model is in {refuge}") from error
        kept_going(folder.write_history, watcher)(history)  # a line may have been lost to a full disk
        kept_going(folder.write_summary, watcher)(history)
        if history:
            try:
                curves({self.methods: history}, folder.curves, title=self.title, unit=self.unit)
            except ImportError as error:
                watcher.note(str(error))
            except OSError as error:
                watcher.warn(str(error))
            except Exception as error:  # whatever it is, it is not worth a run
                watcher.warn(f"the curves were not drawn: {error or type(error).__name__}")


def ending(config: TrainConfig, history: History, handover: int | None) -> str | None:
    """Why the present stage of a run that has come this far goes no further, or None.

    ``handover`` is how many iterations came before the second stage, or None in the first one. Patience counts from
    there on, or from the best score of the whole run if that came later.
    """
    scores = [record.score for record in history if record.score is not None]
    last = history[-1].score if history else None
    if last is not None and config.target_score is not None and last >= config.target_score:
        return "target_score"
    if scores and config.patience is not None:
        earlier = sum(record.score is not None for record in history[: handover or 0])
        if len(scores) - max(scores.index(max(scores)) + 1, earlier) >= config.patience:
            return "patience"
    if handover is None:
        return f"{config.unit}s" if len(history) >= config.rounds else None
    return "then_epochs" if len(history) - handover >= config.second_epochs else None


def hands_over(config: TrainConfig, handover: int | None, reason: str | None) -> bool:
    """Whether a stage that ended for this reason is the first of two: one that has reached its target is the last."""
    return config.then is not None and handover is None and reason in (f"{config.unit}s", "patience")


def check_first_stage(before: TrainConfig, now: TrainConfig, handover: int | None) -> None:
    """Refuse to change a stage that is over."""
    if handover is not None and now.rounds != before.rounds:
        raise ConfigError(
            f"{now.unit}s was {before.rounds} and is {now.rounds}, but {now.then} took over after {now.unit} "
            f"{handover}: the first stage is over. For more epochs of {now.then} give a larger --then-epochs; for "
            "another first stage start a new run"
        )


def handover_of(config: TrainConfig, history: History) -> int | None:
    """How many iterations came before the optimizer of the second stage; None where it has made no epoch."""
    places = (place for place, record in enumerate(history) if record.optimizer == config.then)
    return None if config.then is None else next(places, None)


def is_by(checkpoint: Checkpoint, optimizer: BackPropagation) -> bool:
    """Whether a checkpoint was saved by this optimizer."""
    settings = checkpoint.content.get("settings")
    own = isinstance(settings, dict) and settings.get("optimizer") == optimizer.optimizer
    return own and saved_as(checkpoint) == optimizer.saved_as


def counted(config: TrainConfig, history: History) -> str:
    """How many iterations or epochs a run has made, and how many epochs of an optimizer after them."""
    handover = handover_of(config, history)
    if handover is None:
        return f"{len(history)} {config.unit}s"
    return f"{handover} {config.unit}s and {len(history) - handover} epochs of {config.then}"


def check_apart(config: TrainConfig, folder: RunFolder) -> None:
    """Refuse to keep z and a in the folder of the run: a state goes when the run is over, and wants a folder alone."""
    if config.storage is None:
        return
    storage, output = (Path(os.path.abspath(os.path.expanduser(place))) for place in (config.storage, folder.path))
    if storage == output or output in storage.parents:
        where = "" if storage == output else "inside "
        raise ConfigError(
            f"storage {config.storage} is {where}the folder of the run, {folder.path}; give a folder elsewhere"
        )


def finished(folder: RunFolder, config: TrainConfig) -> str | None:
    """What to tell somebody who resumes a run that is over, or None where there is work left."""
    if not (folder.summary.is_file() and folder.model.is_file()):
        return None
    try:
        history = folder.read_history()
    except FileError:  # the checkpoints have their own
        return None
    handover = handover_of(config, history)
    reason = ending(config, history, handover)
    if reason is None or hands_over(config, handover, reason):
        return None
    option = f"--{reason.replace('_', '-')}"
    return (
        f"{folder.path} is finished: {counted(config, history)}, ended by: {reason}; to go on, give a larger "
        f"{option}: ipdlam train --resume {folder.path} {option} ..."
    )


def resumed_config(folder: RunFolder, given: dict[str, object]) -> TrainConfig:
    """The configuration of an earlier run with the few settings changed that a run may change on the way."""
    config = folder.read_config()
    changed = config.changed(given)
    for line in differences(config.resolved().to_dict(), changed.resolved().to_dict(), ""):
        if line.split()[0] not in CHANGEABLE:
            raise ConfigError(
                f"{folder.path} cannot go on with other settings: {line}; only "
                f"{', '.join(CHANGEABLE)} may change. Start a new run instead"
            )
    with suppress(FileError):  # a history that cannot be read; the checkpoints have their own
        check_first_stage(config, changed, handover_of(config, folder.read_history()))
    return changed
