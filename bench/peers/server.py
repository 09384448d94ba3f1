"""Servers of our own for a moment, on loopback: started from a command, ended with the block that needs them."""

import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from bench.peers.environment import NotInstalled
from bench.peers.processes import end

LOOK_SECONDS = 0.05


def free_ports(number: int) -> list[int]:
    """So many different ports that nobody listens on."""
    probes = [socket.socket() for _ in range(number)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


@contextmanager
def running(
    argv: list[str], answers: Callable[[], bool], start_seconds: float, log: Path, env: Mapping[str, str] | None = None
) -> Iterator[None]:
    """The server, once it answers; what it prints is in the log."""
    with log.open("wb") as output:
        server = subprocess.Popen(argv, stdout=output, stderr=output, env=env, start_new_session=True)
    try:
        _wait_for(server, answers, start_seconds, Path(argv[0]).name)
        yield
    finally:
        end([server])


def _wait_for(server: subprocess.Popen[bytes], answers: Callable[[], bool], seconds: float, name: str) -> None:
    deadline = time.monotonic() + seconds
    while not answers():
        if server.poll() is not None:
            raise NotInstalled(f"{name} ended with {server.returncode}")
        if time.monotonic() > deadline:
            raise NotInstalled(f"{name} did not answer within {seconds:.0f} s")
        time.sleep(LOOK_SECONDS)


def healthy(*urls: str) -> bool:
    """Whether all these pages are there."""
    try:
        for url in urls:
            with urlopen(url, timeout=1):  # noqa: S310 - our own, on loopback
                pass
    except (URLError, OSError):
        return False
    return True
