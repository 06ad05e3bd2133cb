"""Agents over HTTP: the client, the shared watches, and a fleet against the sandbox's API server."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from belay.agents.common.client import ApiError, KubeClient
from belay.agents.common.clock import Clock
from belay.agents.common.credentials import CredentialsError, load
from belay.agents.common.log import JsonLines
from belay.agents.daemon.fleet import Fleet, FleetNode, without
from belay.agents.daemon.run import run_agent, run_fleet
from belay.agents.daemon.shared_watches import SharedWatches
from belay.agents.drivers.choice import make_driver
from belay.agents.drivers.server_models import SERVER_MODELS
from belay.agents.drivers.simulated import ServerModel, SimulatedDriver
from belay.agents.node.agent_lock import AgentLock
from belay.agents.node.settings import Settings
from belay.engine import log
from belay.engine.model.cluster import AgentReport, DeviceReport, Orders, ResetOrder
from belay.engine.sandbox.api.faults import FaultRule
from belay.engine.sandbox.api.server import ApiServer
from belay.engine.wire import deviceinfo
from belay.engine.wire.names import DEVICE_NAMESPACE, DEVICE_PREFIX, NODES, REPORT_PREFIX, SIM_PREFIX, SYSTEM
from belay.engine.wire.orders import build_orders, parse_report
from belay.engine.wire.policy import NodePolicy
from tests.agent_world import FAULT, NODE, RULES, FakeCluster, VirtualClock, play, pod, settle

pytestmark = pytest.mark.real_time

FAST = Settings(scale=0.02, spacing=0.05, poll=0.2, tick=0.05, recover_delay=0.05)


@asynccontextmanager
async def sandbox(folder: Path) -> AsyncIterator[tuple[ApiServer, KubeClient, str]]:
    server = ApiServer(token="secret")
    await server.start()
    kubeconfig = folder / "kubeconfig"
    server.write_kubeconfig(kubeconfig)
    client = KubeClient(load(str(kubeconfig)), chance=random.Random(1))
    for namespace in (SYSTEM, NODES):
        await ensure_namespace(client, namespace)
    try:
        yield server, client, str(kubeconfig)
    finally:
        await client.close()
        await server.stop()


async def ensure_namespace(client: KubeClient, name: str) -> None:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    try:
        await client._send("POST", "/api/v1/namespaces", body, "application/json")
    except ApiError as error:
        if error.status != 409:
            raise


async def until(check: Callable[[], Awaitable[Any]], seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        value = await check()
        if value:
            return value
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.02)


async def device(client: KubeClient, node: str = NODE) -> DeviceReport | None:
    body = await client.get_config_map(DEVICE_NAMESPACE, DEVICE_PREFIX + node)
    return deviceinfo.parse(body) if body else None


async def report(client: KubeClient, node: str = NODE) -> AgentReport | None:
    body = await client.get_config_map(NODES, REPORT_PREFIX + node)
    return parse_report(body) if body else None


def control(spec: dict[str, Any], node: str = NODE) -> dict[str, Any]:
    metadata = {"name": SIM_PREFIX + node, "namespace": NODES}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {"faults.json": json.dumps(spec), "node.json": "{}"},
    }


def reset_order(node: str, chip: int, epoch: int, generation: int = 1) -> dict[str, Any]:
    now = int(time.time() * 1000)
    order = ResetOrder(epoch, tuple(range(8)), "RestartNPU", 0)
    orders = Orders(node, "", generation, "r", "", now, now + 60_000, {}, {chip: order}, 0, {})
    return build_orders(orders, "Ascend910-")


def test_a_fault_injected_through_the_api_is_reset_through_the_api(tmp_path: Path) -> None:
    async def story() -> None:
        async with sandbox(tmp_path) as (_, client, kubeconfig):
            stop = asyncio.Event()
            nodes = [FleetNode(name=f"n{i}", seed=i) for i in range(3)]
            policy = NodePolicy("default", RULES)
            task = asyncio.create_task(
                run_fleet(
                    nodes, state_dir=tmp_path / "state", kubeconfig=kubeconfig, settings=FAST, policy=policy, stop=stop
                )
            )
            for node in nodes:
                found = await until(lambda name=node.name: report(client, name))  # type: ignore[misc]
                assert set(found.chips) == set(range(8))
            await client.put_config_map(control({"Ascend910-3": {"codes": [FAULT], "network": ["ABCD"]}}, "n1"))
            await until(lambda: _unhealthy(client, "n1", 8))
            assert await _unhealthy(client, "n0", 0)
            await client.put_config_map(reset_order("n1", 3, 7))
            done = await until(lambda: _done(client, "n1", 7))
            assert done.chips[3].reset_result == "ok" and done.orders_seen == 1
            await until(lambda: _unhealthy(client, "n1", 0))
            # the reset took its fault out of the description, and nothing else
            await until(lambda: _described(client, "n1", {"Ascend910-3": {"network": ["ABCD"]}}))
            body = await client.get_config_map(NODES, SIM_PREFIX + "n1")
            assert body is not None and body["data"]["node.json"] == "{}"
            stop.set()
            await asyncio.wait_for(task, 60)

    play(story)


async def _unhealthy(client: KubeClient, node: str, mask: int) -> bool:
    found = await device(client, node)
    return found is not None and found.unhealthy == mask and found.recovering == 0


async def _done(client: KubeClient, node: str, epoch: int) -> AgentReport | None:
    found = await report(client, node)
    return found if found and found.chips[3].reset_epoch_done == epoch else None


async def _described(client: KubeClient, node: str, spec: dict[str, Any]) -> bool:
    body = await client.get_config_map(NODES, SIM_PREFIX + node)
    return body is not None and json.loads(body["data"]["faults.json"]) == spec


def test_one_agent_survives_errors_dropped_watches_and_lag(tmp_path: Path) -> None:
    async def story() -> None:
        async with sandbox(tmp_path) as (server, client, kubeconfig):
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
            await client._send("POST", "/api/v1/nodes", node, "application/json")
            server.faults.add(FaultRule(mode="error", status=500, probability=0.3, seed=1, duration=2))
            server.faults.add(FaultRule(mode="error", status=429, probability=0.2, seed=2, duration=2))
            server.faults.add(FaultRule(mode="drop-watch", latency=0.05, probability=0.5, seed=3, duration=2))
            stop = asyncio.Event()
            task = asyncio.create_task(
                run_agent(
                    NODE,
                    driver="simulated",
                    journal_dir=tmp_path / "a",
                    kubeconfig=kubeconfig,
                    settings=FAST,
                    stop=stop,
                )
            )
            await asyncio.sleep(0.3)
            with_retry = KubeClient(load(kubeconfig))
            for _ in range(50):
                try:
                    await with_retry.put_config_map(reset_order(NODE, 3, 2, generation=5))
                    break
                except ApiError:
                    await asyncio.sleep(0.05)
            await with_retry.close()
            server.faults.clear()
            await until(lambda: _seen(client, 5))
            await until(lambda: _labelled(client), 15)
            stop.set()
            await asyncio.wait_for(task, 60)

    play(story)


def test_a_second_agent_waits_for_the_end_of_the_first_and_runs_no_epoch_again(tmp_path: Path) -> None:
    """A pod deleted by force may run on beside its successor; both would find the same epoch in their orders."""

    async def story() -> None:
        async with sandbox(tmp_path) as (_, client, kubeconfig):
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
            await client._send("POST", "/api/v1/nodes", node, "application/json")
            clock, row = Clock(), SERVER_MODELS["atlas-800t-a2"]
            # one machine: both reach the same chips
            driver = SimulatedDriver(NODE, row, scale=0.02, now_ms=clock.now_ms, sleep=clock.sleep)
            stops = [asyncio.Event(), asyncio.Event()]
            agents = [
                asyncio.create_task(
                    run_agent(
                        NODE, driver=driver, journal_dir=tmp_path / "a", kubeconfig=kubeconfig, settings=FAST, stop=stop
                    )
                )
                for stop in stops
            ]
            first = await until(lambda: report(client), 15)
            driver.inject(3, FAULT)
            await client.put_config_map(reset_order(NODE, 3, 2, generation=5))
            done = await until(lambda: _done(client, NODE, 2))
            assert done.chips[3].reset_result == "ok" and driver.resets == [tuple(range(8))]
            driver.inject(3, FAULT)
            stops[0].set()
            await asyncio.wait_for(agents[0], 10)
            # the successor knows what was done, though its order still stands
            after = await until(lambda: _of_another(client, first.boot), 15)
            assert after.chips[3].reset_epoch_done == 2 and driver.resets == [tuple(range(8))]
            stops[1].set()
            await asyncio.wait_for(agents[1], 10)

    play(story)


async def _of_another(client: KubeClient, boot: str) -> AgentReport | None:
    found = await report(client)
    return found if found is not None and found.boot != boot else None


def test_a_waiting_agent_can_be_ended_and_a_folder_without_locks_stops_no_agent(tmp_path: Path) -> None:
    async def story() -> None:
        held, waits = AgentLock(tmp_path / "s"), AgentLock(tmp_path / "s")
        await held.take()
        waiting = asyncio.create_task(waits.take())
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        held.release()
        await asyncio.wait_for(waits.take(), 5)
        waits.release()
        (tmp_path / "file").write_text("")
        await asyncio.wait_for(AgentLock(tmp_path / "file" / "s").take(), 5)

    asyncio.run(story())


async def _labelled(client: KubeClient) -> bool:
    labels = ((await client.get_node(NODE) or {})["metadata"]).get("labels") or {}
    return bool(labels.get("accelerator") == "huawei-Ascend910")


async def _seen(client: KubeClient, generation: int) -> bool:
    found = await report(client)
    return found is not None and found.orders_seen == generation


def test_following_sees_every_state_and_resumes_after_a_drop(tmp_path: Path) -> None:
    async def story() -> None:
        async with sandbox(tmp_path) as (server, client, _):
            server.faults.add(FaultRule(mode="drop-watch", latency=0.02, probability=0.7, seed=3))
            seen: list[str] = []

            async def follow() -> None:
                async for body in client.config_map(NODES, "x"):
                    seen.append(body["data"]["k"] if body else "-")

            task = asyncio.create_task(follow())
            for number in range(12):
                await client.put_config_map(
                    {
                        "apiVersion": "v1",
                        "kind": "ConfigMap",
                        "metadata": {"name": "x", "namespace": NODES},
                        "data": {"k": str(number)},
                    }
                )
                await asyncio.sleep(0.05)
            await until(lambda: _last(seen, "11"), 15)
            numbers = [int(s) for s in seen if s != "-"]
            assert numbers == sorted(numbers)
            task.cancel()

    play(story)


async def _last(seen: list[str], wanted: str) -> bool:
    return bool(seen) and seen[-1] == wanted


def test_a_conflict_differs_from_a_missing_object(tmp_path: Path) -> None:
    async def story() -> None:
        async with sandbox(tmp_path) as (_, client, _kubeconfig):
            assert await client.get_config_map(NODES, "none") is None and await client.get_node("none") is None
            await client.put_config_map(control({}))
            first = await client.get_config_map(NODES, SIM_PREFIX + NODE)
            assert first is not None
            await client.put_config_map(control({"hang": True}))
            with pytest.raises(ApiError) as caught:
                await client.replace_config_map(first)
            assert caught.value.status == 409
            # a merge leaves what others wrote
            await client.put_config_map(
                {"metadata": {"name": SIM_PREFIX + NODE, "namespace": NODES}, "data": {"faults.json": "{}"}}
            )
            body = await client.get_config_map(NODES, SIM_PREFIX + NODE)
            assert body is not None and body["data"] == {"faults.json": "{}", "node.json": "{}"}
            with pytest.raises(ApiError, match="404"):
                await client.put_config_map({"metadata": {"name": "x", "namespace": "nowhere"}, "data": {}})

    play(story)


def test_an_api_server_that_is_not_there_is_an_error_without_secrets(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config("http://127.0.0.1:1/sekret", {"token": "sekret"})))

    async def story() -> None:
        client = KubeClient(load(str(path)))
        with pytest.raises(ApiError) as caught:
            await client.get_node("x")
        assert caught.value.status == 0 and "sekret" not in str(caught.value)
        await client.close()

    play(story)


def test_the_hub_hands_changes_to_whom_they_concern(tmp_path: Path) -> None:
    async def story() -> None:
        async with sandbox(tmp_path) as (_, client, _kubeconfig):
            watches = SharedWatches(client)
            task = asyncio.create_task(watches.run())
            seen: dict[str, list[Any]] = {"a": [], "b": [], "pods": []}

            async def follow(name: str) -> None:
                async for body in watches.config_map(NODES, SIM_PREFIX + name):
                    seen[name].append(body and json.loads(body["data"]["faults.json"]))

            async def follow_pods() -> None:
                async for bodies in watches.pods(NODE):
                    seen["pods"].append(sorted(b["metadata"]["name"] for b in bodies))

            tasks = [
                asyncio.create_task(follow("a")),
                asyncio.create_task(follow("b")),
                asyncio.create_task(follow_pods()),
            ]
            await until(lambda: _all_started(seen))
            await client.put_config_map(control({"hang": True}, "a"))
            await client.put_config_map(report_like("belay-report-a"))
            one = pod("p1", ["Ascend910-0"])
            one["spec"]["containers"][0]["image"] = "x"
            await client._send("POST", "/api/v1/namespaces/default/pods", one, "application/json")
            await until(lambda: _last_pods(seen["pods"]))
            assert seen["a"] == [None, {"hang": True}] and seen["b"] == [None]
            for each in [*tasks, task]:
                each.cancel()

    play(story)


def report_like(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": NODES},
        "data": {"k": "v" * 3000},
    }


async def _all_started(seen: dict[str, list[Any]]) -> bool:
    return all(seen.values())


async def _last_pods(seen: list[Any]) -> bool:
    return bool(seen) and seen[-1] == ["p1"]


def test_healing_is_recorded_against_concurrent_injections(tmp_path: Path) -> None:
    async def story() -> None:
        clock = VirtualClock()
        cluster = FakeCluster(clock)
        fleet = Fleet(cluster, tmp_path, Settings(), clock=clock, chance=random.Random(1))
        cluster.set_map(control({"Ascend910-3": {"codes": [FAULT]}, "Ascend910-4": {"codes": ["B"]}}))
        fleet.add(FleetNode(name=NODE))
        await settle()
        injected = False

        def inject(name: str) -> None:
            nonlocal injected
            if name.startswith(SIM_PREFIX) and not injected:
                injected = True
                cluster.set_map(control({"Ascend910-3": {"codes": [FAULT, "NEW"]}, "Ascend910-4": {"codes": ["B"]}}))

        cluster.after_get = inject
        fleet._heal(NODE, [3])
        await clock.advance(5)
        body = cluster.maps[(NODES, SIM_PREFIX + NODE)]
        assert json.loads(body["data"]["faults.json"]) == {
            "Ascend910-3": {"codes": ["NEW"]},
            "Ascend910-4": {"codes": ["B"]},
        }
        await fleet.close()

    play(story)


def test_what_a_reset_heals_is_taken_out_of_the_description() -> None:
    spec = {
        "Ascend910-1": {"codes": ["a", "b"], "drop": True, "once": ["c"]},
        "Ascend910-2": {"codes": ["a"]},
        "resetFails": 1,
    }
    assert without(spec, {"Ascend910-1": ["A"]}) == {
        "Ascend910-1": {"codes": ["b"]},
        "Ascend910-2": {"codes": ["a"]},
        "resetFails": 1,
    }
    assert without(spec, {"Ascend910-1": ["A", "B"], "Ascend910-2": ["A"]}) == {"resetFails": 1}


def test_a_bad_description_is_ignored_and_the_node_goes_on(tmp_path: Path) -> None:
    async def story() -> None:
        clock = VirtualClock()
        cluster = FakeCluster(clock)
        fleet = Fleet(
            cluster, tmp_path, Settings(), clock=clock, policy=NodePolicy("default", RULES), chance=random.Random(1)
        )
        fleet.add(FleetNode(name=NODE))
        fleet.add(FleetNode(name=NODE))
        await clock.advance(5)
        body = control({})
        for text in ("{", "[]", '{"Ascend910-99": {}}', '{"Ascend910-1": {"codes": 3}}'):
            cluster.set_map({**body, "data": {"faults.json": text}})
            await clock.advance(2)
        cluster.set_map(control({"Ascend910-1": {"codes": [FAULT]}}))
        await clock.advance(2)
        assert deviceinfo.parse(cluster.maps[(DEVICE_NAMESPACE, DEVICE_PREFIX + NODE)]).unhealthy == 2
        await fleet.remove(NODE)
        count = len(cluster.writes)
        await clock.advance(600)
        assert len(cluster.writes) == count

    play(story)


def test_vnpus_outlive_the_process_but_not_their_hardware(tmp_path: Path) -> None:
    async def restarted(row: ServerModel) -> SimulatedDriver:
        clock = VirtualClock()
        fleet = Fleet(FakeCluster(clock), tmp_path, Settings(), clock=clock, policy=NodePolicy("default", RULES))
        fleet.add(FleetNode(name=NODE, row=row))
        driver = fleet.drivers[NODE]
        await fleet.close()
        driver._sleep = asyncio.sleep
        driver._scale = 0
        return driver

    async def story() -> None:
        row = SERVER_MODELS["atlas-300i-pro"]
        first = await restarted(row)
        made = [await first.create_vnpu(0, "vir04"), await first.create_vnpu(0, "vir02")]
        again = await restarted(row)
        assert await again.vnpus() == made
        await again.destroy_vnpu(made[0].id)
        assert await (await restarted(row)).vnpus() == made[1:]
        assert await (await restarted(ServerModel())).vnpus() == [], "another server cannot hold them"
        (tmp_path / NODE / "vnpus.json").write_text("torn")
        assert await (await restarted(row)).vnpus() == []

    asyncio.run(story())


def test_an_agent_that_fails_is_restarted(tmp_path: Path) -> None:
    async def story() -> None:
        clock = VirtualClock()
        cluster = FakeCluster(clock)
        fleet = Fleet(
            cluster, tmp_path, Settings(), clock=clock, policy=NodePolicy("default", RULES), chance=random.Random(1)
        )
        fleet.add(FleetNode(name=NODE))
        await clock.advance(5)
        first = fleet.agents[NODE]
        first._refresh = None  # type: ignore[assignment, method-assign]  # a bug
        await clock.advance(30)
        assert fleet.agents[NODE] is not first
        cluster.set_map(control({"Ascend910-1": {"codes": [FAULT]}}))
        await clock.advance(5)
        assert deviceinfo.parse(cluster.maps[(DEVICE_NAMESPACE, DEVICE_PREFIX + NODE)]).unhealthy == 2
        await fleet.close()

    play(story)


# ---- credentials


def config(server: str, user: dict[str, Any], cluster: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": "u", "user": user}],
    }


@pytest.mark.parametrize(
    ("user", "header"),
    [
        ({"token": "abc"}, "Bearer abc"),
        ({"username": "u", "password": "p"}, "Basic " + base64.b64encode(b"u:p").decode()),
        ({}, None),
    ],
)
def test_users_of_a_kubeconfig(tmp_path: Path, user: dict[str, Any], header: str | None) -> None:
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(config("https://h:6443/", user)))
    access = load(str(path))
    assert access.url("/api") == "https://h:6443/api" and access.headers().get("Authorization") == header


def test_a_token_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t1\n")
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(config("https://h", {"tokenFile": str(tmp_path / "token")})))
    assert load(str(path)).headers() == {"Authorization": "Bearer t1"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "not YAML"),
        ("[]", "not a kubeconfig"),
        (yaml.safe_dump({**config("https://h", {}), "current-context": "other"}), "contexts has no entry 'other'"),
        (yaml.safe_dump(config("ftp://h", {})), "server is missing"),
        (yaml.safe_dump(config("https://h", {"exec": {"command": "x"}})), "exec"),
        (yaml.safe_dump(config("https://h", {}, {"certificate-authority-data": "%%%"})), "not base64"),
        (
            yaml.safe_dump(config("https://h", {}, {"certificate-authority-data": base64.b64encode(b"x").decode()})),
            "certificate",
        ),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path, content: str, expected: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(CredentialsError, match=expected):
        load(str(path))


def test_a_missing_kubeconfig_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="set KUBECONFIG"):
        load(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("name", "expected"), [("dcmi9", "driver 'dcmi9' is unknown"), ("simulated:x", "server model 'x'")]
)
def test_an_unknown_driver_is_refused_with_the_known_ones(name: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        make_driver(name, "n")


# ---- log lines


def test_lines_of_a_standalone_agent_are_bounded_json_with_fields() -> None:
    record = logging.LogRecord("belay.agent", logging.INFO, __file__, 1, "reset begins", (), None)
    record.belay_fields = {
        "node": "n",
        "epoch": 7,
        "error": ApiError(409, "conflict"),
        **{f"k{i}": "é" * 900 for i in range(40)},
    }
    line = JsonLines().format(record)
    entry = json.loads(line)
    assert (entry["message"], entry["node"], entry["epoch"], entry["error"]) == (
        "reset begins",
        "n",
        7,
        "409: conflict",
    )
    assert len(line.encode()) < 2048


def test_the_engines_formatter_shows_the_same_fields() -> None:
    record = logging.LogRecord("belay.agent", logging.INFO, __file__, 1, "reset begins", (), None)
    record.belay_fields = {"epoch": 7}
    assert json.loads(log.JsonFormatter().format(record))["epoch"] == 7
