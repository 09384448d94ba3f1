"""`python -m detent` is the command `detent`."""

from detent.cli.main import run

run()
