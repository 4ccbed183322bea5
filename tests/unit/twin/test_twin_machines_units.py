"""Unit files, as far as the machines' init follows them."""

import pytest

from stoker.twin.machines.guest.services import UnitCommand, expanded, seconds, sections, unit

AGENT = r"""
[Unit]
Description=Stoker's agent
After=network-online.target
StartLimitIntervalSec=0
[Service]
# the environment
Environment="A=1 2" B=x
Environment=C=3
EnvironmentFile=-/etc/stoker/agent.env
WorkingDirectory=/opt/stoker
ExecStartPre=-/bin/false
ExecStart=/usr/bin/python3 \
    agent.pyz run --name "a b"
Restart=always
RestartSec=500ms
[Install]
WantedBy=multi-user.target
"""


def test_a_unit_says_how_its_service_is_run() -> None:
    read = unit("agent.service", AGENT)
    assert read.commands == (UnitCommand(("/usr/bin/python3", "agent.pyz", "run", "--name", "a b")),)
    assert read.before == (UnitCommand(("/bin/false",), lenient=True),)
    assert read.environment == {"A": "1 2", "B": "x", "C": "3"}
    assert read.environment_files == ("-/etc/stoker/agent.env",)
    assert (read.folder, read.restart, read.restart_s, read.burst_s) == ("/opt/stoker", "always", 0.5, 0.0)
    assert read.wanted_by == ("multi-user.target",)


def test_an_empty_value_forgets_those_before_it() -> None:
    assert sections("[Service]\nExecStart=a\nExecStart=\nExecStart=b\n") == {"Service": {"ExecStart": ["b"]}}


@pytest.mark.parametrize(
    ("policy", "after_success", "after_failure", "after_signal"),
    [("no", 0, 0, 0), ("always", 1, 1, 1), ("on-failure", 0, 1, 1), ("on-success", 1, 0, 0), ("on-abnormal", 0, 0, 1)],
)
def test_a_service_is_started_again_as_its_unit_says(
    policy: str, after_success: int, after_failure: int, after_signal: int
) -> None:
    read = unit("a.service", f"[Service]\nExecStart=a\nRestart={policy}\n")
    assert read.restarts_after(clean=True, signalled=False) == bool(after_success)
    assert read.restarts_after(clean=False, signalled=False) == bool(after_failure)
    assert read.restarts_after(clean=False, signalled=True) == bool(after_signal)


def test_spans_of_time_are_read_in_every_unit() -> None:
    assert [seconds(text) for text in ("5", "100ms", "1min 30s", "infinity")] == [5.0, 0.1, 90.0, float("inf")]


def test_variables_are_put_into_commands_and_a_bare_one_is_split_into_words() -> None:
    command = UnitCommand(("run", "$OPTIONS", "--name=${NAME}", "${OPTIONS}", "100%%"))
    assert expanded(command, {"OPTIONS": "-a -b", "NAME": "x y"}) == ["run", "-a", "-b", "--name=x y", "-a -b", "100%"]
