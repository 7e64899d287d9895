"""``ipdlam train`` as torchrun starts it, once for every process; torch is not needed to know that."""

from __future__ import annotations

import os
import sys

from ipdlam.errors import DistributedError
from ipdlam.runs.config import OURS, ConfigError, TrainConfig

TIMEOUT = 600.0  # seconds; a pass over a rank's samples, or a checkpoint, must not take longer than another's by more


def by_torchrun() -> bool:
    """Whether torchrun has started this process; a variable that is left from one that it started is not enough."""
    return all(name in os.environ for name in ("TORCHELASTIC_RUN_ID", "RANK"))


def is_restart() -> bool:
    """Whether torchrun has started it again, after a process had failed."""
    return by_torchrun() and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def speaks_of(error: Exception) -> bool:
    """Whether this process is the one to print an error, which the others have, too.

    Of those that have lost one, the quickest: it may be the first that has died. Before they have met, it may be of
    one machine alone, a file that is not there.
    """
    if not by_torchrun():
        return True
    if isinstance(error, DistributedError) and error.lost:
        from ipdlam.distributed.torchrun import is_first_to_say

        return is_first_to_say("that others are lost")
    met = "ipdlam.distributed.torchrun" in sys.modules and sys.modules["ipdlam.distributed.torchrun"].has_joined()
    return os.environ.get("RANK" if met else "LOCAL_RANK", "0") == "0"


def timeout() -> float:
    """After how many seconds a process that does not answer is given up."""
    given = os.environ.get("IPDLAM_TIMEOUT", str(TIMEOUT))
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < 1e9:
        raise ConfigError(f"IPDLAM_TIMEOUT must be a number of seconds above 0, got {given!r}")
    return seconds


def check_shareable(config: TrainConfig) -> None:
    """Refuse what several processes cannot train together."""
    if config.chosen not in OURS:
        raise ConfigError(f"torchrun trains with {', '.join(OURS)}, got the method {config.chosen}; choose one of them")
    if config.then is not None:
        raise ConfigError("torchrun trains in one stage; leave out --then, and go on with the model in one process")
    if config.output is None and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0:
        raise ConfigError(
            "with --max-restarts, give an --output: torchrun starts the same command again, to go on there"
        )
