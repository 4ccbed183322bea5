"""Translates errors of the disk into ours. Standard library only: agents carry this file."""

from __future__ import annotations

import errno

from stoker.errors import StoreFailed

_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}  # Windows has no quota error


def disk_failed(verb: str, what: str, error: OSError) -> StoreFailed:
    if error.errno in _FULL:
        return StoreFailed(f"the disk is full: could not {verb} `{what}`", hint="free some space, then try again")
    return StoreFailed(f"could not {verb} `{what}`: {error.strerror or error}")
