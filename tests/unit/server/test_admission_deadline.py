"""A deadline that no machine can meet is refused at the door."""

from dataclasses import replace
from decimal import Decimal

import pytest

from stoker.errors import JobInvalid
from stoker.model.job.job import Job
from stoker.model.node import Features, Need, Offer
from stoker.server.admission import admit
from stoker.testing.fakes import FakeProvider


class Slow(FakeProvider):
    features = Features(market=True, spot=True)

    def offers(self, need: Need) -> list[Offer]:
        return [Offer("cloud", "small", "here", Decimal(1), spot=need.spot, ready_s=90.0)]


JOB = Job(name="job", run="true", on="cloud", deadline=3600)


def test_a_deadline_shorter_than_a_start_is_refused_with_the_least() -> None:
    with pytest.raises(JobInvalid) as refused:
        admit(replace(JOB, deadline=60.0), {"cloud": Slow()})
    (problem,) = refused.value.problems
    assert (problem.field, problem.found) == ("deadline", "`60s`")
    assert problem.expected.startswith("more than 90s: a machine takes that long to start")


def test_a_longer_one_is_taken_in_and_may_use_spot() -> None:
    assert admit(JOB, {"cloud": Slow()}).spot


@pytest.mark.parametrize("wrong", [0, -5, "-1h", "yesterday", "2020-01-01"])
def test_a_deadline_in_the_past_is_no_deadline(wrong: object) -> None:
    with pytest.raises(JobInvalid) as refused:
        Job.read({"name": "job", "run": "true", "deadline": wrong})
    assert [problem.field for problem in refused.value.problems] == ["deadline"]
