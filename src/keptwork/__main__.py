"""`python -m keptwork` is the command `keptwork`."""

from keptwork.cli.main import run

run()
