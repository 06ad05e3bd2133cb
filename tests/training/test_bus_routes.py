"""Directions on the bus: who is meant, which way a message goes, what is refused."""

from __future__ import annotations

import pytest

from belay.agents.training.compat.bus import codes
from belay.agents.training.compat.bus.message import parse, ranks
from belay.agents.training.compat.bus.position import AGENT, ALL, MANAGER, PROXY, WORKER, Position
from belay.agents.training.compat.bus.routes import MAX_MEMBERS, DuplicateFilter, Routes

MGR = Position(MANAGER, "0")
PROXY_0, PROXY_1 = Position(PROXY, "0"), Position(PROXY, "1")
AGENT_0, AGENT_1 = Position(AGENT, "0"), Position(AGENT, "1")
WORKER_3 = Position(WORKER, "0", "3")


def manager() -> Routes:
    """Two pods: proxies are registered, agents and one worker known by their paths."""
    routes = Routes(MGR)
    for proxy in (PROXY_0, PROXY_1):
        assert routes.register(proxy) == 0
    assert routes.learn(PROXY_0, (AGENT_0, PROXY_0)) == 0
    assert routes.learn(PROXY_1, (AGENT_1, PROXY_1)) == 0
    assert routes.learn(PROXY_0, (WORKER_3, PROXY_0)) == 0
    return routes


def test_a_message_for_a_known_member_goes_down_its_path() -> None:
    assert manager().route(AGENT_1).down == (PROXY_1,)
    assert manager().route(WORKER_3).down == (PROXY_0,)


def test_a_broadcast_goes_once_down_every_path_to_a_member() -> None:
    route = manager().route(Position(AGENT, ALL))
    assert (route.down, route.broadcast) == ((PROXY_0, PROXY_1), True)
    assert manager().route(Position(AGENT, "1,0")).down == (PROXY_0, PROXY_1)
    assert manager().route(Position(WORKER, ALL, ALL)).down == (PROXY_0,)


def test_a_broadcast_from_below_does_not_return_where_it_came_from() -> None:
    assert manager().route(Position(AGENT, ALL), from_below=AGENT_0).down == (PROXY_1,)


def test_what_came_from_above_never_goes_up_again() -> None:
    proxy = Routes(PROXY_0)
    assert proxy.route(MGR, from_above=True).code == codes.NO_ROUTE
    assert proxy.route(AGENT_1, from_above=True).code == codes.NO_ROUTE
    assert proxy.route(AGENT_1).up
    assert proxy.route(MGR).up


def test_same_level_messages_of_others_go_up() -> None:
    agent = Routes(AGENT_0)
    assert agent.route(AGENT_0).here
    assert agent.route(AGENT_1).up
    assert agent.route(WORKER_3).up
    everybody = agent.route(Position(AGENT, ALL))
    assert everybody.here and everybody.up


@pytest.mark.parametrize(
    ("dst", "code"),
    [
        (Position("King", "0"), codes.BAD_ROLE),
        (Position(AGENT, "-1"), codes.BAD_SERVER_RANK),
        (Position(AGENT, "1,x"), codes.BAD_SERVER_RANK),
        (Position(AGENT, ""), codes.BAD_SERVER_RANK),
        (Position(AGENT, "٣"), codes.BAD_SERVER_RANK),
        (Position(WORKER, "0", "one"), codes.BAD_PROCESS_RANK),
        (Position(WORKER, "0", "-1"), codes.BAD_PROCESS_RANK),
        (Position(AGENT, "7"), codes.NO_ROUTE),
        (MGR, 0),
        (Position(AGENT, "xAlly"), 0),
    ],
)
def test_destinations_are_checked(dst: Position, code: int) -> None:
    assert manager().route(dst).code == code


def test_only_members_of_lower_levels_register() -> None:
    routes = Routes(PROXY_0)
    assert routes.register(AGENT_0) == 0
    assert routes.register(MGR) == codes.BAD_ROLE
    assert routes.register(PROXY_1) == codes.BAD_ROLE
    assert routes.register(Position("", "0")) == codes.BAD_ROLE
    assert routes.register(Position(AGENT, "All")) == codes.BAD_SERVER_RANK
    assert routes.register(Position(WORKER, "0", "-1")) == codes.BAD_PROCESS_RANK


def test_five_thousand_members_are_taken_and_no_more() -> None:
    routes = Routes(MGR)
    assert all(routes.register(Position(PROXY, str(rank))) == 0 for rank in range(MAX_MEMBERS))
    assert routes.register(Position(PROXY, str(MAX_MEMBERS))) == codes.TOO_MANY_MEMBERS
    assert routes.register(Position(PROXY, "17")) == 0
    routes.forget(Position(PROXY, "17"))
    assert routes.register(Position(PROXY, str(MAX_MEMBERS))) == 0


def test_a_member_that_leaves_takes_its_paths_along() -> None:
    routes = manager()
    routes.forget(PROXY_0)
    assert routes.route(WORKER_3).code == codes.NO_ROUTE
    assert routes.route(Position(AGENT, ALL)).down == (PROXY_1,)
    assert routes.learn(PROXY_0, (AGENT_0,)) == codes.NO_ROUTE


def test_second_deliveries_are_detected_within_bounds() -> None:
    seen = DuplicateFilter(limit=2)
    assert [seen.again(one) for one in ("a", "a", "b", "c", "a", "")] == [False, True, False, False, False, False]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "not JSON"),
        ("[1]", "a list, not an object"),
        ('{"msg_type": 3}', "msg_type"),
        ('{"code": 1.5}', "code is a float"),
        ('{"code": true}', "code is a bool"),
        ('{"message": {}}', "message is a dict"),
        ('{"extension": []}', "extension is a list"),
        ('{"extension": {"a": 1}}', "extension.a is a int"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_unreadable_bodies_are_refused_with_the_field(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        parse(text)


def test_lists_of_ranks_are_read_and_bounded() -> None:
    assert ranks('["2", 11, "2"]') == (2, 11)
    assert ranks("") == ()
    for bad in ("{}", "[-1]", '["x"]', "[true]", "[1.0]", "[" * 9999):
        with pytest.raises(ValueError):
            ranks(bad)
    with pytest.raises(ValueError, match="at most 3"):
        ranks("[1,2,3,4]", limit=3)
