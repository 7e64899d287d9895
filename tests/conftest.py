"""How the suite is divided among the workers of pytest-xdist, what all tests go without, and shared processes."""

from __future__ import annotations

import gc
import os
import signal
import sys
from unittest import mock

import pytest
import torch

from ranks import SIZES, Pool

# A suite that runs in the background ignores Ctrl-C, which some tests press all the same.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


modules_seen = 0  # by the garbage collector

# Files whose tests start several processes, and those with dear fixtures.
PROCESSES = ("distributed/", "benchmarks/test_scaling")
TOGETHER = (
    "cli/test_cli",
    "cli/test_failures",
    "cli/test_minibatch",
    "experiments/test_experiments",
    "experiments/test_report",
    "experiments/test_results_checked",
    "runs/test_kill",
    "runs/test_stages",
    "test_package",
    "test_site",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Tests of several processes go to one worker, so that no two of them compete.

    Those of a module whose fixtures take long stay together, too, so that they are made once. All others are free.
    """
    from xdist.scheduler import LoadScopeScheduling

    class FewScopes(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.split("::")[0].removeprefix("tests/")
            if file.startswith(PROCESSES):
                return "processes"
            return file if file.startswith(TOGETHER) else nodeid

    return FewScopes(config, log)


@pytest.fixture(scope="session", autouse=True)
def nobody_cuts_the_power():
    """Tests do not wait for the disk; the processes of their own that some of them start and kill do."""
    with mock.patch.object(os, "fsync", os.fstat):
        yield


@pytest.fixture(autouse=True)
def every_test_draws_the_same():
    """Layers that a test makes without a seed are the same in every run, whatever ran before them."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def modules_are_no_garbage():
    """Where many modules came, the collector no longer looks at them: a million objects that are here to stay."""
    global modules_seen
    if len(sys.modules) > modules_seen + 100:
        gc.collect()
        gc.freeze()
        modules_seen = len(sys.modules)


@pytest.fixture(scope="module")
def pools(tmp_path_factory):
    """Two and three processes, which end with the module."""
    folder = tmp_path_factory.mktemp("stores")
    found = {size: Pool(size, folder) for size in SIZES}
    yield found
    for pool in found.values():
        pool.close()


@pytest.fixture(params=SIZES)
def pool(request, pools):
    """Each of them in turn."""
    return pools[request.param]
