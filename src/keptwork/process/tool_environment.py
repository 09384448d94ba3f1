"""Build the environment of a tool: the variables that programs need, and those that are listed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

USUAL_PATH = "/usr/local/bin:/usr/bin:/bin"
PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")
"""Variables that every tool gets if they are set here. None of them is a secret."""


def passed_on(more: Iterable[str] = (), environ: Mapping[bytes, bytes] = os.environb) -> dict[str, str]:
    """Return the variables to pass on, with values that are not UTF-8 preserved."""
    wanted = ((name, environ.get(name.encode())) for name in (*PASSED, *more))
    found = {name: value.decode("utf-8", "surrogateescape") for name, value in wanted if value is not None}
    return {"PATH": USUAL_PATH, **found}
