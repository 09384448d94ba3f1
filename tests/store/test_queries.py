"""The SQL files: every statement is understood by its real database, and no state is typed into any by hand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files

import apsw
import asyncpg
import pytest

from keptwork.core.decide import OVERRIDE
from keptwork.core.lifecycles import JOB, LIFECYCLES, RUN_STEP, WORKSTREAM_STEP, Change, Lifecycle, Move, Right, Verb
from keptwork.store.contract.records import ENTITY_COLUMNS, NewJob
from keptwork.store.dialect import POSTGRES, SQLITE, Dialect
from keptwork.store.postgres.batches import DIFFERING, ENQUEUE_SHAPES, shape
from keptwork.store.postgres.handover_unmoved import Unmoved
from keptwork.store.statements import _FILES, Catalogue, _read
from keptwork.store.url import database_url as parsed

STATES = {state.name for lifecycle in LIFECYCLES.values() for state in lifecycle.states}
MOVES: list[tuple[Lifecycle, Move, Right | None]] = [
    (lifecycle, move, right)
    for lifecycle in LIFECYCLES.values()
    for move in lifecycle.moves
    if not move.creates
    for right in (move.rights or {None})
]
PAIRS = [(lifecycle, lifecycle.pair(Verb.START, Verb.SUCCEED), None) for lifecycle in (RUN_STEP, WORKSTREAM_STEP)]


@pytest.mark.parametrize("dialect", [SQLITE, POSTGRES], ids=lambda dialect: str(dialect.name))
def test_no_two_statements_have_one_name(dialect: Dialect) -> None:
    """The later one would silently stand for both."""
    every = [name for file in (*_FILES, dialect.name) for name in _read(f"{file}.sql")]
    assert [name for name in every if every.count(name) > 1] == []


def names(dialect: Dialect) -> list[str]:
    """Those that are sent as they stand, or for each kind of flow; the enqueue of PostgreSQL takes its shape from the
    jobs."""
    every = {name: text for file in (*_FILES, dialect.name) for name, text in _read(f"{file}.sql").items()}
    tables = {name: ("_runs", "_workstreams") if "{flows}" in text else ("",) for name, text in every.items()}
    spelt = [f"{name}{table}" for name, of in tables.items() for table in of]
    return [name for name in spelt if dialect is SQLITE or name != "enqueue"]


def written(catalogue: Catalogue, lifecycle: Lifecycle, move: Move, right: Right | None) -> Iterator[str]:
    """The statements of a move: for one record, for records that are alike, and for records that differ in
    everything."""
    change = Change(lifecycle, move, 1, 1, move.sources[0].name, 1, 0, right)
    _, _, fields, extras = catalogue.move(change)
    if catalogue.dialect is SQLITE:
        yield from (catalogue.batch(change, alike=alike).sql for alike in (True, False))
    else:
        for values in ((1,), (1, 1), (1, 2)):
            columns = dict.fromkeys((*fields, *extras), values)
            each = () if len(values) == 1 else shape(columns, [(*DIFFERING, *extras)])
            yield catalogue.shaped(change, each).sql


def enqueues(catalogue: Catalogue) -> Iterator[str]:
    """The shapes of an enqueue on PostgreSQL: one job, jobs alike but for their payload, their key too, in nothing."""
    yield catalogue.enqueue(None).sql
    for differing in ((), ("key",), NewJob._fields):
        columns = {name: (1, 2) if name in differing else (1, 1) for name in ("id", *NewJob._fields)}
        yield catalogue.enqueue(True, shape(columns, ENQUEUE_SHAPES)).sql


def handovers(catalogue: Catalogue) -> Iterator[str]:
    """From one step to the next, in both kinds of flow."""
    job = Change(JOB, JOB.move("succeed"), 1, 1, "running", 3, 0, Right.HOLDER)
    for flow, step, trigger in (("runs", RUN_STEP, "succeed"), ("workstreams", WORKSTREAM_STEP, "success")):
        ended = Change(step, step.move(trigger), 1, 1, step.move(trigger).sources[0].name, 2, 0)
        yield catalogue.hand_over([job, ended], [Unmoved(flow, 1, 2), Unmoved("steps", 3, 4)]).sql


def every_statement(dialect: Dialect) -> Iterator[tuple[str, str]]:
    """Everything the store may ever send: the named statements, each move by each right, each birth."""
    catalogue = Catalogue(dialect)
    yield from ((name, catalogue[name].sql) for name in names(dialect))
    if dialect is POSTGRES:
        yield from (("hand_over", sql) for sql in handovers(catalogue))
    if dialect is POSTGRES:
        yield from (("enqueue", sql) for sql in enqueues(catalogue))
    for lifecycle, move, right in (*MOVES, *PAIRS):
        yield from ((f"{lifecycle.name}.{move.trigger} {right}", s) for s in written(catalogue, lifecycle, move, right))
    for name, columns in ENTITY_COLUMNS.items():
        for some in ((), tuple(sorted(columns))):
            yield f"create {name}", catalogue.birth(LIFECYCLES[name], some).sql


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_sqlite_understands_every_statement(prepared: str) -> None:
    db = apsw.Connection(parsed(prepared).path)
    for name, sql in every_statement(SQLITE):
        numbers = [int(number) for number in re.findall(r"\?(\d+)", sql)]
        try:
            db.execute(f"EXPLAIN {sql}", [None] * max(numbers, default=0)).fetchall()
        except apsw.SQLError as error:
            pytest.fail(f"{name}: {error}\n{sql}")
    db.close()


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
async def test_postgres_understands_every_statement(prepared: str) -> None:
    connection = await asyncpg.connect(prepared)
    for name, sql in every_statement(POSTGRES):
        try:
            await connection.prepare(sql)
        except asyncpg.PostgresError as error:
            pytest.fail(f"{name}: {error}\n{sql}")
    await connection.close()


@pytest.mark.parametrize("dialect", [SQLITE, POSTGRES], ids=lambda dialect: dialect.name)
def test_every_parameter_of_a_statement_is_bound_once(dialect: Dialect) -> None:
    mark = re.escape("?" if dialect is SQLITE else "$")
    catalogue = Catalogue(dialect)
    for name in names(dialect):
        sql, parameters = catalogue[name]
        used = {int(number) for number in re.findall(rf"{mark}(\d+)", sql)}
        assert used == set(range(1, len(parameters) + 1)), name
        assert ":now" not in sql, name


def test_the_shapes_of_a_batch_differ() -> None:
    catalogue = Catalogue(POSTGRES)
    assert len(set(enqueues(catalogue))) == 4
    assert all(len(set(written(catalogue, *chosen))) == 3 for chosen in (*MOVES, *PAIRS))


def test_every_move_with_a_statement_of_its_own_is_declared() -> None:
    declared = {f"{lifecycle.name}.{move.trigger}" for lifecycle, move, _ in MOVES}
    overrides = {f"{lifecycle.name}.{OVERRIDE}" for lifecycle in LIFECYCLES.values()}
    pairs = {f"{lifecycle.name}.{'+'.join(pair)}" for lifecycle in LIFECYCLES.values() for pair in lifecycle.pairs}
    assert set(_read("moves.sql")) <= declared | overrides | pairs


def test_a_named_statement_says_what_it_is_for() -> None:
    for file in ("shared.sql", "sqlite.sql", "postgres.sql", "moves.sql", "parts.sql"):
        text = files("keptwork.store").joinpath("sql", file).read_text("utf-8")
        for head in re.finditer(r"^-- name: (\S+)\n(.*)$", text, re.MULTILINE):
            assert re.match(r"-- [A-Z].{10,}", head[2]), f"{file}: {head[1]} has no line of intent"


def typed_states(text: str) -> set[str]:
    """The declared states that stand in quotes in SQL, comments aside."""
    code = re.sub(r"--.*", "", text)
    return STATES & set(re.findall(r"'([^']*)'", code))


def test_no_state_is_typed_into_an_sql_file_by_hand() -> None:
    for folder in ("sql", "schema"):
        entries = [entry for entry in files("keptwork.store").joinpath(folder).iterdir() if entry.name.endswith(".sql")]
        assert entries
        for entry in entries:
            found = typed_states(entry.read_text("utf-8"))
            assert not found, f"{folder}/{entry.name} types {found}: write {{lifecycle.state}} instead"


def test_the_check_above_finds_a_typed_state() -> None:
    assert typed_states("SELECT 1 FROM jobs WHERE state = 'queued' -- 'running'") == {"queued"}


def test_a_word_nobody_declared_is_refused_when_the_statement_is_loaded() -> None:
    catalogue = Catalogue(SQLITE)
    catalogue._raw["broken"] = "SELECT {job.queud}"
    with pytest.raises(KeyError, match=r"unknown word \{job.queud\}"):
        _ = catalogue["broken"]
