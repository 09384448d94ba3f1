"""The `[models]`, `[budgets]`, and `[agents]` sections of `keptwork.toml`. Explained in docs/how-to/agents.md."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from keptwork.core.durations import span_us
from keptwork.flows.definition import Dollars, Duration, Model

ModelName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[!-~]+$")]
Place = Annotated[str, Field(min_length=1, max_length=4_000, pattern=r"^[^\x00]+$")]
Paid = Literal["anthropic", "openai"]

TIERS = {
    "anthropic": {"haiku": "claude-haiku-4-5", "sonnet": "claude-sonnet-4-6", "opus": "claude-opus-4-8"},
    "openai": {"haiku": "gpt-5.4-nano", "sonnet": "gpt-5.4-mini", "opus": "gpt-5.4"},
    "offline": {"haiku": "offline-haiku", "sonnet": "offline-sonnet", "opus": "offline-opus"},
}
"""The default model of each tier. genai-prices knows the model, and the model does not think by default.

Thoughts would have to be sent back to the model in every turn.
"""

MICROS = 1_000_000
LONGEST_CALL_US = 3600 * 1_000_000


def _url(value: str) -> str:
    """Return the URL of a server. Refuse a password, because it would be shown wherever the URL is."""
    try:
        parts = urlsplit(value)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        whole, parts = False, urlsplit("")
    if not whole or not value.isascii() or not value.isprintable():
        raise ValueError("write an address such as https://models.example/v1")
    if parts.username is not None or parts.password is not None:
        raise ValueError("an address holds no user and no password; keys come from the environment or key_file")
    if parts.query or parts.fragment:
        raise ValueError("an address ends with its path; leave out what follows ? or #")
    return value


def _call_time(value: str) -> str:
    if not 0 < span_us(value) <= LONGEST_CALL_US:
        raise ValueError("a call takes more than no time, and an hour at most")
    return value


class Price(Model):
    """What a million tokens of a model cost. What was cached costs as much as other input if nothing else is said."""

    input_per_million_usd: Dollars = Field(description="For what is sent.")
    output_per_million_usd: Dollars = Field(description="For what is answered.")
    cache_read_per_million_usd: Dollars | None = Field(
        None, description="For what is read from the provider's cache; else as input."
    )
    cache_write_per_million_usd: Dollars | None = Field(
        None, description="For what is written to the provider's cache; else as input."
    )


class Models(Model):
    """Who is asked, and for which models."""

    provider: Literal["anthropic", "openai", "offline", "recorded"] | None = Field(
        None, description="Who is asked; else the key in the environment decides, and without one it is offline."
    )
    haiku: ModelName | None = Field(None, description="The model of this tier; else the provider's usual one.")
    sonnet: ModelName | None = Field(None, description="The model of this tier; else the provider's usual one.")
    opus: ModelName | None = Field(None, description="The model of this tier; else the provider's usual one.")
    base_url: Annotated[str, Field(max_length=2_000), AfterValidator(_url)] | None = Field(
        None, description="The address of a server of your own, such as https://models.example/v1; needs provider."
    )
    key_file: Place | None = Field(
        None,
        description="A file with the key that only you can read, seen from where keptwork.toml is; needs provider, and "
        "is used instead of the environment.",
    )
    max_tokens: int = Field(
        4_096, ge=1, le=1_000_000, description="How long an answer may be; what is longer is cut off, and a failure."
    )
    timeout: Annotated[Duration, AfterValidator(_call_time)] = Field(
        "2m", description="How long one call may take as a whole; an hour at most."
    )
    unpriced: Literal["refuse", "allow"] = Field(
        "refuse", description="What becomes of a model without a price: refused, or counted as free."
    )
    escalate: bool = Field(False, description="Whether an answer that was no good is tried again one tier up.")
    classifier: bool = Field(False, description="Whether a cheap call chooses the tier where no rule does.")
    tokens_per_minute: dict[ModelName, Annotated[int, Field(ge=1, le=10**12)]] = Field(
        default_factory=dict,
        max_length=1_000,
        description="For a model, how many tokens all workers together may use in a minute.",
    )
    prices: dict[ModelName, Price] = Field(
        default_factory=dict, max_length=1_000, description="What models cost; wins over the table of known prices."
    )
    record: bool = Field(
        False, description="With the provider recorded: whether answers are asked for and kept, not played back."
    )
    recorded_from: Paid = Field("anthropic", description="Whose answers the recordings are, for models and prices.")
    cassettes: Place = Field("cassettes", description="The folder of the recordings, seen from where keptwork.toml is.")

    @model_validator(mode="after")
    def _whose(self) -> Models:
        for key in ("base_url", "key_file"):
            if getattr(self, key) is not None and self.provider is None:
                raise ValueError(f"{key} is of no use without provider: say whose it is")
        return self

    def name(self, provider: str, tier: str) -> str:
        """Return a provider's model of a tier."""
        said: str | None = getattr(self, tier)
        return said or TIERS[provider][tier]


class Budgets(Model):
    """How much may be spent on models. Where nothing is said there is no cap."""

    job_usd: Dollars | None = Field(None, description="By one job.")
    flow_usd: Dollars | None = Field(None, description="By one flow, with all flows inside it.")
    tenant_usd: Dollars | None = Field(None, description="By a tenant, ever.")
    day_usd: Dollars | None = Field(None, description="By a tenant in a day, from midnight to midnight UTC.")
    warn_at: float = Field(0.8, gt=0, le=1, description="The part of a cap from which on there is a warning.")

    @property
    def caps(self) -> dict[str, int]:
        """The configured caps in micro-USD, by scope (`job`, `flow`, `tenant`, `day`)."""
        said = {"job": self.job_usd, "flow": self.flow_usd, "tenant": self.tenant_usd, "day": self.day_usd}
        return {scope: _micros(amount) for scope, amount in said.items() if amount is not None}


class Agents(Model):
    """How far an agent may go before it is stopped, and where its skills are."""

    max_turns: int = Field(20, ge=1, le=10_000, description="Calls to a model for one job.")
    max_tool_calls: int = Field(50, ge=0, le=100_000, description="Runs of tools for one job.")
    timeout: Duration = Field("15m", description="How long one try of a job may take.")
    skills: Place = Field("skills", description="The folder of your own skills, seen from where keptwork.toml is.")


def _micros(amount: Decimal) -> int:
    return int(amount * MICROS)
