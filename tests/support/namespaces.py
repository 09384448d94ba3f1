"""Machines that share nothing but a wire: network namespaces, each with a cable to the test's own.

Only root may make them. A machine reaches one thing, a port at the other end of its cable that leads to a server on the
test's loopback. Unplugged, it hears nothing more: connections are not closed, they fall silent.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def why_not() -> str | None:
    """Why machines cannot be made here; none if they can."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    if shutil.which("ip") is None:
        return "there is no command ip (package iproute2)"
    done = subprocess.run(["unshare", "-n", "ip", "link", "add", "name", "v0", "type", "veth"], capture_output=True)
    return f"no namespaces or cables here: {done.stderr.decode().strip()}" if done.returncode else None


class Machine:
    """A namespace. `prefix` goes before a command that is to run there."""

    def __init__(self, number: int, port: int) -> None:
        self._name = f"keptwork-{secrets.token_hex(3)}"
        self._cable = f"dv{secrets.token_hex(3)}"
        self.near, self.far = f"10.231.{number}.1", f"10.231.{number}.2"
        self.prefix = ("ip", "netns", "exec", self._name)
        self._run("netns", "add", self._name)
        self._run("link", "add", "name", self._cable, "type", "veth", "peer", "name", "eth0", "netns", self._name)
        self._run("addr", "add", f"{self.near}/30", "dev", self._cable)
        self._run("-n", self._name, "addr", "add", f"{self.far}/30", "dev", "eth0")
        for place in (("-n", self._name, "link", "set", "lo"), ("-n", self._name, "link", "set", "eth0")):
            self._run(*place, "up")
        self.plug_in()
        self._line = _Line((self.near, 0), port)
        self.port = self._line.server_address[1]
        threading.Thread(target=self._line.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def url(self, url: str, port: int) -> str:
        """The address of that server as this machine sees it."""
        return url.replace(f"127.0.0.1:{port}", f"{self.near}:{self.port}")

    def plug_in(self) -> None:
        self._run("link", "set", self._cable, "up")

    def unplug(self) -> None:
        self._run("link", "set", self._cable, "down")

    def close(self) -> None:
        self._line.shutdown()
        self._line.server_close()
        self._run("netns", "del", self._name)  # its end of the cable goes with it, and so does ours

    def _run(self, *arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextmanager
def machines(port: int, count: int = 2) -> Iterator[list[Machine]]:
    """So many machines whose cables lead to that port."""
    with contextlib.ExitStack() as stack:
        first = secrets.randbelow(200)
        made = [Machine(first + number, port) for number in range(count)]
        for machine in made:
            stack.callback(machine.close)
        yield made


class _Line(socketserver.ThreadingTCPServer):
    """Passes everything on, both ways."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], port: int) -> None:
        self.server_port = port
        super().__init__(address, _Talk)


class _Talk(socketserver.BaseRequestHandler):
    server: _Line

    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", self.server.server_port)) as other:
            back = threading.Thread(target=_pass_on, args=(other, self.request), daemon=True)
            back.start()
            _pass_on(self.request, other)
            back.join()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
