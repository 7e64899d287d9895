"""Callbacks for ``fit`` that write what happens to disk."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipdlam.checkpoint.format import in_series, prune, series
from ipdlam.checks import check_integer
from ipdlam.errors import CheckpointError
from ipdlam.training.history import Record

if TYPE_CHECKING:
    from ipdlam.training.trainer import Trainer


class Checkpoints:
    """Saves the trainer into ``folder/iteration-...`` every so many iterations and keeps the newest ones.

    ``trainer.fit(X, y, callbacks=[Checkpoints(trainer, "checkpoints", every=10)])`` saves;
    ``IPDLAM.load("checkpoints", model, X, y)`` takes up the newest whole one. It is the same for the baselines. A
    folder that holds later iterations than the trainer has made belongs to another run, and is refused.
    """

    def __init__(
        self,
        trainer: Trainer[Any],
        folder: str | PathLike[str],
        *,
        every: int = 10,
        keep: int = 2,
        light: bool = False,
    ) -> None:
        self.trainer = trainer
        self.folder = Path(folder)
        self.every = check_integer("every", every, low=1)
        self.keep = check_integer("keep", keep, low=1)
        self.light = light
        self.folder.mkdir(parents=True, exist_ok=True)
        self._refuse_later(trainer.iteration)

    def __call__(self, record: Record) -> None:
        if record.iteration % self.every == 0:
            self.save(record.iteration)

    def save(self, iteration: int) -> None:
        """Save now."""
        self.trainer.group.first_does(lambda: self._refuse_later(iteration))
        self.trainer.save(in_series(self.folder, iteration), light=self.light)
        if self.trainer.group.is_first:
            prune(self.folder, self.keep)

    def _refuse_later(self, iteration: int) -> None:
        """Later ones than the trainer has made are those of another run: it would lose them, or this run its own."""
        try:
            later = [path for path in series(self.folder) if path > in_series(self.folder, iteration)]
        except OSError as error:
            raise CheckpointError(f"{self.folder} cannot be read: {error.strerror or error}") from error
        if later:
            raise CheckpointError(
                f"{self.folder} holds {later[0].name} of another run, but this one is at iteration {iteration}; "
                "load it, or choose another folder"
            )


class ProgressBar:
    """A bar with the last scores, on the terminal or in a notebook; ``fit(verbose=True)`` shows one."""

    def __init__(self, total: int, done: int = 0, unit: str = "iteration") -> None:
        from tqdm.auto import tqdm  # type: ignore[import-untyped]

        self.bar: Any = tqdm(total=total, initial=done, unit=f" {unit}s")

    def __call__(self, record: Record) -> None:
        shown = {
            "loss": record.train_loss if record.validation_loss is None else record.validation_loss,
            "accuracy": record.train_accuracy if record.validation_loss is None else record.validation_accuracy,
        }
        if record.validation_loss is not None:
            shown = {f"validation {name}": value for name, value in shown.items()}
        self.bar.set_postfix(
            {name: f"{value:.4g}" for name, value in shown.items() if value is not None}, refresh=False
        )
        self.bar.update(1)

    def close(self) -> None:
        self.bar.close()


def summary_writer() -> Any:
    """TensorBoard's class for writing events, or an error with a remedy."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("TensorBoard is not installed; pip install tensorboard") from error
    return SummaryWriter


class TensorBoard:
    """Writes every record as TensorBoard scalars."""

    def __init__(self, folder: str | PathLike[str], *, purge_step: int | None = None) -> None:
        self.writer: Any = summary_writer()(str(folder), purge_step=purge_step)

    def __call__(self, record: Record) -> None:
        fields = record.to_dict()
        step = fields.pop("iteration")
        del fields["optimizer"]  # a name
        for name, value in fields.items():
            if isinstance(value, (list, tuple)):
                for layer, gap in enumerate(value, start=1):
                    self.writer.add_scalar(f"{name}/layer {layer}", gap, step)
            elif value is not None:
                group = "scores" if name.startswith(("train_", "validation_")) else "method"
                self.writer.add_scalar(f"{group}/{name}", value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()
