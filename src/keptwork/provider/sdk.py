"""What the providers behind an official SDK have in common: one call, with all that can go wrong in it."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
from abc import ABC, abstractmethod
from typing import Any

from keptwork.agent.conversation import Answer, BusinessFailure, Request, SystemFailure, Tell
from keptwork.errors import MissingExtra
from keptwork.outcomes import PermanentError
from keptwork.provider.draft import Draft
from keptwork.provider.key import Key
from keptwork.provider.limits import USUAL, Limits

_OURS = (SystemFailure, BusinessFailure, PermanentError)


class SdkProvider(ABC):
    """Makes calls through an SDK, which is loaded with the first of them."""

    name: str

    def __init__(self, key: Key, base_url: str | None = None, limits: Limits = USUAL) -> None:
        self._key = key
        self._base_url = base_url
        self._limits = limits
        self._sdk: Any = None

    async def answer(self, request: Request, tell: Tell | None = None) -> Answer:
        """One call. Its time is counted as a whole: a server that says a byte now and then cannot prolong it."""
        self._sdk = self._sdk or await asyncio.to_thread(load, self.name)  # which can take seconds
        from keptwork.provider.faults import fault_of

        draft = Draft(self.name, request, tell)
        try:
            async with asyncio.timeout(self._limits.total):
                await self._called(request, draft)
            return draft.answer()
        except _OURS:
            raise
        except Exception as error:
            fault = fault_of(error, draft, self._key, self._limits)
        raise fault  # not from the error: that holds the request with its headers

    async def _called(self, request: Request, draft: Draft) -> None:
        from keptwork.provider.connection import http_client

        async with http_client(self._limits) as http:
            await self._listen(self._client(self._sdk, http), request, draft)

    @abstractmethod
    def _client(self, sdk: Any, http: Any) -> Any:
        """The SDK's own, which tries nothing again."""

    @abstractmethod
    async def _listen(self, client: Any, request: Request, draft: Draft) -> None:
        """Makes the call, and puts what comes into the draft."""


def load(provider: str) -> Any:
    """The SDK of a provider."""
    try:
        return importlib.import_module(provider)
    except ModuleNotFoundError as error:
        if error.name != provider:
            raise
        raise MissingExtra(what=f"The provider {provider}", extra=provider) from None


def key_headers(request: Request) -> dict[str, str]:
    """The key of a call as a header, for servers that know a call again by it. What is no plain text goes as a hash."""
    if not request.key:
        return {}
    plain = request.key.isascii() and request.key.isprintable() and len(request.key) <= 200
    return {"Idempotency-Key": request.key if plain else hashlib.sha256(request.key.encode()).hexdigest()}
