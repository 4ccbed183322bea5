"""What a shell in a container reads, and what engines that refuse are taken to say."""

from __future__ import annotations

import subprocess
from pathlib import Path

from stoker.agent.processes.launch import spelled
from stoker.containers import EngineSight, ImageSight, survey
from stoker.containers.commandline import foreign


def test_a_rank_gets_its_variables_folder_and_words_unchanged_and_keeps_those_of_the_image(tmp_path: Path) -> None:
    folder, out = tmp_path / "it's here", tmp_path / "out"
    folder.mkdir()
    words = ("/bin/sh", "-c", 'echo "$A" "$PYTHONPATH" "$OWN" "$(pwd)"; cat')
    text = spelled({"A": "x 'y' \"$z\"\nlast", "my-app_proxy": "x", "PYTHONPATH": "ours"}, folder, words, out)
    env = {"PATH": "/usr/bin:/bin", "OWN": "image", "PYTHONPATH": "theirs"}
    subprocess.run(["/bin/sh", "-c", 'eval "$(cat)"'], input=text, text=True, env=env, check=True)
    assert out.read_text() == f"x 'y' \"$z\"\nlast ours:theirs image {folder}\n"


def test_an_engine_that_is_not_allowed_names_the_group(tmp_path: Path) -> None:
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\necho 'permission denied while trying to connect to the Docker daemon' >&2; exit 1\n")
    program.chmod(0o755)
    seen = {one.name: one for one in survey("x", {"PATH": str(tmp_path), "DOCKER_HOST": f"unix://{program}"})}
    assert "permission denied" in seen["docker"].trouble and "the group `" in seen["docker"].trouble
    assert seen["docker"].hint.startswith("sudo usermod -aG ")
    assert seen["podman"].trouble == "not installed"


def test_a_daemon_elsewhere_is_refused() -> None:
    seen = {one.name: one for one in survey("x", {"PATH": "/nowhere", "DOCKER_HOST": "tcp://far:2375"})}
    assert seen["docker"].hint == "unset DOCKER_HOST"


def test_an_image_of_another_architecture_needs_an_emulator(tmp_path: Path) -> None:
    engine = EngineSight("e", architecture="amd64")
    assert not foreign(ImageSight("i", "amd64"), engine, tmp_path)
    assert foreign(ImageSight("i", "arm64"), engine, tmp_path)
    assert not foreign(ImageSight("i", "386"), engine, tmp_path)
    (tmp_path / "qemu-aarch64").touch()
    assert not foreign(ImageSight("i", "arm64"), engine, tmp_path)
