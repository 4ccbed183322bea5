"""What is refused before a run is accepted because of its budget."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from stoker.errors import JobInvalid
from stoker.model.job.job import DataInput, Environment, Job
from stoker.model.node import Need, Offer
from stoker.server.admission import admit, check_software, to_store
from stoker.testing.fakes import FakeProvider


class Cloud(FakeProvider):
    def __init__(self, *offers: Offer) -> None:
        super().__init__()
        self._offers = list(offers)

    def offers(self, need: Need) -> list[Offer]:
        return [offer for offer in self._offers if offer.spot == need.spot]


class Market(FakeProvider):
    features = replace(FakeProvider.features, market=True)


BIG = Offer("cloud", "big", "here", Decimal(360), ready_s=60, release_s=125)  # ten cents a second, 200 seconds at least
SMALL = Offer("cloud", "small", "there", Decimal(36), spot=True, ready_s=60, release_s=125)


def job(budget: str, **more: Any) -> Job:
    return Job.read({"name": "ants", "run": "true", "on": "cloud", "budget": budget, **more})


def test_a_budget_below_the_cheapest_start_is_refused_with_the_minimum() -> None:
    with pytest.raises(JobInvalid) as refused:
        admit(job("19.99"), {"cloud": Cloud(BIG, SMALL)})
    (problem,) = refused.value.problems
    assert (problem.field, problem.found) == ("budget", "`$19.99`")
    assert problem.expected == "at least $20.00: the shortest run on the cheapest offer, a big in here, costs that"
    assert admit(job("20"), {"cloud": Cloud(BIG)}) == BIG


def test_the_cheapest_of_all_that_the_job_would_take_counts() -> None:
    fallback = {"spot": {"fallback": "on-demand"}}
    assert admit(job("2", **fallback), {"cloud": Cloud(BIG, SMALL)}) == SMALL
    with pytest.raises(JobInvalid, match=r"\$2\.00\b.*\bsmall\b") as refused:
        admit(job("1.99", **fallback), {"cloud": Cloud(BIG, SMALL)})
    assert [one.field for one in refused.value.problems] == ["budget"]


def test_any_budget_will_do_where_nothing_costs() -> None:
    free = Offer("cloud", "free", "here", Decimal(0))
    assert admit(job("0.01"), {"cloud": Cloud(free)}) == free


def test_data_of_this_computer_may_follow_a_plan() -> None:
    wanted = Job(
        name="ants",
        run="true",
        on="cloud",
        data={"a": DataInput(path="./data"), "b": DataInput(path="https://here/x"), "c": DataInput(dataset="c")},
    )
    assert admit(wanted, {"cloud": Cloud(BIG)}, data_follows=True) == BIG
    assert to_store(wanted, Cloud(BIG)) == ["a"]


def test_data_of_this_computer_is_refused_with_the_command_that_brings_it_there() -> None:
    for name, store in (("cloud", ""), ("cloud-twin", " --store twin")):
        wanted = Job(name="ants", run="true", on=name, data={"Images": DataInput(path="./data")})
        with pytest.raises(JobInvalid) as refused:
            admit(wanted, {name: Cloud(BIG)})
        (problem,) = refused.value.problems
        assert f"`stoker data put ./data --name images{store}` uploads it" in problem.expected
        assert "`Images: {dataset: images}` reads it" in problem.expected


def test_a_budget_pays_for_all_nodes_of_a_gang_or_the_run_is_refused() -> None:
    assert admit(job("$21", nodes=1), {"cloud": Cloud(BIG)}) == BIG
    with pytest.raises(JobInvalid) as refused:
        admit(job("$21", nodes=4), {"cloud": Cloud(BIG)})
    assert [one.field for one in refused.value.problems] == ["budget"] and "4 big" in str(refused.value)


def test_a_gang_larger_than_the_quota_is_refused_with_the_number() -> None:
    roomy = replace(BIG, slots=3)
    assert admit(job("$500", nodes=3), {"cloud": Cloud(roomy)}) == roomy
    with pytest.raises(JobInvalid) as refused:
        admit(job("$500", nodes=4), {"cloud": Cloud(roomy)})
    assert [one.field for one in refused.value.problems] == ["nodes"] and "at most 3" in str(refused.value)


def test_a_twin_of_a_provider_that_has_none_is_refused_with_a_cloud_that_has_one() -> None:
    wanted = Job(name="ants", run="true", on="desk-twin")
    providers = {"desk": Cloud(BIG), "cloud": Cloud(BIG), "cloud-twin": Cloud(BIG)}
    with pytest.raises(JobInvalid, match=r"`desk`.*`cloud`") as refused:
        admit(wanted, providers)
    assert refused.value.hint == "add `--on cloud`"


def test_packages_of_conda_are_refused_where_new_machines_have_none() -> None:
    asked = Job(name="x", run="true", environment=Environment(requirements="environment.yml"))
    with pytest.raises(JobInvalid):
        check_software(asked, Market(), locked=False)
    check_software(asked, Market(), locked=True)  # it had only packages of pip
    check_software(asked, FakeProvider(), locked=False)
