"""Agent jobs over HTTP: given, carried out by a worker, shown with what was said, cancelled; skills and tools."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from keptwork import Keptwork
from keptwork.agents import commands as agents
from keptwork.settings import Config, read
from tests.http.admin import refused_without
from tests.http.conftest import THEIRS, Running
from tests.http.test_isolation import told
from tests.worker.agent_scene import Reply, Scripted

AGENTS = "/api/agent-jobs"
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def given(client: httpx.Client, description: str = "Fix the typo", **more: object) -> dict[str, Any]:
    answer = client.post(AGENTS, json={"description": description, **more})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def worked(running: Running, queue: str, *says: Reply) -> None:
    """A worker of its own carries out what is in a queue, with a model that says this."""

    async def work() -> None:
        async with Keptwork(running.url) as app:
            app.provider = Scripted(*says)
            await app.work(until_idle=True, queues=[queue])

    asyncio.run(work())


def test_a_task_is_carried_out_by_a_worker_and_leaves_its_answer_record_and_transcript(
    client: httpx.Client, running: Running
) -> None:
    queue = f"agents-{running.ours}"
    made = given(client, queue=queue, tier="sonnet", skill="testing", output_schema=SCHEMA, correlation_id="c-1")
    assert (made["state"], made["status"], made["description"]) == ("INIT", "INIT", "Fix the typo")
    assert (made["id"].partition("_")[0], made["actor"], made["correlation_id"]) == ("agent", "key:k1", "c-1")
    assert client.get(f"{AGENTS}/{made['id']}/audit").status_code == 404
    worked(running, queue, '{"n": 3}')
    whole = client.get(f"{AGENTS}/{made['id']}").json()
    assert (whole["state"], whole["skill"], whole["tier"], whole["calls"]) == ("COMPLETED", "testing", "sonnet", 1)
    assert (whole["result"]["json"], whole["audit"]["status"]) == ({"n": 3}, "Completed")
    assert [one["to_state"] for one in whole["events"]] == ["INIT", "DEFINE_AGENT", "PROCESS", "END", "COMPLETED"]
    assert client.get(f"{AGENTS}/{made['id']}/audit").json() == whole["audit"]
    said = client.get(f"{AGENTS}/{made['id']}/transcript").json()
    assert [one["role"] for one in said["transcript"]] == ["system", "user", "assistant"]
    assert said["transcript"][2]["text"] == '{"n": 3}'
    first = client.get(f"{AGENTS}/{made['id']}/transcript", params={"limit": 2}).json()
    rest = client.get(f"{AGENTS}/{made['id']}/transcript", params={"after": first["next"]}).json()
    assert first["transcript"] + rest["transcript"] == said["transcript"]
    by_job = client.get(f"{AGENTS}/{made['job_id']}").json()
    assert by_job == whole


def test_a_task_is_given_once_under_a_key_of_either_kind(client: httpx.Client) -> None:
    body = {"description": "Fix it"}
    first, second = (client.post(AGENTS, json=body, headers={"Idempotency-Key": "k"}) for _ in range(2))
    assert first.content == second.content
    assert given(client, key="for-ever")["id"] == given(client, key="for-ever")["id"]
    assert len(client.get(AGENTS).json()["agent_jobs"]) == 2
    traced = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    made = client.post(AGENTS, json=body, headers=traced).json()
    job = client.get(f"/api/jobs/{made['job_id']}").json()
    assert (job["kind"], job["trace_id"]) == ("keptwork.agent", "4bf92f3577b34da6a3ce929d0e0e4736")


def test_what_no_agent_could_begin_with_is_a_problem_and_stores_nothing(client: httpx.Client) -> None:
    good = {"description": "Fix it"}
    bodies: list[dict[str, Any]] = [
        *({}, {"description": ""}, {"description": " \n"}, {"description": "é" * 5_001}, {**good, "tier": "gpt"}),
        *({**good, "max_retries": 101}, {**good, "retry_base": "soon"}, {**good, "retry_base": "1d"}),
        *({**good, "budget_usd": "much"}, {**good, "budget_usd": "-1"}, {**good, "skill": "a\nb"}),
        *({**good, "output_schema": {"type": 7}}, {**good, "queue": ""}, {**good, "surprise": 1}),
    ]
    for body in bodies:
        assert client.post(AGENTS, json=body).status_code == 422, body
    assert client.get(AGENTS).json()["agent_jobs"] == []
    assert client.get("/api/jobs").json()["jobs"] == []


def test_agent_jobs_are_listed_page_by_page_and_by_state(client: httpx.Client) -> None:
    ids = [given(client)["id"] for _ in range(3)]
    client.post(f"{AGENTS}/{ids[0]}/cancel")
    page = client.get(AGENTS, params={"limit": 2}).json()
    rest = client.get(AGENTS, params={"limit": 2, "after": page["next"]}).json()
    assert [one["id"] for one in page["agent_jobs"] + rest["agent_jobs"]] == ids[::-1]
    assert rest["next"] is None
    assert [one["id"] for one in client.get(AGENTS, params={"state": "failed"}).json()["agent_jobs"]] == ids[:1]
    assert client.get(AGENTS, params={"state": "asleep"}).status_code == 422


def test_a_cancelled_agent_job_has_failed_and_left_a_record_and_cannot_be_cancelled_again(
    client: httpx.Client,
) -> None:
    id = given(client)["id"]
    done = client.post(f"{AGENTS}/{id}/cancel", json={"reason": "not needed"}, headers={"Idempotency-Key": "k"})
    assert (done.json()["outcome"], done.json()["agent_job"]["state"]) == ("cancelled", "FAILED")
    again = client.post(f"{AGENTS}/{id}/cancel", json={"reason": "not needed"}, headers={"Idempotency-Key": "k"})
    assert again.content == done.content
    assert client.get(f"{AGENTS}/{id}/audit").json()["status"] == "Failed"
    refused = client.post(f"{AGENTS}/{id}/cancel")
    assert (refused.status_code, refused.json()["from"]) == (409, "cancelled")


def test_a_foreign_agent_job_is_answered_like_one_that_does_not_exist(client: httpx.Client, running: Running) -> None:
    made = given(client)
    paths = [("GET", ""), ("GET", "/audit"), ("GET", "/transcript"), ("POST", "/cancel")]
    with running.client(THEIRS) as theirs:
        for method, path in paths:
            ids = (made["id"], made["job_id"], "agent_none")
            answers = {told(theirs.request(method, f"{AGENTS}/{id}{path}"))[::2] for id in ids}
            assert len(answers) == 1
            assert answers.pop()[0] == 404
        assert theirs.get(AGENTS).json()["agent_jobs"] == []
    assert client.get(f"{AGENTS}/{made['id']}").json()["state"] == "INIT"
    refused_without(running, "write", "POST", AGENTS, {"description": "Fix it"})
    refused_without(running, "write", "POST", f"{AGENTS}/{made['id']}/cancel")
    for path in ("", f"/{made['id']}", f"/{made['id']}/audit", f"/{made['id']}/transcript"):
        refused_without(running, "read", "GET", f"{AGENTS}{path}")


# --- skills and tools

TOML = """
[tools.ruff]
command = ["/opt/secret-place/ruff", "check"]
env = ["RUFF_TOKEN"]
cwd = "elsewhere"
timeout = "2m"
expected_exit_codes = [0, 1]
"""
OWN = "---\nname: poetry\ndescription: Write a poem\nkeywords: [poem, rhyme]\n---\nRhyme.\n"


@pytest.fixture
def configured(running: Running, tmp_path: Path) -> Iterator[Running]:
    (tmp_path / "skills" / "poetry").mkdir(parents=True)
    (tmp_path / "skills" / "poetry" / "SKILL.md").write_text(OWN, "utf-8")
    (tmp_path / "keptwork.toml").write_text(TOML, "utf-8")
    running.app.state.config = read(tmp_path / "keptwork.toml")
    yield running
    running.app.state.config = Config()


def test_skills_are_listed_shown_and_chosen_for_a_task(configured: Running, client: httpx.Client) -> None:
    names = [one["name"] for one in client.get("/api/skills").json()["skills"]]
    assert names == ["poetry", "testing", "refactoring", "documentation", "bug_fix", "code_generation"]
    assert client.get("/api/skills/poetry").json()["instructions"] == "Rhyme."
    routed = client.post("/api/skills/route", json={"text": "Write a poem"}).json()
    assert (routed["skill"], routed["model"]["tier"]) == ("poetry", "haiku")
    assert [one["points"] for one in routed["scores"]] == [1, 0, 0, 0, 0, 1]
    assert client.get("/api/skills/none").status_code == 404
    assert client.post("/api/skills/route", json={"text": "x" * 10_001}).status_code == 422
    for method, path, body in (("GET", "/api/skills", None), ("POST", "/api/skills/route", {"text": "a"})):
        refused_without(configured, "read", method, path, body)


def test_a_skill_that_cannot_be_read_is_the_servers_fault_and_tells_no_path(
    configured: Running, client: httpx.Client
) -> None:
    file = configured.app.state.config.skills / "poetry" / "SKILL.md"
    file.write_text("no front matter", "utf-8")
    answer = client.get("/api/skills")
    assert (answer.status_code, answer.json()["type"]) == (500, "urn:keptwork:problem:internal-error")
    assert "SKILL" not in answer.text


def test_tools_are_listed_without_what_is_the_machines_own_business(configured: Running, client: httpx.Client) -> None:
    answer = client.get("/api/tools")
    (tool,) = answer.json()["tools"]
    assert (tool["name"], tool["timeout"], tool["expected_exit_codes"]) == ("ruff", "2m", [0, 1])
    assert tool["breaker"]["failure_threshold"] == 5
    assert not any(word in answer.text for word in ("secret-place", "RUFF_TOKEN", "elsewhere"))
    assert client.get("/api/tools/ruff").json() == tool
    missing = client.get("/api/tools/none")
    assert (missing.status_code, missing.json()["detail"]) == (404, "There is no such tool")
    refused_without(configured, "read", "GET", "/api/tools")
    refused_without(configured, "read", "GET", "/api/tools/ruff")


def test_the_bound_of_a_description_is_the_one_of_the_command_line() -> None:
    assert agents.unfit("x" * agents.LONGEST_DESCRIPTION) is None
    assert agents.unfit("x" * (agents.LONGEST_DESCRIPTION + 1)) is not None
