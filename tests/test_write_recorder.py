"""Writes of Belay's code in tests are held against the rights of its accounts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from belay.engine.serve.grpc.listening import publish_problem
from tests.grpc_world import World, play
from tests.rights import Right
from tests.write_recorder import Write, account_of, asked, broken_rule


def test_requests_are_read_as_rights() -> None:
    assert asked("belay-engine", "GET", "/api/v1/nodes/n1") is None
    bound = asked("belay-engine", "POST", "/api/v1/namespaces/d/pods/p/binding")
    assert bound == Write("belay-engine", Right("create", "", "pods/binding", "d", "p"))
    made = asked("belay-engine", "POST", "/apis/batch/v1/namespaces/d/jobs")
    assert made == Write("belay-engine", Right("create", "batch", "jobs", "d", ""))
    node = asked("belay-agent", "PATCH", "/api/v1/nodes/n1?fieldManager=x")
    assert node == Write("belay-agent", Right("patch", "", "nodes", "", "n1"))


@pytest.mark.parametrize(
    ("account", "right", "allowed"),
    [
        ("belay-server", Right("update", "", "configmaps", "belay-system", "belay-server"), True),
        ("belay-server", Right("update", "", "configmaps", "belay-system", "belay-orders-n1"), False),
        ("belay-server", Right("delete", "", "pods", "d", "p"), False),
        ("belay-agent", Right("patch", "", "configmaps", "belay-nodes", "belay-report-n1"), True),
        ("belay-agent", Right("patch", "", "configmaps", "kube-system", "coredns"), False),
        ("belay-agent", Right("create", "", "pods/eviction", "d", "p"), False),
        ("belay-engine", Right("patch", "", "configmaps", "belay-system", "belay-sync"), True),
        ("belay-engine", Right("patch", "", "configmaps", "kube-system", "coredns"), False),
    ],
)
def test_what_an_account_may_not_write_is_found(account: str, right: Right, allowed: bool) -> None:
    assert (broken_rule(Write(account, right)) == "") is allowed


def test_what_a_test_writes_itself_has_no_account() -> None:
    assert account_of(sys._getframe()) == ""


def test_a_write_of_the_servers_code_is_recorded_as_the_servers(tmp_path: Path, recorded_writes: list[Write]) -> None:
    async def scenario(world: World) -> None:
        await publish_problem(world.kube, "server-a", "port 8899 is taken", 1000.0)

    play(tmp_path, scenario)
    right = Right("create", "", "configmaps", "belay-system", "belay-server")
    assert Write("belay-server", right) in recorded_writes
