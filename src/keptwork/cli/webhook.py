"""The options that say who is told when a flow ends. The secret that signs it is named, and never given."""

from __future__ import annotations

from typing import Annotated

import typer

from keptwork.errors import BadInput

Webhook = Annotated[
    str | None, typer.Option("--webhook", metavar="URL", help="Tell this address, signed, when the flow ends.")
]
SecretEnv = Annotated[
    str | None,
    typer.Option(
        "--webhook-secret-env",
        metavar="NAME",
        help="The variable that holds the secret to sign with, if not KEPTWORK_WEBHOOK_SECRET.",
    ),
]


def webhook(url: str | None, secret_env: str | None) -> dict[str, str] | None:
    """What a flow is started with, checked as far as it can be without a database; none if nobody is told."""
    from keptwork.service import webhooks

    if url is None:
        if secret_env is not None:
            raise BadInput(what="--webhook-secret-env is of no use by itself; say whom to tell with --webhook URL")
        return None
    asked = {"url": url} if secret_env is None else {"url": url, "secret_env": secret_env}
    webhooks.checked(asked)
    return asked
