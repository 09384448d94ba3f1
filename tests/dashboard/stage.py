"""What tests of pages look for in them, and text that would do harm if a page did not take it for text."""

from __future__ import annotations

import html
import re

HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>'


def buttons(page: str) -> list[str]:
    """What the buttons that ask the API for something are called."""
    return re.findall(r"data-act=[^>]*>([^<]*)<", page)


def links(page: str, start: str) -> list[str]:
    """The addresses in a page that begin so, each once, in their order."""
    found = [html.unescape(one) for one in re.findall(r'href="([^"]*)"', page)]
    return list(dict.fromkeys(one for one in found if one.startswith(start)))


def is_harmless(page: str) -> bool:
    """Whether nothing of the hostile text is more than text."""
    return "<script>alert" not in page and "<img src=x" not in page and "&lt;script&gt;alert(2)" in page
