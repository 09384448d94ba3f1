"""Where a webhook may go: everything that is not plainly a public https address is refused, and nothing is repeated."""

from __future__ import annotations

import pytest

from keptwork.errors import BadInput
from keptwork.webhooks.address import LONGEST_URL, Allowed, Endpoint, addresses, endpoint, refusal, shown

FINE = {
    "https://example.com": Endpoint("https", "example.com", 443, "/"),
    "https://example.com/": Endpoint("https", "example.com", 443, "/"),
    "HTTPS://Example.COM/Hook?a=1&b=%20": Endpoint("https", "example.com", 443, "/Hook?a=1&b=%20"),
    "https://example.com?x=1": Endpoint("https", "example.com", 443, "/?x=1"),
    "https://example.com:8443/x": Endpoint("https", "example.com", 8443, "/x"),
    "https://example.com:1024/x": Endpoint("https", "example.com", 1024, "/x"),
    "https://example.com:80/": Endpoint("https", "example.com", 80, "/"),
    "https://a-b.xn--bcher-kva.example/~x/(y)": Endpoint("https", "a-b.xn--bcher-kva.example", 443, "/~x/(y)"),
    "https://93.184.216.34/": Endpoint("https", "93.184.216.34", 443, "/"),
    "https://[2606:2800:220:1:248:1893:25c8:1946]:9000/x": Endpoint(
        "https", "2606:2800:220:1:248:1893:25c8:1946", 9000, "/x"
    ),
    "https://example.com/a@b": Endpoint("https", "example.com", 443, "/a@b"),
}

HOSTILE = [
    # schemes
    "http://example.com/", "ftp://example.com/", "file:///etc/passwd", "gopher://example.com/", "//example.com/",
    "example.com", "javascript:alert(1)", "https:/example.com", "https:example.com", "https://", "https:///x", "",
    "https+unix://x/", " https://example.com/", "https://example.com/ ",
    # loopback, in every way to write it
    "https://localhost/", "https://localhost:8443/", "https://LOCALHOST/", "https://foo.localhost/", "https://127.0.0.1/",
    "https://127.1/", "https://127.0.1/", "https://2130706433/", "https://0x7f000001/", "https://0x7f.0.0.1/",
    "https://0177.0.0.1/", "https://017700000001/", "https://127.0.0.1./", "https://0/", "https://0.0.0.0/",
    "https://127.255.255.254/", "https://[::1]/", "https://[::]/", "https://[0:0:0:0:0:0:0:1]/", "https://0x/",
    # what stands for another address
    "https://[::ffff:127.0.0.1]/", "https://[::ffff:7f00:1]/", "https://[::ffff:93.184.216.34]/",
    "https://[::127.0.0.1]/", "https://[64:ff9b::7f00:1]/", "https://[64:ff9b:1::a00:1]/", "https://[2002:7f00:1::]/",
    "https://[2002:a00:1::1]/", "https://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/",
    # private, link-local, shared, reserved, multicast
    "https://10.0.0.1/", "https://172.16.0.1/", "https://172.31.255.255/", "https://192.168.1.1/",
    "https://169.254.169.254/latest/meta-data/", "https://100.64.0.1/", "https://100.100.100.200/",
    "https://192.0.0.192/", "https://198.18.0.1/", "https://192.0.2.1/", "https://198.51.100.1/", "https://203.0.113.1/",
    "https://192.88.99.1/", "https://224.0.0.1/", "https://239.255.255.250/", "https://240.0.0.1/",
    "https://255.255.255.255/", "https://168.63.129.16/", "https://[fe80::1]/", "https://[fc00::1]/",
    "https://[fd00:ec2::254]/", "https://[ff02::1]/", "https://[fec0::1]/", "https://[2001:db8::1]/",
    "https://[100::1]/", "https://[3fff::1]/", "https://[fe80::1%25eth0]/", "https://[fe80::1%eth0]/",
    # names that are nobody's outside
    "https://intranet/", "https://db/", "https://printer.local/", "https://metadata.google.internal/",
    "https://box.home.arpa/", "https://x.onion/", "https://x.intranet/",
    # user names, fragments, tricks on parsers
    "https://user@example.com/", "https://user:pass@example.com/", "https://example.com@127.0.0.1/",
    "https://example.com#@127.0.0.1/", "https://example.com/#x", "https://example.com\\@127.0.0.1/",
    "https://example.com\\.evil.example/", "https://127.0.0.1\\.example.com/", "https://exa mple.com/",
    "https://example.com/a b", "https://example.com/\r\nHost: evil", "https://example.com/\x00", "https://example.com\t/",
    "https://example。com/", "https://ⓔxample.com/", "https://①②⑦.0.0.1/", "https://exämple.com/",
    "https://example.com/ü", "https://example%2ecom/", "https://%31%32%37.0.0.1/", "https://exa_mple.com/",
    "https://-example.com/", "https://example-.com/", "https://example..com/", "https://.example.com/",
    "https://example.com./", f"https://{'a' * 64}.com/", f"https://{'a.' * 130}com/", "https://[::1/", "https://::1/",
    "https://[1.2.3.4]/", "https://[v1.a]/", "https://1.2.3.4.5/", "https://1.2.3.256/", "https://1.2.3/",
    # ports
    "https://example.com:0/", "https://example.com:22/", "https://example.com:25/", "https://example.com:445/",
    "https://example.com:1023/", "https://example.com:65536/", "https://example.com:99999/", "https://example.com:/",
    "https://example.com:-1/", "https://example.com:443:443/", "https://example.com:4 43/",
    # too long
    f"https://example.com/{'a' * LONGEST_URL}",
]  # fmt: skip


@pytest.mark.parametrize("url", FINE)
def test_a_public_https_url_is_taken_apart(url: str) -> None:
    assert endpoint(url) == FINE[url]


def test_there_are_enough_hostile_urls_to_mean_something() -> None:
    assert len(set(HOSTILE)) == len(HOSTILE) >= 60


@pytest.mark.parametrize("url", HOSTILE)
def test_a_hostile_url_is_refused_in_one_line_that_does_not_repeat_it(url: str) -> None:
    with pytest.raises(BadInput, match=r"^the webhook URL[ :]") as refused:
        endpoint(url)
    said = str(refused.value)
    assert len(said) < 200
    assert said.isprintable()
    assert "pass" not in said.replace("password", "")


@pytest.mark.parametrize("given", [None, 7, b"https://example.com", ["https://example.com"]])
def test_what_is_no_text_is_refused(given: object) -> None:
    with pytest.raises(BadInput, match="is no text"):
        endpoint(given)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://example.com/",
            "http://10.0.0.1/",
            "https://127.0.0.1/",
            "https://192.168.1.1:9000/",
            "https://[::1]/",
        ),
        *("https://localhost/", "https://hooks.lan/", "https://[fd12::1]/"),
    ],
)
def test_where_the_deployment_may_allow_it_that_is_said(url: str) -> None:
    with pytest.raises(BadInput, match="KEPTWORK_WEBHOOK_ALLOW"):
        endpoint(url)
    assert endpoint(url, Allowed.of(url.split("/")[2])).host


@pytest.mark.parametrize(
    "url",
    [
        *("https://169.254.169.254/", "http://169.254.169.254/", "https://0.0.0.0/", "https://224.0.0.1/"),
        *("https://x.onion/", "https://user@example.com/", "ftp://example.com/", "https://exa_mple.com/"),
    ],
)
def test_where_nobody_would_allow_it_no_setting_is_named(url: str) -> None:
    with pytest.raises(BadInput) as refused:
        endpoint(url)
    assert "KEPTWORK_WEBHOOK_ALLOW" not in str(refused.value)


PUBLIC = ["1.1.1.1", "93.184.216.34", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450:4001::200e"]
NOT_PUBLIC = [
    "0.0.0.0",  # noqa: S104 - refused, not bound
    "0.1.2.3", "10.1.2.3", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.9.9.9", "169.254.1.1",
    "172.16.0.1", "172.31.0.1", "192.0.0.8", "192.0.2.1", "192.88.99.1", "192.168.0.1", "198.18.0.1", "198.19.9.9",
    "198.51.100.7", "203.0.113.7", "224.0.0.1", "240.0.0.1", "255.255.255.255", "168.63.129.16", "::", "::1",
    "::ffff:1.1.1.1", "::1.1.1.1", "64:ff9b::101:101", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2002::1",
    "2002:101:101::1", "3fff::1", "fc00::1", "fd12::1", "fe80::1", "fec0::1", "ff02::1", "2606:4700::1111%eth0",
    "localhost", "1.1.1", "",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_not_refused(address: str) -> None:
    assert refusal(address) is None


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_any_other_address_is_refused(address: str) -> None:
    assert refusal(address) is not None


def test_of_a_name_every_address_must_be_public() -> None:
    where = endpoint("https://example.com/")
    assert addresses(where, ["1.1.1.1", "2606:4700::1111", "1.1.1.1"]) == ["1.1.1.1", "2606:4700::1111"]
    for resolved in (["1.1.1.1", "127.0.0.1"], ["::1", "1.1.1.1"], ["10.0.0.1"]):
        with pytest.raises(BadInput, match="which is not public"):
            addresses(where, resolved)
    with pytest.raises(BadInput, match="has no address"):
        addresses(where, [])


def test_a_host_that_the_deployment_names_may_be_private_and_without_tls() -> None:
    allowed = Allowed.of(" 127.0.0.1:8080, hooks.lan ,[::1]:9, DB ")
    for url in (
        "http://127.0.0.1:8080/",
        "http://hooks.lan:25/",
        "https://hooks.lan/",
        "http://[::1]:9/",
        "http://db/",
    ):
        where = endpoint(url, allowed)
        assert addresses(where, ["10.0.0.1"], allowed) == ["10.0.0.1"]
    for url in ("http://127.0.0.1:8081/", "http://127.0.0.1/", "http://x.hooks.lan/", "http://[::1]/", "http://dbs/"):
        with pytest.raises(BadInput):
            endpoint(url, allowed)


@pytest.mark.parametrize(
    "url", ["http://hooks.lan/#x", "http://u@hooks.lan/", "ftp://hooks.lan/", "http://hooks.lan:0/"]
)
def test_it_is_still_read_strictly(url: str) -> None:
    with pytest.raises(BadInput):
        endpoint(url, Allowed.of("hooks.lan"))


@pytest.mark.parametrize("text", ["http://a.b", "a b", "a:b", "*", "a/8", "10.0.0.0/8"])
def test_what_is_no_host_cannot_be_allowed(text: str) -> None:
    with pytest.raises(BadInput, match="is no host to allow"):
        Allowed.of(text)


def test_what_comes_after_a_question_mark_is_not_shown() -> None:
    assert shown("https://example.com:8443/x?token=abc") == "https://example.com:8443/x?***"
    assert shown("https://[2606:4700::1111]/x") == "https://[2606:4700::1111]/x"
