"""A tool with the worst of manners: python runaway.py BEGUN [QUIET].

It forks, leaves its session, loses its parents, ignores whatever can be ignored, and floods both of its streams. The
file BEGUN is there when all of it is.
"""

from __future__ import annotations

import os
import signal
import sys
import time

JUNK = b"x" * 999 + b"\n"


def flood() -> None:
    while True:
        os.write(1, JUNK * 60)
        os.write(2, JUNK * 60)


def escape(then: object) -> None:
    """A grandchild in a session of its own, whose parent is gone."""
    if not os.fork():
        os.setsid()
        if not os.fork():
            then()  # type: ignore[operator]
        os._exit(0)
    os.wait()


def sleep() -> None:
    while True:
        time.sleep(1000)


def main(begun: str, quiet: bool) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    act = sleep if quiet else flood
    escape(act)
    escape(sleep)
    if not os.fork():
        act()
    with open(f"{begun}.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{begun}.new", begun)
    act()


if __name__ == "__main__":
    main(sys.argv[1], len(sys.argv) > 2)
