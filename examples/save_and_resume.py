"""Train, stop, and go on another day: the resumed run has the very numbers of one that never stopped.

python examples/save_and_resume.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn

import ipdlam


def make_network() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    return ipdlam.initialise(model, "he", seed=0)


def main() -> None:
    data = ipdlam.datasets.load("digits")
    validation = (data.X_test, data.y_test)
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Path(folder) / "checkpoints"

        first = ipdlam.IPDLAM(make_network())
        saving = ipdlam.callbacks.Checkpoints(first, checkpoints, every=5)
        first.fit(data.X, data.y, iterations=10, validation_data=validation, callbacks=[saving])
        print("kept:", ", ".join(sorted(path.name for path in checkpoints.iterdir())))

        # Another day, another process: the newest whole checkpoint, the same data.
        resumed = ipdlam.IPDLAM.load(checkpoints, make_network(), data.X, data.y, validation_data=validation)
        history = resumed.continue_fit(iterations=10)
        print(f"resumed at iteration 10, now at {history[-1].iteration}: {history[-1].validation_accuracy:.2%}")

    straight = ipdlam.IPDLAM(make_network())
    straight.fit(data.X, data.y, iterations=20, validation_data=validation)
    pairs = zip(straight.model.parameters(), resumed.model.parameters(), strict=True)
    print("bit for bit the run that never stopped:", all(torch.equal(a, b) for a, b in pairs))


if __name__ == "__main__":
    main()
