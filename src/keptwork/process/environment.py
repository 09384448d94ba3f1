"""The environment a tool gets: little more than what programs need to find their way, and what is listed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

USUAL_PATH = "/usr/local/bin:/usr/bin:/bin"
PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")
"""What every tool gets, where it is set here; none of it is a secret."""


def passed_on(more: Iterable[str] = (), environ: Mapping[bytes, bytes] = os.environb) -> dict[str, str]:
    """Of this process's environment, as it is here, even where it is no text."""
    wanted = ((name, environ.get(name.encode())) for name in (*PASSED, *more))
    found = {name: value.decode("utf-8", "surrogateescape") for name, value in wanted if value is not None}
    return {"PATH": USUAL_PATH, **found}
