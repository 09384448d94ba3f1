"""Both providers that use a network, each against the server that plays its part."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from keptwork.agents.conversation import Limits, Message, Request, Role
from keptwork.agents.providers.anthropic import Anthropic
from keptwork.agents.providers.openai import OpenAI
from keptwork.agents.providers.sdk import SdkProvider
from keptwork.core.secrets import Key

CANARY = "sk-canary-0123456789abcdefghij"
MODELS = {"anthropic": "claude-haiku-4-5", "openai": "gpt-5.4-nano"}

Connect = Callable[..., SdkProvider]


@pytest.fixture(params=[Anthropic, OpenAI], ids=["anthropic", "openai"])
def connect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Makes a provider that speaks to an address, with short limits."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)

    def made(url: str, total: float = 20, most_bytes: int = 4 << 20, connect: float = 5) -> SdkProvider:
        provider: SdkProvider = request.param(Key(CANARY), url, Limits(connect, total, most_bytes))
        return provider

    return made


@pytest.fixture
def asked(request: pytest.FixtureRequest, connect: Connect) -> Request:
    """A plain question."""
    name = connect("http://127.0.0.1:1").name
    return Request(MODELS[name], (Message(Role.USER, "Say hello"),), "You are brief.", 100, key="job_1:reply")
