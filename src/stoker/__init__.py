"""Stoker keeps a training burning: it runs your script anywhere, watches it, and brings the model back."""

from __future__ import annotations

__version__ = "0.1.0"
