"""`keptwork tenants` as its users run it."""

from __future__ import annotations

import httpx
import pytest

from tests.cli.queue_scene import answer, said
from tests.cli.refusals import refused
from tests.http.processes import new_key, served
from tests.support.command import run


def test_a_tenant_is_added_listed_and_worked_for(sqlite_url):
    assert run("migrate", "--db", sqlite_url).returncode == 0
    assert [tenant["name"] for tenant in answer(sqlite_url, "tenants", "list")["tenants"]] == ["default"]
    refused(run("jobs", "list", "--tenant", "shop", "--db", sqlite_url), 1, "No tenant shop", "keptwork tenants list")
    assert said(sqlite_url, "tenants", "add", "shop") == "shop is tenant 2.\n"
    assert said(sqlite_url, "jobs", "list", "--tenant", "shop") == "No jobs.\n"
    assert "shop" in said(sqlite_url, "tenants", "list", columns=80)
    refused(run("tenants", "add", "shop", "--db", sqlite_url), 2, "there is a tenant 'shop' already")
    refused(run("tenants", "add", " ", "--db", sqlite_url), 2, "is no tenant")
    refused(run("tenants", "add", "x" * 201, "--db", sqlite_url), 2, "over the limit of 200")


def test_a_tenant_has_limits_of_its_own_until_they_are_reset(sqlite_url):
    assert run("migrate", "--db", sqlite_url).returncode == 0
    assert said(sqlite_url, "tenants", "limit", "default", "--max-queued", "5000") == "default: max_queued 5,000\n"
    limited = answer(sqlite_url, "tenants", "limit", "default", "--burst", "7")["tenant"]
    assert limited["limits"] == {"max_queued": 5000, "burst": 7}
    assert answer(sqlite_url, "tenants", "list")["tenants"] == [limited]
    assert said(sqlite_url, "tenants", "limit", "default", "--reset") == "default: as each server says\n"
    refused(run("tenants", "limit", "shop", "--burst", "7", "--db", sqlite_url), 1, "No tenant shop")
    assert run("tenants", "limit", "default", "--burst", "-1", "--db", sqlite_url).returncode == 2


@pytest.mark.acceptance
def test_a_server_obeys_its_options_and_the_limits_of_tenants(sqlite_url):
    assert run("migrate", "--db", sqlite_url).returncode == 0
    assert run("tenants", "add", "shop", "--db", sqlite_url).returncode == 0
    said(sqlite_url, "tenants", "limit", "shop", "--burst", "3", "--requests-per-second", "1")
    with served(sqlite_url, "--burst", "2", "--requests-per-second", "1") as place:
        for tenant, most in (("default", 2), ("shop", 3)):
            headers = {"Authorization": f"Bearer {new_key(sqlite_url, tenant)}"}
            with httpx.Client(base_url=place.address, headers=headers) as client:
                answers = [client.get("/api/queues") for _ in range(10)]
            assert answers[0].headers["RateLimit-Policy"] == f'"tenant";q={most};w={most}'
            assert most <= [one.status_code for one in answers].count(200) < 10
