"""Runs before the script: installs the hook of `exact: true`, then runs the `sitecustomize` that it hides."""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

_OLDEST = (3, 11)


def _install() -> None:
    if sys.version_info < _OLDEST:
        sys.stderr.write(
            "stoker: exact: requires Python 3.11 or newer in the script's environment: no random states are saved\n"
        )
        return
    try:
        from stoker.checkpoint.exact.hooks import install

        install()
    except Exception as error:  # whatever is wrong with us, the script has to run
        sys.stderr.write(f"stoker: exact: is off in this process: {type(error).__name__}: {error}\n")


def _give_way() -> None:
    """To the one that Python would have found without us."""
    ours = __file__.rpartition("/")[0]
    sys.path[:] = [one for one in sys.path if one != ours]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_install()
_give_way()
