"""The twin's weather, prices and bill: drawn from a seed, and the same for the same seed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from twinasks import Asker, wall

from stoker.twin import state
from stoker.twin.market import catalog, prices
from stoker.twin.market import prices as meter
from stoker.twin.state import Charge, PriceOrder
from stoker.twin.time import passing, power
from stoker.twin.time.weather import FORECASTS, OrderedFault, Weather, forecast, take

D4 = catalog.SIZES["standard_d4s_v5"]
SPOT = {"priority": "Spot", "evictionPolicy": "Deallocate"}


def test_the_same_seed_brings_the_same_trouble() -> None:
    first, again, other = forecast("storm", 1), forecast("storm", 1), forecast("storm", 2)
    assert [first.trouble(n) for n in range(500)] == [again.trouble(n) for n in range(500)]
    assert [first.trouble(n) for n in range(500)] != [other.trouble(n) for n in range(500)]


def test_trouble_comes_as_often_as_it_is_set() -> None:
    weather = Weather(throttled=0.1, slow=0.2, lost=0.05)
    drawn = [weather.trouble(number) for number in range(20_000)]
    shares = {word: drawn.count(word) / len(drawn) for word in ("throttle", "slow", "lose", "")}
    assert shares == pytest.approx({"throttle": 0.1, "slow": 0.2, "lose": 0.05, "": 0.65}, abs=0.01)


def test_in_calm_weather_nothing_happens_by_itself() -> None:
    calm = FORECASTS["calm"]
    assert {calm.trouble(number) for number in range(1000)} == {""}
    assert calm.next_eviction_s("machine", 0.0) == math.inf
    assert not any(calm.allocation_fails(number) for number in range(1000))


def test_evictions_come_at_their_rate() -> None:
    weather = Weather(evictions_per_hour=4)
    drawn = [weather.next_eviction_s(f"machine-{number}", 0.0) for number in range(5000)]
    assert sum(drawn) / len(drawn) == pytest.approx(900, rel=0.05)


def test_the_weather_evicts_a_spot_machine_and_leaves_others_alone() -> None:
    azure = Asker(Weather(evictions_per_hour=60, notices_s=(8.0,)))
    azure.ready_vm("spot", **SPOT)
    azure.ready_vm("steady")
    for _ in range(600):
        azure.pass_time(1)
    assert (azure.power("spot"), azure.power("steady")) == ("deallocated", "running")
    assert ("power_off", "spot") in azure.done


def test_a_withdrawn_notice_disappears_and_the_machine_continues() -> None:
    azure = Asker()
    vm = azure.ready_vm(**SPOT).vm
    resource = azure.cloud.find(vm)
    assert resource
    azure.cloud = power.preempt(azure.cloud, resource, azure.now, wall, notice_s=30, withdrawn=True)
    assert len(power.document(azure.cloud, vm, wall)["Events"]) == 1
    azure.pass_time(20)
    told = power.document(azure.cloud, vm, wall)
    assert (told["Events"], told["DocumentIncarnation"]) == ([], 2)
    azure.pass_time(60)
    assert azure.power() == "running"


def test_without_notice_the_machine_is_off_at_once() -> None:
    azure = Asker()
    vm = azure.ready_vm(**SPOT).vm
    resource = azure.cloud.find(vm)
    assert resource
    azure.cloud = power.preempt(azure.cloud, resource, azure.now, wall, notice_s=0, withdrawn=False)
    azure.pass_time()
    assert azure.power() == "deallocated"
    assert [verb for verb, _ in azure.done] == ["create", "power_off"]


def test_a_machine_that_acknowledges_its_notice_is_taken_at_once() -> None:
    azure = Asker()
    instance = azure.ready_vm(**SPOT)
    azure.ask("POST", azure.path("vm", "simulateEviction"))
    event = power.document(azure.cloud, instance.vm, wall)["Events"][0]["EventId"]
    azure.cloud = power.acknowledged(azure.cloud, instance.name, ["unknown"], azure.now)
    azure.pass_time()
    assert azure.power() == "running"
    azure.cloud = power.acknowledged(azure.cloud, instance.name, [event], azure.now)
    azure.pass_time()
    assert azure.power() == "deallocated"


def test_a_fault_on_order_befalls_the_requests_it_fits_as_often_as_ordered() -> None:
    faults: tuple[OrderedFault, ...] = (OrderedFault("slow", "PUT", "virtualMachines", times=2), OrderedFault("lose"))
    fault, faults = take(faults, ("slow", "lose"), "PUT", "/a/VIRTUALMACHINES/b")
    assert (fault and fault.kind, len(faults)) == ("slow", 2)
    fault, faults = take(faults, ("slow", "lose"), "GET", "/a/virtualMachines/b")
    assert (fault and fault.kind, len(faults)) == ("lose", 1)
    fault, faults = take(faults, ("slow", "lose"), "PUT", "/virtualMachines")
    assert (fault and fault.kind, len(faults)) == ("slow", 0)


def test_spot_prices_move_within_their_swing_and_hold_for_a_step() -> None:
    cloud = state.fresh(Weather(seed=3, price_swing=0.2))
    usual = catalog.on_demand_usd(D4, "eastus") * D4.spot_share
    seen = [prices.spot_usd(cloud, D4, "eastus", step * prices.STEP_S) for step in range(500)]
    assert all(0.8 * usual <= price <= 1.2 * usual for price in seen)
    assert len(set(seen)) > 400
    assert prices.spot_usd(cloud, D4, "eastus", 0) == prices.spot_usd(cloud, D4, "eastus", prices.STEP_S - 1)


def test_the_bill_is_by_the_second_and_follows_the_price() -> None:
    cloud = state.fresh(Weather())
    orders = (PriceOrder("Standard_D4s_v5", "eastus", 0, 3.6), PriceOrder("Standard_D4s_v5", "eastus", 100, 7.2))
    cloud = replace(cloud, prices=orders)
    cloud = meter.begin(cloud, Charge("vm", "spot", "Standard_D4s_v5", "eastus", 0.0))
    assert meter.bill(cloud, 100)["usd"] == pytest.approx(0.1)
    assert meter.bill(cloud, 150)["usd"] == pytest.approx(0.2)
    cloud = meter.end(cloud, "VM", 150)
    told = meter.bill(cloud, 10_000)
    assert (told["usd"], told["usd_per_hour"]) == (pytest.approx(0.2), 0)


def test_a_bill_over_many_prices_is_the_sum_of_its_stretches() -> None:
    cloud = state.fresh(Weather(seed=5))
    charge = Charge("vm", "spot", "Standard_D4s_v5", "eastus", 17.0, 7_321.0)
    by_second = sum(prices.spot_usd(cloud, D4, "eastus", 17 + second) / 3600 for second in range(7_304))
    assert prices.usd(cloud, charge, 99_999) == pytest.approx(by_second, rel=1e-9)


def test_what_is_on_all_day_costs_its_hourly_price() -> None:
    azure = Asker()
    azure.ready_vm()
    before = meter.bill(azure.cloud, azure.now)["usd"]
    after = meter.bill(azure.cloud, azure.now + 3600)
    assert after["usd"] - before == pytest.approx(after["usd_per_hour"], rel=1e-5)
    assert after["usd_per_hour"] == pytest.approx(0.192 * 1.2 + 5.28 / 730, rel=1e-3)


def test_a_chore_that_fails_fails_the_operation_that_waits_for_it() -> None:
    azure = Asker()
    azure.group()
    azure.network()
    azure.vm()
    (chore,) = azure.cloud.chores.values()
    azure.cloud = passing.performed(azure.cloud, chore.id, None, "OSError: no room")
    azure.pass_time(2)
    assert azure.ask("GET", azure.path()).body["properties"]["provisioningState"] == "Failed"
