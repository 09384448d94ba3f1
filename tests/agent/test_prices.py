"""What calls cost: by the price table or by configured prices, exact, and never more than what was reserved."""

from __future__ import annotations

import random
import subprocess
import sys
from decimal import Decimal
from math import ceil

import pytest
from genai_prices.data import providers

from keptwork.agents.budget_rules import (
    UNSEEN_TOKENS,
    ceiling_micros,
    cost_micros,
    most_input_tokens,
    most_tokens,
)
from keptwork.agents.conversation import Message, Offer, Request, Role, ToolUse, Usage
from keptwork.agents.settings import TIERS
from keptwork.errors import UnpricedModel
from keptwork.settings import Config
from tests.support.command import environment

PLAIN = Config.model_validate({})
OWN = Config.model_validate(
    {
        "models": {
            "prices": {
                "claude-haiku-4-5": {"input_per_million_usd": 7, "output_per_million_usd": 9},
                "free": {"input_per_million_usd": 0, "output_per_million_usd": 0},
                "odd": {
                    "input_per_million_usd": 0.3,
                    "output_per_million_usd": 0.1,
                    "cache_read_per_million_usd": 0,
                    "cache_write_per_million_usd": 0.000001,
                },
            }
        }
    }
)


def test_the_price_is_that_of_the_table_with_what_was_cached_at_its_own_price() -> None:
    assert cost_micros("anthropic", "claude-haiku-4-5", Usage(1_000, 200), PLAIN) == 1_000 + 5 * 200
    cached = Usage(200, 10, cache_read=500, cache_write=300)
    assert cost_micros("anthropic", "claude-haiku-4-5", cached, PLAIN) == 200 + 50 + 375 + 50
    assert cost_micros("anthropic", "claude-haiku-4-5-20251001", Usage(1_000, 0), PLAIN) == 1_000


def test_a_fraction_of_a_micro_dollar_is_rounded_up_once_for_the_whole_call() -> None:
    assert cost_micros("openai", "gpt-5-nano", Usage(1, 0), PLAIN) == 1  # 0.05
    assert cost_micros("openai", "gpt-5-nano", Usage(20, 5), PLAIN) == 3  # 1 + 2
    assert cost_micros("openai", "gpt-5-nano", Usage(21, 6), PLAIN) == 4  # 1.05 + 2.4
    assert cost_micros("anthropic", "odd", Usage(1, 1, 1, 1), OWN) == 1


def test_a_configured_price_wins_even_if_it_is_nothing() -> None:
    assert cost_micros("anthropic", "claude-haiku-4-5", Usage(1, 1, 1, 1), OWN) == 7 + 9 + 7 + 7
    assert cost_micros("openai", "free", Usage(10**9, 10**9), OWN) == 0


def test_a_model_without_a_price_is_refused_unless_that_is_allowed() -> None:
    with pytest.raises(UnpricedModel, match=r'the openai model mine is not known; .* \[models\.prices\."mine"\]'):
        cost_micros("openai", "mine", Usage(1, 1), PLAIN)
    allowed = Config.model_validate({"models": {"unpriced": "allow"}})
    assert cost_micros("openai", "mine", Usage(1, 1), allowed) == 0


def test_what_is_answered_offline_costs_nothing() -> None:
    assert cost_micros("offline", "offline-opus", Usage(10**9, 10**9), PLAIN) == 0


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_every_default_model_has_a_price(provider: str) -> None:
    costs = [cost_micros(provider, model, Usage(10_000, 10_000), PLAIN) for model in TIERS[provider].values()]
    assert costs == sorted(costs)
    assert costs[0] > 0


TEXTS = ["", "hello", "é" * 50, "\ufdfa" * 40, "\U0001d54f" * 30, '"\\\n' * 20, "\x00\ud800"]


def asked(text: str, max_tokens: int = 100) -> Request:
    use = ToolUse("1", "t", {"a": text})
    messages = (Message(Role.USER, text), Message(Role.ASSISTANT, text, (use,)), Message(Role.TOOL, text, answers="1"))
    return Request("m", messages, text, max_tokens, (Offer("t", text, {"type": "object"}),))


@pytest.mark.parametrize("text", TEXTS)
def test_no_request_has_more_tokens_than_its_bytes_however_they_are_normalised(text: str) -> None:
    import unicodedata

    longest = max(len(form.encode("utf-8", "replace")) for form in (text, unicodedata.normalize("NFKC", text)))
    assert most_input_tokens(asked(text)) >= 5 * longest + UNSEEN_TOKENS
    assert most_tokens(asked(text)) == most_input_tokens(asked(text)) + 100


def test_no_call_to_any_known_model_costs_more_than_its_ceiling() -> None:
    chance = random.Random(6)
    named = [(p.id, m.id) for p in providers if p.id in ("anthropic", "openai") for m in p.models]
    models = [(provider, model) for provider, model in named if ":" not in model]  # those are patterns
    assert len(models) > 50
    for provider, model in models:
        request = asked("x" * chance.choice([10, 40_000]), chance.choice([10, 4_096, 300_000]))
        ceiling = ceiling_micros(provider, model, request, PLAIN)
        for _ in range(5):
            cuts = sorted(chance.randint(0, most_input_tokens(request)) for _ in range(3))
            usage = Usage(cuts[0], chance.randint(0, request.max_tokens), cuts[1] - cuts[0], cuts[2] - cuts[1])
            assert cost_micros(provider, model, usage, PLAIN) <= ceiling, (provider, model, usage)


def test_a_hundred_calls_over_the_tiers_sum_to_what_the_table_says() -> None:
    tiers = [
        ("claude-haiku-4-5", 60, "1", "5"),
        ("claude-sonnet-4-6", 30, "3", "15"),
        ("claude-opus-4-8", 10, "5", "25"),
    ]
    usage = Usage(1_234, 567)
    spent = sum(count * cost_micros("anthropic", model, usage, PLAIN) for model, count, _, _ in tiers)
    each = [count * ceil(1_234 * Decimal(price) + 567 * Decimal(out)) for _, count, price, out in tiers]
    assert spent == sum(each) == 60 * 4_069 + 30 * 12_207 + 10 * 20_345


@pytest.mark.acceptance
def test_prices_are_not_fetched_and_not_even_loaded_before_they_are_needed() -> None:
    code = """
import socket, sys, threading
def no(*_, **__): raise AssertionError("somebody wants a network")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = no
from keptwork.agents import budget_rules
from keptwork.agents.conversation import Usage
from keptwork.settings import read
assert budget_rules.cost_micros("offline", "x", Usage(1, 1), read()) == 0
assert "genai_prices" not in sys.modules
print(budget_rules.cost_micros("anthropic", "claude-haiku-4-5", Usage(1, 1), read()), threading.active_count())
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "6 1\n"
