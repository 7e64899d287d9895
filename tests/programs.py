"""Where the tests and the programs of this repository are, and how a program is started that starts others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent


def importable(file):
    """What a process needs on its path to import this test module: its room, and the helpers."""
    return os.pathsep.join([str(Path(file).parent), str(TESTS)])


def run(*arguments):
    """What a program printed; ``forked.run`` is cheaper, for one that starts no processes of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    answer = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout
