"""Shrinks a scenario with a broken promise as far as the same promise is still broken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stoker.testing.world.promises import PromiseBroken
from stoker.testing.world.scenario import Scenario
from stoker.testing.world.world import World


def broken(scenario: Scenario, world: type[World] = World) -> PromiseBroken | None:
    """The broken promise; None: every promise is kept. An engine that raises breaks one, too."""
    try:
        world(scenario).live()
    except PromiseBroken as found:
        return found
    except Exception as error:
        return PromiseBroken("the engine does not fail", f"{type(error).__name__}: {error}")
    return None


def shrunk(scenario: Scenario, promise: str, world: type[World] = World) -> Scenario:
    """Fewer faults, fewer runs, simpler ones: repeated while the promise is still broken."""
    while smaller := next((one for one in _smaller(scenario) if _breaks(one, promise, world)), None):
        scenario = smaller
    return scenario


def story(scenario: Scenario, kind: type[World] = World) -> list[str]:
    """The events of a scenario, line by line, up to the broken promise."""
    world = kind(scenario, trace=True)
    try:
        world.live()
        end = "every promise was kept"
    except PromiseBroken as found:
        end = f"broken: {found}"
    except Exception as error:
        end = f"broken: {type(error).__name__}: {error}"
    return [*(world.trace or []), end]


def _breaks(scenario: Scenario, promise: str, world: type[World]) -> bool:
    found = broken(scenario, world)
    return found is not None and found.promise == promise


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    mishaps, plans = scenario.mishaps, scenario.plans
    half = len(mishaps) // 2
    if half > 1:
        yield replace(scenario, mishaps=mishaps[:half])
        yield replace(scenario, mishaps=mishaps[half:])
    for number in range(len(mishaps)):
        yield replace(scenario, mishaps=mishaps[:number] + mishaps[number + 1 :])
    if len(plans) > 1:
        for number in range(len(plans)):
            yield replace(scenario, plans=plans[:number] + plans[number + 1 :])
    for number, plan in enumerate(plans):
        for simpler in (replace(plan, at=0.0), replace(plan, failures=0), replace(plan, skew_s=0.0)):
            if simpler != plan:
                yield replace(scenario, plans=(*plans[:number], simpler, *plans[number + 1 :]))
