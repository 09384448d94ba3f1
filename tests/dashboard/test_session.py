"""Signing in and out, and what a browser is told to keep to."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import Browser, expect

from keptwork.dashboard import page
from keptwork.dashboard.page import MENU, POLICY
from keptwork.http.middleware import COOKIE
from tests.dashboard.conftest import SignedIn
from tests.http.conftest import NOBODY, OURS, Running


def test_the_root_leads_to_the_dashboard_and_whoever_has_not_signed_in_is_asked_to(running: Running):
    with httpx.Client(base_url=running.address) as client:
        root = client.get("/")
        assert (root.status_code, root.headers["location"]) == (303, "/ui/")
        page = client.get("/ui/jobs?state=failed")
        assert (page.status_code, page.headers["location"]) == (303, "/ui/login?next=%2Fui%2Fjobs%3Fstate%3Dfailed")
        assert "Your key" in client.get(page.headers["location"]).text


def test_the_key_becomes_a_cookie_that_no_script_reads_and_no_other_site_sends(running: Running):
    with httpx.Client(base_url=running.address) as client:
        answer = client.post("/ui/session", headers={"Authorization": f"Bearer {OURS}"})
        said = answer.headers["set-cookie"]
        assert {"HttpOnly", "Path=/", "SameSite=strict"} <= {part.strip() for part in said.split(";")}
        assert "Max-Age" not in said
        assert "expires" not in said.lower()
        assert client.get("/ui/").status_code == 200


def test_behind_a_proxy_that_speaks_tls_the_cookie_goes_over_tls_only(running: Running):
    headers = {"Authorization": f"Bearer {OURS}", "X-Forwarded-Proto": "https"}
    assert "Secure" in httpx.post(f"{running.address}/ui/session", headers=headers).headers["set-cookie"]


@pytest.mark.parametrize("key", ["kw_unknown", NOBODY])
def test_a_key_that_is_unknown_or_may_not_read_opens_nothing(running: Running, key: str):
    with httpx.Client(base_url=running.address) as client:
        answer = client.post("/ui/session", headers={"Authorization": f"Bearer {key}"})
        assert answer.status_code in (401, 403)
        assert "set-cookie" not in answer.headers


def test_a_key_that_is_revoked_is_asked_for_again(running: Running, site: httpx.Client):
    running.keys.known.pop(OURS)
    assert site.get("/ui/").headers["location"].startswith("/ui/login")


def test_signing_out_forgets_the_key(site: httpx.Client):
    assert site.delete("/ui/session").status_code == 204
    assert site.cookies.get(COOKIE) is None
    assert site.get("/ui/").status_code == 303


def test_a_cookie_changes_nothing_when_another_site_asks(running: Running, site: httpx.Client):
    job = {"kind": "fetch"}
    for origin in ("https://elsewhere.example", "null", "http://[", None):
        headers = {"Origin": origin} if origin else {}
        site.headers.pop("Origin", None)
        assert site.post("/api/jobs", json=job, headers=headers).status_code == 401
    assert site.post("/api/jobs", json=job, headers={"Origin": running.address}).status_code == 201


def test_cookies_that_others_have_left_do_no_harm(running: Running):
    left = f'a; =b; c="d; {COOKIE}={OURS}; e=f g'
    with httpx.Client(base_url=running.address, headers={"Cookie": left}) as client:
        assert client.get("/ui/").status_code == 200


def test_after_signing_in_one_comes_to_no_other_site(site: httpx.Client):
    for address in ("https://elsewhere.example/", "//elsewhere.example/ui/", "/\\elsewhere.example", "/api/keys"):
        assert site.get("/ui/login", params={"next": address}).headers["location"] == "/ui/"


def test_every_page_of_the_menu_is_there_and_runs_nothing_but_our_own_files(site: httpx.Client):
    for name, address in MENU:
        page = site.get(address)
        assert page.status_code == 200, (name, page.text)
        assert page.headers["content-security-policy"] == POLICY
        assert " style=" not in page.text
        assert " onclick=" not in page.text
        assert "<script>" not in page.text


def test_an_address_that_leads_nowhere_is_a_page_that_says_so(site: httpx.Client):
    page = site.get("/ui/nothing-there")
    assert page.status_code == 404
    assert "<h1>" in page.text


def test_files_are_kept_until_they_change(running: Running):
    with httpx.Client(base_url=running.address) as client:
        for name in page.files():
            got = client.get(page.address(name))
            assert got.content == page.files()[name]
            assert "immutable" in got.headers["cache-control"]
        assert client.get("/ui/static/..%2Fpage.py").status_code == 404


def test_a_browser_signs_in_by_the_address_that_keptwork_dev_shows(chromium: Browser, looked_at: Running):
    page = chromium.new_page(base_url=looked_at.address)
    page.goto(f"/#token={OURS}")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert "token" not in page.url
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Your key")).to_be_visible()
    page.get_by_label("Your key").fill("kw_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_have_text("This key is not known, or is no longer good.")
    page.get_by_label("Your key").fill(OURS)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.context.close()


def test_a_reader_signs_in_and_sees(signed_in: SignedIn):
    assert "Overview" in signed_in("kw_reader").get("/ui/").text


def test_style_sheets_close_whatever_they_open():
    """Two blocks were left open when pages were put together, and whatever came after was for narrow screens alone."""
    for name, content in page.files().items():
        if name.endswith(".css"):
            depth = 0
            for line in content.decode().splitlines():
                assert not (line.startswith("/*") and depth), f"{name}: before {line} a block is open"
                depth += line.count("{") - line.count("}")
            assert depth == 0, name
