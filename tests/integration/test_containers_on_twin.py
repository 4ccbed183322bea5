"""A Dockerfile on spot machines of the twin, as a tutorial's: built there by the host's Podman, evicted and resumed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from azuretwin import TRAIN, weights_after
from shell import Shell, made_shell

from stoker.testing.engines import INSTALL, python_image

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="machines with namespaces require root"),
]
KEPT = Path(__file__).parents[2] / ".services" / "image.tar"
STEPS = 40
# As the first workflow's own, but for its base: that image has CUDA and PyTorch, this one the Python of the tests.
DOCKERFILE = """
    FROM scratch
    ADD python.tar /
    COPY requirements.txt /tmp/requirements.txt
    RUN python3 -c "import sys; print(open('/tmp/requirements.txt').read(), sys.version)"
    ENV OMP_NUM_THREADS=1
    WORKDIR /work
"""


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Shell]:
    assert shutil.which("podman"), f"the tests need podman; try: {INSTALL}"
    with made_shell(tmp_path) as shell:
        shell.write("train.py", TRAIN)
        shell.write("image/Dockerfile", DOCKERFILE)
        shell.write("image/requirements.txt", "numpy\n")
        os.link(python_image(KEPT), shell.folder / "image" / "python.tar")
        yield shell
        shell.stoker("server", "stop", code=None)
        shell.stoker("twin", "down", "--forget", code=None)


def test_a_run_in_a_container_on_spot_machines_is_evicted_and_ends_with_the_same_bits(user: Shell) -> None:
    wanted = {"dockerfile": "image/Dockerfile", "context": "image"}
    env = {"STEPS": str(STEPS), "STEP_S": "0.1", "REST_AT": "10", "REST_S": "45"}
    user.job("python3 train.py", on="azure-twin", spot=True, environment=wanted, env=env)
    user.stoker("run", "--detach", patience_s=120)
    user.wait_for(lambda: user.facts("job-1")["metrics"].get("loss", {}).get("step", 0) >= 10, "step 10", 200)
    user.stoker("evict", "job-1", "--notice", "10s")
    user.wait_for(lambda: user.facts("job-1")["state"] not in ("queued", "starting", "running"), "its end", 200)
    facts = user.facts("job-1")
    assert facts["state"] == "succeeded", facts["reason"]
    assert [one["state"] for one in facts["attempts"]] == ["evicted", "ended"]
    assert facts["image"].startswith("sha256:")
    shown = user.stoker("show", "job-1", "--json").stdout
    assert ("image was built" in shown, "restored from the store" in shown) == (True, True)
    landed = Path(user.wait_for(lambda: user.facts("job-1")["landed"], "the outputs"))
    assert (landed / "model.txt").read_text() == weights_after(STEPS)
