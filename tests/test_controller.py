"""What the controller keeps of the watches, and what it lets wake a pass."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import orjson

from belay.engine.kube import CONFIGMAP, NODE, POD, Reflector, WatchChange
from belay.engine.model.fault_subscriptions import FaultSubscriptions
from belay.engine.observe.resources import WATCHED
from belay.engine.observe.watch_events import WatchEvents, essence, own_output, slimmed, wanted
from belay.engine.wire import faultsubscriptions, names


def config_map(name: str, ns: str = "belay-system", *, manager: str = "", rv: str = "1", **data: str) -> dict[str, Any]:
    managed = [{"manager": manager, "fieldsV1": {"f:data": {}}}] if manager else []
    metadata = {"name": name, "namespace": ns, "resourceVersion": rv, "managedFields": managed}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def report(seq: int, processes: int) -> str:
    return json.dumps({"node": "n", "seq": seq, "time": seq * 1000, "chips": {"Ascend910-0": {"processes": processes}}})


def device_info(time: int, bad: str) -> str:
    inner = {"DeviceList": {"huawei.com/Ascend910-Unhealthy": bad}, "UpdateTime": time}
    return json.dumps({"DeviceInfo": inner, "CheckCode": f"hash-{time}", "SuperPodID": -2})


def test_config_maps_of_others_are_left_out() -> None:
    assert not wanted(config_map("kube-root-ca.crt", "default"))
    assert wanted(config_map("app", "default", manager="belay"))
    assert wanted(config_map("anything", "belay-nodes"))
    assert wanted(config_map("belay-revisions", "belay-system"))
    assert not wanted(config_map("belay-commit", "belay-system"))
    assert wanted(config_map("mindx-dl-deviceinfo-n", "kube-system"))
    assert wanted({"kind": "Pod", "metadata": {"name": "p", "namespace": "default"}})


def test_field_owners_are_cut_to_their_names() -> None:
    slim = slimmed(config_map("a", manager="belay"))
    assert slim["metadata"]["managedFields"] == [{"manager": "belay"}]


def subscribers(time: int, services: list[str]) -> str:
    record = FaultSubscriptions(frozenset(services), time, 1, "server-0")
    return str(faultsubscriptions.build(record)["data"][faultsubscriptions.KEY])


def test_the_part_of_another_shard_wakes_a_pass_only_where_it_turns() -> None:
    def part(ready: str, findings: str) -> dict[str, Any]:
        return config_map("belay-sync.far", names.SYSTEM, ready=ready, **{"diagnostics.json": findings})

    one, two, three = part("True", "[]"), part("True", '["another"]'), part("False", "[]")
    assert essence(one) == essence(two) != essence(three)
    assert not own_output(one) and own_output(config_map(names.SYNC, names.SYSTEM))


def test_heartbeats_alone_wake_no_pass() -> None:
    one, two, three = (
        config_map("belay-report-n", "belay-nodes", rv=str(n), **{"report.json": report(n, processes)})
        for n, processes in ((1, 0), (2, 0), (3, 1))
    )
    assert essence(one) == essence(two) != essence(three)
    one, two, three = (
        config_map("mindx-dl-deviceinfo-n", "kube-system", DeviceInfoCfg=device_info(time, bad))
        for time, bad in ((1, ""), (2, ""), (3, "Ascend910-3"))
    )
    assert essence(one) == essence(two) != essence(three)
    one, two, three = (
        config_map(names.FAULT_SUBSCRIBERS, names.SYSTEM, **{faultsubscriptions.KEY: subscribers(time, services)})
        for time, services in ((1, []), (2, []), (3, ["chat"]))
    )
    assert essence(one) == essence(two) != essence(three)

    def node(beat: str, ready: str) -> dict[str, Any]:
        condition = {"type": "Ready", "status": ready, "lastHeartbeatTime": beat}
        metadata = {"name": "n", "resourceVersion": beat}
        return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {"conditions": [condition]}}

    assert essence(node("1", "True")) == essence(node("2", "True")) != essence(node("3", "False"))


def test_reports_that_are_no_json_are_compared_as_they_are() -> None:
    broken = config_map("belay-report-n", "belay-nodes", **{"report.json": "{"})
    assert essence(broken) == essence(broken)


def test_own_output_wakes_no_pass_but_is_kept() -> None:
    for name in ("belay-sync", "belay-pool-a", "belay-history-n", "belay-job-x", "belay-ledger-main", "belay-budget"):
        assert own_output(config_map(name))
    assert own_output(config_map("cluster-info-device-0", "mindx-dl"))
    assert not own_output(config_map("belay-orders-n")) and not own_output(config_map("a", "default"))


def test_the_inbox_holds_the_newest_state_once_and_its_watermark() -> None:
    async def case() -> None:
        events = WatchEvents()
        told = lambda reflector, *_: events.progress(reflector)  # noqa: E731
        pods = Reflector(None, POD, on_change=events.receive, on_progress=told)  # type: ignore[arg-type]
        maps = Reflector(None, CONFIGMAP, on_change=events.receive)  # type: ignore[arg-type]
        for rv in ("1", "2"):
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "p", "namespace": "d", "resourceVersion": rv},
            }
            pod["status"] = {"phase": rv}
            events.receive(pods, WatchChange(("d", "p"), pod, rv))
        events.receive(maps, WatchChange(("belay-system", "belay-sync"), config_map("belay-sync", x="1"), "3"))
        pods.watermark = "4"
        events.progress(pods)
        await events.wait()
        changes, marks = events.drain()
        assert marks == {"v1|Pod": "4"}
        found = {change.field: change for change in changes}
        assert set(found) == {"v1|Pod|d|p", "v1|ConfigMap|belay-system|belay-sync"}
        value = found["v1|Pod|d|p"].value
        assert value is not None and orjson.loads(value)["status"] == {"phase": "2"}
        assert found["v1|Pod|d|p"].wakes and not found["v1|ConfigMap|belay-system|belay-sync"].wakes
        events.receive(pods, WatchChange(("d", "p"), None, "5"))
        assert [(change.value, change.wakes) for change in events.drain()[0]] == [(None, True)]
        assert events.drain() == ([], {})

    asyncio.run(case())


def test_both_reports_of_an_agent_come_by_one_watch() -> None:
    """An agent counts as replaced where its device report goes on without its own: both must be of one age."""
    assert [(one.namespace, one.fields) for one in WATCHED if one.resource == CONFIGMAP] == [(None, None)]


def test_heartbeats_are_collected_and_all_else_is_written_at_once() -> None:
    """A thousand nodes send twenty heartbeats a second; each was written to Redis on its own."""

    async def scenario() -> None:
        events = WatchEvents()
        maps, pods = (Reflector(None, res, on_change=events.receive) for res in (CONFIGMAP, POD))  # type: ignore[arg-type]

        async def due() -> bool:
            """Whether what has come is written at once."""
            waiting = asyncio.ensure_future(events.wait(3600))
            for _ in range(5):
                await asyncio.sleep(0)
            done = waiting.done()
            waiting.cancel()
            if done:
                events.drain()
            return done

        def beat(seq: int, processes: int = 0) -> None:
            body = config_map("belay-report-n", "belay-nodes", rv=str(seq), **{"report.json": report(seq, processes)})
            events.receive(maps, WatchChange(("belay-nodes", "belay-report-n"), body, str(seq)))
            maps.watermark = str(seq)
            events.progress(maps)

        beat(1)
        assert await due(), "the first report of a node"
        beat(2)
        beat(3)
        assert not await due()
        changes, marks = events.drain()
        assert [(json.loads(orjson.loads(one.value or b"")["data"]["report.json"])["seq"]) for one in changes] == [3]
        assert marks == {"v1|ConfigMap": "3"}, "how far the watch has come is written with them"

        beat(4)
        beat(5, processes=1)
        assert await due(), "the report says something new"
        beat(6)
        own = config_map("belay-history", manager="belay")
        events.receive(maps, WatchChange(("belay-system", "belay-history"), own, "1"))
        assert await due(), "a pass waits until its own writes are seen"
        events.receive(maps, WatchChange(("belay-system", "belay-history"), own, "2"))
        assert await due(), "also one that changed nothing"
        events.receive(maps, WatchChange(("belay-nodes", "belay-report-n"), None, "7"))
        assert await due()
        events.progress(pods)
        assert await due(), "a kind was listed, so the snapshot may be complete"
        events.progress(pods)
        assert not await due()
        events.wake()
        assert await due()

    asyncio.run(scenario())


def test_older_versions_that_sync_names_are_kept() -> None:
    async def case() -> None:
        events = WatchEvents()
        maps = Reflector(None, CONFIGMAP, on_change=events.receive)  # type: ignore[arg-type]
        body = config_map("belay-sync", **{"lastGood.json": '{"desired/a.yaml": ["b2", "b1"]}'})
        events.receive(maps, WatchChange(("belay-system", "belay-sync"), body, "1"))
        assert events.drain()[0][0].kept == {"b1", "b2"}
        nodes = Reflector(None, NODE, on_change=events.receive)  # type: ignore[arg-type]
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "resourceVersion": "1"}}
        events.receive(nodes, WatchChange(("", "n"), node, "1"))
        assert events.drain()[0][0].kept is None

    asyncio.run(case())


def labelled(name: str, value: str) -> dict[str, Any]:
    body = config_map(name, "anywhere", PublicFault="{}")
    body["metadata"]["labels"] = {"mc-consumer-publicfault": value}
    return body


def test_reports_of_faults_are_kept_in_any_namespace() -> None:
    assert wanted(labelled("pingmesh-fault-n", "true")) and not wanted(labelled("pingmesh-fault-n", "false"))
    for name, namespace in (
        ("mindx-dl-fault-config", "kube-system"),
        ("mindx-dl-node-fault-config", "mindx-dl"),
        ("clusterd-config-cm", "cluster-system"),
        ("clusterd-manual-info-cm", "cluster-system"),
        ("statistic-fault-info", "cluster-system"),
        ("basic-tor-node-cm", "kube-system"),
    ):
        assert wanted(config_map(name, namespace)), name


def test_a_config_map_that_loses_its_label_is_gone_for_the_engine() -> None:
    async def case() -> None:
        events = WatchEvents()
        maps = Reflector(None, CONFIGMAP, on_change=events.receive)  # type: ignore[arg-type]
        events.receive(maps, WatchChange(("anywhere", "x"), labelled("x", "true"), "1"))
        assert [change.wakes for change in events.drain()[0]] == [True]
        events.receive(maps, WatchChange(("anywhere", "x"), labelled("x", "no"), "2"))
        assert [(change.value, change.wakes) for change in events.drain()[0]] == [(None, True)]
        events.receive(maps, WatchChange(("anywhere", "x"), labelled("x", "no"), "3"))
        assert events.drain()[0] == []

    asyncio.run(case())
