"""A floor that runs other SQL than the product measures nothing: they are held to each other here."""

import re
from typing import Any

import pytest

from bench import floor_postgres, floor_sqlite
from bench.http import bare_postgres, bare_sqlite
from keptwork.core.lifecycles import JOB, Change, Right
from keptwork.jobs.queries import LISTED
from keptwork.store import EventFilter, JobFilter
from keptwork.store.contract import events, jobs_list
from keptwork.store.contract.records import NewJob
from keptwork.store.dialect import POSTGRES, SQLITE, Dialect
from keptwork.store.postgres.batches import DIFFERING, ENQUEUE_SHAPES, shape
from keptwork.store.postgres.connections_server import SESSION_SETTINGS
from keptwork.store.statements import Catalogue


def moved(dialect: Dialect, trigger: str) -> str:
    move, catalogue = JOB.move(trigger), Catalogue(dialect)
    change = Change(JOB, move, 1, 1, move.sources[0].name, 1, 0, Right.HOLDER)
    if dialect is SQLITE:
        return catalogue.batch(change, alike=True).sql
    _, _, names, extras = catalogue.move(change)
    columns = dict.fromkeys((*names, *extras), (1, 1))
    return catalogue.shaped(change, shape(columns, [(*DIFFERING, *extras)])).sql


def bare(sql: str) -> str:
    return re.sub(r"\s+", " ", sql).strip()


def test_the_floor_of_sqlite_runs_the_statements_of_the_product() -> None:
    named = Catalogue(SQLITE)
    for floor, name in (("TAKE_KEYS", "take_keys"), ("ENQUEUE", "enqueue"), ("DUE", "due"), ("CLAIM", "claim")):
        assert bare(getattr(floor_sqlite, floor)) == bare(named[name].sql)
    assert bare(floor_sqlite.ENQUEUE_BATCH) == bare(named.enqueue_batch[0].sql)
    assert bare(floor_sqlite.MAY_CLAIM) == bare(named["may_claim"].sql)
    assert bare(floor_sqlite.QUEUE_NOW) == bare(named["queue_now"].sql)
    assert bare(floor_sqlite.NEXT_PRIORITY) == bare(named["next_priority"].sql)
    assert bare(floor_sqlite.START) == bare(moved(SQLITE, "start"))
    assert bare(floor_sqlite.SUCCEED) == bare(moved(SQLITE, "succeed"))


def test_the_floor_of_postgresql_runs_the_statements_of_the_product() -> None:
    named = Catalogue(POSTGRES)
    for floor, name in (("TAKE_PAGES", "take_pages"), ("CLAIM", "claim")):
        assert bare(getattr(floor_postgres, floor)) == bare(named[name].sql)
    alike = shape(dict.fromkeys(("id", *NewJob._fields), (1, 1)), ENQUEUE_SHAPES)
    assert bare(floor_postgres.ENQUEUE) == bare(named.enqueue(None, alike).sql)
    assert bare(floor_postgres.START) == bare(moved(POSTGRES, "start"))
    assert bare(floor_postgres.SUCCEED) == bare(moved(POSTGRES, "succeed"))


def test_the_bare_route_of_postgresql_enqueues_one_job_as_the_product_does() -> None:
    assert bare(bare_postgres.ENQUEUE) == bare(Catalogue(POSTGRES).enqueue(None).sql)


def test_the_floor_of_postgresql_has_the_session_settings_of_the_product() -> None:
    assert floor_postgres.SETTINGS.items() <= SESSION_SETTINGS.items()


@pytest.mark.parametrize(("routes", "dialect"), [(bare_sqlite, SQLITE), (bare_postgres, POSTGRES)])
def test_the_bare_routes_run_the_statements_of_the_product(routes: Any, dialect: Dialect) -> None:
    named = Catalogue(dialect)
    for name in ("limit_rules", "artifacts", "checkpoints", "telemetry"):
        assert bare(getattr(routes, name.upper())) == bare(named[name].sql)
    assert jobs_list.page(dialect, JobFilter(1), None, 51, True, LISTED)[0] == routes.PAGE_OF_JOBS
    assert jobs_list.page(dialect, JobFilter(1, redriven_from=(5,)), None, 100, False, ("id",))[0] == routes.LATER
    wanted = EventFilter(tenant_id=1, entity="job", entity_id=5)
    assert events.page(dialect, wanted, None, 1000, True)[0] == routes.EVENTS
