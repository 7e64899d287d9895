"""The command line and programs in processes of their own that need not import torch again.

They are forked from a server that has imported it once, so that a process starts in a few hundredths of a second
instead of a few seconds; they can be killed and signalled, and say what they say through a pipe, like any other.
"""

from __future__ import annotations

import contextlib
import os
import resource
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from unittest import mock

import torch

from programs import ROOT
from ranks import context, workers_of


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
    with mock.patch.object(subprocess, "Popen", ForkedPython):
        runpy.run_path(path, run_name="__main__")


class ForkedPython(subprocess.Popen):
    """A process that a program starts with Python: forked from the program, which has imported torch already.

    Not where torch has several threads, which would not survive it, and not with what is not imitated here: files
    to pass on, a function to call before, and streams that are one of the program's own three.
    """

    def _execute_child(self, command, executable, preexec_fn, close_fds, pass_fds, cwd, env, *more):
        streams = (more[3], more[6], more[8])  # what it reads and writes; -1 where that is what the program has
        special = preexec_fn or pass_fds or not close_fds or any(0 <= stream <= 2 for stream in streams)
        if command[0] != sys.executable or torch.get_num_threads() > 1 or special:
            super()._execute_child(command, executable, preexec_fn, close_fds, pass_fds, cwd, env, *more)
            return
        sys.stdout.flush()  # or the child would write it again
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                if more[14]:
                    os.setsid()
                os._exit(as_python(command[1:], streams, cwd, env))
            finally:  # whatever fails: it must not go on as the program
                os._exit(1)
        self._child_created = True
        self._close_pipe_fds(*more[3:9])  # those that were made for it; a file of the program stays open


def as_python(arguments, streams, cwd, env):
    """Do what Python does with such arguments; the code to leave with."""
    for number, stream in enumerate(streams):
        if stream != -1:
            os.dup2(stream, number)
    os.closerange(3, 256)
    sys.stdin, sys.stdout, sys.stderr = (open(number, "w" if number else "r", closefd=False) for number in range(3))  # noqa: SIM115
    try:
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        os.chdir(cwd or ".")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        option, *words = [word for word in arguments if word != "-u"]
        if option == "-c":
            sys.path.insert(0, "")
            exec(words[0], {"__name__": "__main__"})
        elif option == "-m":
            sys.argv = words
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        else:
            program(option, *words)
        return 0
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def torchrun(*arguments):
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler
    from torch.distributed.run import main

    sys.argv = ["torchrun", *arguments]
    subprocess_handler.Popen = ForkedPython
    main()


@contextlib.contextmanager
def launched(*arguments, seconds=120.0):
    """torchrun with two processes, which are started again once; it is given up after so many seconds.

    It looks after them every few seconds only: one that has lost the other has the time to say so.
    """
    usual = ("--nproc-per-node=2", "--max-restarts=1", "--standalone", "--monitor-interval=3")
    launcher = Forked(torchrun, *usual, *map(str, arguments))
    late = threading.Timer(seconds, give_up, [launcher])
    late.start()
    try:
        yield launcher
    finally:
        late.cancel()
        give_up(launcher)


def give_up(launcher):
    """Kill torchrun and first its ranks: they would outlive it, and hold the pipe that all of them speak through."""
    if launcher.poll() is not None:
        return  # its number may be another's by now
    launcher.send_signal(signal.SIGSTOP)  # it starts no others meanwhile
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended just now
        for rank in workers_of(launcher):
            os.kill(rank, signal.SIGKILL)
    launcher.send_signal(signal.SIGKILL)


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
