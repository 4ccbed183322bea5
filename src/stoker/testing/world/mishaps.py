"""How each fault affects the world, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from stoker.engine.decision import Decision, evict
from stoker.model.orders import Wish
from stoker.model.run.run import Run
from stoker.testing.world.agent import Agent
from stoker.testing.world.cloud import DEAR
from stoker.testing.world.scenario import Mishap, MishapKind

if TYPE_CHECKING:
    from stoker.testing.world.world import World

LASTING = (MishapKind.STOP_REFUSED, MishapKind.BLIND, MishapKind.LOGGED_OUT)
NEXT_REQUEST = (
    MishapKind.START_REFUSED,
    MishapKind.START_THROTTLED,
    MishapKind.START_TOO_DEAR,
    MishapKind.START_UNTOLD,
    MishapKind.STOP_UNTOLD,
)
MANY = 8  # losses in a row


def befall(world: World, mishap: Mishap) -> None:
    fault = mishap.fault
    world.server.catch_up()
    world.note(f"-- {fault}" + (f" for {mishap.seconds:.0f} s" if mishap.seconds else ""))
    if fault in NEXT_REQUEST:
        world.cloud.faults[fault] += 1
    elif fault in LASTING:
        _for_a_while(world, mishap, lambda by: world.cloud.faults.update({fault: by}))
    elif fault in ON_A_NODE:
        if agent := world.agent_of(mishap.run, mishap.where):
            ON_A_NODE[fault](world, agent, mishap.seconds)
    else:
        ELSEWHERE[fault](world, mishap)


def _for_a_while(world: World, mishap: Mishap, change: Callable[[int], None]) -> None:
    change(1)

    def passes() -> None:
        change(-1)
        world.stirred()

    world.stirred()
    world.timeline.after(mishap.seconds, passes)


def _eviction(world: World, agent: Agent, seconds: float) -> None:
    if seconds:
        agent.warn(seconds)
    world.timeline.after(seconds, lambda: world.cloud.take_away(agent.machine, "it was evicted"))


def _false_alarm(world: World, agent: Agent, seconds: float) -> None:
    agent.warn(60.0)
    world.timeline.after(min(seconds, 30.0), agent.reassure)


def _death(world: World, agent: Agent, _seconds: float) -> None:
    world.cloud.take_away(agent.machine, "it died", taken=False)


def _unseen(world: World, agent: Agent, seconds: float) -> None:
    machine = agent.machine
    machine.unseen += 1
    world.stirred()

    def seen_again() -> None:
        machine.unseen -= 1
        world.stirred()

    world.timeline.after(seconds, seen_again)


ON_A_NODE: dict[MishapKind, Callable[[World, Agent, float], None]] = {
    MishapKind.EVICTION: _eviction,
    MishapKind.FALSE_ALARM: _false_alarm,
    MishapKind.DEATH: _death,
    MishapKind.HANG: lambda _, agent, seconds: agent.hang(seconds),
    MishapKind.CUT_OFF: lambda _, agent, seconds: agent.cut_off(seconds),
    MishapKind.SLOWNESS: lambda _, agent, __: agent.slow_down(),
    MishapKind.UNSEEN: _unseen,
}


def _full_store(world: World, mishap: Mishap) -> None:
    run = world.run_of(mishap.run)
    if run is None:
        return
    shelf = world.shelves[run.id]
    agents = [agent for agent in world.agents.values() if agent.machine.run == run.id and agent.alive]
    shelf.full += 1
    for agent in agents:
        agent.reports.mute()

    def has_room() -> None:
        shelf.full -= 1
        for agent in agents:
            agent.reports.unmute()

    world.timeline.after(mishap.seconds, has_room)


def _store_hangs(world: World, mishap: Mishap) -> None:
    agents = [agent for agent in world.agents.values() if agent.alive]
    shelves = list(world.shelves.values())
    world.server.deafen(1)
    for shelf in shelves:
        shelf.full, shelf.hung = shelf.full + 1, shelf.hung + 1
    for agent in agents:
        agent.reports.mute(by_store=True)

    def answers() -> None:
        for shelf in shelves:
            shelf.full, shelf.hung = shelf.full - 1, shelf.hung - 1
        for agent in agents:
            agent.reports.unmute(by_store=True)
        world.server.deafen(-1)

    world.timeline.after(mishap.seconds, answers)


def _key_rotated(world: World, mishap: Mishap) -> None:
    world.server.deafen(1)
    world.timeline.after(mishap.seconds, lambda: world.server.deafen(-1))


def _losses(world: World, mishap: Mishap) -> None:
    def strike(left: int) -> None:
        world.server.catch_up()
        if agent := world.agent_of(mishap.run, mishap.where):
            _death(world, agent, 0.0)
        if left:
            world.timeline.after(mishap.seconds, lambda: strike(left - 1))

    strike(MANY)


def _no_capacity(world: World, mishap: Mishap) -> None:
    if not world.scenario.places:
        return
    place = world.scenario.places[mishap.run % len(world.scenario.places)].name
    world.cloud.close(place)
    world.timeline.after(mishap.seconds, lambda: world.cloud.open(place))


def _dear(world: World, mishap: Mishap) -> None:
    if not world.scenario.places:
        return
    place = world.scenario.places[mishap.run % len(world.scenario.places)].name
    world.cloud.reprice(place, world.cloud.prices[place] * DEAR)
    world.timeline.after(mishap.seconds, lambda: world.cloud.reprice(place, world.cloud.prices[place] / DEAR))


def _crash(world: World, mishap: Mishap) -> None:
    if world.server.up:
        world.server.crash_soon(mishap.where, mishap.seconds)


def _clock(world: World, mishap: Mishap) -> None:
    ahead = mishap.where % 2 == 1
    world.server.clock_wrong_s += mishap.seconds if ahead else -mishap.seconds
    _crash(world, replace(mishap, seconds=5.0))


def _cancel(world: World, mishap: Mishap) -> None:
    run = world.run_of(mishap.run)
    if run and not run.state.ended:
        world.server.change(run.id, _cancelled)
        world.stirred()


def _cancelled(run: Run) -> Decision:
    return Decision(run if run.state.ended else replace(run, wish=Wish.CANCEL))


def _drill(world: World, mishap: Mishap) -> None:
    run = world.run_of(mishap.run)
    if run:
        world.server.change(run.id, lambda seen: evict(seen, mishap.seconds, world.server.now))
        world.stirred()


def _cluster_paused(world: World, mishap: Mishap) -> None:
    if names := sorted(world.clusters):
        name = names[mishap.run % len(names)]
        world.pause(name, paused=True)
        world.timeline.after(mishap.seconds, lambda: world.pause(name, paused=False))


ELSEWHERE: dict[MishapKind, Callable[[World, Mishap], None]] = {
    MishapKind.FULL_STORE: _full_store,
    MishapKind.STORE_HANGS: _store_hangs,
    MishapKind.KEY_ROTATED: _key_rotated,
    MishapKind.LOSSES: _losses,
    MishapKind.NO_CAPACITY: _no_capacity,
    MishapKind.DEAR: _dear,
    MishapKind.CRASH: _crash,
    MishapKind.CLOCK: _clock,
    MishapKind.CANCEL: _cancel,
    MishapKind.DRILL: _drill,
    MishapKind.CLUSTER_PAUSED: _cluster_paused,
}
