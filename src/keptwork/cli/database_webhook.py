"""The webhook options of a flow. The signing secret is passed by the name of its environment variable."""

from __future__ import annotations

from typing import Annotated

import typer

from keptwork.errors import BadInput

Webhook = Annotated[
    str | None, typer.Option("--webhook", metavar="URL", help="URL that receives a signed message when the flow ends.")
]
SecretEnv = Annotated[
    str | None,
    typer.Option(
        "--webhook-secret-env",
        metavar="NAME",
        help="Environment variable with the signing secret. Default: KEPTWORK_WEBHOOK_SECRET.",
    ),
]


def webhook(url: str | None, secret_env: str | None) -> dict[str, str] | None:
    """Return the webhook settings of a flow, checked without a database, or None without a webhook."""
    from keptwork.webhooks import outbox

    if url is None:
        if secret_env is not None:
            raise BadInput(what="--webhook-secret-env is of no use by itself; say whom to tell with --webhook URL")
        return None
    asked = {"url": url} if secret_env is None else {"url": url, "secret_env": secret_env}
    outbox.checked(asked)
    return asked
