"""`detent tenants` as its users run it."""

from __future__ import annotations

from tests.cli.queue_scene import answer, said
from tests.cli.refusals import refused
from tests.support.command import run


def test_a_tenant_is_added_listed_and_worked_for(sqlite_url):
    assert run("migrate", "--db", sqlite_url).returncode == 0
    assert [tenant["name"] for tenant in answer(sqlite_url, "tenants", "list")["tenants"]] == ["default"]
    refused(run("jobs", "list", "--tenant", "shop", "--db", sqlite_url), 1, "No tenant shop", "detent tenants list")
    assert said(sqlite_url, "tenants", "add", "shop") == "shop is tenant 2.\n"
    assert said(sqlite_url, "jobs", "list", "--tenant", "shop") == "No jobs.\n"
    assert "shop" in said(sqlite_url, "tenants", "list", columns=80)
    refused(run("tenants", "add", "shop", "--db", sqlite_url), 2, "there is a tenant 'shop' already")
    refused(run("tenants", "add", " ", "--db", sqlite_url), 2, "is no tenant")
    refused(run("tenants", "add", "x" * 201, "--db", sqlite_url), 2, "over the limit of 200")
