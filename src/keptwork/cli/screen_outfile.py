"""Write a file completely or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, TextIO

from keptwork.errors import CannotWriteFile


@contextmanager
def written_whole(path: Path | None) -> Iterator[TextIO]:
    """Open stdout, or a file that gets its name only when the block succeeds.

    A path that is not a regular file (a pipe, a device) is written directly, because it must not be replaced.
    """
    if path is None or str(path) == "-":
        yield sys.stdout
        return
    with _whole(path, encoding="utf-8") as file:
        yield file


@contextmanager
def bytes_written_whole(path: Path | None) -> Iterator[BinaryIO]:
    """Do the same for bytes."""
    if path is None or str(path) == "-":
        yield sys.stdout.buffer
        return
    with _whole(path, binary="b") as file:
        yield file


@contextmanager
def _whole(path: Path, binary: str = "", encoding: str | None = None) -> Iterator[Any]:
    target = path.resolve()
    try:
        if target.exists() and not target.is_file():
            with target.open(f"w{binary}", encoding=encoding) as file:
                yield file
        else:
            with _renamed_when_complete(target, f"x{binary}", encoding) as file:
                yield file
    except OSError as error:
        detail = error.strerror or str(error)
        raise CannotWriteFile(path=path, detail=detail[:1].lower() + detail[1:]) from error


@contextmanager
def _renamed_when_complete(target: Path, mode: str, encoding: str | None) -> Iterator[IO[Any]]:
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with partial.open(mode, encoding=encoding) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
