"""Every container engine keeps the contract, with real containers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from stoker.containers import ContainerEngine, engines
from stoker.testing.engines import ENGINES, ON_CLUSTERS, EngineContract, python_image

pytestmark = pytest.mark.heavy
ALL = {**ENGINES, **ON_CLUSTERS}
KEPT = Path(__file__).parents[2] / ".services" / "image.tar"


@pytest.fixture(scope="module", params=sorted(ALL))
def real(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, dict[str, str]]]:
    with ALL[request.param](tmp_path_factory.mktemp("e") / "e", python_image(KEPT)) as variables:
        yield request.param, variables


class TestEngines(EngineContract):
    @pytest.fixture
    def engine(self, real: tuple[str, dict[str, str]]) -> ContainerEngine:
        return engines()[real[0]]

    @pytest.fixture
    def variables(self, real: tuple[str, dict[str, str]]) -> Mapping[str, str]:
        return real[1]


def test_every_installed_engine_is_tested() -> None:
    assert set(engines()) == set(ALL)
