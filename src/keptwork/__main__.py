"""Run the command `keptwork` as `python -m keptwork`."""

from keptwork.cli.main import run

run()
