"""How the suite is divided among the workers of pytest-xdist."""

from __future__ import annotations

import pytest

PROCESSES = ("test_distributed", "test_scaling")  # how modules are called whose tests start several processes


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Tests of several processes go to one worker, so that no two of them compete; all others are free."""
    from xdist.scheduler import LoadScopeScheduling

    class OneWorkerForProcesses(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.split("::")[0].rsplit("/", 1)[-1]
            return "processes" if file.startswith(PROCESSES) else nodeid

    return OneWorkerForProcesses(config, log)
