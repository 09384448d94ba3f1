"""Pure decisions about whether a budget allows a call, and about the tokens per minute of a model."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Decimal
from typing import NamedTuple, Protocol

from keptwork.agents.conversation import Request, Usage, spelled
from keptwork.core.money import Caps, Scope, day_of, dollars, midnight_after
from keptwork.errors import MissingExtra, UnpricedModel
from keptwork.store.contract.budgets import Bucket, Budget

CONFIG = "config"
"""The author of a cap that only the configuration has set. Such a cap follows the configuration, and any other cap
stays."""

TURN_US = 1_000_000
"""The time for which money is set aside for jobs whose hold was lifted."""

MINUTE_US = 60_000_000

_ORDER = list(Scope)


class Wait(NamedTuple):
    """A model must not be called before `until_us`. `reason` says why."""

    until_us: int
    reason: str


# --- budgets


def configured(budget: Budget, caps: Caps) -> Budget:
    """Return a budget with its present configuration, unless its cap was set otherwise."""
    cap = caps.of(budget.scope) if budget.said_by == CONFIG else budget.cap_micros
    changed = budget._replace(cap_micros=cap, warn_percent=caps.warn_percent)
    return changed if is_near(changed) or budget.warned_at is None else changed._replace(warned_at=None)


def refusing(budgets: Iterable[Budget], ceiling: int) -> Budget | None:
    """Return the budget that cannot cover a call with this ceiling. If there are several, return the one with the
    narrowest scope."""
    full = [budget for budget in budgets if budget.left_micros is not None and budget.left_micros < ceiling]
    return min(full, key=lambda budget: _ORDER.index(Scope(budget.scope)), default=None)


def refusal(budget: Budget, ceiling: int) -> str:
    """Return why a call exceeds the budget."""
    if budget.cap_micros is not None and ceiling > budget.cap_micros:
        why = f"one call may cost {dollars(ceiling)}, which is more than the whole cap"
    else:
        why = f"the next call may cost {dollars(ceiling)}"
    return f"{standing(budget)}, and {why}"


def standing(budget: Budget) -> str:
    """Return the state of a budget as text."""
    if budget.cap_micros is None:
        return f"{called(budget)} has no cap: {dollars(budget.spent_micros)} spent"
    under_way = f" and {dollars(budget.reserved_micros)} reserved" if budget.reserved_micros else ""
    return f"{called(budget)} has {dollars(budget.spent_micros)} of {dollars(budget.cap_micros)} spent{under_way}"


def called(budget: Budget) -> str:
    """Return the name of a budget in a sentence."""
    if budget.scope == Scope.TENANT:
        return "the tenant's budget"
    return f"the budget of {'the day ' if budget.scope == Scope.DAY else ''}{budget.subject}"


def over_at(budget: Budget) -> int | None:
    """Return when a budget ends automatically, which only a day's budget does."""
    return midnight_after(budget.owner) if budget.scope == Scope.DAY else None


def is_near(budget: Budget) -> bool:
    """Return whether enough is spent for a warning."""
    cap = budget.cap_micros
    return cap is not None and budget.spent_micros * 100 >= cap * budget.warn_percent


def warned(budgets: Iterable[Budget], now: int) -> list[Budget]:
    """Return the budgets that need their first warning, with the time of the warning."""
    return [budget._replace(warned_at=now) for budget in budgets if budget.warned_at is None and is_near(budget)]


def warning(budgets: Iterable[Budget]) -> str | None:
    """Return the warning text, or None if there are no budgets."""
    return "; ".join(standing(budget) for budget in budgets) or None


def may_go(budget: Budget | None, now: int) -> int | None:
    """Return how many jobs that a budget holds can run now. None means all.

    The number follows from what the last rejected call needed. A job that still does not fit is held again and states
    what it needs.
    """
    if budget is None or budget.cap_micros is None or (budget.scope == Scope.DAY and budget.owner < day_of(now)):
        return None
    left = budget.cap_micros - budget.spent_micros - budget.reserved_micros - _promised(budget, now)
    return max(left, 0) // _wanted(budget)


def may_fit(budget: Budget | None, now: int) -> bool:
    """Return whether a held job can fit without a higher cap: now, or when the calls in flight have settled."""
    if budget is None or budget.cap_micros is None or (budget.scope == Scope.DAY and budget.owner < day_of(now)):
        return True
    return budget.cap_micros - budget.spent_micros >= _wanted(budget)


def let_go(budget: Budget, jobs: int, now: int) -> Budget:
    """Return the budget after the hold of this many jobs was lifted. For a moment, it sets aside what they might
    need."""
    return budget._replace(promised_micros=_promised(budget, now) + jobs * _wanted(budget), let_go_at=now)


def promise_kept(budget: Budget, ceiling: int) -> Budget:
    """Return the budget when a call is made, presumably one of those that money was set aside for."""
    return budget._replace(promised_micros=max(budget.promised_micros - ceiling, 0))


def _promised(budget: Budget, now: int) -> int:
    fresh = budget.let_go_at is not None and now < budget.let_go_at + TURN_US
    return budget.promised_micros if fresh else 0


def _wanted(budget: Budget) -> int:
    return max(budget.wanted_micros or 0, 1)


# --- tokens


def asked(bucket: Bucket, tokens: int, per_minute: int | None, now: int) -> Bucket | Wait:
    """Return the bucket after a call took these tokens, or how long the call must wait. A minute's worth can be taken
    together. A call that needs more than that runs when no other tokens are left to drain."""
    if bucket.blocked_until > now:
        return Wait(bucket.blocked_until, f"{bucket.provider} asked to leave {bucket.model} alone for a while")
    if per_minute is None:
        return bucket
    backlog, more = max(bucket.empty_at - now, 0), _takes_us(tokens, per_minute)
    if backlog and backlog + more > MINUTE_US:
        until = now + min(backlog, backlog + more - MINUTE_US)
        return Wait(until, f"{bucket.model} takes {per_minute:,} tokens a minute, and the fleet has asked for them")
    return bucket._replace(empty_at=now + backlog + more, tokens_per_minute=per_minute)


def corrected(bucket: Bucket, taken: int, used: int, now: int) -> Bucket:
    """Return the bucket once a call's actual tokens are known."""
    if bucket.tokens_per_minute is None:
        return bucket
    more = _takes_us(abs(used - taken), bucket.tokens_per_minute)
    empty_at = max(bucket.empty_at, now) + more if used > taken else bucket.empty_at - more
    return bucket._replace(empty_at=max(empty_at, 0))


def _takes_us(tokens: int, per_minute: int) -> int:
    """Return how long this many tokens take to drain, in µs."""
    return -(-tokens * MINUTE_US // max(per_minute, 1))


# Prices of model calls, in whole micro-USD.
#
# The prices are those of the installed genai-prices. Nothing is downloaded. A configured price takes precedence. The
# cost of a call is exact and rounded up once. Its maximum is known before the call, so that a budget is never exceeded.


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
