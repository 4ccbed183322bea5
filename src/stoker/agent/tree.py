"""What lies below a folder, as `os.scandir` sees it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

Unreadable = Callable[[str, OSError], None]


def walk(top: str, unreadable: Unreadable) -> Iterator[tuple[str, os.DirEntry[str] | None]]:
    """Everything below `top` by its path with `/`: files, links and whatever else; None stands for an empty folder.

    Links are not followed. Folders that cannot be read are given to `unreadable`; those that vanish are left out.
    """
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        try:
            with os.scandir(os.path.join(top, prefix)) as found:  # noqa: PTH118  # a Path for each would cost too much
                entries = list(found)
        except FileNotFoundError:
            continue
        except OSError as error:
            unreadable(prefix, error)
            continue
        if prefix and not entries:
            yield prefix, None
        for entry in entries:
            path = f"{prefix}/{entry.name}" if prefix else entry.name
            if entry.is_dir(follow_symlinks=False):
                waiting.append(path)
            else:
                yield path, entry
