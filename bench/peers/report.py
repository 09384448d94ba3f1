"""What the comparison prints: figures, ratios beside Keptwork, its share of the floor, targets, and doubts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Column, Table

from bench.peers.catalogue import System
from bench.peers.measurement import Figures
from bench.peers.targets import Measured, Wanted, advantage, not_at_their_best, reference


@dataclass(frozen=True, slots=True)
class Sheet:
    """What is told of each system: a column for every figure, and those in which it is set beside Keptwork; and times
    once seen of peers that Keptwork's are set beside, by their labels."""

    title: str
    columns: Mapping[str, str]
    compared: Sequence[str]
    references: Mapping[str, str] = field(default_factory=dict)


COLUMNS = {
    "bulk": "bulk enqueue, jobs/s",
    "single": "single enqueue, jobs/s",
    "drain": "drain by one, jobs/s",
    "drain_two": "drain by two, jobs/s",
    "p50_ms": "to start p50, ms",
    "p95_ms": "p95, ms",
    "idle_cpu": "idle CPU, %",
    "memory_mib": "memory, MiB",
}
JOBS = Sheet(
    "No-op jobs, side by side",
    COLUMNS,
    compared=("bulk", "single", "drain", "drain_two", "p50_ms", "p95_ms", "memory_mib"),
)


def show(
    console: Console,
    sheet: Sheet,
    systems: Sequence[System],
    measured: Measured,
    floors: dict[str, float],
    targets: Sequence[Wanted],
    doubts: Iterable[str],
) -> None:
    console.print(_figures(sheet, systems, measured))
    console.print(_ratios(sheet, systems, measured))
    for engine, floor in floors.items():
        drain = measured[f"keptwork/{engine}"].median("drain")
        if drain:
            console.print(
                f"Drain by one process on {engine}: {drain / floor:.0%} of the raw floor, {floor:,.0f} jobs/s"
            )
    if targets:
        console.print(_verdicts(sheet, targets, measured))
    for label, figure in sheet.references.items():
        if label in measured:
            console.print(reference(label, figure, sheet.columns[figure], systems, measured), highlight=False)
    for system in systems:
        if system.note and measured[system.label].values:
            console.print(f"{system.label}: {system.note}", style="dim")
    for doubt in (*_troubles(measured), *not_at_their_best(list(systems), measured), *doubts):
        console.print(f"! {doubt}", style="yellow", highlight=False)


def _figures(sheet: Sheet, systems: Sequence[System], measured: Measured) -> Table:
    table = Table(Column("system", no_wrap=True), title=sheet.title, title_justify="left")
    for heading in sheet.columns.values():
        table.add_column(heading, justify="right")
    for system in systems:
        cells = [_number(measured[system.label], figure) for figure in sheet.columns]
        table.add_row(system.label, *cells, style="bold" if system.ours else "")
    return table


def _ratios(sheet: Sheet, systems: Sequence[System], measured: Measured) -> Table:
    """Beside Keptwork on the same engine; where there is none, on Redis or a peer's own server, beside PostgreSQL."""
    table = Table(
        "beside", title="Keptwork, so many times as good (rates up, times and memory down)", title_justify="left"
    )
    for figure in sheet.compared:
        table.add_column(sheet.columns[figure].split(",")[0], justify="right")
    for system in systems:
        if not system.ours:
            ours = f"keptwork/{'sqlite' if system.engine == 'sqlite' else 'postgres'}"
            found = [advantage(measured, figure, ours, system.label) for figure in sheet.compared]
            table.add_row(system.label, *("–" if ratio is None else f"{ratio:.2f}×" for ratio in found))
    return table


def _verdicts(sheet: Sheet, targets: Sequence[Wanted], measured: Measured) -> Table:
    table = Table("target", "wanted", "found", "", title="Targets", title_justify="left")
    for target in targets:
        verdict = "met" if target.met(measured) else "[red]not met[/red]"
        table.add_row(*target.told(sheet.columns, measured), verdict)
    return table


def _troubles(measured: Measured) -> list[str]:
    return [f"{label}: {trouble}" for label, figures in measured.items() for trouble in figures.trouble]


def _number(figures: Figures, figure: str) -> str:
    value = figures.median(figure)
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
