"""Every error a user can meet, as one tree: a stable code, an exit code, the values, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class StokerError(Exception):
    """The root. `code` never changes once published; `hint` is a command where one exists."""

    code = "error"
    exit_code = 125  # Stoker's own failures stay clear of the script's exit codes, as `docker run` does
    http_status = 500

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n\nhint: {self.hint}" if self.hint else self.message


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a job, and where. `line` and `column` start at 1; 0 where the job has no file."""

    field: str
    found: str
    expected: str
    nearest: str = ""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        text = f"{self.field}: found {self.found}, expected {self.expected}"
        return f"{text} (did you mean `{self.nearest}`?)" if self.nearest else text


class BadInput(StokerError):
    """The user asked for something that cannot be: nothing was done."""

    code = "bad-input"
    exit_code = 2
    http_status = 422


class JobInvalid(BadInput):
    """The job does not say something Stoker can run. `problems` lists all of them, in the order of the file."""

    code = "job-invalid"

    def __init__(self, problems: Sequence[Problem], *, file: str = "", hint: str = "") -> None:
        self.problems = tuple(problems)
        self.file = file
        super().__init__("\n".join(self._line(problem) for problem in self.problems), hint=hint)

    def _line(self, problem: Problem) -> str:
        if not problem.line:
            return f"{self.file}: {problem}" if self.file else str(problem)
        return f"{self.file}:{problem.line}:{problem.column}: {problem}"


class TooLarge(BadInput):
    """A request is larger than the server reads. Nothing of it was used."""

    code = "too-large"
    http_status = 413


class TooSlow(BadInput):
    """A request did not arrive in time. Nothing of it was used."""

    code = "too-slow"
    http_status = 408


class BudgetTooSmall(BadInput):
    """What may be spent is less than the shortest attempt costs. The message names the least that would do."""

    code = "budget-too-small"


class SnapshotRefused(BadInput):
    """The source tree cannot be taken along: too large, unreadable, or it never holds still."""

    code = "snapshot-refused"


class DatasetRefused(BadInput):
    """The files cannot be a dataset, or a manifest is damaged or names something outside its folder."""

    code = "dataset-refused"


class NotStorable(BadInput):
    """The state holds something that has no exact form on disk. Nothing was saved."""

    code = "checkpoint-not-storable"


class DoesNotFit(BadInput):
    """The checkpoint was made by other code: nothing of it was loaded."""

    code = "checkpoint-does-not-fit"


class CheckpointRefused(BadInput):
    """A file could be read only by executing what is in it, or does not hold what was asked for."""

    code = "checkpoint-refused"


class Unreadable(StokerError):
    """A checkpoint's files are not what its manifest says."""

    code = "checkpoint-unreadable"


class FileChanged(BadInput):
    """A file was written to while it was being read: what was sent of it does not count."""

    code = "file-changed"


class NotFound(StokerError):
    """Something was named that does not exist."""

    code = "not-found"
    exit_code = 2
    http_status = 404


class Conflict(StokerError):
    """The thing exists, but its state does not allow this now."""

    code = "conflict"
    exit_code = 2
    http_status = 409


class DatasetChanging(Conflict):
    """Content that an upload relied on may have been removed meanwhile: it is to be looked for again."""

    code = "dataset-changing"


class Denied(StokerError):
    """The caller has not shown the right to do this."""

    code = "denied"
    http_status = 401


class ServerUnavailable(StokerError):
    """No server answers, or it cannot start."""

    code = "server-unavailable"
    http_status = 503


class HomeUnusable(StokerError):
    """Stoker's folder cannot be read or written."""

    code = "home-unusable"


class DatabaseUnusable(StokerError):
    """The database is corrupt, or written by a newer Stoker."""

    code = "database-unusable"


class StoreFailed(StokerError):
    """The store could not do what was asked of it."""

    code = "store-failed"
    http_status = 502


class Missing(StoreFailed):
    """The store has no such key."""

    code = "store-missing"
    http_status = 404


class NoContainer(Missing):
    """The container or bucket itself is not there."""

    code = "store-no-container"


class AlreadyThere(StoreFailed):
    """A conditional write found the key taken."""

    code = "store-already-there"
    http_status = 409


class StoreDenied(StoreFailed):
    """The store refuses this credential or token: wrong, expired, or not meant for this."""

    code = "store-denied"
    http_status = 403


class StoreUnavailable(StoreFailed):
    """The store cannot be reached, or asks to be left alone for a while. The same may work later."""

    code = "store-unavailable"
    http_status = 503


class Corrupt(StoreFailed):
    """Bytes came back that do not have the hash they were stored under."""

    code = "store-corrupt"


class Malformed(Corrupt):
    """What a node wrote is not what an agent writes: of another type, out of bounds, or too large. It is not used."""

    code = "malformed"


class Unanswered(StokerError):
    """Something outside has not answered in time. What was asked of it may have been done all the same."""

    code = "unanswered"
    http_status = 504


class ProviderFailed(StokerError):
    """A provider could not give, see or release nodes."""

    code = "provider-failed"
    http_status = 502


class ProviderUnavailable(ProviderFailed):
    """The provider cannot be reached, or asks to be left alone for a while. The same may work later."""

    code = "provider-unavailable"
    http_status = 503


class NotSetUp(ProviderFailed):
    """A provider lacks what an administrator or its user gives it once."""

    code = "not-set-up"
    http_status = 409


class LoginFailed(ProviderFailed):
    """Nobody is logged in, or the login has expired or is not accepted. What runs goes on meanwhile."""

    code = "login-failed"
    http_status = 409


class Locked(ProviderFailed):
    """Somebody has put a lock on what was to be removed. It stays, switched off where that is allowed."""

    code = "locked"
    http_status = 409


class NameTaken(ProviderFailed):
    """Something that is not Stoker's has the name that a node would get. It is left alone."""

    code = "name-taken"
    http_status = 409


class NoCapacity(ProviderFailed):
    """The provider has none of this size in this place now: another place, size or time may do."""

    code = "no-capacity"


class PriceTooHigh(ProviderFailed):
    """A spot machine costs more now than the run may pay: another size or place, a later time, or on-demand may do."""

    code = "price-too-high"


class QuotaReached(ProviderFailed):
    """The account may not have as much: asking again does not help until something is released or the limit raised."""

    code = "quota-reached"


class NotAllowed(ProviderFailed):
    """The login lacks a right, and the message names the role."""

    code = "not-allowed"
    http_status = 403


class TwinFailed(StokerError):
    """The simulated cloud could not make, find or reach one of its machines."""

    code = "twin-failed"


class AzuriteMissing(TwinFailed):
    """The program that the simulated cloud keeps blobs with is not installed."""

    code = "azurite-missing"


class RunFailed(StokerError):
    """Raised by `Run.wait(check=True)` when the run did not succeed."""

    code = "run-failed"


class BudgetReached(StokerError):
    """The run is paused: its budget is spent, and everything of it is safe. It goes on when the budget is raised."""

    code = "budget-reached"
    exit_code = 75  # as mail programs say: try again when something has changed
    http_status = 409
