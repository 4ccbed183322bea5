"""Which ranks and nodes are killed during a certification."""

import random

import pytest

from stoker.cli.commands.start.certify import _with
from stoker.client.certify.evidence import Moment, Victim
from stoker.client.certify.watching import CertifiedWorld, with_victims
from stoker.errors import BadInput

PLANNED = [(Moment(1.0, 1.0, 0.3), Moment(2.0, 0.0, 0.2), Moment(3.0, 0.0, 0.2))] * 20


def test_evictions_without_notice_hit_every_rank_and_every_node_in_turns() -> None:
    world = CertifiedWorld(nodes=2, processes=2)
    found = [one for run in with_victims(PLANNED, world, random.Random(1)) for one in run]
    assert all((one.victim is None) == bool(one.notice_s) for one in found)
    victims = [one.victim for one in found if one.victim]
    assert {one.rank for one in victims} == {None, 0, 1, 2, 3}
    assert {one.node for one in victims if one.rank is None} == {0, 1}
    assert {(one.rank, one.node) for one in victims if one.rank is not None} == {(0, 0), (1, 0), (2, 1), (3, 1)}
    assert [one.rank is None for one in victims[:4]] in ([True, False] * 2, [False, True] * 2)


def test_one_process_is_evicted_as_before_and_ranks_of_one_node_are_killed() -> None:
    assert with_victims(PLANNED, CertifiedWorld(1, 1), random.Random(1)) == PLANNED
    found = [one.victim for run in with_victims(PLANNED, CertifiedWorld(1, 4), random.Random(1)) for one in run]
    assert {one.rank for one in found if one} == {0, 1, 2, 3}
    assert (str(Victim(1, 3)), str(Victim(1))) == ("rank 3", "node 1")


def test_ranks_are_divided_evenly_among_nodes() -> None:
    assert _with(4, 2) == ["nodes=2", "processes=2"]
    assert _with(4, None) == ["nodes=1", "processes=4"]
    assert (_with(None, 3), _with(None, None)) == (["nodes=3"], [])
    with pytest.raises(BadInput):
        _with(3, 2)
