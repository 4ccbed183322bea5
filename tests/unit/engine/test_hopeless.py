"""Errors of a provider: which are waited out, and which end a run at once with what somebody must do."""

from collections.abc import Callable
from datetime import datetime

import pytest

from stoker.engine.decision import Sighting
from stoker.engine.lifecycle import advance, begin
from stoker.engine.patience import HOPELESS, WEATHER
from stoker.model.run.run import AttemptState, Run, RunState

Make = Callable[..., Run]


def troubled(code: str) -> Sighting:
    return Sighting(trouble="as Azure says it", trouble_hint="az something", trouble_code=code)


@pytest.mark.parametrize("code", HOPELESS)
def test_what_only_somebody_can_mend_ends_the_run_at_the_first_try_with_what_to_do(
    make_run: Make, now: datetime, code: str
) -> None:
    ended = advance(begin(make_run(), now).run, troubled(code), now).run
    assert (ended.state, ended.exit_code, ended.hint) == (RunState.FAILED, 125, "az something")
    assert ended.cause == code and "as Azure says it" in ended.reason


@pytest.mark.parametrize("code", [*WEATHER, "provider-failed"])
def test_what_may_pass_is_waited_for_with_the_same_words(make_run: Make, now: datetime, code: str) -> None:
    waiting = advance(begin(make_run(), now).run, troubled(code), now).run
    assert (waiting.state, waiting.hint) == (RunState.QUEUED, "az something")
    assert (waiting.attempts[-1].state, waiting.attempts[-1].trouble) == (AttemptState.LOST, code)


def test_the_hint_is_gone_when_the_next_try_begins(make_run: Make, now: datetime) -> None:
    waiting = advance(begin(make_run(), now).run, troubled("login-failed"), now).run
    assert begin(waiting, now).run.hint == ""
