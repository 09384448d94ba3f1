"""`--webhook`: a flow that is started from the command line tells its end, and the secret is never on that line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keptwork.cli import run_session
from tests.cli.flow_scene import Scene
from tests.cli.flow_stage import Stage, refusal
from tests.support.command import Done, run
from tests.support.hook_server import HANG, SECRET, HookServer, Reply, hook_server

SHOP = "KEPTWORK_WEBHOOK_SECRET_SHOP"


def carried_out(stage: Stage, *arguments: str, **env: str) -> Done:
    allowed: dict[str, Any] = {"KEPTWORK_WEBHOOK_ALLOW": "127.0.0.1", "KEPTWORK_WEBHOOK_SECRET": SECRET, **env}
    return run("run", *arguments, "--db", stage.url, cwd=stage.folder, stdin="", **allowed)


def told(hooks: HookServer) -> list[tuple[str, bool]]:
    return [(got.headers["Keptwork-Event"], got.signed_with(SECRET)) for got in hooks.got]


def test_the_end_of_a_flow_is_told_before_the_command_ends(stage: Stage) -> None:
    file = str(stage.write("f.yaml", {"id": "a", "command": ["true"]}, kind="run"))
    with hook_server() as hooks:
        done = carried_out(stage, file, "--webhook", hooks.url())
    assert (done.returncode, done.stderr) == (0, "")
    assert told(hooks) == [("run.succeeded", True)]
    listed = json.loads(run("webhooks", "list", "--json", "--db", stage.url).stdout)["webhooks"]
    assert [(one["state"], one["attempts"]) for one in listed] == [("delivered", 1)]


def test_a_secret_of_its_own_is_named_and_signs_what_is_told(here: Stage) -> None:
    file = str(here.write("f.yaml", here.effect("a")))
    with hook_server() as hooks:
        others = {"KEPTWORK_WEBHOOK_SECRET": "another secret, and not this one's", SHOP: SECRET}
        carried_out(here, file, "--webhook", hooks.url(), "--webhook-secret-env", SHOP, **others)
    assert told(hooks) == [("workstream.s_success", True)]


def test_who_could_not_be_told_yet_is_named_and_the_flow_has_succeeded_all_the_same(here: Stage) -> None:
    file = str(here.write("f.yaml", here.effect("a")))
    with hook_server(lambda number: Reply(503)) as hooks:
        done = carried_out(here, file, "--webhook", hooks.url())
    assert (done.returncode, len(hooks.got)) == (0, 1)
    assert done.stderr.startswith("The webhook is not told yet: the answer was 503. Workers and servers go on with it;")
    assert "see: keptwork webhooks list --flow ws_" in done.stderr
    assert "token" not in done.stdout + done.stderr


@pytest.mark.acceptance
def test_a_webhook_that_does_not_answer_holds_the_command_up_for_a_bounded_time(
    here: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from keptwork.cli.main import _outcome

    monkeypatch.setattr(run_session, "TELL_SECONDS", 0.5)
    monkeypatch.setenv("KEPTWORK_WEBHOOK_ALLOW", "127.0.0.1")
    monkeypatch.setenv("KEPTWORK_WEBHOOK_SECRET", SECRET)
    monkeypatch.chdir(here.folder)
    file = str(here.write("f.yaml", here.effect("a")))
    with hook_server(lambda number: Reply(HANG)) as hooks:
        assert _outcome(["run", file, "--webhook", hooks.url(), "--db", here.url]) == 0
    assert "The webhook is not told yet: there was no time for it." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (["--webhook", "http://example.com/"], "https"),
        (["--webhook", "https://example.com/"], "there is no secret to sign with: set KEPTWORK_WEBHOOK_SECRET"),
        (["--webhook", "https://example.com/", "--webhook-secret-env", "hunter2hunter2"], "must be KEPTWORK_WEBHOOK"),
        (["--webhook-secret-env", SHOP], "say whom to tell with --webhook URL"),
        (["--webhook", "https://example.com/", "--resume", "ws_1"], "leave out -i, --hold, --key, --webhook"),
    ],
)
def test_a_webhook_that_cannot_be_is_refused_before_anything_begins(
    here: Stage,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: list[str],
    what: str,
) -> None:
    monkeypatch.delenv("KEPTWORK_WEBHOOK_SECRET", raising=False)
    said = refusal(capsys, here, str(here.write("f.yaml", here.effect("a"))), *given)
    assert what in said
    assert "hunter2" not in said


def test_a_template_is_started_with_a_webhook_that_workers_tell(here: Stage) -> None:
    scene = Scene(f"{here.folder}/keptwork.db")
    assert scene.keptwork("migrate").returncode == 0
    file = str(here.write("asks.yaml", {"id": "sign", "approval": {}}, kind="run"))
    scene.told("templates", "put", file)
    hook = ("--webhook", "https://example.com/?token=t", "--webhook-secret-env", SHOP)
    id = scene.told("templates", "start", "asks", *hook)["id"]
    assert scene.told("runs", "cancel", id)["state"] == "CANCELED"
    (one,) = scene.told("webhooks", "list", "--flow", id)["webhooks"]
    assert (one["url"], one["secret"], one["state"]) == ("https://example.com/?***", SHOP, "pending")
