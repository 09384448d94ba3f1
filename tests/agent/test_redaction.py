"""Secrets taken out of texts: known ones in every form, others by their shape, and nothing else."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from urllib.parse import quote

import pytest

from keptwork.agents.conversation import Answer, Message, Request, Role, SystemFailure, Tell, ToolUse
from keptwork.agents.providers.redacting import Discreet, Pieces
from keptwork.core import secrets
from keptwork.core.secrets import Redactor

SECRET = 'p4ss"wörd/+&\\x'
BODY = "MIIEpAIBAAKCAQEA0123456789abcdef\nqwertyuiopasdfghjkl"
KEY = f"-----BEGIN RSA PRIVATE KEY-----\n{BODY}\n-----END RSA PRIVATE KEY-----"

SHAPED = {
    "sk-ant-api03-AbCdEfGhIjKlMnOp-_12": "API key",
    "sk-proj-0123456789abcdefXYZ": "API key",
    "sk_live_0123456789abcdef": "API key",
    "AKIAIOSFODNN7EXAMPLE": "AWS key",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345": "GitHub token",
    "github_pat_11ABCDEFG0123456789_abcdefgh": "GitHub token",
    "glpat-0123456789abcdefghij": "GitLab token",
    "xoxb-123456789012-abcdefghij": "Slack token",
    "AIzaSyA0123456789abcdefghijklmnopqrstuv": "Google key",
    "hf_0123456789abcdefghijABCD": "registry token",
    "kw_0123456789abcdefghij": "Keptwork key",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcDEF123": "JSON web token",
    KEY: "private key",
}


@pytest.mark.parametrize(
    ("secret", "what"), SHAPED.items(), ids=[f"{n} {what}" for n, what in enumerate(SHAPED.values())]
)
def test_what_looks_like_a_key_is_taken_out(secret: str, what: str) -> None:
    for text in ("before {} after", '{{"key": "{}"}}', "KEY={}\n", "{}"):
        assert Redactor({}).text(text.format(secret)) == text.format(f"[redacted: {what}]")


def test_credentials_are_taken_out_of_headers_and_urls() -> None:
    clean = Redactor({}).text
    assert clean("Authorization: Bearer abc.def-123~x") == "Authorization: Bearer [redacted: credentials]"
    assert clean("authorization: basic dXNlcjpwYXNz") == "authorization: basic [redacted: credentials]"
    assert clean("postgresql://ann:hunter2@db/x") == "postgresql://[redacted: password]@db/x"
    assert clean(KEY[:60]) == "[redacted: private key]"


@pytest.mark.parametrize(
    "text",
    [
        "a basic example of bearer bonds",
        "https://example.com:8080/a@b",
        "ask-me-anything-about-this-topic",
        "task-0123456789abcdefghij",
        "the class AKIA and ghp_ are prefixes",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "def token(key): return key",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert Redactor.of({"EDITOR": "vim", "API_KEY": "ab", "GIT_AUTH": "agent", "KEY_FILE": "/etc/x"}).text(text) == text


def test_what_the_environment_holds_under_a_telling_name_is_taken_out_in_every_form() -> None:
    redactor = Redactor.of({"MY_PASSWORD": SECRET, "HOME": "/home/ann", "DATABASE_URL": "postgres://u:s3cr3tpw@h/d"})
    forms = [
        SECRET,
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
        quote(SECRET, safe=""),
        base64.b64encode(SECRET.encode()).decode().rstrip("="),
    ]
    assert [redactor.text(f"<{form}>") for form in forms] == ["<[redacted: MY_PASSWORD]>"] * len(forms)
    assert redactor.text("/home/ann s3cr3tpw") == "/home/ann [redacted: DATABASE_URL]"


@pytest.mark.parametrize("name", ["API_KEY", "token", "AWS_SECRET_ACCESS_KEY", "DB_PASS", "NPM_AUTH", "SENTRY_DSN"])
def test_names_tell_what_is_secret(name: str) -> None:
    assert Redactor.of({name: "v4lue-of-it"}).text("v4lue-of-it") == f"[redacted: {name}]"


def test_a_secret_of_several_lines_is_found_line_by_line() -> None:
    redactor = Redactor.of({"DEPLOY_KEY": KEY})
    assert "MIIEpAIBAAKCAQEA" not in redactor.text(f"> {KEY.splitlines()[1]}")


def test_values_and_bytes_are_cleared_too() -> None:
    redactor = Redactor({"K": "v4lue!"})
    assert redactor.value({"v4lue!": ["v4lue!", 1, None, {"a": "x"}]}) == {
        "[redacted: K]": ["[redacted: K]", 1, None, {"a": "x"}]
    }
    assert redactor.content(b"\xff v4lue! \xfe") == b"\xff [redacted: K] \xfe"


def test_the_process_knows_its_environment_as_it_is_and_what_it_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "first-value")
    assert secrets.current().text("first-value") == "[redacted: SOME_TOKEN]"
    monkeypatch.setenv("SOME_TOKEN", "other-value")
    assert secrets.current().text("first-value other-value") == "first-value [redacted: SOME_TOKEN]"
    monkeypatch.setattr(secrets, "_learnt", {})
    secrets.learn("the provider's key", "from-a-file\n")
    assert secrets.current().text("from-a-file") == "[redacted: the provider's key]"


def test_hostile_text_takes_no_longer_than_other() -> None:
    redactor = Redactor.of({f"K{n}_TOKEN": f"secret-{n}-value" for n in range(100)})
    pieces = ("://", "PRIVATE -----BEGIN ", "sk-", "bearer ", "eyJ", "eyJ-", "a:b@", "-----BEGIN PRIVATE KEY-----")
    evil = [piece * (900_000 // len(piece)) for piece in pieces]
    for text in evil:
        began = time.monotonic()
        redactor.text(text)
        assert time.monotonic() - began < 20, text[:20]


class Leaky:
    """A provider that tells all it is told, in small pieces."""

    name = "offline"

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    async def answer(self, request: Request, tell: Tell | None = None) -> Answer:
        self.request = request
        text = "Your key is s3cr3t-value and ghp_0123456789abcdefghij, keep it."
        if self.fails:
            raise SystemFailure(f"HTTP 401 for {text}")
        for start in range(0, len(text), 3):
            if tell is not None:
                tell(text[start : start + 3])
        return Answer(text, "m", uses=(ToolUse("1", "note", {"text": ["s3cr3t-value"]}),))


def test_nothing_secret_goes_to_a_provider_or_comes_from_it() -> None:
    provider, told = Leaky(), list[str]()
    discreet = Discreet(provider, lambda: Redactor({"K": "s3cr3t-value"}))
    request = Request("m", (Message(Role.USER, "use s3cr3t-value"),), "system s3cr3t-value")
    answer = asyncio.run(discreet.answer(request, told.append))
    assert "s3cr3t" not in repr((provider.request, answer, told))
    assert "".join(told) == answer.text == "Your key is [redacted: K] and [redacted: GitHub token], keep it."
    assert len(told) > 3
    with pytest.raises(SystemFailure, match=r"HTTP 401 for Your key is \[redacted: K\] and \[redacted"):
        asyncio.run(Discreet(Leaky(fails=True), lambda: Redactor({"K": "s3cr3t-value"})).answer(request))


def streamed(text: str, size: int, **secrets: str) -> list[str]:
    """What is told of an answer that comes in pieces of so many signs."""
    told = list[str]()
    pieces = Pieces(Redactor(secrets), told.append)
    for start in range(0, len(text), size):
        pieces.hear(text[start : start + size])
    pieces.end()
    return told


@pytest.mark.parametrize("size", [1, 3, 7, 1_000])
@pytest.mark.parametrize(
    "secret", ["correct horse battery", "p4ss,wörd", "two\nlines of it", *(one for one in SHAPED if one != KEY)]
)
def test_no_part_of_a_secret_is_told_however_it_comes(secret: str, size: int) -> None:
    known = {} if secret in SHAPED else {"K": secret}
    text = f"It is this, {secret}; (and so on) {secret[:4]} is no secret."
    told = "".join(streamed(text, size, **known))
    assert told == Redactor(known).text(text)
    assert secret[:8] not in told


def test_an_answer_without_spaces_is_told_while_it_comes() -> None:
    assert len(streamed("一段没有空格的很长的回答。" * 20, 5)) > 20
    assert "".join(streamed("x" * 10_000, 100)) == "x" * 10_000


def test_of_a_private_key_nothing_is_told() -> None:
    told = "".join(streamed(f"Here: {KEY} there.", 5))
    assert not any(line in told for line in BODY.splitlines())
