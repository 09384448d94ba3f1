"""The common part of providers with an official SDK: one call, with the handling of its errors."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
from abc import ABC, abstractmethod
from typing import Any

from keptwork.agents.conversation import USUAL, Answer, BusinessFailure, Limits, Request, SystemFailure, Tell
from keptwork.agents.providers.streamed_answer import Draft
from keptwork.core.secrets import Key
from keptwork.errors import MissingExtra
from keptwork.outcomes import PermanentError

_OURS = (SystemFailure, BusinessFailure, PermanentError)


class SdkProvider(ABC):
    """A provider that makes calls through an SDK, which is loaded at the first call."""

    name: str

    def __init__(self, key: Key, base_url: str | None = None, limits: Limits = USUAL) -> None:
        self._key = key
        self._base_url = base_url
        self._limits = limits
        self._sdk: Any = None

    async def answer(self, request: Request, tell: Tell | None = None) -> Answer:
        """Make one call. Its time is limited as a whole, so a server that sends a byte now and then cannot prolong
        it."""
        self._sdk = self._sdk or await asyncio.to_thread(load, self.name)  # loading can take seconds
        from keptwork.agents.providers.failures import fault_of

        draft = Draft(self.name, request, tell)
        try:
            async with asyncio.timeout(self._limits.total):
                await self._called(request, draft)
            return draft.answer()
        except _OURS:
            raise
        except Exception as error:
            fault = fault_of(error, draft, self._key, self._limits)
        raise fault  # not from the error, which contains the request with its headers

    async def _called(self, request: Request, draft: Draft) -> None:
        from keptwork.agents.providers.failures import http_client

        async with http_client(self._limits) as http:
            await self._listen(self._client(self._sdk, http), request, draft)

    @abstractmethod
    def _client(self, sdk: Any, http: Any) -> Any:
        """Return the SDK's client, with its own retries disabled."""

    @abstractmethod
    async def _listen(self, client: Any, request: Request, draft: Draft) -> None:
        """Make the call, and add what arrives to the draft."""


def load(provider: str) -> Any:
    """Return the SDK of a provider."""
    try:
        return importlib.import_module(provider)
    except ModuleNotFoundError as error:
        if error.name != provider:
            raise
        raise MissingExtra(what=f"The provider {provider}", extra=provider) from None


def key_headers(request: Request) -> dict[str, str]:
    """Return the idempotency key of a call as a header. A key that is not short printable ASCII is sent as a hash."""
    if not request.key:
        return {}
    plain = request.key.isascii() and request.key.isprintable() and len(request.key) <= 200
    return {"Idempotency-Key": request.key if plain else hashlib.sha256(request.key.encode()).hexdigest()}
