"""Processes that torchrun has started: how they meet and part, and what is remembered when they are started again."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ipdlam.distributed.group import Group, current_group

_stores: dict[str, Any] = {}  # torchrun's own, which outlives the processes: of this attempt, and of all


def join(timeout: float) -> Group:
    """Join the processes that torchrun has started; one that does not answer for ``timeout`` seconds is given up.

    It is by gloo, wherever the model is: the sums are small beside a pass over the samples.
    """
    if not dist.is_initialized():
        limit = timedelta(seconds=timeout)
        store, rank, size = next(dist.rendezvous("env://", timeout=limit))  # type: ignore[attr-defined]
        # torchrun may keep its store when it starts processes again: they would look for the dead ones.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        own = dist.PrefixStore(f"attempt-{attempt}", store)  # type: ignore[attr-defined]
        _stores.update(attempt=own, job=store)
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        dist.init_process_group("gloo", store=own, rank=rank, world_size=size, timeout=limit)
    return current_group()


def leave() -> None:
    """The end of what :func:`join` began. Threads that still talk to the others would abort the process as it ends."""
    if dist.is_initialized():
        dist.destroy_process_group()


def has_joined() -> bool:
    """Whether the others have been met, and may have been left since."""
    return bool(_stores)


def is_first_to_say(what: str) -> bool:
    """Whether no other process of this attempt has asked this before; True where that cannot be known."""
    try:
        return bool(_stores["attempt"].add(f"ipdlam said {what}", 1) == 1)
    except Exception:  # they have not met, or torchrun is gone
        return True


def remember(what: str) -> None:
    """Leave a note to the processes that torchrun may start in place of these."""
    if "job" in _stores:
        _stores["job"].set(f"ipdlam remembers {what}", "yes")


def is_remembered(what: str) -> bool:
    """Whether the processes of an earlier attempt, or of this one, left that note."""
    return "job" in _stores and bool(_stores["job"].check([f"ipdlam remembers {what}"]))
