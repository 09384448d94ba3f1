"""The same program under keepers that adopt no orphans, as if they went by parents alone."""

from keptwork.process import tree
from tests.process.programs import prepare, run

__all__ = ["prepare", "run"]

tree.adopt_orphans = lambda: False
