"""Random flows of agents that are interrupted, killed and resumed, and the books about them: of the model server, of
the ledger, and what each command and page shows.

    define → ( run → interrupt or kill → resume )* → compare
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import httpx

from keptwork.agents.budget_rules import cost_micros
from keptwork.cli.run_summary import cost as as_shown
from keptwork.core.lifecycles import JOB
from keptwork.core.money import dollars
from keptwork.flows.compiled import KINDS
from keptwork.flows.plan import Phase, phases
from keptwork.settings import Config
from keptwork.store import EventFilter, Store
from keptwork.store.contract.budgets import Charge
from keptwork.store.contract.flows_steps import FlowFilter
from tests.support.command import environment
from tests.support.forked_command import ForkedCommands
from tests.support.llm_acts import Act, Call, Cut, Lose, Say, Status
from tests.support.llm_server import LlmServer

PRICES = 'haiku = "m"\nmax_tokens = 60\n[models.prices."m"]\ninput_per_million_usd = 10\noutput_per_million_usd = 100'
SECONDS = 600.0
"""So long a command may take. Five failures in a row open the breaker of the model: all wait for a minute, and for one
more with each probe that fails or is killed."""

STACKS = "tests.acceptance.stacks"
MOST_ROUNDS = 25
MOST_FAILURES = 2
TAG = re.compile(r"task (f\d+)/(\S+)")
STRIKES = ("none", "none", "none", "none", "interrupt", "interrupt twice", "kill", "kill", "abandon")


# --- flows


def definition(number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The flow of that number, and the one inside it."""
    chance, name = Random(number), f"f{number}"
    run = chance.random() < 0.3
    steps: list[dict[str, Any]] = [_step(chance, name, place, run) for place in range(chance.randint(2, 5))]
    if not run:
        for place, step in enumerate(steps):
            before = [one["id"] for one in steps[:place] if "when" not in one]
            step["depends_on"] = chance.sample(before, min(len(before), chance.randint(0, 1)))
    kind = {"kind": "run"} if run else {}
    inner = [_agent(chance, name, f"deep{place}") for place in range(2)]
    if chance.random() < 0.5:
        inner = [dict(one, depends_on=[f"deep{place - 1}"] if place else []) for place, one in enumerate(inner)]
    inputs = {"mode": {"default": "some"}}
    return {"name": name, "inputs": inputs, "steps": steps, **kind}, {"name": f"{name}-inner", "steps": inner}


def _agent(chance: Random, name: str, id: str) -> dict[str, Any]:
    retries = chance.choice((0, 0, 1))
    return {"id": id, "agent": f"Do task {name}/{id} now", "tier": "haiku", "retries": retries, "backoff": "1ms"}


def _step(chance: Random, name: str, place: int, run: bool) -> dict[str, Any]:
    id, what = f"s{place}", chance.random()
    if what < 0.25:
        return {"id": id, "flow": f"{name}-inner.yaml"} if place == 0 else _agent(chance, name, id)
    if what < 0.45 and not run:
        asks = _agent(chance, name, id) | {"agent": f"Do task {name}/{id}:${{item}} now"}
        some = {"when": "${item} != 1"} if chance.random() < 0.5 else {}
        return {**asks, "for_each": {"items": [0, 1, 2], "limit": 2}, **some}
    if what < 0.55 and not run:
        return {**_agent(chance, name, id), "when": f"${{inputs.mode}} == '{chance.choice(('some', 'none'))}'"}
    return {"id": id, "command": ["true"]} if what < 0.65 else _agent(chance, name, id)


# --- the model


class Model:
    """Answers each task, some after a failure or two; it remembers what it was asked for which flow."""

    def __init__(self) -> None:
        self._failures: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._asked: Counter[str] = Counter()
        self.called = threading.Condition()
        self.flows: dict[int, str] = {}

    def act(self, call: Call) -> Act:
        flow, task = TAG.search(call.said).groups()  # type: ignore[union-attr]
        with self._lock:
            self.flows[call.number] = flow
            self._asked[f"{flow}/{task}"] += 1
            chance = Random(f"{flow}/{task} {self._asked[f'{flow}/{task}']}")
            fails = chance.random() < 0.25 and self._failures[f"{flow}/{task}"] < MOST_FAILURES
            self._failures[f"{flow}/{task}"] += fails
        with self.called:
            self.called.notify_all()
        time.sleep(chance.uniform(0, 0.03))
        return chance.choice((Status(500), Cut(), Lose())) if fails else Say(f"done {task}")

    def calls(self, flow: str) -> int:
        with self._lock:
            return sum(one == flow for one in self.flows.values())


# --- carrying out


@dataclass
class Outcome:
    """What came of a flow: the identifiers it had, how it ended, and what was done to it."""

    name: str
    ids: list[str] = field(default_factory=list)
    ended: str = ""
    strikes: Counter[str] = field(default_factory=Counter)
    shown: dict[str, int | str] = field(default_factory=dict)


class Crowd:
    """Runs flows by the command, in processes of their own."""

    def __init__(self, url: str, folder: Path, model: Model) -> None:
        self._url, self._folder, self._model = url, folder, model
        self._commands = ForkedCommands(environment(), ("openai", "rich.console", "rich.table", "httpx2", STACKS))
        self.hung: list[str] = []

    def close(self) -> None:
        self._commands.close()

    def carried_out(self, number: int) -> Outcome:
        chance, outcome = Random(-number - 1), Outcome(f"f{number}")
        whole, inner = definition(number)
        for one in (whole, inner):
            (self._folder / f"{one['name']}.yaml").write_text(json.dumps(one))
        for round in range(MOST_ROUNDS):
            strike = chance.choice(STRIKES) if round < 4 else "none"
            if strike == "abandon" and not outcome.ids:
                strike = "none"
            outcome.strikes[strike] += 1
            self._run(outcome, strike, chance.random() < 0.5, chance)
            if outcome.ended in ("succeeded", "cancelled"):
                break
        return outcome

    def _run(self, outcome: Outcome, strike: str, as_json: bool, chance: Random) -> None:
        file = str(self._folder / f"{outcome.name}.yaml")
        which = ["--resume", outcome.ids[-1]] if outcome.ids else ["--key", outcome.name]
        command = ["run", file, *which, *["--json"] * as_json, "--lease", "1s", "--grace", "5s", "--db", self._url]
        striking: list[threading.Thread] = []

        def begun(process: int) -> None:
            if strike != "none":
                striking.append(threading.Thread(target=self._strike, args=(strike, process, outcome, chance)))
                striking[0].start()

        out, err = self._command(command, begun)
        for striker in striking:
            striker.join()
        self._note(outcome, out, as_json)
        found = re.findall(r"^(?:[\d:]+ )?f\d+ is ((?:ws|run)_[0-9a-f-]+)", out + err, re.M)
        outcome.ids += [id for id in found if id not in outcome.ids]

    def _command(self, command: list[str], begun: Callable[[int], None] = lambda process: None) -> tuple[str, str]:
        with ExitStack() as stack:
            out, err = (stack.enter_context(TemporaryFile("w+", encoding="utf-8")) for _ in range(2))
            nothing = stack.enter_context(open(os.devnull))
            files = [nothing.fileno(), out.fileno(), err.fileno()]
            with self._watched(command, err) as watched:
                self._commands.run(command, self._folder, environment(), files, SECONDS, lambda p: watched(p, begun))
            out.seek(0)
            err.seek(0)
            return out.read(), err.read()

    @contextmanager
    def _watched(self, command: list[str], err: IO[str]) -> Iterator[Callable[[int, Callable[[int], None]], None]]:
        """A command that hangs tells where before it is killed."""
        timers: list[threading.Timer] = []

        def begun(process: int, then: Callable[[int], None]) -> None:
            timers.append(threading.Timer(SECONDS - 5, os.kill, (process, signal.SIGUSR1)))
            timers[0].start()
            then(process)

        try:
            yield begun
        except subprocess.TimeoutExpired:
            err.seek(0)
            self.hung.append(f"{' '.join(command)} hung: {err.read()[-4_000:]}")
        finally:
            for timer in timers:
                timer.cancel()

    def _strike(self, strike: str, process: int, outcome: Outcome, chance: Random) -> None:
        """Once one more call has come, or soon if none does."""
        before = self._model.calls(outcome.name)
        with self._model.called:
            self._model.called.wait_for(lambda: self._model.calls(outcome.name) > before, chance.uniform(0.3, 1.5))
        time.sleep(chance.uniform(0, 0.04))
        if strike == "abandon":
            id = outcome.ids[-1]
            end = ["workstreams", "abandon"] if id.startswith("ws_") else ["runs", "cancel"]
            self._command([*end, id, "--db", self._url])
            return
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL if strike == "kill" else signal.SIGINT)
            if strike == "interrupt twice":
                time.sleep(chance.uniform(0, 0.1))
                os.kill(process, signal.SIGINT)

    def _note(self, outcome: Outcome, out: str, as_json: bool) -> None:
        """What the command shows of the flow, if it came to its end."""
        if as_json and out.strip():
            told = json.loads(out)
            outcome.ended = told["outcome"]
            outcome.shown[told["id"]] = told["cost_micros"]
        elif footer := re.search(r" steps · [^·]+ · (\$[\d.]+) · .*events\n(?:.*\n)*log: .*--correlation (\S+)", out):
            words = re.search(r"^. f\d+ (succeeded|cancelled|failed)", out, re.M)
            outcome.ended = words[1] if words else "unfinished"
            outcome.shown[footer[2]] = footer[1]


# --- comparing


class Books(NamedTuple):
    """All that the database knows of the flows of one name."""

    trees: list[int]
    charges: list[Charge]
    late: list[int]
    """How long after its job each call was closed, in microseconds."""


async def books(store: Store) -> tuple[dict[str, Books], list[str]]:
    """The books by flow, and what is wrong with them in themselves."""
    found: dict[str, Books] = defaultdict(lambda: Books([], [], []))
    names: dict[int, str] = {}
    for kind in KINDS.values():
        for row in await store.flows(kind.flow, FlowFilter(1), limit=10_000):
            names[row["id"]] = row["name"]
            found[row["name"]].trees.append(row["id"])
    for charge in await store.charges(1, limit=1_000_000):
        found[names[charge.tree_id or 0]].charges.append(charge)
    return dict(found), [*[one async for one in _left_open(store, found)], *await _done_twice(store, names)]


async def _left_open(store: Store, found: dict[str, Books]) -> AsyncIterator[str]:
    """Reservations that outlive their jobs by more than a second."""
    for name, one in found.items():
        jobs = {row["id"]: row for row in await store.rows(JOB, [charge.job_id for charge in one.charges])}
        for charge in one.charges:
            ended = jobs[charge.job_id]["completed_at"]
            if ended is not None and charge.ended_at is not None:
                one.late.append(charge.ended_at - ended)
            if ended is not None and (charge.ended_at is None or charge.ended_at > ended + 1_000_000):
                yield f"{name}: the call {charge.call} was closed at {charge.ended_at}, its job ended at {ended}"


async def _done_twice(store: Store, names: dict[int, str]) -> list[str]:
    """Steps that were carried out again after they had succeeded, wherever they are."""
    done: Counter[tuple[str, ...]] = Counter()
    flows = {
        row["id"]: (kind, row)
        for kind in KINDS.values()
        for row in await store.flows(kind.flow, FlowFilter(1, inside=True), limit=100_000)
    }
    steps = {row["id"]: row for id in flows for row in await store.steps(id)}

    def path(step: dict[str, Any]) -> tuple[str, ...]:
        _, flow = flows[step["flow_id"]]
        around = (flow["name"],) if flow["step_id"] is None else path(steps[flow["step_id"]])
        return (*around, str(step["name"]))

    for kind in KINDS.values():
        good = {state for state, phase in phases(kind.step).items() if phase is Phase.SATISFIED}
        cursor = None
        while page := await store.events(EventFilter(1, kind.step.name), after=cursor, limit=1_000):
            cursor = page[-1].cursor
            for event in page:
                if event.to_state in good and not (event.reason or "").startswith("kept from"):
                    done[path(steps[event.entity_id])] += 1
    return [f"{'/'.join(one)} was done {times} times" for one, times in done.items() if times > 1]


def unequal(name: str, one: Books, server: LlmServer, model: Model, config: Config) -> Iterator[str]:
    """Where the ledger is not what the server has counted. A lost call was billed with at most its bound, or not."""
    mine = [bill for bill in server.bills if model.flows[bill.call] == name]
    billed = Counter(cost_micros("openai", bill.model, bill.usage, config) for bill in mine)
    settled = Counter(charge.cost_micros for charge in one.charges if charge.state == "settled" and charge.cost_micros)
    lost = [charge for charge in one.charges if charge.state == "lost"]
    if unpaid := settled - billed:
        yield f"{name}: the ledger has {dict(unpaid)}, which the server did not count"
    rest = billed - settled
    if rest.total() > len(lost) or any(cost > max(charge.cost_micros for charge in lost) for cost in rest):
        yield f"{name}: the server counted {dict(rest)} more, for {len(lost)} lost calls"


def shown_otherwise(outcome: Outcome, spent: dict[str, int], site: httpx.Client) -> Iterator[str]:
    """Where a command, a page or the API shows another sum than the ledger has, of flows that have come to rest."""
    for id, cost in spent.items():
        last = outcome.shown.get(id) if outcome.ended == "succeeded" and id == outcome.ids[-1] else None
        if last is not None and last not in (cost, as_shown(cost)):
            yield f"{outcome.name}: run shows {last}, the ledger has {cost} for {id}"
        page = site.get(f"/ui/flows/{id}").text
        figure = re.search(r"<b>(\$[\d.,]+)</b> cost", page)
        if figure is None or figure[1] != dollars(cost):
            yield f"{outcome.name}: the dashboard shows {figure and figure[1]}, the ledger has {cost} for {id}"
        told = site.get(f"/api/{'workstreams' if id.startswith('ws_') else 'runs'}/{id}/cost").json()
        if (told["cost_micros"], sum(step["cost_micros"] for step in told["steps"])) != (cost, cost):
            yield f"{outcome.name}: the API shows {told}, the ledger has {cost} for {id}"
