"""The stages of a training job: the method, then, where asked for, the epochs of an optimizer."""

from __future__ import annotations

from ipdlam.network.history import History
from ipdlam.runs.config import ConfigError, TrainConfig


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


def counted(history: History, unit: str = "iteration") -> str:
    """How many iterations, or what ``unit`` says, a run has made, and how many epochs of an optimizer after them."""
    handover = history.handover
    if handover is None:
        return f"{len(history)} {unit}s"
    return f"{handover} {unit}s and {len(history) - handover} epochs of {history[-1].optimizer}"
