"""`keptwork stats`: show all metrics as text, as JSON, or for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, opened
from keptwork.cli.queues import table as queue_table
from keptwork.core import metrics
from keptwork.core.lifecycles import WORKER
from keptwork.errors import BadInput
from keptwork.observability import stats as service
from keptwork.observability.stats import PAGE

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from keptwork.observability.stats import Stats

Section = tuple["RenderableType", ...]
"""A title and the content below it."""

Prometheus = Annotated[bool, typer.Option("--prometheus", help="Print the text format that Prometheus reads.")]


def stats(
    prometheus: Prometheus = False,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Show metrics since the database was created, and the current queues."""
    if prometheus and as_json:
        raise BadInput(what="--prometheus and --json are two formats; ask for one of them")
    figures = asyncio.run(_read(db, tenant))
    if prometheus:
        from keptwork.observability.prometheus import text

        print(text(figures), end="")
    else:
        screen.emit(service.as_json(figures), lambda: _page(figures), as_json)


async def _read(db: str | None, tenant: str) -> Stats:
    async with opened(db) as store:
        await store.tenant(tenant)  # reject an unknown tenant before the work
        if await service.roll_up(store, most=PAGE) == PAGE:
            with screen.progress("Counting", "events") as bar:
                total = await store.event_count()
                await service.roll_up(store, told=lambda counted: bar(counted, total))
        return await service.read(store, tenant)


# --- text output


def _page(figures: Stats) -> RenderableType:
    from rich.console import Group

    if not figures.own.counts[metrics.TRANSITIONS]:
        return "Nothing was counted yet: no entity has made a move."
    parts = (_queues, _kinds, _moves, _states, _refusals, _engine)
    first, *others = (section for part in parts for section in part(figures))
    return Group(*first, *(piece for section in others for piece in ("", *section)))


def _queues(figures: Stats) -> Iterator[Section]:
    if figures.queues:
        yield _title("Queues"), queue_table(figures.queues, figures.now)
    if figures.workers:
        names = [state.name for state in WORKER.states if state.name in figures.workers]
        counts = (f"{figures.workers[name]:,} {name}" for name in names)
        yield (f"Workers: {', '.join(counts)}.",)
    lately = figures.lately
    ended = sum(lately.get(trigger, 0) for trigger in service.ENDS)
    rate = ended / (service.LATELY_US / 1_000_000)
    yield (f"In the last minute {lately.get('enqueue', 0):,} enqueued, {ended:,} ended: {rate:,.1f} a second.",)


def _kinds(figures: Stats) -> Iterator[Section]:
    kinds = service.kinds(figures.own)
    if not kinds:
        return
    table = _table("kind", 7, "ended", "succeeded", "retries", "run p50", "p95", "wait p50", "p95")
    for kind in kinds:
        times = (time.quantile(q) for time in (kind.run, kind.wait) for q in (0.5, 0.95))
        counts = f"{kind.ended:,}", _percent(kind.success_rate), f"{kind.moves['retry']:,}"
        table.add_row(kind.kind, *counts, *map(screen.took, times))
    yield _title("Kinds of jobs"), table
    dead = figures.own.counts[metrics.DEAD_LETTERS]
    if dead:
        yield _title("Dead letters"), _counts(("kind", "reason"), dead.items())


def _moves(figures: Stats) -> Iterator[Section]:
    moves = sorted(figures.own.counts[metrics.TRANSITIONS].items(), key=_by_entity)
    rows = (((e, t, a or "–", b), count) for (e, a, b, t), count in moves)
    yield _title("Moves"), _counts(("entity", "trigger", "from", "to"), rows)


def _by_entity(item: tuple[tuple[str, ...], int]) -> tuple[str, int]:
    return item[0][0], -item[1]


def _states(figures: Stats) -> Iterator[Section]:
    times = figures.own.times[metrics.TIME_IN_STATE]
    if times:
        table = _table("entity", 3, "state", "left", "p50", "p95")
        for (entity, state), time in sorted(times.items(), key=lambda item: item[0]):
            left = f"{time.count:,}"
            table.add_row(entity, state, left, screen.took(time.quantile(0.5)), screen.took(time.quantile(0.95)))
        yield _title("Time in a state"), table


def _refusals(figures: Stats) -> Iterator[Section]:
    refused, late = figures.own.counts[metrics.REFUSED], figures.own.counts[metrics.CONFLICTS]
    if refused:
        yield _title("Refused"), _counts(("entity", "in state", "asked to"), sorted(refused.items()))
    if late:
        yield _title("Too late"), _counts(("entity", "asked to"), sorted(late.items()))


def _engine(figures: Stats) -> Iterator[Section]:
    """Yield the counters of the processes, one per line. A line without a count is left out."""
    keys, calls = figures.total(metrics.IDEMPOTENCY), figures.total(metrics.CLAIM_CALLS)
    renewals, hits = figures.total(metrics.RENEWALS), figures.total(metrics.IDEMPOTENCY, outcome="hit")
    expired = figures.own.total(metrics.JOB_MOVES["expire"])
    lines = (
        (keys, f"Idempotency keys  {keys:,} looked up, {_percent(figures.hit_rate)} used before ({hits:,})"),
        (calls, f"Claims            {calls:,} calls, {_share(figures, metrics.CLAIM_CALLS, 'empty')} found nothing"),
        (renewals, f"Leases renewed    {renewals:,}, {figures.total(metrics.RENEWALS, outcome='lost'):,} of them lost"),
        (expired, f"Leases expired    {expired:,}"),
        (figures.total(metrics.OUTAGES), f"Database retries  {figures.total(metrics.OUTAGES):,}"),
    )
    told = [line for counted, line in lines if counted]
    if told:
        yield _title("Keys, claims and leases"), "\n".join(told)


def _share(figures: Stats, metric: metrics.Metric, outcome: str) -> str:
    return _percent(service.share(figures.total(metric, outcome=outcome), figures.total(metric)))


def _percent(part: float | None) -> str:
    """Return a percentage that is never rounded up to 100 or down to 0."""
    if part is None:
        return "–"
    text = f"{part:.1%}"
    return {"100.0%": "100%" if part == 1 else "99.9%", "0.0%": "0%" if part == 0 else "<0.1%"}.get(text, text)


def _title(text: str) -> RenderableType:
    from rich.text import Text

    return Text(text, style="bold")


def _table(first: str, figures: int, *rest: str) -> Table:
    table = screen.table(first, *rest)
    for column in table.columns:
        column.overflow = "fold"
    for column in table.columns[-figures:]:
        column.justify, column.no_wrap = "right", True
    return table


def _counts(headings: tuple[str, ...], rows: Iterable[tuple[tuple[str, ...], int]]) -> RenderableType:
    table = _table(headings[0], 1, *headings[1:], "count")
    for labels, count in rows:
        table.add_row(*labels, f"{count:,}")
    return table
