"""What can be wrong with a checkpoint, for the script that saves or loads one."""

from __future__ import annotations

from stoker.errors import BadInput, StokerError


class NotStorable(BadInput):
    """The state holds something that has no exact form on disk. Nothing was saved."""

    code = "checkpoint-not-storable"


class DoesNotFit(BadInput):
    """The checkpoint was made by other code: nothing of it was loaded."""

    code = "checkpoint-does-not-fit"


class Unreadable(StokerError):
    """A checkpoint's files are not what its manifest says."""

    code = "checkpoint-unreadable"


class Refused(BadInput):
    """A file could be read only by executing what is in it."""

    code = "checkpoint-refused"
