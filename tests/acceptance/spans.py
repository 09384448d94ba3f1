"""How many spans of time overlap at most, and how many points lie in any window at most."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from keptwork.store import Event
from tests.acceptance.effects import Delivery

Span = tuple[float, float]


def most_at_once(spans: Iterable[Span]) -> int:
    """The largest number of spans that have a moment in common; one that ends as another begins has none with it."""
    edges = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans]) if (spans := [*spans]) else []
    most = now = 0
    for _, step in edges:
        now += step
        most = max(most, now)
    return most


def most_in_window(points: Sequence[int], window: int) -> int:
    """The largest number of points in any window of that length, which includes its end and not its beginning."""
    ordered = sorted(points)
    return max((place + 1 - bisect_left(ordered, end - window + 1) for place, end in enumerate(ordered)), default=0)


def marked_spans(deliveries: Sequence[Delivery], killed: dict[int, float]) -> list[Span]:
    """From each mark of a beginning to that of its end; what has none ended with its process."""
    ends = {(one.job, one.token, one.pid): one.at for one in deliveries if one.step == "end"}
    begins = [one for one in deliveries if one.step == "begin"]
    return [(one.at, ends.get((one.job, one.token, one.pid), killed.get(one.pid, float("inf")))) for one in begins]


def held_spans(events: Iterable[Event]) -> list[Span]:
    """From each start of a job to its next move, as the log has it; what a dead worker held, until its lease ended."""
    spans, open_since = list[Span](), dict[int, float]()
    for event in events:
        if (since := open_since.pop(event.entity_id, None)) is not None:
            spans.append((since, event.ts))
        if event.type == "job_started":
            open_since[event.entity_id] = event.ts
    return spans + [(since, float("inf")) for since in open_since.values()]
