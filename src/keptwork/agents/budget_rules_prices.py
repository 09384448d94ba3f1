"""Prices of model calls, in whole micro-USD.

The prices are those of the installed genai-prices. Nothing is downloaded. A configured price takes precedence. The cost
of a call is exact and rounded up once. Its maximum is known before the call, so that a budget is never exceeded.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Protocol

from keptwork.agents.conversation import Request, Usage
from keptwork.agents.conversation_spelling import spelled
from keptwork.errors import MissingExtra, UnpricedModel

OFFLINE = "offline"
UNSEEN_TOKENS = 2_000
"""Room for what a provider adds to a request with tools: some hundred tokens of its own instructions."""

_MILLION = 1_000_000


class Price(Protocol):
    """US dollars per million tokens."""

    @property
    def input_per_million_usd(self) -> Decimal: ...
    @property
    def output_per_million_usd(self) -> Decimal: ...
    @property
    def cache_read_per_million_usd(self) -> Decimal | None: ...
    @property
    def cache_write_per_million_usd(self) -> Decimal | None: ...


class Tariff(Protocol):
    """The configured prices: those of single models, and whether a model without a price is rejected."""

    @property
    def prices(self) -> Mapping[str, Price]: ...
    @property
    def unpriced(self) -> str: ...


class Settings(Protocol):
    """An object with a tariff, such as `keptwork.toml` with `[models]`."""

    @property
    def models(self) -> Tariff: ...


def cost_micros(provider: str, model: str, usage: Usage, config: Settings) -> int:
    """Return the cost of a call. Use the requested model's name, since its price is configured and its ceiling was
    reserved."""
    if provider == OFFLINE:
        return 0
    price = config.models.prices.get(model)
    dollars = _known(provider, model, usage) if price is None else _at(price, usage)
    if dollars is not None:
        return int((dollars * _MILLION).to_integral_value(ROUND_CEILING))
    if config.models.unpriced == "allow":
        return 0
    raise UnpricedModel(provider=provider, model=model)


def ceiling_micros(provider: str, model: str, request: Request, config: Settings) -> int:
    """Return the maximum cost of a request, however much of it is cached."""
    tokens, output = most_input_tokens(request), request.max_tokens
    ways = Usage(tokens, output), Usage(0, output, cache_write=tokens), Usage(0, output, cache_read=tokens)
    return max(cost_micros(provider, model, usage, config) for usage in ways)


def most_tokens(request: Request) -> int:
    """Return the maximum tokens of a request with its answer."""
    return most_input_tokens(request) + request.max_tokens


def most_input_tokens(request: Request) -> int:
    """Return the maximum tokens that a provider can count for a request: one for each byte.

    A token stands for at least one byte of text, however the text was split. The names and punctuation around each
    message also count here. They are longer than the few tokens with which a provider marks a message. Some providers
    normalize text before they split it, which can make it longer, so the longer form counts.
    """
    text = spelled(request)
    lengths = (len(each.encode("utf-8", "replace")) for each in (text, unicodedata.normalize("NFKC", text)))
    return max(lengths) + UNSEEN_TOKENS


def _at(price: Price, usage: Usage) -> Decimal:
    read, write = price.cache_read_per_million_usd, price.cache_write_per_million_usd
    each = (
        (usage.input, price.input_per_million_usd),
        (usage.output, price.output_per_million_usd),
        (usage.cache_read, price.input_per_million_usd if read is None else read),
        (usage.cache_write, price.input_per_million_usd if write is None else write),
    )
    return sum((tokens * dollars for tokens, dollars in each), Decimal(0)) / _MILLION


def _known(provider: str, model: str, usage: Usage) -> Decimal | None:
    """Return the price by genai-prices, or None if it does not know the model. It counts cached tokens as input."""
    try:
        import genai_prices  # heavy, and not needed where nothing costs anything
    except ModuleNotFoundError:
        raise MissingExtra(what=f"the prices of {provider}", extra=provider) from None
    counted = genai_prices.Usage(
        input_tokens=usage.input + usage.cache_read + usage.cache_write,
        cache_read_tokens=usage.cache_read,
        cache_write_tokens=usage.cache_write,
        output_tokens=usage.output,
    )
    try:
        return genai_prices.calc_price(counted, model, provider_id=provider).total_price
    except LookupError:
        return None
