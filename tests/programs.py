"""Where the tests and the programs of this repository are."""

from __future__ import annotations

import os
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent


def importable(file):
    """What a process needs on its path to import this test module: its room, and the helpers."""
    return os.pathsep.join([str(Path(file).parent), str(TESTS)])
