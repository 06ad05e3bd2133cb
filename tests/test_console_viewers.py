"""Who may look: free on loopback by its own names, elsewhere by a token that may read the status, or by a proxy."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from belay.engine.errors import InputError
from belay.engine.kube import Kube, Unavailable
from belay.engine.serve.console.viewers import GOOD_SECONDS, NotAdmitted, Viewers, rules


class ReviewingApi:
    """An API server that answers reviews: tokens by user, and users that may read."""

    def __init__(self) -> None:
        self.users, self.readers = {"good": "ann", "other": "bob"}, {"ann"}
        self.asked: list[str] = []
        self.away = False

    async def create(self, resource: Any, body: dict[str, Any]) -> dict[str, Any]:
        if self.away:
            raise Unavailable("away")
        self.asked.append(resource.kind)
        if resource.kind == "TokenReview":
            user = self.users.get(body["spec"]["token"])
            return {"status": {"authenticated": user is not None, "user": {"username": user, "groups": ["dev"]}}}
        attributes = body["spec"]["resourceAttributes"]
        assert attributes == {"namespace": "belay-system", "verb": "get", "resource": "configmaps", "version": "v1"}
        return {"status": {"allowed": body["spec"]["user"] in self.readers}}


class World:
    def __init__(self, **options: Any) -> None:
        self.api, self.now = ReviewingApi(), 0.0
        kube: Any = self.api
        self.viewers = Viewers(rules(**{"free": False, **options}), _as_kube(kube), lambda: self.now)

    def admit(
        self, headers: dict[str, str] | None = None, host: str = "console.example", address: str = "10.9.9.9"
    ) -> str:
        return asyncio.run(self.viewers.admit(headers or {}, host, address))

    def refused(self, *args: Any, **more: Any) -> int:
        with pytest.raises(NotAdmitted) as caught:
            self.admit(*args, **more)
        return caught.value.status


def _as_kube(api: Any) -> Kube:
    return api  # type: ignore[no-any-return]


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "localhost:1", "[::1]:8080", "LOCALHOST:8080"])
def test_on_loopback_everyone_who_reaches_it_may_look(host: str) -> None:
    assert World(free=True).admit(host=host) == ""


@pytest.mark.parametrize(
    "host", ["", "evil.example", "evil.example:8080", "127.0.0.1.evil.example", "[::1", "10.0.0.1"]
)
def test_a_name_of_elsewhere_for_loopback_is_refused(host: str) -> None:
    assert World(free=True).refused(host=host) == 421


def test_a_named_host_is_accepted() -> None:
    assert World(free=True, hosts="my.laptop").admit(host="my.laptop:8080") == ""
    world = World(hosts="console.example")
    assert world.admit(bearer("good")) == "ann"
    assert world.refused(bearer("good"), host="evil.example") == 421


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Basic Z29vZA=="}, 401),
        ({"Authorization": "Bearer "}, 401),
        (bearer("unknown"), 401),
        (bearer("x" * 20_000), 401),
        (bearer("other"), 403),
        ({"X-User": "ann"}, 401),
    ],
)
def test_off_loopback_others_are_shown_nothing(headers: dict[str, str], status: int) -> None:
    assert World().refused(headers) == status


def test_a_token_that_may_read_the_status_may_look_and_is_asked_about_once_a_minute() -> None:
    world = World()
    assert world.admit(bearer("good")) == world.admit(bearer("good")) == "ann"
    assert world.api.asked == ["TokenReview", "SubjectAccessReview"]
    world.api.readers = set()
    world.now = GOOD_SECONDS + 1
    assert world.refused(bearer("good")) == 403


def test_while_the_api_server_is_away_no_one_new_is_admitted() -> None:
    world = World()
    world.api.away = True
    assert world.refused(bearer("good")) == 503
    world.api.away = False
    assert world.admit(bearer("good")) == "ann"


def test_a_proxy_names_its_user_from_its_own_address_only() -> None:
    world = World(proxy_header="X-Forwarded-User", proxies="10.0.0.7, 192.168.0.0/16")
    said = {"X-Forwarded-User": "ann@example.org"}
    assert world.admit(said, address="10.0.0.7") == world.admit(said, address="192.168.3.4") == "ann@example.org"
    assert world.admit(said, address="::ffff:10.0.0.7") == "ann@example.org"
    assert world.refused(said, address="10.0.0.8") == 401
    assert world.refused({"X-Forwarded-User": " "}, address="10.0.0.7") == 401


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"proxies": "nowhere"}, "BELAY_CONSOLE_PROXIES"),
        ({"proxy_header": "X-User"}, "BELAY_CONSOLE_PROXY_HEADER"),
        ({"proxy_header": "X User:", "proxies": "10.0.0.1"}, "BELAY_CONSOLE_PROXY_HEADER"),
    ],
)
def test_settings_that_would_let_anyone_in_are_errors(options: dict[str, str], where: str) -> None:
    with pytest.raises(InputError, match=where):
        rules(free=False, **options)
