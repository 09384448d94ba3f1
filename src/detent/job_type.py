"""A kind of job: the function that does it, and the rules it is run by."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from detent.errors import BadInput
from detent.moments import Span, span_us

Handler = Callable[..., Any] | Callable[..., Awaitable[Any]]

LARGEST_PAYLOAD = 1 << 20


@dataclass(frozen=True, slots=True)
class JobType:
    """The declared rules of a kind of job; times are microseconds."""

    name: str
    function: Handler
    queue: str = "default"
    priority: int = 0
    max_attempts: int = 4
    lease_us: int = 60_000_000
    timeout_us: int | None = None
    backoff_us: int = 500_000
    backoff_cap_us: int = 60_000_000
    on_exhausted: Literal["dead_letter", "fail"] = "dead_letter"
    is_async: bool = True
    signature: inspect.Signature = field(default_factory=inspect.Signature)

    @classmethod
    def of(cls, function: Handler, *, name: str | None = None, lease: Span = "60s", **rules: Any) -> JobType:
        """A kind of job made from a function whose first parameter is the context."""
        timeout, backoff = rules.pop("timeout", None), rules.pop("backoff", "500ms")
        cap = rules.pop("backoff_cap", "60s")
        return cls(
            name or function.__name__,
            function,
            lease_us=span_us(lease),
            timeout_us=None if timeout is None else span_us(timeout),
            backoff_us=span_us(backoff),
            backoff_cap_us=span_us(cap),
            is_async=inspect.iscoroutinefunction(function),
            signature=_without_context(function),
            **rules,
        )

    def payload(self, arguments: Mapping[str, Any]) -> str:
        """The arguments as JSON; what the function would not take, or JSON cannot hold, is refused here."""
        try:
            self.signature.bind(**arguments)
            text = json.dumps(arguments, separators=(",", ":"), allow_nan=False) if arguments else "{}"
        except (TypeError, ValueError) as error:
            raise BadInput(what=f"job {self.name}: {error}") from None
        if len(text) > LARGEST_PAYLOAD:
            raise BadInput(what=f"job {self.name}: a payload of {len(text):,} bytes is over the limit of 1 MiB")
        return text


def _without_context(function: Handler) -> inspect.Signature:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if not parameters:
        raise BadInput(what=f"job {function.__name__}: its first parameter must be the context, as in def f(ctx, …)")
    return signature.replace(parameters=parameters[1:])
