"""Who there is to be asked: the provider, its model of each tier, and the skills."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from detent.agent.conversation import Provider
from detent.agent.routing import Tier
from detent.agent.skill import Skill, skills

if TYPE_CHECKING:
    from detent.config import Config


class Lineup(NamedTuple):
    """What an agent can be made of."""

    provider: Provider
    config: Config
    models: Mapping[Tier, str]
    skills: Sequence[Skill]
    max_tokens: int = 4096
    escalates: bool = False
    classifies: bool = False


class Lineups:
    """Reads the configuration when an agent first needs it; skills are read each time, for people change them."""

    def __init__(self, config: Callable[[], Config], provider: Provider | None = None) -> None:
        self._config = config
        self._provider = provider

    def __call__(self) -> Lineup:
        config = self._config()
        provider = self._provider or self._connected(config)
        models = {tier: f"{provider.name}-{tier}" for tier in Tier}
        return Lineup(provider, config, models, skills(Path("skills")))

    def _connected(self, config: Config) -> Provider:
        from detent.agent.model import Offline

        return Offline()
