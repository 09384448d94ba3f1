"""An application for `keptwork work --server`: one kind of job, whose effect is in a sink outside."""

from __future__ import annotations

import os
import urllib.request
from typing import Any

from keptwork import Keptwork

app = Keptwork()


@app.job(name="charge", backoff="50ms")
def charge(ctx: Any, number: int) -> dict[str, int]:
    asked = urllib.request.Request(  # noqa: S310 - the test's own sink
        f"{os.environ['SINK']}?number={number}",
        method="POST",
        headers={"Idempotency-Key": ctx.idempotency_key("charge")},
    )
    with urllib.request.urlopen(asked, timeout=20) as told:  # noqa: S310 - as above
        status = int(told.status)
    return {"status": int(ctx.step("receipt", lambda: status))}
