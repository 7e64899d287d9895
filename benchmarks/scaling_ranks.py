"""What the processes of ``scaling.py`` do: train on their samples, an iteration for every word that comes, and tell
where its time went. Each has one thread on one core, and a network namespace of its own where it is given one."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import re
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

import ipdlam.fullbatch.passes
import ipdlam.fullbatch.trainer
import networks
from ipdlam.distributed.group import Processes
from ipdlam.fullbatch.moments import MomentSums
from ipdlam.network.mlp import Network
from iteration import make_problem

PATIENCE = 600.0  # seconds that a rank waits for another


def context() -> Any:
    """Processes are forked from a server that has imported torch once, and started nothing."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["torch.distributed", "numpy", "ipdlam.fullbatch.trainer", "scaling_ranks"])
    return found


class Ranks:
    """Processes that wait for work: a group of ``size``, or as many that know nothing of each other."""

    def __init__(self, size: int, *, group: bool = True, network: networks.Network | None = None) -> None:
        self.pipes: list[Connection] = []
        self.processes = []
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        address, device = "127.0.0.1", "lo" if sys.platform == "linux" else None
        if network is not None:
            address, device = network.addresses[0], network.device
        place = {"size": size if group else 1, "address": address, "device": device, "port": free_port()}
        for rank in range(size):
            own = {**place, "rank": rank, "core": cores[rank % len(cores)] if cores else None}
            own["namespace"] = None if network is None else network.names[rank]
            ours, theirs = context().Pipe()
            process = context().Process(target=serve, args=(theirs, own), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()

    def ask(self, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What every rank answers."""
        for pipe in self.pipes:
            pipe.send((work, arguments))
        answers = [pipe.recv() for pipe in self.pipes]
        failed = [answer for answer in answers if isinstance(answer, Exception)]
        if failed:
            raise failed[0]
        return answers


def free_port() -> int:
    with contextlib.closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def serve(pipe: Connection, own: dict[str, Any]) -> None:
    if own["core"] is not None:
        os.sched_setaffinity(0, {own["core"]})
    if own["namespace"]:
        networks.enter(own["namespace"])
    torch.set_num_threads(1)
    if own["size"] > 1:
        if own["device"]:
            os.environ["GLOO_SOCKET_IFNAME"] = own["device"]
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{own['address']}:{own['port']}",
            rank=own["rank"],
            world_size=own["size"],
            timeout=timedelta(seconds=PATIENCE),
        )
    state: dict[str, Any] = {"size": own["size"]}
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            work, arguments = pipe.recv()
            try:
                pipe.send(work(state, *arguments))
            except Exception as error:
                pipe.send(error)


class Clock:
    """Where the seconds of an iteration go: functions are replaced by ones that are timed."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self.layers: dict[int, float] = defaultdict(float)
        self.calls: list[float] = []  # collectives, one after the other

    def wrap(self, owner: Any, name: str, note: Callable[[float, tuple[Any, ...]], None]) -> None:
        plain = getattr(owner, name)

        @functools.wraps(plain)
        def timed(*arguments: Any, **more: Any) -> Any:
            started = time.perf_counter()
            try:
                return plain(*arguments, **more)
            finally:
                note(time.perf_counter() - started, arguments)

        setattr(owner, name, timed)

    def install(self) -> None:
        def into(label: str) -> Callable[[float, tuple[Any, ...]], None]:
            def note(seconds: float, arguments: tuple[Any, ...]) -> None:
                self.spent[label] += seconds

            return note

        self.wrap(ipdlam.fullbatch.trainer, "pass_over", into("pass"))
        self.wrap(ipdlam.fullbatch.passes, "gain", into("gains"))
        self.wrap(ipdlam.fullbatch.passes, "solve_weights", into("solves"))
        self.wrap(ipdlam.fullbatch.trainer, "sum_over", into("sum"))
        self.wrap(Processes, "_call", lambda seconds, arguments: self.calls.append(seconds))
        self.wrap(ipdlam.fullbatch.passes, "update", self.note_update)
        self.wrap(MomentSums, "add", self.note_moments)
        measure = ipdlam.fullbatch.passes.measure

        def by_layer(run: Any, network: Network, *arguments: Any) -> None:
            measure(run, Watched(network, self.layers), *arguments)  # type: ignore[arg-type]

        ipdlam.fullbatch.passes.measure = by_layer

    def note_update(self, seconds: float, arguments: tuple[Any, ...]) -> None:
        block = next(thing for thing in arguments if isinstance(thing, ipdlam.fullbatch.passes.Block))
        # The products of the update of a_l are with W_(l+1): that layer's work.
        self.layers[block.layer + (block.kind == "a")] += seconds

    def note_moments(self, seconds: float, arguments: tuple[Any, ...]) -> None:
        layer = re.match(r"layer (\d+)", arguments[0]._name)
        assert layer
        self.layers[int(layer[1])] += seconds

    def reset(self) -> None:
        self.spent.clear()
        self.layers.clear()
        self.calls.clear()


class Watched:
    """A network that times what is done between one of its layers and the next."""

    def __init__(self, network: Network, layers: dict[int, float]) -> None:
        self._network, self._layers = network, layers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def __len__(self) -> int:
        return len(self._network)

    @property
    def numbers(self) -> Iterator[int]:
        for l in self._network.numbers:
            started = time.perf_counter()
            yield l
            self._layers[l] += time.perf_counter() - started


def start(state: dict[str, Any], widths: list[int], samples: int) -> None:
    """Begin a run on so many samples of this rank."""
    if "clock" not in state:
        state["clock"] = Clock()
        state["clock"].install()
    model, X, y = make_problem(widths, samples)
    state["trainer"] = None  # its memory first
    state["trainer"] = ipdlam.IPDLAM(model)
    state["trainer"].start(X, y)


def step(state: dict[str, Any]) -> dict[str, Any]:
    """One iteration, and where its time went on this rank."""
    trainer, clock = state["trainer"], state["clock"]
    if state["size"] > 1:
        dist.barrier()
    clock.reset()
    before = getattr(trainer.group, "bytes", 0)
    started = time.perf_counter()
    trainer.step(evaluate=False)
    seconds = time.perf_counter() - started
    spent = clock.spent
    of_sum = sum(clock.calls[-3:-1])  # its meeting and itself; the weights' come before, that of the seconds after
    known = spent["pass"] + spent["solves"] + spent["sum"] + sum(clock.calls) - of_sum
    return {
        "seconds": seconds,
        "samples": spent["pass"] - spent["gains"],
        "gains": spent["gains"],
        "solves": spent["solves"],
        "packing": spent["sum"] - of_sum if state["size"] > 1 else 0.0,
        "small": seconds - known,
        "calls": list(clock.calls),
        "bytes": getattr(trainer.group, "bytes", 0) - before,
        "layers": [clock.layers[l] for l in sorted(clock.layers)],
    }


def together(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """An iteration of several ranks: the longest of every part.

    What a meeting takes is what it takes the rank that comes to it last: the others have waited for that one. What
    comes after a meeting begins on all ranks at once, and is over when the last one has it.
    """
    found = {name: max(answer[name] for answer in answers) for name in answers[0] if name not in ("calls", "layers")}
    found["communication"] = 0.0
    if answers[0]["calls"]:
        calls = [answer["calls"] for answer in answers]  # meeting, weights, meeting, moments, meeting
        meetings = sum(min(own[place] for own in calls) for place in (0, -3, -1))
        found["communication"] = meetings + max(sum(own[1:-3]) for own in calls) + max(own[-2] for own in calls)
    found["layers"] = answers[0]["layers"]
    if len({answer["bytes"] for answer in answers}) > 1:
        raise RuntimeError("the ranks have sent different numbers of bytes")
    return found


def collective(state: dict[str, Any], kind: str, size: int, repeats: int) -> list[float]:
    """Seconds of a collective over ``size`` bytes, from a common start to the end on the last rank."""
    buffer, seconds = torch.ones(size // 8, dtype=torch.float64), []
    for _ in range(repeats + 1):
        dist.barrier()
        started = time.perf_counter()
        if kind == "broadcast":
            dist.broadcast(buffer, 0)
        else:
            dist.all_reduce(buffer)
        last = torch.tensor([time.perf_counter() - started], dtype=torch.float64)
        dist.all_reduce(last, op=dist.ReduceOp.MAX)
        seconds.append(float(last))
        buffer.fill_(1.0)
    return seconds[1:]
