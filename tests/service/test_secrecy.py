"""A definition and its inputs are stored to the letter, so what holds a secret is refused, and nothing of it stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keptwork.errors import BadInput
from keptwork.flows import commands as flows
from keptwork.flows import forks, start
from keptwork.flows.definition import Flow
from keptwork.flows.transaction import Actor
from keptwork.jobs import schedules
from keptwork.store import Store
from keptwork.store.contract.records import DEFAULT_TENANT
from tests.service.flow_driver import Driver, flow, step
from tests.support.command import run as keptwork

CANARIES = {
    "GitHub token": "ghp_canary0123456789abcdef",
    "API key": "sk-canary-0123456789abcdef",
    "AWS key": "AKIACANARY0123456789",
    "password": "postgresql://app:canary-hunter2@db/shop",
    "private key": "-----BEGIN PRIVATE KEY-----\ncanary\n-----END PRIVATE KEY-----",
    "value of SHOP_PASSWORD": "canary, known by its name alone",
}
PLACES: dict[str, dict[str, Any]] = {
    "command": {"command": ["push", "--with", "{}"]},
    "stdin": {"command": ["push"], "stdin": "{}"},
    "with": {"call": "platform:node", "with": {"deep": [{"token": "{}"}]}},
    "agent": {"agent": "Push it with {} please"},
}


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", CANARIES["value of SHOP_PASSWORD"])


def planted(value: Any, secret: str) -> Any:
    match value:
        case str():
            return value.replace("{}", secret)
        case list():
            return [planted(part, secret) for part in value]
        case dict():
            return {name: planted(part, secret) for name, part in value.items()}
    return value


@pytest.mark.parametrize("label", CANARIES)
@pytest.mark.parametrize("place", PLACES)
async def test_a_definition_with_a_secret_is_refused_where_it_stands_and_not_kept(
    store: Store, label: str, place: str
) -> None:
    definition = Flow.model_validate(
        {"name": "ship", "steps": [{"id": "push", **planted(PLACES[place], CANARIES[label])}]}
    )
    for work in (flows.start(store, definition), start.put(store, DEFAULT_TENANT, definition)):
        with pytest.raises(BadInput) as refused:
            await work
        assert f"flow ship holds a secret at steps.push.{place}" in str(refused.value)
        assert f"({label})" in str(refused.value)
        assert "canary" not in str(refused.value).lower()
    assert await store.templates(DEFAULT_TENANT, limit=10) == []


@pytest.mark.parametrize("label", CANARIES)
async def test_an_input_that_is_a_secret_is_refused_wherever_one_is_given(store: Store, label: str) -> None:
    definition = flow(step("a"), name="ship", inputs={"by": {"type": "string", "default": "ann"}})
    template = await start.put(store, DEFAULT_TENANT, definition)
    old = await flows.start(store, definition)
    await Driver(store).to_the_end()
    given = {"by": CANARIES[label]}
    for work in (
        flows.start(store, definition, given),
        flows.start_template(store, template, given),
        forks.fork(store, old, "a", given, actor=Actor("ann")),
    ):
        with pytest.raises(BadInput, match=r"holds a secret at by") as refused:
            await work
        assert "canary" not in str(refused.value).lower()
    with pytest.raises(BadInput, match="holds a secret"):
        schedules.start_of(DEFAULT_TENANT, "ship", given, "default")


async def test_what_only_speaks_of_secrets_is_no_secret(store: Store) -> None:
    said = "Use bearer authentication; the token is in $GITHUB_TOKEN, see https://docs.example/keys and sk-learn"
    await flows.start(store, Flow.model_validate({"name": "ship", "steps": [{"id": "push", "agent": said}]}))


def test_the_command_line_says_it_in_one_line_and_no_byte_of_it_is_in_the_database(tmp_path: Path) -> None:
    file = tmp_path / "ship.yaml"
    file.write_text(f"name: ship\nsteps:\n  - {{id: push, command: [echo, {CANARIES['GitHub token']}]}}\n")
    done = keptwork("run", str(file), "--yes", "--db", f"sqlite:///{tmp_path}/keptwork.db")
    assert done.returncode == 2
    assert "holds a secret at steps.push.command.1 (GitHub token)" in done.stderr
    assert "canary" not in done.stdout + done.stderr
    assert not [kept for kept in tmp_path.glob("keptwork.db*") if b"canary" in kept.read_bytes()]
