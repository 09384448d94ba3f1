"""Ordinary programs that enqueue through `app.sync`, each run in a process of its own by `test_sync`."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from keptwork import Keptwork

app = Keptwork(sys.argv[2] if len(sys.argv) > 2 else "sqlite:///:memory:")


@app.job()
def note(ctx: Any, by: str) -> None: ...


def plain() -> None:
    """Ends without closing anything."""
    app.sync.enqueue(note, by="plain")


def reaped(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def prefork() -> None:
    """As servers do that load the application first: children, grandchildren, and the parent goes on."""
    app.sync.enqueue(note, by="parent")
    children = []
    for number in range(3):
        if not (child := os.fork()):
            app.sync.enqueue_many(note, [{"by": f"child {number}"}] * 5)
            if grandchild := os.fork():
                app.sync.enqueue(note, by=f"child {number} again")
                sys.exit(reaped(grandchild))
            app.sync.enqueue(note, by=f"grandchild {number}")
            sys.exit()
        children.append(child)
        app.sync.enqueue(note, by="parent")
    print([reaped(child) for child in children])


def forks_while_threads_enqueue() -> None:
    over = threading.Event()

    def busy() -> None:
        while not over.is_set():
            app.sync.enqueue(note, by="thread")

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    codes = []
    for number in range(3):
        time.sleep(0.05)
        if not (child := os.fork()):
            app.sync.enqueue(note, by=f"child {number}")
            app.sync.close()
            os._exit(0)
        codes.append(reaped(child))
    over.set()
    for thread in threads:
        thread.join()
    print(codes)


def forks_in_a_transaction() -> None:
    with app.sync.transaction() as tx:
        app.sync.enqueue(note, by="parent", _tx=tx)
        if not (child := os.fork()):
            try:
                app.sync.enqueue(note, by="child", _tx=None)
            except Exception as error:
                print(error, flush=True)
            os._exit(0)
        reaped(child)


def killed() -> None:
    with app.sync.transaction() as tx:
        app.sync.enqueue(note, by="nobody", _tx=tx)
        print("inside", flush=True)
        time.sleep(60)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
