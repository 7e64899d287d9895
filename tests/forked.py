"""The command line and programs in processes of their own that need not import torch again.

They are forked from a server that has imported it once, so that a process starts in a few hundredths of a second
instead of a few seconds; they can be killed and signalled, and say what they say through a pipe, like any other.
"""

from __future__ import annotations

import os
import resource
import runpy
import signal
import sys
from unittest import mock

from programs import ROOT
from ranks import context


class Forked:
    """What ``subprocess.Popen`` is for a command, for a function of this module."""

    def __init__(self, function, *arguments, cwd=None, file_limit=None):
        ours, theirs = context().Pipe(duplex=False)
        self.process = context().Process(
            target=serve, args=(theirs, function, arguments, cwd and str(cwd), file_limit), daemon=True
        )
        self.process.start()
        theirs.close()
        self.stdout = os.fdopen(os.dup(ours.fileno()), errors="replace")
        ours.close()

    @property
    def pid(self):
        return self.process.pid

    @property
    def returncode(self):
        return self.process.exitcode

    def poll(self):
        return self.process.exitcode

    def wait(self, seconds=None):
        self.process.join(seconds)
        return self.process.exitcode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def communicate(self):
        """All that it said, to the end; its two streams are one."""
        said = self.stdout.read()
        self.stdout.close()
        self.wait()
        return said, None


def serve(pipe, function, arguments, cwd, file_limit):
    for stream in (1, 2):
        os.dup2(pipe.fileno(), stream)
    pipe.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background passes on that it is ignored
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # As at the start of a program: the server's streams belong to its own output.
    sys.stdout, sys.stderr = (open(stream, "w", closefd=False) for stream in (1, 2))  # noqa: SIM115
    if cwd is not None:
        os.chdir(cwd)
    if file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    function(*arguments)


def main(*arguments):
    from ipdlam.cli import main
    from shell import fake_curves

    sys.argv = ["ipdlam", *arguments]
    with mock.patch("ipdlam.runs.job.curves", fake_curves):
        main()


def program(path, *arguments):
    sys.argv = [path, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    runpy.run_path(path, run_name="__main__")


def call(file, name, *arguments):
    """A function of a test module."""
    sys.path.insert(0, os.path.dirname(file))
    runpy.run_path(file)[name](*arguments)


def command(*arguments, **more):
    """``ipdlam <arguments>``, which draws no curves."""
    return Forked(main, *map(str, arguments), **more)


def run(path, *arguments):
    """What an example or a benchmark prints."""
    process = Forked(program, path, *map(str, arguments), cwd=ROOT)
    said, _ = process.communicate()
    assert process.returncode == 0, said
    return said
