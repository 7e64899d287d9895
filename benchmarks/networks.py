"""Network namespaces for measurements: every rank on a machine of its own, behind a link with a rate and a delay.

Linux only, and only for root. A rank's namespace has one address on one link. Rates are kept by the kernel (``tc``,
token buckets on both ends of a link). Delays are kept by ``netem`` where the kernel has it. Where it has not, a process
here stands for the switch: it gets the ranks' packets from TUN devices and hands each on when it is due. TCP knows
nothing of either and behaves as on such a network; but that process takes time of a core, which limits what passes it.

    with Network(2, rate=1e9, delay=0.001) as network:  # bits a second, seconds one way
        network.names, network.addresses, network.device  # for each rank, what to enter() and what to bind to
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import fcntl
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

PREFIX = "ipdlam"
MTU = 9000  # jumbo frames, as clusters have
LARGE = 65000  # of a TUN device: fewer packets for the process that hands them on
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
BURST = 256 * 1024  # bytes that may pass a token bucket at once
# Windows that hold what a link has under way, as machines have that are set up for such links.
WINDOWS = {"tcp_rmem": "4096 4194304 16777216", "tcp_wmem": "4096 4194304 16777216", "tcp_slow_start_after_idle": "0"}
QUEUE = 0.2  # seconds that a packet may wait in one: no packet is lost, as windows end before


def enter(name: str) -> None:
    """Move this thread, and those it will start, to a namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(f"/run/netns/{name}", os.O_RDONLY)
    try:
        if libc.setns(descriptor, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {name}")
    finally:
        os.close(descriptor)


def run(*words: str) -> None:
    answer = subprocess.run(words, capture_output=True, text=True)
    if answer.returncode:
        raise OSError(f"{' '.join(words)}: {(answer.stderr or answer.stdout).strip()}")


def why_not() -> str | None:
    """What keeps this machine from having namespaces with limited rates; None where nothing does."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces are for root on Linux"
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"the program {program} (iproute2) is not installed"
    try:
        with Network(2, rate=1e9, delay=0.0):
            return None
    except OSError as error:
        return str(error)


def has_netem() -> bool:
    """Whether the kernel delays packets itself."""
    name = f"{PREFIX}-{os.getpid()}-netem"
    try:
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "add", "probe", "type", "veth", "peer", "name", "other")
        run("tc", "-n", name, "qdisc", "add", "dev", "probe", "root", "netem", "delay", "1ms")
    except OSError:
        return False
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return True


class Network:
    """Namespaces of so many ranks; ``rate`` in bits a second (None: no limit), ``delay`` in seconds one way."""

    device = "net0"

    def __init__(self, ranks: int, rate: float | None = None, delay: float = 0.0) -> None:
        self.rate, self.delay = rate, delay
        self.names = [f"{PREFIX}-{os.getpid()}-{rank}" for rank in range(ranks)]
        self.hub = f"{PREFIX}-{os.getpid()}-hub"
        self.addresses = [f"10.213.0.{rank + 1}" for rank in range(ranks)]
        self.switch: int | None = None
        self.means = "veth" if delay == 0.0 else "veth, netem" if has_netem() else "tun, packets delayed by a process"

    def __enter__(self) -> Network:
        remove_leftovers()
        try:
            if self.means.startswith("tun"):
                self._through_a_process()
            else:
                self._through_the_kernel()
            for name, address in zip(self.names, self.addresses, strict=True):
                run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", self.device)
                for device in ("lo", self.device):
                    run("ip", "-n", name, "link", "set", "dev", device, "up")
                self._limit(name, self.device)
                for setting, value in WINDOWS.items():
                    written = f"echo {value} > /proc/sys/net/ipv4/{setting}"
                    run("ip", "netns", "exec", name, "sh", "-c", written)
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Take everything down; nothing is left behind, whatever was there."""
        if self.switch is not None:
            os.kill(self.switch, signal.SIGKILL)
            os.waitpid(self.switch, 0)
            self.switch = None
        for name in (*self.names, self.hub):
            if Path(f"/run/netns/{name}").exists():
                subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def _through_the_kernel(self) -> None:
        """A veth pair from every rank to a bridge in a namespace of its own."""
        run("ip", "netns", "add", self.hub)
        run("ip", "-n", self.hub, "link", "add", "bridge", "mtu", str(MTU), "type", "bridge")
        for rank, name in enumerate(self.names):
            run("ip", "netns", "add", name)
            pair = ("type", "veth", "peer", "name", self.device, "mtu", str(MTU), "netns", name)
            run("ip", "-n", self.hub, "link", "add", f"to{rank}", "mtu", str(MTU), *pair)
            run("ip", "-n", self.hub, "link", "set", "dev", f"to{rank}", "master", "bridge", "up")
            self._limit(self.hub, f"to{rank}")
            if self.delay:
                # Of the two ends of a link, that to the rank delays: netem and a token bucket share no device.
                wait = ("delay", f"{1e6 * self.delay:.0f}us", "limit", "100000")
                run("tc", "-n", self.hub, "qdisc", "replace", "dev", f"to{rank}", "root", "netem", *wait)
        run("ip", "-n", self.hub, "link", "set", "dev", "bridge", "up")

    def _limit(self, name: str, device: str) -> None:
        if self.rate is not None:
            bucket = ("rate", f"{self.rate:.0f}bit", "burst", str(BURST), "latency", f"{1000 * QUEUE:.0f}ms")
            run("tc", "-n", name, "qdisc", "replace", "dev", device, "root", "tbf", *bucket)

    def _through_a_process(self) -> None:
        """A TUN device for every rank, whose packets a process hands on."""
        ports = []
        for rank, name in enumerate(self.names):
            run("ip", "netns", "add", name)
            port, temporary = (
                os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK),
                f"{PREFIX}{os.getpid() % 10**6}r{rank}",
            )
            fcntl.ioctl(port, TUNSETIFF, struct.pack("16sH22x", temporary.encode(), IFF_TUN | IFF_NO_PI))
            run("ip", "link", "set", "dev", temporary, "netns", name)
            named = ("name", self.device, "mtu", str(LARGE), "txqueuelen", "10000")
            run("ip", "-n", name, "link", "set", "dev", temporary, *named)
            ports.append(port)
        self.switch = os.fork()
        if self.switch == 0:
            try:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is ended by remove()
                hand_on(ports, self.delay)
            finally:
                os._exit(1)
        for port in ports:
            os.close(port)


def remove_leftovers() -> None:
    """Take down what processes that were killed could not."""
    for path in Path("/run/netns").glob(f"{PREFIX}-*-*"):
        if not Path(f"/proc/{path.name.split('-')[1]}").exists():
            subprocess.run(["ip", "netns", "del", path.name], capture_output=True)


def hand_on(ports: list[int], delay: float) -> None:
    """Give every packet to the rank it is for, ``delay`` seconds after it came."""
    parent = os.getppid()
    by_address = {bytes((10, 213, 0, rank + 1)): port for rank, port in enumerate(ports)}
    waiting: collections.deque[tuple[float, int, bytes]] = collections.deque()
    while os.getppid() == parent:
        patience = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 1.0
        for port in select.select(ports, (), (), patience)[0]:
            with contextlib.suppress(BlockingIOError):
                for _ in range(16):
                    packet = os.read(port, 65536)
                    target = by_address.get(packet[16:20])
                    if target is not None and packet[0] >> 4 == 4:
                        waiting.append((time.monotonic() + delay, target, packet))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, target, packet = waiting.popleft()
            with contextlib.suppress(BlockingIOError, OSError):
                os.write(target, packet)
