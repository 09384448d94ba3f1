"""The program of tools under keepers that go by process groups alone, as many do. For a zygote to import."""

import contextlib
import os
import signal

from keptwork.process import tree
from keptwork.process.tool_process import prepare, run
from keptwork.process.tree import Tree

__all__ = ["prepare", "run"]


def _send(self: Tree, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(self.leader, number)


tree.adopt_orphans = lambda: False
Tree.send = _send  # type: ignore[method-assign]  # that is what makes it a twin
