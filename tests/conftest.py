"""How the suite is divided among the workers of pytest-xdist."""

from __future__ import annotations

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Tests that start processes of their own go to one worker, so that no two of them compete; all others are free."""
    from xdist.scheduler import LoadScopeScheduling

    class OneWorkerForProcesses(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return "processes" if "test_distributed" in nodeid.split("::")[0] else nodeid

    return OneWorkerForProcesses(config, log)
