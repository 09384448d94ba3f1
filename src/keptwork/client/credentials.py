"""Read the server's URL and the key from arguments, files, and environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from keptwork.core.secrets import Key, checked, from_file
from keptwork.errors import BadInput, NoKey

SERVER, KEY, KEY_FILE = "KEPTWORK_SERVER", "KEPTWORK_KEY", "KEPTWORK_KEY_FILE"


def server_address(given: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """Return the given URL, or that of KEPTWORK_SERVER.

    A URL with a password is rejected, because URLs are shown.

    >>> server_address("https://keptwork.example/"), server_address(None, {"KEPTWORK_SERVER": "http://localhost:8321"})
    ('https://keptwork.example', 'http://localhost:8321')
    """
    address = (given or environ.get(SERVER, "")).strip().rstrip("/")
    if not address:
        raise BadInput(what=f"no server is named; give its address, such as https://keptwork.example, or set {SERVER}")
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise BadInput(what=f"{address!r} is no address of a server; it begins with https:// or http://")
    if parts.username is not None or parts.password is not None:
        raise BadInput(what="the address of a server holds a name or a password; the key is given apart from it")
    return address


def server_key(given: str | Key | None, file: str | Path | None, environ: Mapping[str, str] = os.environ) -> Key:
    """Return the given key, or that of the file, KEPTWORK_KEY, or the file named by KEPTWORK_KEY_FILE."""
    if isinstance(given, Key):
        return given
    if given is not None:
        return checked("keptwork", given.strip(), "what was given")
    if file is not None:
        return from_file("keptwork", Path(file).expanduser())
    if environ.get(KEY, "").strip():
        return checked("keptwork", environ[KEY].strip(), KEY)
    if environ.get(KEY_FILE, "").strip():
        return from_file("keptwork", Path(environ[KEY_FILE]).expanduser())
    raise NoKey(provider="keptwork", what=f"give it, set {KEY}, or name a file that holds it with {KEY_FILE}")
