"""The services that tests speak to, installed by `make install`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stoker.testing import services
from stoker.testing.services import ACCOUNT, KEY, Azurite, S3Server, free_port, run_s3

INSTALLED = Path(__file__).parents[1] / ".services"


@contextmanager
def run_azurite(*more: str, scheme: str = "http") -> Iterator[Azurite]:
    with services.run_azurite(INSTALLED, *more, scheme=scheme) as running:
        yield running


__all__ = ["ACCOUNT", "INSTALLED", "KEY", "Azurite", "S3Server", "free_port", "run_azurite", "run_s3"]
