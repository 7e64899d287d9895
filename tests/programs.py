"""Examples and benchmarks as a user starts them: each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent


def run(*arguments):
    """What the program printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    answer = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def importable(file):
    """What a process needs on its path to import this test module: its room, and the helpers."""
    return os.pathsep.join([str(Path(file).parent), str(TESTS)])
