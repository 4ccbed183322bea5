"""GPU machines on the twin: a size whose driver is missing costs minutes, and the run uses another size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from azuretwin import BOTH_WEATHERS, Cloud, azure_user, set_up, timeline, weather
from shell import Shell

from stoker.model.cause import Cause

pytestmark = [pytest.mark.timeout(600)]

HPC = "microsoft-dsvm:ubuntu-hpc:2204:latest"  # has a driver for the T4, and none that works for the A10
A10, T4 = "Standard_NV36ads_A10_v5", "Standard_NC64as_T4_v3"
SCRIPT = "import subprocess; print(subprocess.run(['nvidia-smi', '-L'], capture_output=True, text=True).stdout)"


@pytest.fixture(scope="module", params=BOTH_WEATHERS)
def user(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, Cloud]]:
    with azure_user(tmp_path_factory.mktemp("gpus"), *weather(request)) as (shell, cloud):
        yield shell, cloud


def account(shell: Shell, cloud: Cloud, **more: object) -> None:
    shell.stoker("server", "stop", code=None)  # the next one reads it
    set_up(shell, cloud, **more)


def machines(shell: Shell, run: str) -> list[dict[str, Any]]:
    """The attempts for which there was a machine."""
    return [one for one in shell.facts(run)["attempts"] if one["trouble"] in ("", "machine-not-ready")]


@pytest.mark.heavy
def test_a_size_without_a_driver_is_released_and_the_next_size_runs_the_script(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    account(shell, cloud, image=HPC, sizes=[A10, T4], driver_s=3)
    shell.write("train.py", SCRIPT)
    shell.job("python3 train.py", on="azure", spot=True, gpus=1)
    shell.stoker("run", "--name", "trial", patience_s=200)
    first, second = machines(shell, "trial")
    assert (first["offer"]["size"], first["outcome"], first["trouble"]) == (A10, "not-ready", "machine-not-ready")
    assert first["cause"] == Cause.NO_DRIVER
    assert (second["offer"]["size"], second["outcome"]) == (T4, "succeeded")
    assert shell.stoker("logs", "trial").stdout.count("GPU ") == 4
    assert "the image has no driver for this GPU" in shell.stoker("explain", "trial").stdout
    assert "not-ready" in timeline(shell, "trial")
    shell.wait_for(cloud.empty, "nothing to be left", 60)


@pytest.mark.heavy
def test_the_driver_extension_brings_what_the_usual_image_lacks(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    account(shell, cloud, sizes=[A10], driver_s=20)
    shell.write("train.py", SCRIPT)
    shell.job("python3 train.py", on="azure", spot=True, gpus=1)
    shell.stoker("run", "--name", "extended", patience_s=200)
    (only,) = machines(shell, "extended")
    assert (only["offer"]["size"], only["outcome"]) == (A10, "succeeded")
    assert "GPU 0: NVIDIA A10" in shell.stoker("logs", "extended").stdout
