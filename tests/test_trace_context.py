"""Places in traces: what is taken from a header, what is kept, and what is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keptwork.observability import spans

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
_HEX = "0123456789abcdef"


@given(st.text(_HEX, min_size=32, max_size=32), st.text(_HEX, min_size=16, max_size=16), st.integers(0, 255))
def test_what_is_kept_of_a_header_is_that_header_again(trace: str, span: str, flags: int) -> None:
    header = f"00-{trace}-{span}-{flags & 3:02x}"
    kept = spans.received(f"00-{trace}-{span}-{flags:02x}")
    if set(trace) == {"0"} or set(span) == {"0"}:
        assert kept is None
        return
    assert kept is not None
    assert kept.startswith(trace), "rows are found by the id of the trace"
    assert spans.traceparent(kept) == spans.traceparent(header) == header
    assert spans.trace_id(kept) == spans.trace_id(header) == trace


@given(st.text())
def test_any_other_text_is_a_name_and_stays_as_it_is(text: str) -> None:
    assert spans.said(text) == spans.trace_id(text) == text
    assert (spans.traceparent(text), spans.place(text)) == (None, None)


@pytest.mark.parametrize(
    ("header", "kept"),
    [
        (f"01-{TRACE}-{SPAN}-01-more", f"{TRACE}-{SPAN}-01"),  # of a version to come
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}-01\n", None),
        ("", None),
        (None, None),
    ],
)
def test_a_header_is_read_as_the_standard_has_it(header: str | None, kept: str | None) -> None:
    assert spans.received(header) == kept
