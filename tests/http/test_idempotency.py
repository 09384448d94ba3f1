"""A request that is sent twice is done once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from keptwork.http.idempotency import Once
from tests.http.conftest import THEIRS, Running

BODY = {"kind": "fetch", "payload": {"n": 1}}


def jobs(client: httpx.Client) -> int:
    return len(client.get("/api/jobs").json()["jobs"])


@pytest.mark.parametrize("by", ["header", "field"])
def test_the_same_key_and_body_is_answered_byte_for_byte_as_the_first_time(client: httpx.Client, by: str) -> None:
    headers = {"Idempotency-Key": "a"} if by == "header" else {}
    body = BODY if by == "header" else {**BODY, "request_id": "a"}
    first, second = (client.post("/api/jobs", json=body, headers=headers) for _ in range(2))
    assert (first.status_code, first.content) == (second.status_code, second.content)
    assert "Idempotency-Replayed" not in first.headers
    assert second.headers["Idempotency-Replayed"] == "true"
    assert jobs(client) == 1


def test_the_same_key_with_another_body_is_refused(client: httpx.Client) -> None:
    client.post("/api/jobs", json=BODY, headers={"Idempotency-Key": "a"})
    other = client.post("/api/jobs", json={"kind": "other"}, headers={"Idempotency-Key": "a"})
    assert (other.status_code, other.json()["type"]) == (422, "urn:keptwork:problem:key-reused")
    assert jobs(client) == 1


def test_header_and_field_must_agree(client: httpx.Client) -> None:
    answer = client.post("/api/jobs", json={**BODY, "request_id": "b"}, headers={"Idempotency-Key": "a"})
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:keptwork:problem:bad-input")
    same = client.post("/api/jobs", json={**BODY, "request_id": "a"}, headers={"Idempotency-Key": "a"})
    assert same.status_code == 201


def test_a_key_belongs_to_its_tenant_and_its_address(client: httpx.Client, running: Running) -> None:
    made = client.post("/api/jobs", json=BODY, headers={"Idempotency-Key": "a"}).json()["job"]["id"]
    with running.client(THEIRS) as theirs:
        assert theirs.post("/api/jobs", json=BODY, headers={"Idempotency-Key": "a"}).json()["job"]["id"] != made
    cancelled = client.post(f"/api/jobs/{made}/cancel", headers={"Idempotency-Key": "a"})
    assert cancelled.json()["outcome"] == "cancelled"


def test_a_cancel_whose_answer_was_lost_is_told_again_and_not_refused(client: httpx.Client) -> None:
    id = client.post("/api/jobs", json=BODY).json()["job"]["id"]
    first, second = (client.post(f"/api/jobs/{id}/cancel", headers={"Idempotency-Key": "c"}) for _ in range(2))
    assert (first.status_code, first.content) == (second.status_code, second.content)
    assert client.post(f"/api/jobs/{id}/cancel").status_code == 409


def test_a_request_that_failed_leaves_its_key_free(client: httpx.Client) -> None:
    key = {"Idempotency-Key": "a"}
    assert client.post("/api/jobs", json={**BODY, "run_in": "soon"}, headers=key).status_code == 422
    assert client.post("/api/jobs", json=BODY, headers=key).status_code == 201


def raced(client: httpx.Client) -> tuple[int, int]:
    """Of sixteen at once: how many different answers, and how many jobs."""

    def send(_: int) -> httpx.Response:
        return client.post("/api/jobs", json=BODY, headers={"Idempotency-Key": "race"})

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(send, range(16)))
    assert {one.status_code for one in answers} <= {201, 409}
    return len({one.content for one in answers if one.status_code == 201}), jobs(client)


def test_of_sixteen_at_once_one_makes_a_job_and_the_others_are_told(client: httpx.Client) -> None:
    assert raced(client) == (1, 1)


def test_of_sixty_four_at_once_with_two_bodies_one_body_makes_one_job(client: httpx.Client) -> None:
    bodies = [BODY, {"kind": "other"}]

    def send(number: int) -> tuple[int, int, bytes]:
        which = number % 4 == 3
        answer = client.post("/api/jobs", json=bodies[which], headers={"Idempotency-Key": "two"})
        return which, answer.status_code, answer.content

    with ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(send, range(64)))
    made = {(which, content) for which, status, content in answers if status == 201}
    assert len(made) == 1
    assert {status for _, status, _ in answers} <= {201, 409, 422}
    ((winner, _),) = made
    assert {status for which, status, _ in answers if which != winner} <= {409, 422}
    assert jobs(client) == 1


def test_a_server_that_remembers_nothing_is_noticed(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Once, "key", lambda self, asked: None)  # a twin that knows no keys
    assert raced(client) == (16, 16)


@pytest.mark.parametrize("key", ["", "a" * 501])
def test_a_key_that_is_too_short_or_too_long_is_refused(client: httpx.Client, key: str) -> None:
    answer = client.post("/api/jobs", json=BODY, headers={"Idempotency-Key": key})
    assert (answer.status_code, answer.json()["errors"][0]["where"]) == (422, "header.Idempotency-Key")
