"""Ends a test server when the process that owns it is gone, however it went.

Run as a program beside the server: `postgres_watchdog.py OWNER_PID FOLDER`. A `kill -9` of pytest leaves
nobody to stop the server; this process notices its parent's end, stops the server and removes the folder. (A
parent-death signal would not do: Linux sends it when the *thread* that started the server ends.)
"""

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

POLL_SECONDS = 0.2
STOP_SECONDS = 10.0


def main(owner: int, folder: Path) -> None:
    while os.getppid() == owner:
        time.sleep(POLL_SECONDS)
    stop_server(folder / "data")
    shutil.rmtree(folder, ignore_errors=True)


def stop_server(data: Path) -> None:
    deadline = time.monotonic() + STOP_SECONDS
    for number in (signal.SIGQUIT, signal.SIGKILL):
        pid = running_server(data)
        if pid is None:
            return
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        while running_server(data) and time.monotonic() < deadline:
            time.sleep(0.02)


def running_server(data: Path) -> int | None:
    try:
        pid = int((data / "postmaster.pid").read_text().split(maxsplit=1)[0])
    except (OSError, ValueError, IndexError):
        return None
    return pid if lives_in(data, pid) else None


def lives_in(data: Path, pid: int) -> bool:
    """Whether `pid` is a server on this folder: a killed one's file stays, its pid may be reused."""
    if not Path("/proc/self/cwd").exists():
        with suppress(ProcessLookupError):
            os.kill(pid, 0)
            return True
        return False
    with suppress(OSError):
        return Path(f"/proc/{pid}/cwd").resolve(strict=True) == data.resolve()
    return False


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
