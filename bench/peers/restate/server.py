"""The Restate server for a moment, durable, from the package that npm has installed.

How its settings were chosen: a lone workflow of five steps was timed under each, warm, turn by turn on a machine of
two cores that had other work too. The log of a single node instead of that of a cluster (both with fsync) carried a
third more workflows when many were in flight; for a lone one it was faster in two rounds of three: that is what runs
here. The Python SDK, HTTP/1.1 and its default of 24 partitions were not tried. No difference beyond the noise: 1, 2 or
4 partitions; 1, 2 or 4 threads; commits in the background; no statistics of RocksDB; no compression of its log;
protocol v7; Node 24 instead of 20; all on one core. Such a workflow is 8 to 9 ms, with 8 fsyncs of 0.1 ms; without it,
which would not be durable, it is 5.5 ms. The server is busy for two thirds of that time, so that another SDK would not
help much either.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers.environment import NotInstalled, installed
from bench.peers.server import free_ports, healthy, running

START_SECONDS = 30
PARTITIONS = 4
"""Its default of 24 is for a cluster; one for each core and some spare is faster on a small machine."""

LOG = "local"
"""The log of a single node; its default is that of a cluster."""


@contextmanager
def started(folder: Path) -> Iterator[str]:
    """An empty server; gives the addresses of its ingress and its admin API."""
    between_nodes, *outward = free_ports(3)
    ingress, admin = (f"http://127.0.0.1:{port}" for port in outward)
    env = {**os.environ, **_settings(folder, between_nodes, *outward)}
    answers = (f"{admin}/health", f"{ingress}/restate/health")
    argv = [str(_binary()), "--no-logo"]
    with running(argv, lambda: healthy(*answers), START_SECONDS, folder / "restate.log", env):
        yield f"{ingress} {admin}"


def _settings(folder: Path, between_nodes: int, ingress: int, admin: int) -> dict[str, str]:
    return {
        "RESTATE_BASE_DIR": str(folder),
        "RESTATE_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1",
        "RESTATE_LISTEN_MODE": "tcp",
        "RESTATE_BIND_IP": "127.0.0.1",
        "RESTATE_ADVERTISED_HOST": "127.0.0.1",
        "RESTATE_BIND_PORT": str(between_nodes),
        "RESTATE_INGRESS__BIND_PORT": str(ingress),
        "RESTATE_ADMIN__BIND_PORT": str(admin),
        "RESTATE_DEFAULT_NUM_PARTITIONS": str(PARTITIONS),
        "RESTATE_BIFROST__DEFAULT_PROVIDER": LOG,
        "RESTATE_LOG_FILTER": "warn",
    }


def _binary() -> Path:
    """The launcher in Node would be one more process; npm puts the one for this machine beside it."""
    for found in sorted((installed("restate") / "node_modules" / "@restatedev").glob("restate-server-*/bin/*")):
        return found
    raise NotInstalled("npm has no restate-server for this machine")
