"""Which provider is used, and with which key: by the file, else by the environment, else none that costs anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from keptwork import settings as config
from keptwork.agents.conversation import Message, Request, Role
from keptwork.agents.providers.choose import Recorded, choose
from keptwork.agents.skills import Tier
from keptwork.core.secrets import HIDDEN, Key, current, from_file
from keptwork.errors import NoKey
from keptwork.settings import Config
from tests.support.llm_server import LlmServer, Say

BOTH = {"ANTHROPIC_API_KEY": "sk-a", "OPENAI_API_KEY": "sk-o"}


def settings(tmp_path: Path, text: str) -> Config:
    file = tmp_path / "keptwork.toml"
    file.write_text(text)
    return config.read(file)


CHOICES = [
    ("", {}, "offline", "offline-haiku", "neither ANTHROPIC_API_KEY nor OPENAI_API_KEY is set"),
    ("", {"ANTHROPIC_API_KEY": " "}, "offline", "offline-haiku", "neither"),
    ("", BOTH, "anthropic", "claude-haiku-4-5", "ANTHROPIC_API_KEY is set"),
    ("", {"OPENAI_API_KEY": "sk-o"}, "openai", "gpt-5.4-nano", "OPENAI_API_KEY is set"),
    ('[models]\nhaiku = "mine"', BOTH, "anthropic", "mine", "ANTHROPIC_API_KEY is set"),
    ('[models]\nprovider = "openai"', BOTH, "openai", "gpt-5.4-nano", "keptwork.toml says so"),
    ('[models]\nprovider = "offline"', BOTH, "offline", "offline-haiku", "keptwork.toml says so"),
    ('[models]\nprovider = "recorded"', {}, "anthropic", "claude-haiku-4-5", "cassettes is played"),
    (
        '[models]\nprovider = "recorded"\nrecorded_from = "openai"',
        {**BOTH, "KEPTWORK_RECORD": "1"},
        "openai",
        "gpt-5.4-nano",
        "cassettes is recorded",
    ),
]


@pytest.mark.parametrize(("text", "environ", "name", "haiku", "why"), CHOICES)
def test_the_file_says_who_is_asked_else_the_key_that_is_there(
    tmp_path: Path, text: str, environ: dict[str, str], name: str, haiku: str, why: str
) -> None:
    choice = choose(settings(tmp_path, text), environ)
    assert (choice.provider.name, choice.models[Tier.HAIKU]) == (name, haiku)
    assert why in choice.why
    assert "sk-" not in repr(choice)


@pytest.mark.parametrize("text", ['provider = "anthropic"', 'provider = "recorded"\nrecord = true'])
def test_a_provider_that_was_named_and_has_no_key_is_an_error_that_says_what_to_do(tmp_path: Path, text: str) -> None:
    with pytest.raises(NoKey, match=r"^anthropic needs a key: set ANTHROPIC_API_KEY, or name a file .* key_file in .*"):
        choose(settings(tmp_path, f"[models]\n{text}"), {"OPENAI_API_KEY": "sk-o"})


async def test_a_server_of_ones_own_may_need_no_key(tmp_path: Path) -> None:
    with LlmServer([Say("local")]) as server:
        choice = choose(settings(tmp_path, server.settings("openai", 'sonnet = "llama"\ntimeout = "20s"')), {})
        answer = await choice.provider.answer(Request(choice.models[Tier.SONNET], (Message(Role.USER, "hi"),)))
    assert (answer.text, server.calls[0].model) == ("local", "llama")


async def test_the_key_in_a_file_is_used_instead_of_the_one_in_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("file-key-0123456789\n")
    file.chmod(0o600)
    with LlmServer() as server:
        provider = choose(settings(tmp_path, server.settings(more='key_file = "key"')), BOTH).provider
        await provider.answer(Request("claude-haiku-4-5", (Message(Role.USER, "hi"),)))
    assert "file-key-0123456789" in str(server.calls[0].headers)
    assert "sk-a" not in str(server.calls[0].headers)
    assert "file-key" not in repr(vars(provider))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o777])
def test_a_key_file_that_others_can_use_is_refused_with_what_to_do(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "key"
    file.write_text("secret-0123456789")
    file.chmod(mode)
    with pytest.raises(NoKey, match=r"is open to others, and so is not used; run: chmod 600 .*key$") as refusal:
        from_file("openai", file)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("content", ["", "two lines\nof it", "a b", "\0", "é", "x" * 5_000])
def test_a_file_that_holds_no_key_is_refused_without_showing_it(tmp_path: Path, content: str) -> None:
    file = tmp_path / "key"
    file.write_text(content)
    file.chmod(0o600)
    with pytest.raises(NoKey, match="does not hold one") as refusal:
        from_file("openai", file)
    assert not content or content not in str(refusal.value)


def test_a_key_file_may_be_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(NoKey, match="home/key cannot be read"):
        choose(settings(tmp_path, '[models]\nprovider = "openai"\nkey_file = "~/key"'), {})


def test_a_key_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoKey, match=r"gone cannot be read: No such file or directory"):
        from_file("openai", tmp_path / "gone")


def test_a_key_is_hidden_in_texts_and_shows_itself_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of-the-environment")
    key = Key("not like others")
    assert "others" not in f"{key} {key!r} {[key]}"
    said = key.hidden_in("not like others, of-the-environment, sk-proj-0123456789abcdef, sk-learn, pk_users_id")
    assert said == f"{HIDDEN}, {HIDDEN}, {HIDDEN}, sk-learn, pk_users_id"
    assert Key("none").hidden_in("none of it") == "none of it"


def test_the_environment_of_this_process_is_used_if_none_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in BOTH:
        monkeypatch.delenv(name, raising=False)
    assert choose(settings(tmp_path, "")).provider.name == "offline"
    monkeypatch.setitem(os.environ, "OPENAI_API_KEY", "sk-o")
    assert choose(settings(tmp_path, "")).provider.name == "openai"


def test_recordings_are_looked_for_beside_the_file(tmp_path: Path) -> None:
    provider = choose(settings(tmp_path, '[models]\nprovider = "recorded"\ncassettes = "tests/c"'), {}).provider
    assert isinstance(provider, Recorded)
    assert provider.file(Request("m", ())).parent == tmp_path / "tests" / "c"


def test_a_key_from_a_file_is_taken_out_of_whatever_is_kept(tmp_path: Path) -> None:
    """One in the environment is known by the name it has there; this one has none."""
    file = tmp_path / "key"
    file.write_text("canary-of-a-file-93651\n")
    file.chmod(0o600)
    from_file("openai", file)
    assert "canary-of-a-file" not in current().text("it was canary-of-a-file-93651, I think")
