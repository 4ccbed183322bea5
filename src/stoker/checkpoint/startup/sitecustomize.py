"""Runs before the script: shows the stacks of the process on a signal, then runs the `sitecustomize` that it hides."""

import os
import sys

_SIGNAL = 47  # in the middle of the real-time signals of Linux, which hardly a program uses
_HIGH = 200  # above the file descriptors that a script counts on


def _show_stacks() -> None:
    """On the signal, Python writes the stacks of all threads to a file in memory. An agent finds it among the open
    files of the process, and the signal in its name. A program that the process becomes or starts has neither."""
    try:
        import faulthandler
        import fcntl

        first = os.memfd_create(f"stoker-stacks-{_SIGNAL}")
        try:
            file = fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, _HIGH)
            os.close(first)
        except OSError:  # fewer files are allowed
            file = first
        fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)
        more = {"c_stack": False} if sys.version_info >= (3, 14) else {}
        faulthandler.register(_SIGNAL, file=file, all_threads=True, **more)
    except Exception:  # not Linux, or a Python without it: then others show less
        return


def _give_way() -> None:
    """Runs the `sitecustomize` that this one hides. By a plain import: `importlib.util` takes 5 ms."""
    ours = __file__.rpartition("/")[0]
    sys.path[:] = [one for one in sys.path if one != ours]
    this = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")  # the next one on the path
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = this


_show_stacks()
_give_way()
