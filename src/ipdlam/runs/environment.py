"""What a measurement was made on; stored beside every result."""

from __future__ import annotations

import os
import platform
import resource
from datetime import date

import numpy
import torch

from ipdlam.version import __version__


def environment() -> dict[str, object]:
    """Versions, processor and threads; no host names or paths."""
    return {
        "date": date.today().isoformat(),
        "ipdlam": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "system": platform.system(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def processor() -> str:
    """The name of the processor, as far as the system tells."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def peak_memory() -> int:
    """Bytes of resident memory at the highest point of this process so far."""
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
