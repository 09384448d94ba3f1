"""Commands that are forked from a process with all imports made: nobody could tell, except by the time they take."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.support import command
from tests.support.forked_command import ForkedCommands

pytestmark = pytest.mark.acceptance

# What lies below all commands is imported beforehand: it imports none of them, and takes most of the time.
ALONE = """
import importlib, os
import asyncpg, keptwork.flows.definition, keptwork.store.sqlite.store, typer.main
from keptwork.cli.main import COMMANDS

def fails(module):
    if child := os.fork():
        return os.waitpid(child, 0)[1] != 0
    importlib.import_module(module)
    os._exit(0)

print([module for module in {entry.target.partition(":")[0] for entry in COMMANDS.values()} if fails(module)])
"""


@pytest.mark.parametrize("arguments", [("lifecycles", "list"), ("jobs", "list", "--json"), ("flows", "check", "-")])
def test_it_says_and_leaves_what_a_new_interpreter_does(arguments: tuple[str, ...], tmp_path: Path) -> None:
    forked = command.run(*arguments, cwd=tmp_path, stdin="steps: 1")
    argv, env = [sys.executable, "-m", "keptwork", *arguments], command.environment()
    done = subprocess.run(argv, cwd=tmp_path, env=env, input="steps: 1", capture_output=True, text=True)
    assert (forked.returncode, forked.stdout, forked.stderr) == (done.returncode, done.stdout, done.stderr)
    assert forked.stdout + forked.stderr


def test_one_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    reading, writing = os.pipe()  # nobody writes
    with closing(ForkedCommands(command.environment())) as commands:
        with pytest.raises(subprocess.TimeoutExpired):
            commands.run(["flows", "check", "-"], tmp_path, command.environment(), [reading, 1, 2], 0.5)
        os.close(reading)
        with pytest.raises(BrokenPipeError):  # it was the last who could have read
            os.write(writing, b"late")
    os.close(writing)


def test_one_that_a_signal_ends_says_so(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})")
    assert command.run("work", "own:app", "--db", f"sqlite:///{tmp_path}/own.db", cwd=tmp_path).returncode == -9


def test_every_command_can_be_the_first_to_be_imported() -> None:
    assert ast.literal_eval(command.run(python=("-c", ALONE)).stdout) == []
