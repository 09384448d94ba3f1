"""Recordings: made once of a real answer, played back the same, and an error where there is none."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from keptwork.agents.conversation import Answer, BusinessFailure, Message, Offer, Request, Role, Stop, Usage
from keptwork.agents.providers.anthropic import Anthropic
from keptwork.agents.providers.choose import LABEL, Offline, Recorded
from keptwork.core.secrets import Key
from keptwork.errors import BadInput, CannotWriteFile, NoRecording
from tests.provider.conftest import CANARY
from tests.support.llm_server import LlmServer, Say, use

ASKED = Request("claude-haiku-4-5", (Message(Role.USER, "Say hello"),), "Be brief.", 100, (Offer("t", "", {}),), "k1")


def only(folder: Path) -> str:
    """What the one file in a folder says."""
    (file,) = folder.iterdir()
    return file.read_text()


async def recorded(folder: Path, act: Say, request: Request = ASKED) -> Answer:
    key = Key(CANARY)
    with LlmServer([act]) as server:
        inner = Anthropic(key, server.url)
        return await Recorded(folder, "anthropic", inner, key.hidden_in).answer(request)


@pytest.mark.parametrize("act", [Say("hello wörld", Usage(3, 4, 5, 6)), use("t", {"a": [1, {"b": None}]}, "so")])
async def test_a_recording_is_played_back_as_it_was_without_the_provider(tmp_path: Path, act: Say) -> None:
    real = await recorded(tmp_path / "new" / "folder", act)
    pieces: list[str] = []
    player = Recorded(tmp_path / "new" / "folder", "anthropic")
    assert await player.answer(replace(ASKED, key="another try"), pieces.append) == real
    assert "".join(pieces) == real.text
    assert os.listdir(tmp_path / "new" / "folder") == [player.file(ASKED).name]


OTHERS = [
    replace(ASKED, model="claude-opus-4-8"),
    replace(ASKED, system=""),
    replace(ASKED, max_tokens=101),
    replace(ASKED, offers=()),
    replace(ASKED, messages=(*ASKED.messages, Message(Role.ASSISTANT, "x"))),
    replace(ASKED, messages=(replace(ASKED.messages[0], text="Say hello."),)),
]


@pytest.mark.parametrize("other", OTHERS)
async def test_a_request_without_a_recording_is_an_error_that_names_the_file_and_what_to_do(
    tmp_path: Path, other: Request
) -> None:
    await recorded(tmp_path, Say("hello"))
    player = Recorded(tmp_path, "anthropic")
    with pytest.raises(NoRecording) as missing:
        await player.answer(other)
    assert str(player.file(other)) in str(missing.value)
    assert str(missing.value).endswith("make it with a key and KEPTWORK_RECORD=1")


async def test_nothing_secret_gets_into_a_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary-of-another-kind")
    secrets = [CANARY, "canary-of-another-kind", "sk-somebody-elses-0123456789"]
    request = replace(ASKED, system=" ".join(secrets))
    await recorded(tmp_path, Say(" and ".join(secrets)), request)
    kept = only(tmp_path)
    assert "hello" in kept
    assert not [secret for secret in secrets if secret in kept]
    assert (await Recorded(tmp_path, "anthropic").answer(request)).text == "[key] and [key] and [key]"


async def test_what_went_wrong_is_not_recorded(tmp_path: Path) -> None:
    with pytest.raises(BusinessFailure):
        await recorded(tmp_path, Say(""))
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{}", '{"version": 2, "answer": {}}', '{"version": 1, "answer": 1}', "[" * 100_000]
)
async def test_a_file_that_is_no_recording_is_named(tmp_path: Path, text: str) -> None:
    player = Recorded(tmp_path, "anthropic")
    player.file(ASKED).write_text(text)
    with pytest.raises(BadInput, match=r"\.json is no recording; delete it"):
        await player.answer(ASKED)


async def test_a_folder_that_cannot_be_written_to_is_named_before_anybody_is_asked(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with LlmServer() as server, pytest.raises(CannotWriteFile, match=r"Cannot write .*taken/"):
        await Recorded(tmp_path / "taken", "anthropic", Anthropic(Key(CANARY), server.url)).answer(ASKED)
    assert not server.calls


async def test_a_recording_holds_the_question_for_people_to_read(tmp_path: Path) -> None:
    await recorded(tmp_path, Say("hello"))
    kept = json.loads(only(tmp_path))
    assert kept["request"]["messages"][0]["text"] == "Say hello"
    assert (kept["answer"]["text"], kept["answer"]["stop"]) == ("hello", Stop.END)


async def test_the_offline_model_says_the_same_every_time_and_what_it_is() -> None:
    request = replace(ASKED, messages=(Message(Role.USER, "a\n\n b \n" + "c" * 500 + "\nd"),), model="offline-haiku")
    pieces: list[str] = []
    first, second = await Offline().answer(request, pieces.append), await Offline().answer(request)
    assert first == second
    assert first.text.splitlines() == [LABEL, "a", "b", "c" * 157 + "..."]
    assert (first.model, "".join(pieces)) == ("offline-haiku", first.text)
    assert (await Offline().answer(Request("m", ()))).text == f"{LABEL}\nnothing was asked"
