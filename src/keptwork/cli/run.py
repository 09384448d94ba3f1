"""`keptwork run`: run a flow file in this process, with the database and a worker."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.cli import run_session, run_summary, screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, SecretEnv, Tenant, Webhook, operator, webhook
from keptwork.cli.tools import File as Config
from keptwork.core.validation import OWN_QUEUES
from keptwork.errors import BadInput
from keptwork.observability import logs, otel

if TYPE_CHECKING:
    from keptwork.app import Keptwork
    from keptwork.cli.run_session import Left, Manner
    from keptwork.flows.commands import FlowRef
    from keptwork.flows.files import FlowFile
    from keptwork.flows.live_view import FlowView
    from keptwork.flows.report import FlowReport
    from keptwork.flows.transaction import Actor
    from keptwork.store import Store

FAILED, INTERRUPTED = 1, 130

Written = list[tuple[str, list[str]]]
"""The last output of the programs of failed steps, by step."""

FlowPath = Annotated[str | None, typer.Argument(metavar="FILE", help="Flow file. Use - to read stdin.")]
Inputs = Annotated[
    list[str] | None, typer.Option("--input", "-i", metavar="NAME=VALUE", help="Value for an input. Repeatable.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Approve all requests.")]
Hold = Annotated[bool, typer.Option("--hold", help="Store the flow, but start nothing until it is resumed.")]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="KEY",
        help="Idempotency key. A repeated key returns the same flow; a different flow is rejected.",
    ),
]
Resume = Annotated[str | None, typer.Option("--resume", metavar="ID", help="ID of the unfinished flow to resume.")]
Concurrency = Annotated[int, typer.Option(min=1, max=1_000, metavar="N", help="Maximum concurrent steps.")]
Lease = Annotated[str, typer.Option(metavar="SPAN", help="Time until steps of a killed process can be resumed.")]
Grace = Annotated[str, typer.Option(metavar="SPAN", help="Time that running steps have to finish after Ctrl-C.")]


def run(
    file: FlowPath = None,
    inputs: Inputs = None,
    yes: Yes = False,
    resume: Resume = None,
    hold: Hold = False,
    key: Key = None,
    webhook_url: Webhook = None,
    webhook_secret: SecretEnv = None,
    concurrency: Concurrency = 8,
    lease: Lease = "10s",
    grace: Grace = "30s",
    config: Config = None,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Run a flow file and no other work. Prompts for approvals and shows the result.

    Exit code 0 if the flow succeeded or is held, 1 if it failed, was cancelled, or waits, 2 for an invalid file or
    input, 130 if it was interrupted. Ctrl-C lets running steps finish; a second Ctrl-C stops immediately. To continue,
    use --resume. With --json, one document goes to stdout at the end, and progress goes to stderr.
    """
    from keptwork.cli.run_session import Manner

    asked = run_session.at_a_terminal() and not as_json
    manner = Manner(yes=yes, ask=asked and not yes, concurrency=concurrency, lease=lease, grace=grace)
    told = webhook(webhook_url, webhook_secret)
    wanted = _Wanted(file, inputs or [], resume, hold, key, told, tenant, db, config, as_json)
    with otel.traced("keptwork-run"):
        raise typer.Exit(asyncio.run(_Run(wanted, manner).outcome()))


class _Wanted:
    """The arguments of the command, checked as far as possible without a database."""

    def __init__(
        self,
        file: str | None,
        inputs: list[str],
        resume: str | None,
        hold: bool,
        key: str | None,
        webhook: dict[str, str] | None,
        tenant: str,
        db: str | None,
        config: str | None,
        as_json: bool,
    ) -> None:
        from keptwork.flows.files import read

        if file is None and resume is None:
            raise BadInput(what="name a flow file, as in: keptwork run release.yaml; or go on with one: --resume ID")
        if resume is not None and (inputs or hold or key or webhook):
            raise BadInput(
                what="--resume goes on with a flow as it was started; leave out -i, --hold, --key, --webhook"
            )
        self.file: FlowFile | None = None if file is None else read(file)
        self.inputs = {} if self.file is None else _given(self.file, inputs)
        self.path, self.resume, self.hold, self.key, self.webhook = file, resume, hold, key, webhook
        self.tenant, self.db, self.as_json = tenant, db, as_json
        self.config = config or self._config_beside()
        self._insist_on_tools()
        self._insist_on_secret()

    def _config_beside(self) -> str | None:
        """Return a configuration file in the flow file's directory, unless another one is named or found."""
        from keptwork.settings import FILE, VARIABLE

        if self.file is None or os.environ.get(VARIABLE) or Path(FILE).exists():
            return None
        beside = self.file.folder / FILE
        return str(beside) if beside.exists() else None

    def _insist_on_tools(self) -> None:
        """Reject a flow with a tool that is not configured, before it starts.

        Steps with a queue of their own can be for other workers. A resumed flow continues as it was started.
        """
        from keptwork.flows.steps.tool import missing
        from keptwork.settings import read as read_config

        config = read_config(self.config)
        if self.file is None or self.resume is not None:
            return
        for flow in (self.file.flow, *self.file.library.values()):
            for step in flow.steps:
                if step.tool is not None and step.queue is None and step.tool not in config.tools:
                    raise BadInput(what=f"step {step.id} of {flow.name}: {missing(step.tool, config)}")

    def _insist_on_secret(self) -> None:
        """Require the webhook secret, unless this process only stores the flow."""
        from keptwork.webhooks import outbox

        if self.webhook is not None and not self.hold:
            outbox.secret(self.webhook.get("secret_env"))

    def let_modules_be_found(self) -> None:
        """Make modules in the flow file's directory and in the current directory importable."""
        folders = [Path.cwd()] if self.file is None else [self.file.folder, Path.cwd()]
        sys.path[:0] = [str(folder) for folder in dict.fromkeys(folders)]

    @property
    def database(self) -> list[str]:
        """The options that name the same database in another command."""
        from keptwork.store.url import database_url

        tenant = [] if self.tenant == DEFAULT_TENANT_NAME else ["--tenant", self.tenant]
        return ["--db", database_url(self.db).shown, *tenant] if self.db is not None else tenant

    def go_on(self, id: str) -> str:
        """Return a line that shows how to resume the flow."""
        file = [self.path] if self.path not in (None, "-") else []
        return f"Go on with: {run_summary.command('run', *map(str, file), '--resume', id, *self.database)}"


def _given(file: FlowFile, pairs: list[str]) -> dict[str, Any]:
    from keptwork.flows.validation import bound, from_text

    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise BadInput(what=f"-i {pair} gives no value; write -i NAME=VALUE")
        if not name:
            raise BadInput(what=f"-i {pair} names no input; write -i NAME=VALUE")
        if name in found:
            raise BadInput(what=f"the input {name} is given twice")
        found[name] = from_text(file.flow.inputs.get(name), text)
    bound(file.flow, found)
    return found


class _Run:
    """One flow, from its start or resumption to the exit code."""

    def __init__(self, wanted: _Wanted, manner: Manner) -> None:
        self._wanted = wanted
        self._manner = manner
        self._resumed = False

    async def outcome(self) -> int:
        from keptwork.app import Keptwork

        wanted = self._wanted
        wanted.let_modules_be_found()
        app = Keptwork(wanted.db, tenant=wanted.tenant, config=wanted.config)
        async with app:
            store = await app.open()
            ref = await self._ref(app, store)
            return await self._carried_out(app, store, ref)

    async def _ref(self, app: Keptwork, store: Store) -> FlowRef:
        """Start a new flow, or resume the named one if it can continue, and return it."""
        from keptwork.flows import commands as flows
        from keptwork.flows import commands_pick_up
        from keptwork.flows.transaction import Actor

        wanted, actor, queue = self._wanted, Actor(operator()), f"{OWN_QUEUES}{secrets.token_hex(8)}"
        if wanted.resume is not None:
            named = await flows.found(store, wanted.resume, app.tenant_id)
            ref = await commands_pick_up.find_resumable(store, named, actor._replace(reason="resumed"))
            if ref != named:
                screen.complain(
                    f"{named.public_id} is FAILED, which is final. {ref.public_id} continues it: a fork from the "
                    "failed step that keeps every step which succeeded."
                )
            await self._tell_if_changed(store, ref)
        else:
            ref = await self._started(app, store, actor, queue)
        (row,) = await store.rows(ref.kind.flow, [ref.id], ("queue", "state"))
        self._resumed = row["queue"] != queue
        if self._resumed and not ref.kind.flow.state(row["state"]).final:
            await commands_pick_up.pick_up(store, ref, actor._replace(reason="resumed"))
        elif wanted.resume is not None and not commands_pick_up.succeeded(ref, row):
            screen.complain(commands_pick_up.ended(ref, row))
        return ref

    async def _tell_if_changed(self, store: Store, ref: FlowRef) -> None:
        """Warn that a resumed flow ignores edits to its file."""
        from keptwork.flows.commands_pick_up import is_another

        file = self._wanted.file
        if file is not None and await is_another(store, ref, file.flow, file.library):
            screen.complain(
                f"{self._wanted.path} is not what {ref.public_id} was started with; it goes on as it was started"
            )

    async def _started(self, app: Keptwork, store: Store, actor: Actor, queue: str) -> FlowRef:
        from keptwork.flows import commands as flows

        wanted = self._wanted
        assert wanted.file is not None  # noqa: S101 - checked when the command was read
        return await flows.start(
            store,
            wanted.file.flow,
            wanted.inputs,
            tenant_id=app.tenant_id,
            key=wanted.key,
            hold=wanted.hold,
            webhook=wanted.webhook,
            queue=queue,
            library=wanted.file.library,
            actor=actor,
        )

    async def _carried_out(self, app: Keptwork, store: Store, ref: FlowRef) -> int:
        from keptwork.flows import report
        from keptwork.flows.live_view import FlowView

        view, left = FlowView(store, ref, app.tenant_id), None
        if not self._wanted.hold:
            logs.only_trouble_to_stderr()
            left = await self._left(app, store, view)
        found = await report.report(store, view)
        written = await report.last_output(store, view) if found.word == "failed" else []
        outputs = await report.outputs(store, view) if self._wanted.as_json else {}
        told = self._told(found, written, outputs)
        await self._tell_untold(store, view)
        code = self._code(found, left)
        return code if told else code or FAILED

    def _told(self, found: FlowReport, written: Written, outputs: dict[str, Any]) -> bool:
        """Print the outcome. Return False if the document that a program asked for could not be written."""
        from keptwork.flows import report

        try:
            if self._wanted.as_json:
                value = {**report.as_json(found), "outputs": outputs}
                print(json.dumps(value, indent=2, ensure_ascii=False))
            else:
                screen.stdout().print(run_summary.drawn(found, written), soft_wrap=False)
                for line in run_summary.footer(found, self._wanted.database):
                    screen.stdout().print(line, soft_wrap=True)  # a folded command cannot be copied
            sys.stdout.flush()
        except OSError as error:
            screen.abandon(sys.stdout, error)
            return screen.reader_left(error) or not self._wanted.as_json
        return True

    async def _tell_untold(self, store: Store, view: FlowView) -> None:
        """Report webhook deliveries of a finished flow that are still pending."""
        from keptwork.webhooks import outbox

        for one in await outbox.untold(store, view.tenant_id, view.flow):
            see = run_summary.command("webhooks", "list", "--flow", view.ref.public_id, *self._wanted.database)
            why = one.last_error or "there was no time for it"
            screen.complain(f"The webhook is not told yet: {why}. Workers and servers go on with it; see: {see}")

    async def _left(self, app: Keptwork, store: Store, view: FlowView) -> Left:
        """Run the flow until there is a reason to leave it, and return the reason."""
        from keptwork.cli.run_screen import showing
        from keptwork.cli.run_session import Session

        go_on, shown = self._wanted.go_on(view.ref.public_id), showing(self._wanted.as_json, self._resumed)
        return await Session(app, store, view, shown, self._manner, go_on).carry_out()

    def _code(self, found: FlowReport, left: Left | None) -> int:
        from keptwork.cli.run_session import Left

        if found.word not in ("succeeded", "cancelled"):
            screen.complain(self._wanted.go_on(found.id))
        if found.word in ("succeeded", "held"):
            return 0
        return INTERRUPTED if left is Left.STOPPED else FAILED
