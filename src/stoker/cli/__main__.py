"""`python -m stoker.cli`: the command where its script is not installed."""

from __future__ import annotations

from stoker.cli import main

main()
