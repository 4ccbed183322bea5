"""All errors that users can see, as one tree: a stable code, an exit code, the values, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class StokerError(Exception):
    """The root. `code` never changes once published, nor does `cause`: a word that says more than the code where one
    code has several causes (`model/cause.py`). `hint` is a command where one exists."""

    code = "error"
    exit_code = 125  # Stoker's own failures stay clear of the script's exit codes, as `docker run` does
    http_status = 500

    def __init__(self, message: str, *, hint: str = "", cause: str = "") -> None:
        super().__init__(message)
        self.cause = cause
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
    """The request is invalid. Nothing was done."""

    code = "bad-input"
    exit_code = 2
    http_status = 422


class JobInvalid(BadInput):
    """The job is invalid. `problems` lists all problems, in the order of the file."""

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
    """The request is larger than the server accepts. It was ignored."""

    code = "too-large"
    http_status = 413


class TooSlow(BadInput):
    """The request did not arrive in time. It was ignored."""

    code = "too-slow"
    http_status = 408


class BudgetTooSmall(BadInput):
    """The budget does not cover the shortest attempt. The message names the minimum."""

    code = "budget-too-small"


class SnapshotRefused(BadInput):
    """The source folder cannot be uploaded: it is too large, unreadable, or changes all the time."""

    code = "snapshot-refused"


class DatasetRefused(BadInput):
    """The files are not a valid dataset, or a manifest is damaged or contains a path outside its folder."""

    code = "dataset-refused"


class NotStorable(BadInput):
    """The state contains a value that cannot be stored exactly. Nothing was saved."""

    code = "checkpoint-not-storable"


class DoesNotFit(BadInput):
    """The checkpoint does not match the script's model or optimizer. Nothing was loaded."""

    code = "checkpoint-does-not-fit"


class CheckpointRefused(BadInput):
    """Reading the file would execute code, or the file does not contain what was requested."""

    code = "checkpoint-refused"


class Unreadable(StokerError):
    """The files of a checkpoint do not match its manifest."""

    code = "checkpoint-unreadable"


class FileChanged(BadInput):
    """A file changed while it was being read. What was uploaded of it is discarded."""

    code = "file-changed"


class NotFound(StokerError):
    """The named thing does not exist."""

    code = "not-found"
    exit_code = 2
    http_status = 404


class Conflict(StokerError):
    """The current state does not allow this."""

    code = "conflict"
    exit_code = 2
    http_status = 409


class DatasetChanging(Conflict):
    """Content that an upload relied on may have been removed meanwhile. Check again which content is missing."""

    code = "dataset-changing"


class Denied(StokerError):
    """The caller is not authorized."""

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
    """A request to the store failed."""

    code = "store-failed"
    http_status = 502


class Missing(StoreFailed):
    """The store has no such key."""

    code = "store-missing"
    http_status = 404


class NoContainer(Missing):
    """The container or bucket does not exist."""

    code = "store-no-container"


class AlreadyThere(StoreFailed):
    """A conditional write failed because the key exists."""

    code = "store-already-there"
    http_status = 409


class StoreDenied(StoreFailed):
    """The store refuses the credential or token: it is wrong, expired, or lacks the right."""

    code = "store-denied"
    http_status = 403


class StoreUnavailable(StoreFailed):
    """The store is unreachable or throttles requests. Retry later."""

    code = "store-unavailable"
    http_status = 503


class Corrupt(StoreFailed):
    """The content of an object does not match its hash."""

    code = "store-corrupt"


class NoCipher(StokerError):
    """A node's Python cannot decrypt what its server sent: OpenSSL is missing there."""

    code = "no-cipher"


class Malformed(Corrupt):
    """A node wrote invalid data: of the wrong type, out of range, or too large. It is not used."""

    code = "malformed"


class Unanswered(StokerError):
    """An external service did not answer in time. It may have executed the request nevertheless."""

    code = "unanswered"
    http_status = 504


class ProviderFailed(StokerError):
    """A provider could not start, list or release nodes."""

    code = "provider-failed"
    http_status = 502


class ProviderUnavailable(ProviderFailed):
    """The provider is unreachable or throttles requests. Retry later."""

    code = "provider-unavailable"
    http_status = 503


class NotSetUp(ProviderFailed):
    """The provider is not set up, or its set-up is incomplete."""

    code = "not-set-up"
    http_status = 409


class LoginFailed(ProviderFailed):
    """Nobody is logged in, or the login has expired or is refused. Active runs continue meanwhile."""

    code = "login-failed"
    http_status = 409


class Locked(ProviderFailed):
    """A lock prevents the removal. The machine is deallocated if that is permitted."""

    code = "locked"
    http_status = 409


class NameTaken(ProviderFailed):
    """A resource that is not Stoker's has the name that a node needs. Stoker does not change it."""

    code = "name-taken"
    http_status = 409


class NoCapacity(ProviderFailed):
    """No capacity for this size in this place now. Try another place or size, or later."""

    code = "no-capacity"


class PriceTooHigh(ProviderFailed):
    """The spot price exceeds `max_price` or the budget. Try another size or place, on-demand, or later."""

    code = "price-too-high"


class QuotaReached(ProviderFailed):
    """The quota is used up. Release machines or request a higher quota."""

    code = "quota-reached"


class NotAllowed(ProviderFailed):
    """The login lacks a right. The message names the role."""

    code = "not-allowed"
    http_status = 403


class TwinFailed(StokerError):
    """The twin could not create, find or reach one of its machines."""

    code = "twin-failed"


class AzuriteMissing(TwinFailed):
    """Azurite, the twin's Blob service, is not installed."""

    code = "azurite-missing"


class RunFailed(StokerError):
    """Raised by `Run.wait(check=True)` when the run did not succeed."""

    code = "run-failed"


class BudgetReached(StokerError):
    """The run is paused because its budget is spent; its work is saved. Raise the budget to resume it."""

    code = "budget-reached"
    exit_code = 75  # EX_TEMPFAIL: retry after a change
    http_status = 409
