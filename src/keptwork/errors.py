"""Every error a user can meet, with its message, HTTP status and exit code.

The docstring of an error is its message; the words in braces are filled in from the facts it is raised
with. This is the only place where a status or an exit code is chosen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from keptwork.outcomes import PermanentError


class KeptworkError(Exception):
    """Something went wrong: {what}"""

    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    def __init__(self, **facts: Any) -> None:
        self.facts = facts
        super().__init__((type(self).__doc__ or type(self).__name__).format(**facts))

    @classmethod
    def slug(cls) -> str:
        """The error's name in an address.

        >>> InvalidTransition.slug()
        'invalid-transition'
        """
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower()

    @classmethod
    def problem(cls) -> str:
        """The type of the error's problem document: a name and no address, for it means the same on every server."""
        return f"urn:keptwork:problem:{cls.slug()}"

    @classmethod
    def title(cls) -> str:
        """The error's name as people read it; the same for every occurrence.

        >>> InvalidTransition.title()
        'Invalid transition'
        """
        return cls.slug().replace("-", " ").capitalize()


# --- asking for something that cannot be --------------------------------------------------------------------


class InvalidTransition(KeptworkError):
    """{lifecycle} {id} is {from_state}: cannot {trigger}{because}; allowed: {allowed_text}"""

    status = 409

    def __init__(
        self,
        *,
        lifecycle: str,
        id: object,
        from_state: str,
        trigger: str,
        allowed: tuple[str, ...],
        because: str = "",
    ) -> None:
        self.lifecycle = lifecycle
        self.from_state = from_state
        self.trigger = trigger
        self.allowed = allowed
        self.because = because
        super().__init__(
            lifecycle=lifecycle,
            id=id,
            from_state=from_state,
            trigger=trigger,
            because=f", because it needs {because}" if because else "",
            allowed_text=", ".join(allowed) or "nothing, the state is final",
        )


class LeaseLost(KeptworkError):
    """{lifecycle} {id} has moved on since it was read: {trigger} changed nothing"""

    status = 409


class NotFound(KeptworkError):
    """No {what} {id}; list them with: {listing}"""

    status = 404


class BadInput(KeptworkError):
    """{what}"""

    status = 422
    exit_code = 2


class KeyEnded(KeptworkError):
    """{id} {how}, so it cannot be rotated; make a new one with: keptwork keys create"""

    status = 409


class BadFlow(KeptworkError):
    """{problems}"""

    status = 422
    exit_code = 2

    def __init__(self, *, source: str, problems: Sequence[tuple[int | str, str]]) -> None:
        self.source = source
        self.problems = list(problems)
        super().__init__(problems="\n".join(f"{self.where(place)}: {what}" for place, what in problems))

    def where(self, place: int | str) -> str:
        """A line of a file, or the way to a part of what came as data."""
        return f"{self.source}:{place}" if isinstance(place, int) else f"{self.source}.{place}".rstrip(".")

    @classmethod
    def of(cls, source: str, problems: Sequence[tuple[int | str, str]]) -> BadFlow:
        """What is wrong with a flow, each problem with its place."""
        return cls(source=source, problems=problems)


class BelongsToStep(KeptworkError):
    """{id} carries out {step}, and is run again with it: keptwork steps reset {step}, or keptwork workstreams retry"""

    status = 409


class BadConfig(KeptworkError):
    """{problems}"""

    status = 422
    exit_code = 2

    @classmethod
    def of(cls, source: object, problems: Sequence[str]) -> BadConfig:
        """What is wrong with a configuration file, each problem with its key."""
        return cls(problems="\n".join(f"{source}: {what}" for what in problems))


class ScheduleThere(BadInput):
    """there is a schedule {name!r} already; see: keptwork schedules show {name}"""

    status = 409


class NotRunAgain(KeptworkError):
    """{id} is {state}; only what has ended without success ({ends}) can be run again"""

    status = 409


class RunAgainBefore(KeptworkError):
    """{id} was run again before, as {later}; to run it once more say so: --again"""

    status = 409


class WorkerTerminated(KeptworkError):
    """worker {id} was terminated by {by}: {reason}; what it ran was given back or cancelled as asked. \
Start another if work is left"""

    status = 409
    exit_code = 3


class NoWorkerStarts(KeptworkError):
    """No worker can start: {reason}"""

    status = 503
    exit_code = 2


class WorkerExhausted(KeptworkError):
    """worker {id} has ended to be replaced: {what}. Start another, or run it under: keptwork supervise"""

    status = 503
    exit_code = 4


class StillUnfinished(KeptworkError):
    """{id} is still {state} after {waited}; wait longer with --timeout, or see: keptwork jobs show {id}"""

    status = 504
    exit_code = 124  # as timeout(1) has it


class JobFailed(KeptworkError):
    """{id} ended {state}: {why}; see: keptwork jobs show {id}"""

    status = 409

    def __init__(self, *, id: str, state: str, reason: str | None, error: str | None, why: str) -> None:
        self.state = state
        self.reason = reason
        self.error = error
        super().__init__(id=id, state=state, why=why)


class FlowFailed(KeptworkError):
    """{id} is {state}: {why}; see: keptwork run --resume {id}, or keptwork events list --correlation {id}"""

    status = 409


class ChildFailed(JobFailed, PermanentError):
    """The child {id} ended {state}: {why}; see: keptwork jobs show {id}"""


class CrewFailed(KeptworkError, PermanentError):
    """crew {id} ended {state}: {why}; see: keptwork crews show {id}"""

    status = 409


class CrewUnfinished(KeptworkError):
    """{id} is still {state} after {waited}; wait longer, or see: keptwork why {id}"""

    status = 504
    exit_code = 124  # as timeout(1) has it


class NoEvent(KeptworkError, TimeoutError, PermanentError):
    """No event {name!r} came within {waited}"""

    status = 504


class JoinTimeout(KeptworkError, TimeoutError, PermanentError):
    """The joined children did not all end within {waited}. They continue; join them again to wait longer."""

    status = 504


class NotApproved(KeptworkError, PermanentError):
    """{id} was not approved: it {became}"""

    status = 409


class ApprovalRejected(NotApproved):
    """{id} was rejected by {by}{why}"""

    def __init__(self, *, id: str, by: str | None, comment: str | None) -> None:
        self.by = by
        self.comment = comment
        super().__init__(id=id, by=by or "somebody", why=f": {comment}" if comment else "")


class ApprovalExpired(NotApproved):
    """{id} expired: nobody decided in time"""


class ApprovalChanged(KeptworkError):
    """{id} was about something else than would happen now; it is asked anew as {new}: look at that one"""

    status = 409


class FlowBusy(KeptworkError):
    """the flow was moved by workers each of {tries} times it was looked at; try again"""

    status = 503


class NothingAsked(InvalidTransition):
    """{id} is {state}: its step {step} is {from_state}, and asks nothing"""

    def __init__(
        self, *, id: str, state: str, step: str, from_state: str, trigger: str, allowed: tuple[str, ...]
    ) -> None:
        self.from_state = from_state
        self.trigger = trigger
        self.allowed = allowed
        KeptworkError.__init__(self, id=id, state=state, step=step, from_state=from_state)


class AlreadyDecided(KeptworkError):
    """{id} was {decision}{by} before, and stays so"""

    status = 409


class KeyReused(KeptworkError):
    """The idempotency key {key!r} was used before with a different request; \
use a new key for a new request"""

    status = 422


class FlowKeyReused(KeyReused):
    """The key {key!r} has made {flow} before, {what}; use a new key for a new flow, or see that one: \
keptwork {kind}s show {flow}"""

    exit_code = 2


class RequestInFlight(KeptworkError):
    """A request with the idempotency key {key!r} is still being handled; ask again in a moment"""

    status = 409


class CannotWriteFile(KeptworkError):
    """Cannot write {path}: {detail}; nothing was left there. Choose another place or free some space"""


# --- asking over HTTP ----------------------------------------------------------------------------------------


class Unauthenticated(KeptworkError):
    """This needs a key that is known and still good; send it as: Authorization: Bearer kw_…"""

    status = 401


class MissingScope(KeptworkError):
    """This needs a key with the scope '{scope}'; this one has: {scopes}"""

    status = 403


class ProgramsRefused(KeptworkError):
    """{steps} what is to be run, which this server takes from {whom}; keep the flow with: \
keptwork templates put FILE, and start that template, or let its steps name tools of keptwork.toml"""

    status = 403


class NoSuchRoute(KeptworkError):
    """There is nothing at this address; /docs lists what there is"""

    status = 404


class WrongMethod(KeptworkError):
    """This address does not take {method}; it takes: {allowed}"""

    status = 405


class TooSlow(KeptworkError):
    """The request did not arrive within {seconds:g} s"""

    status = 408


class BodyTooLarge(KeptworkError):
    """The body is over the limit of {limit:,} bytes"""

    status = 413


class WrongContentType(KeptworkError):
    """The body must be application/json in UTF-8, not {found}"""

    status = 415


class HeadersTooLarge(KeptworkError):
    """The address and headers are over the limit of {limit:,} bytes"""

    status = 431


class NotHttp(KeptworkError):
    """This is no request that can be understood: {detail}"""

    status = 400


class NotJson(KeptworkError):
    """The body is no JSON: {detail}"""

    status = 400


class TooDeep(KeptworkError):
    """The JSON of the body is nested deeper than {limit}"""

    status = 400


class BadCursor(KeptworkError):
    """This is no cursor of this list; take `next` from an earlier answer, or begin without one"""

    status = 400


class InvalidRequest(KeptworkError):
    """The request is not as it should be: {problems_text}"""

    status = 422
    exit_code = 2

    def __init__(self, *, problems: Sequence[tuple[str, str]]) -> None:
        self.problems = [{"where": where, "what": what} for where, what in problems]
        super().__init__(problems_text="; ".join(f"{where}: {what}" for where, what in problems))


class TooManyRequests(KeptworkError):
    """This tenant may send {rate:,} requests a second to this server, and sends more; ask again in {seconds} s"""

    status = 429


class TooManyAtOnce(KeptworkError):
    """This tenant has {most:,} requests under way at this server, which is all it may; ask again when some are done"""

    status = 429


class TooManyStreams(KeptworkError):
    """This tenant has {most:,} streams and long waits open at this server, which is all it may; close some"""

    status = 429


class TooManyWrongKeys(KeptworkError):
    """Too many keys that open nothing came from this address; ask again in {seconds} s"""

    status = 429


class QueueFull(KeptworkError):
    """{most:,} jobs of this tenant wait already, and no more may; let some be done, or have the limit raised with: \
keptwork tenants limit"""

    status = 429


class ShuttingDown(KeptworkError):
    """This server is ending; ask another, or again in a moment"""

    status = 503


class InternalError(KeptworkError):
    """Something went wrong that should not have; the server's log has it under this request's id"""


# --- asking a server ----------------------------------------------------------------------------------------


class NoAnswer(KeptworkError):
    """No answer from {server} to {asked}: {detail}{unsure}"""

    status = 503


class StrangeAnswer(KeptworkError):
    """{server} answered {asked} with {found}, as no Keptwork server does; check its address and any proxy before it"""

    status = 502


# --- asking models -------------------------------------------------------------------------------------------


class MissingExtra(KeptworkError, PermanentError):
    """{what} cannot be used yet; install it with: pip install 'keptwork[{extra}]'"""

    exit_code = 2


class NoKey(KeptworkError, PermanentError):
    """{provider} needs a key: {what}"""

    exit_code = 2


class UnpricedModel(KeptworkError, PermanentError):
    """The price of the {provider} model {model} is not known; give it one in keptwork.toml under \
[models.prices."{model}"], or say unpriced = "allow" under [models]"""

    status = 422
    exit_code = 2


class NeedsDatabase(KeptworkError, PermanentError, AttributeError):
    """This worker has no database, and so cannot {what}; let one do it that has: keptwork work without --server"""


class NoRecording(KeptworkError, PermanentError):
    """There is no recording {file} of this request to {model}; make it with a key and KEPTWORK_RECORD=1"""

    status = 422


# --- declarations that contradict themselves ----------------------------------------------------------------


class BadLifecycle(KeptworkError):
    """The {name} lifecycle is wrong: {problem}"""


# --- the database -------------------------------------------------------------------------------------------


class StoreError(KeptworkError):
    """The database {url} failed: {detail}"""

    status = 503
    lasting: ClassVar[bool] = False
    """Whether asking again is of no use until somebody has changed something. What is not lasting, workers outwait."""


class TransactionEnded(BadInput, StoreError):
    """Nothing was sent: this transaction has ended ({how}). Use a transaction only inside its block."""


class OtherLoop(BadInput, StoreError):
    """Nothing was sent: {what} belongs to another event loop or process. Open another one here."""


class ServerAway(StoreError):
    """The server {url} cannot be worked for at the moment: {detail}"""


class ServerRefuses(StoreError):
    """The server {url} does not let this worker work: {detail}"""

    lasting = True


class UnknownScheme(StoreError):
    """Unknown database scheme {scheme!r} in {url}; use sqlite:///path/to/file.db or postgresql://user@host/database"""

    exit_code = 2
    lasting = True


class BadDatabaseUrl(StoreError):
    """{url} does not name a database: {detail}; use sqlite:///path/to/file.db or postgresql://user@host/database"""

    exit_code = 2
    lasting = True


class MissingDriver(StoreError):
    """{url} needs the PostgreSQL driver; install it with: pip install 'keptwork[postgres]'"""

    exit_code = 2
    lasting = True


class Unreachable(StoreError):
    """Cannot reach the PostgreSQL server of {url}: {detail}; \
check that it runs and that host and port are right"""


class Unconfirmed(Unreachable):
    """A commit to {url} is unconfirmed: the server stopped waiting for a standby, so a failover can lose the change. \
Repeat the call."""


class WrongPassword(StoreError):
    """The PostgreSQL server refused the login of {url}: {detail}; check user and password"""

    lasting = True


class NoSuchDatabase(StoreError):
    """{url} does not exist on that server; create it with: createdb {database}"""

    exit_code = 2
    lasting = True


class NoDatabase(StoreError):
    """There is no database {url}; create it with: keptwork migrate --db {url}"""

    exit_code = 2
    lasting = True


class NotWritable(StoreError):
    """Cannot write {path}: {detail}; choose a folder you may write to with --db or KEPTWORK_DB"""

    lasting = True


class NotPermitted(StoreError):
    """The PostgreSQL server of {url} does not let this user work: {detail}; \
grant it what it lacks, or log in as another"""

    lasting = True


class SeesNoRows(StoreError):
    """This login sees no rows: row-level security in {url} hides them from {login}. \
Log in as {owner}, who owns the tables. If they were restored from a dump, run as {owner}: keptwork migrate --guards"""

    lasting = True


class HoldsNoRows(StoreError):
    """{url} has Keptwork's tables but no row in them, not even a tenant: it was restored from an empty dump. \
A dump by a login that is neither the owner of the tables nor a superuser is empty. Restore another"""

    lasting = True


class SchemaDamaged(StoreError):
    """{url} lacks something this Keptwork made there ({detail}); \
restore your last backup, or begin anew with an empty database and: keptwork migrate"""

    lasting = True


class DiskFull(StoreError):
    """The disk under {path} is full; what was committed is safe. Free some space and try again"""


class NotADatabase(StoreError):
    """{path} is not a SQLite database; it was left untouched. Choose another file with --db or KEPTWORK_DB"""

    lasting = True


class NotOurDatabase(StoreError):
    """{path} is a database of another program; it was left untouched. \
Choose another with --db or KEPTWORK_DB"""

    lasting = True


class Damaged(StoreError):
    """{path} is damaged ({detail}). Stop its workers, keep a copy, and restore your last backup with: \
keptwork restore FILE"""

    lasting = True


class StaleLog(StoreError):
    """{path} does not fit its log {path}-wal ({detail}); nothing was changed. If you copied a backup over {path}, \
move {path}-wal and {path}-shm to another folder and try again. Otherwise the database is damaged: keep all three, and \
restore your last backup with: keptwork restore FILE"""

    lasting = True


class OrphanedLog(StoreError):
    """{path} is missing or empty, but its log {path}-wal can hold acknowledged work; nothing was changed. Put {path} \
back, or move {path}-wal to another folder and try again"""

    lasting = True


class HardLinks(StoreError):
    """{path} has {links} hard links ({others}): each name has a log of its own, and work is lost between them. Stop \
every process that uses it, keep the name that has a -wal file beside it (any if none has), and remove the others"""

    lasting = True


class MountedAlone(StoreError):
    """{path} is mounted without its folder, so its log stays outside the mount and work is lost. Mount the folder \
{folder} instead"""

    lasting = True


class SharedFiles(StoreError):
    """{path} is on {kind}, a network file system whose locks can fail, and work is lost then. Use a local disk or \
PostgreSQL. If only one machine opens the file, add to the URL: ?shared=ok"""

    lasting = True


class BadBackup(StoreError):
    """{file} cannot be restored: {detail}. Nothing was changed"""

    lasting = True


class NotBackedUp(StoreError):
    """{url} cannot be backed up: {detail}. No file was written"""

    lasting = True


class RestoredOtherwise(StoreError):
    """{url} was restored from {file}, but differs from it: {detail}. Restore into another, empty database as its \
owner"""

    lasting = True


class InUse(StoreError):
    """{path} is open. Stop its workers and servers, and try again. Nothing was changed"""

    lasting = True


class MissingProgram(StoreError):
    """{program} of PostgreSQL {needed} or newer is not installed on this machine{older}. Install PostgreSQL's client \
programs, or add their folder to PATH"""

    lasting = True


class ProgramFailed(StoreError):
    """{program} failed: {detail}"""

    lasting = True


class HeldFile(StoreError):
    """{path} must not be opened: this process has the database {database} open, and closing a second descriptor drops \
its locks. Query it in app.transaction(); copy it with: keptwork backup FILE"""

    lasting = True


class StorageFailed(StoreError):
    """Reading or writing {path} failed ({detail}); what was committed is safe. Check the disk"""


class SqliteTooOld(StoreError):
    """SQLite {found} is too old: from 3.7.0 to 3.51.2 it can damage a database several processes write to. \
Keptwork needs {needed} or newer; reinstall with: pip install --force-reinstall apsw"""

    lasting = True


class PostgresTooOld(StoreError):
    """The PostgreSQL server of {url} is version {found}; Keptwork needs {needed} or newer"""

    lasting = True


class NotMigrated(StoreError):
    """{url} has schema {found}, this Keptwork needs {needed}; run: keptwork migrate"""

    exit_code = 2
    lasting = True


class NotThere(StoreError):
    """The connection given as _tx has no Keptwork tables in its schema {schema}; \
give one to the database {url}, or run there: keptwork migrate"""

    exit_code = 2


class NewerDatabase(StoreError):
    """{url} has schema {found}, newer than the {needed} this Keptwork knows; \
upgrade Keptwork. Nothing was changed"""

    exit_code = 2
    lasting = True


class Busy(StoreError):
    """{url} stayed locked by another program for {seconds} s; close that program or try again"""
