"""How uv and pip are set up: the same where packages are chosen as where they are installed."""

from __future__ import annotations

from collections.abc import Mapping

_PIP_FOR_UV = {  # pip's setting, uv's, and uv's separator
    "PIP_FIND_LINKS": ("UV_FIND_LINKS", ","),
    "PIP_INDEX_URL": ("UV_INDEX_URL", " "),
    "PIP_EXTRA_INDEX_URL": ("UV_EXTRA_INDEX_URL", " "),
}
_UV_INDEXES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL")
_UNWANTED = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME", "UV_PROJECT_ENVIRONMENT", "UV_PYTHON")


def tool_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of uv and pip: settings of pip also apply to uv, where it has none of its own."""
    settings = {name: value for name, value in environ.items() if name not in _UNWANTED}
    own_index = any(name in settings for name in _UV_INDEXES)
    for pip, (uv, separator) in _PIP_FOR_UV.items():
        if pip in settings and uv not in settings and not (own_index and uv in _UV_INDEXES):
            settings[uv] = separator.join(settings[pip].split())
    return settings
