"""`python -m stoker.cli`: the command where no script of it is installed."""

from __future__ import annotations

from stoker.cli import main

main()
