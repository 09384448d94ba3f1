"""Chooses the provider by `keptwork.toml` and the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from keptwork.agents.conversation import Provider
from keptwork.agents.conversation_limits import Limits
from keptwork.agents.providers.anthropic import Anthropic
from keptwork.agents.providers.choose_offline import Offline
from keptwork.agents.providers.choose_recorded import Recorded
from keptwork.agents.providers.openai import OpenAI
from keptwork.agents.skills_routing import Tier
from keptwork.core.durations import span_us
from keptwork.core.secrets_key import VARIABLES, Key, from_environment, from_file
from keptwork.errors import NoKey
from keptwork.settings import Config

RECORD = "KEPTWORK_RECORD"
NO_KEY = Key("none")
"""The key for a self-hosted server that requires none."""

_PAID = {"anthropic": Anthropic, "openai": OpenAI}


class Choice(NamedTuple):
    """The provider, its model for each tier, and the reason for the choice."""

    provider: Provider
    models: Mapping[Tier, str]
    why: str


def choose(config: Config, environ: Mapping[str, str] | None = None) -> Choice:
    """Return the provider to use. Raise `NoKey` if it needs a key and has none."""
    environ = os.environ if environ is None else environ
    name, why = _named(config, environ)
    if name == "recorded":
        return _recorded(config, environ)
    provider = Offline() if name == "offline" else _paid(name, config, _key(name, config, environ))
    return Choice(provider, _models(config, name), why)


def _named(config: Config, environ: Mapping[str, str]) -> tuple[str, str]:
    if config.models.provider is not None:
        return config.models.provider, f"{config.path} says so"
    for name, variable in VARIABLES.items():
        if environ.get(variable, "").strip():
            return name, f"{variable} is set"
    return "offline", f"neither {' nor '.join(VARIABLES.values())} is set"


def _paid(name: str, config: Config, key: Key) -> Provider:
    limits = Limits(total=span_us(config.models.timeout) / 1_000_000)
    return _PAID[name](key, config.models.base_url, limits)


def _key(name: str, config: Config, environ: Mapping[str, str]) -> Key:
    """Return the key of a provider. A self-hosted server can do without one."""
    if config.models.key_file is not None:
        return from_file(name, config.beside(os.path.expanduser(config.models.key_file)))
    found = from_environment(name, environ) or (NO_KEY if config.models.base_url is not None else None)
    if found is None:
        raise NoKey(
            provider=name, what=f"set {VARIABLES[name]}, or name a file that holds it: key_file in {config.path}"
        )
    return found


def _recorded(config: Config, environ: Mapping[str, str]) -> Choice:
    """Return a provider that replays recordings, or makes them with the key of the recorded provider."""
    models, folder, whose = config.models, config.beside(config.models.cassettes), config.models.recorded_from
    if models.record or environ.get(RECORD, "").strip() not in ("", "0"):
        key = _key(whose, config, environ)
        recorder = Recorded(folder, whose, _paid(whose, config, key), key.hidden_in)
        return Choice(recorder, _models(config, whose), f"{config.path} says so, and that {folder} is recorded")
    return Choice(Recorded(folder, whose), _models(config, whose), f"{config.path} says so; {folder} is played")


def _models(config: Config, provider: str) -> dict[Tier, str]:
    return {tier: config.models.name(provider, tier) for tier in Tier}
