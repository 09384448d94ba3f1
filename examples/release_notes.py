"""What examples/release.yaml calls: functions for its Python steps, and a small program for its tools."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def files() -> dict[str, Any]:
    """What belongs to the release."""
    names = sorted(path.name for path in HERE.iterdir() if path.suffix in (".py", ".yaml", ".toml"))
    return {"names": names, "count": len(names)}


def total(counted: list[dict[str, Any]]) -> dict[str, int]:
    """All lines together; each of these is what came of one run of the tool."""
    return {"lines": sum(one["json"]["lines"] for one in counted)}


def publish(ctx: Any, version: str, notes: str, lines: int) -> dict[str, Any]:
    """Would send the notes somewhere, under a key by which the other side knows them when they come again."""
    ctx.progress(0.5, f"publishing {version}")
    return {"version": version, "lines": lines, "notes": notes, "key": ctx.idempotency_key("publish")}


def count(name: str) -> dict[str, Any]:
    return {"file": name, "lines": len((HERE / name).read_text("utf-8").splitlines())}


def checksum(*names: str) -> dict[str, str]:
    content = b"".join((HERE / name).read_bytes() for name in names)
    return {"sha256": hashlib.sha256(content).hexdigest()[:16]}


def try_out() -> dict[str, bool]:
    return {"works": total([{"json": count(name)} for name in files()["names"]])["lines"] > 0}


TOOLS: dict[str, Callable[..., Any]] = {"count": count, "checksum": checksum, "try": try_out}

if __name__ == "__main__":
    print(json.dumps(TOOLS[sys.argv[1]](*sys.argv[2:])))
