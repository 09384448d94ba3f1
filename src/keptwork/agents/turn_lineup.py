"""The provider, the models of each tier, and the skills that agents can use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from keptwork.agents.conversation import Provider
from keptwork.agents.providers.redacting import Discreet
from keptwork.agents.skills import Skill, skills
from keptwork.agents.skills_routing import Tier

if TYPE_CHECKING:
    from keptwork.settings import Config


class Lineup(NamedTuple):
    """A provider, its models, the skills, and the configuration."""

    provider: Provider
    models: Mapping[Tier, str]
    skills: Sequence[Skill]
    config: Config


class Lineups:
    """Reads the configuration when an agent first needs it, and then keeps one provider.

    Skills are read each time, because users edit them.
    """

    def __init__(self, config: Callable[[], Config], provider: Provider | None = None) -> None:
        self._config = config
        self._given = provider
        self._chosen: tuple[Provider, Mapping[Tier, str]] | None = None

    def __call__(self) -> Lineup:
        config = self._config()
        if self._chosen is None:
            self._chosen = self._choice(config)
        provider, models = self._chosen
        return Lineup(provider, models, skills(config.skills), config)

    def _choice(self, config: Config) -> tuple[Provider, Mapping[Tier, str]]:
        """Choose the provider, wrapped so that secrets are redacted in both directions."""
        if self._given is not None:
            return Discreet(self._given), {tier: config.models.name(self._given.name, tier) for tier in Tier}
        from keptwork.agents.providers.choose import choose

        chosen = choose(config)
        return Discreet(chosen.provider), chosen.models
