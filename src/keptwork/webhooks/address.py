"""Check where a webhook can go: by https to a public address, unless the deployment names the host.

A URL is parsed by one strict pattern, not by a tolerant parser, so a URL that two programs could read differently is
refused. A host name is resolved once, all of its addresses must be public, and the connection goes to one of these
addresses. A second lookup could return another address. This module does no I/O.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from keptwork.errors import BadInput

LONGEST_URL = 2000
DEFAULT_PORTS = {"https": 443, "http": 80}
LOW_PORTS = frozenset({80, 443})
FIRST_FREE_PORT = 1024
LIKE_THIS = "write one like https://example.com/hooks/keptwork"
MAY_BE_NAMED = "; where that is wanted, KEPTWORK_WEBHOOK_ALLOW names its host"

_URL = re.compile(
    r"(?P<scheme>[Hh][Tt][Tt][Pp][Ss]?)://(?P<host>\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z.-]+)(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<target>[/?][0-9A-Za-z._~:/?@!$&'()*+,;=%\[\]-]*)?"
)
_LABEL = re.compile(r"[0-9a-z]([0-9a-z-]{0,61}[0-9a-z])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_LOCAL = ("localhost", "local", "internal", "intranet", "lan", "home.arpa", "onion", "invalid")

_NOWHERE = (".onion", ".invalid")

# Addresses outside the public internet, and those that embed another address (6to4, Teredo, NAT64, mapped).
_NOT_PUBLIC = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
        "224.0.0.0/4", "240.0.0.0/4",
        "168.63.129.16/32",  # a public address that one of the large clouds uses for the host's own services
    )
)  # fmt: skip
_OF_ONES_OWN = tuple(
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7")
)
_PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC_V6 = tuple(ipaddress.IPv6Network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The parts of a URL."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """The host and port for the Host header."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == DEFAULT_PORTS[self.scheme] else f"{name}:{self.port}"


class Allowed(frozenset[tuple[str, int | None]]):
    """Hosts that the deployment names, with a port or with any port. They can use http and private addresses."""

    @classmethod
    def of(cls, text: str) -> Allowed:
        """Parse `host[:port],…`, as in KEPTWORK_WEBHOOK_ALLOW."""
        return cls(_named(entry.strip()) for entry in text.split(",") if entry.strip())

    def names(self, endpoint: Endpoint) -> bool:
        return (endpoint.host, None) in self or (endpoint.host, endpoint.port) in self


NOBODY = Allowed()


def endpoint(url: object, allowed: Allowed = NOBODY) -> Endpoint:
    """Return the parts of a webhook URL. Raise `BadInput`, without the URL, if it is not allowed."""
    found = _parsed(url)
    if not allowed.names(found):
        _insist_public(found)
    return found


def addresses(endpoint: Endpoint, resolved: Sequence[str], allowed: Allowed = NOBODY) -> list[str]:
    """Return the addresses of the host. Raise `BadInput` if any of them is not public."""
    if not resolved:
        raise _refused(f"its host {endpoint.host} has no address")
    if not allowed.names(endpoint):
        for address in resolved:
            if why := refusal(address):
                hint = MAY_BE_NAMED if _is_ones_own(address) else ""
                raise _refused(f"its host {endpoint.host} has the address {address}, which is {why}{hint}")
    return list(dict.fromkeys(resolved))


def shown(url: str) -> str:
    """Return the URL for display, without its query, which can contain a token."""
    before, question, _ = url.partition("?")
    return f"{before}?***" if question else before


def refusal(address: str) -> str | None:
    """Return why nothing is sent to this address, or None if it is public."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return "no address"
    if isinstance(ip, ipaddress.IPv6Address):
        public = ip in _PUBLIC_V6 and not any(ip in network for network in _NOT_PUBLIC_V6) and ip.scope_id is None
    else:
        public = not any(ip in network for network in _NOT_PUBLIC)
    return None if public and ip.is_global and not ip.is_multicast else "not public"


def _parsed(url: object) -> Endpoint:
    if not isinstance(url, str) or not url:
        raise _refused(f"is no text; {LIKE_THIS}")
    if len(url) > LONGEST_URL:
        raise _refused(f"has {len(url):,} characters, over the limit of {LONGEST_URL:,}")
    if not url.isascii() or not url.isprintable():
        raise _refused("has characters other than printable ASCII")
    match = _URL.fullmatch(url)
    if match is None:
        raise _refused(_what_is_wrong(url))
    scheme, port = match["scheme"].lower(), match["port"]
    number = DEFAULT_PORTS[scheme] if port is None else int(port)
    if not 0 < number < 1 << 16:
        raise _refused(f"has the port {number}, which is none")
    target = match["target"] or "/"
    return Endpoint(scheme, _host(match["host"].lower()), number, target if target[0] == "/" else f"/{target}")


def _what_is_wrong(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() not in DEFAULT_PORTS:
        return f"is not an https URL; {LIKE_THIS}"
    if "@" in re.split(r"[/?#\\]", rest, maxsplit=1)[0]:
        return "names a user or a password; a message is signed, and needs none"
    if "#" in rest:
        return "has a fragment, which no server sees"
    return f"cannot be read; {LIKE_THIS}"


def _host(text: str) -> str:
    """Return a host name, or an address in its usual form."""
    if text.startswith("["):
        try:
            return str(ipaddress.IPv6Address(text[1:-1]))
        except ValueError:
            raise _refused("has a host in brackets that is no IPv6 address") from None
    labels = text.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return str(ipaddress.IPv4Address(text))
        except ValueError:
            raise _refused("has a number for a host that is no plain IPv4 address") from None
    if len(text) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise _refused("has no host name that could be resolved")
    return text


def _insist_public(found: Endpoint) -> None:
    hint = "" if _is_nobodys(found.host) else MAY_BE_NAMED
    if found.scheme != "https":
        raise _refused(f"is not https; {LIKE_THIS}{hint}")
    if found.port not in LOW_PORTS and found.port < FIRST_FREE_PORT:
        raise _refused(f"has the port {found.port}; ports below {FIRST_FREE_PORT} other than 443 and 80 are refused")
    if _is_address(found.host):
        if why := refusal(found.host):
            raise _refused(f"has the address {found.host}, which is {why}{hint}")
    elif "." not in found.host or any(found.host.endswith(f".{suffix}") for suffix in _LOCAL):
        raise _refused(f"has the host {found.host}, which is no public name{hint}")


def _is_nobodys(host: str) -> bool:
    """Return whether no deployment could have a receiver at this host."""
    return refusal(host) is not None and not _is_ones_own(host) if _is_address(host) else host.endswith(_NOWHERE)


def _is_ones_own(address: str) -> bool:
    """Return whether the address belongs to this host or to a private network."""
    return any(ipaddress.ip_address(address) in network for network in _OF_ONES_OWN)


def _is_address(host: str) -> bool:
    return ":" in host or host.rpartition(".")[2].isdecimal()


def _named(entry: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z.-]+)(?::([0-9]{1,5}))?", entry)
    if match is None:
        raise BadInput(what=f"{entry!r} is no host to allow; write host or host:port, several with commas")
    return _host(match[1].lower()), int(match[2]) if match[2] else None


def _refused(what: str) -> BadInput:
    return BadInput(what=f"the webhook URL {what}" if not what.startswith("its") else f"the webhook URL: {what}")
