"""The server's own log contains others' text escaped, and bounded."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from stoker.server.door import FORMAT, LONGEST, MOST_AN_HOUR, PlainFormatter, Sparing

ESCAPES = "\x1b]0;title\x07\x9b31m\u202e\r\nforged"


class Log:
    def __init__(self) -> None:
        self.now, self._stream = 0.0, io.StringIO()
        self.handler = logging.StreamHandler(self._stream)
        self.handler.setFormatter(PlainFormatter(FORMAT))
        self.handler.addFilter(Sparing(lambda: self.now))
        self.logger = logging.getLogger("stoker.test-of-its-log")

    @property
    def lines(self) -> list[str]:
        return self._stream.getvalue().split("\n")[:-1]


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    made.logger.addHandler(made.handler)
    made.logger.propagate = False
    yield made
    made.logger.removeHandler(made.handler)


def test_a_message_is_one_printable_line(log: Log) -> None:
    log.logger.warning("the report of %s: %s", "ants-1", ESCAPES)
    [line] = log.lines
    assert line.isprintable()
    assert line.endswith(r"\x1b]0;title\x07\x9b31m\u202e\r\nforged")


def test_a_traceback_has_its_lines_and_no_others(log: Log) -> None:
    try:
        raise ValueError(ESCAPES)
    except ValueError:
        log.logger.exception("a round failed")
    assert all(line.isprintable() for line in log.lines)
    assert log.lines[1] == "Traceback (most recent call last):"


def test_a_long_message_is_cut(log: Log) -> None:
    log.logger.warning("%s", "x" * 1_000_000)
    assert len(log.lines[0]) <= LONGEST


@pytest.mark.parametrize("said", ["x" * 1_000_000, "x\n" * 500_000])
def test_a_traceback_with_long_words_is_cut(log: Log, said: str) -> None:
    try:
        raise ValueError(said)
    except ValueError:
        log.logger.exception("a round failed")
    assert sum(map(len, log.lines)) < 3 * LONGEST


def test_a_node_that_is_wrong_in_another_way_at_every_beat_does_not_fill_the_disk(log: Log) -> None:
    for beat in range(1000):
        log.logger.warning("the report of %s is not used: %s", "forger-1", f"found {beat}")
    log.logger.warning("the report of %s is not used: %s", "other-1", "found 5")
    assert len(log.lines) == MOST_AN_HOUR + 1
    assert log.lines[-2].endswith("(no more of these for an hour)")
    log.now += 3600
    log.logger.warning("the report of %s is not used: %s", "forger-1", "found 7")
    assert log.lines[-1].endswith("found 7")
