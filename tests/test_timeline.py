"""Stories of faults: what may be written, where a mistake is, and what each kind of event does to the sandbox."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from belay.agents.drivers.simulated import SimulatedDriver
from belay.agents.drivers.surroundings import SimulatedSurroundings
from belay.agents.node.detect import HANG_CHECKS
from belay.agents.node.shipped import shipped_policy
from belay.agents.node.surroundings_monitor import PINGS_EVERY
from belay.engine.errors import InputError
from belay.engine.kube import CONFIGMAP, NODE, POD
from belay.engine.observe.observed import observe
from belay.engine.plan.health.node_faults import AGENT_STALE_MS
from belay.engine.sandbox import play, timeline
from belay.engine.sandbox.inject import FAULTS_KEY
from belay.engine.sandbox.settings import NODE_KEY, SandboxSettings
from belay.engine.sandbox.timeline import KINDS, SandboxEvent
from belay.engine.wire import names, publicinfo
from tests.agent_world import VirtualClock

SAMPLE = Path(__file__).resolve().parents[1] / "deploy" / "samples" / "faults-timeline.yaml"


def events(*rows: str) -> tuple[SandboxEvent, ...]:
    return timeline.parse(("timeline:\n" + "".join(f"  - {row}\n" for row in rows)).encode(), "story.yaml")


def mistakes(*rows: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        events(*rows)
    return caught.value.message.split("\n")


def test_the_sample_shows_every_kind_and_is_sound() -> None:
    story = timeline.read(SAMPLE)
    assert {event.what for event in story} == set(KINDS) - {"state", "phase"}  # which are short for others
    assert [event.at for event in story] == sorted(event.at for event in story)


#: Real seconds in which the sandbox shows an event of a kind, with a few for reports and passes.
SANDBOX = SandboxSettings()
SHOWN_WITHIN = {
    "code": SANDBOX.idle_seconds + SANDBOX.reset_seconds + 8,
    "network": 20 + 5,  # the shipped policy's duration
    "hardware": SANDBOX.alarms_every + 5,
    "hang": (HANG_CHECKS + 1) * SANDBOX.use_every + 5,
    "ready": SANDBOX.silence + 10,
    "silent": AGENT_STALE_MS / 1000 + 5,
    "ping": PINGS_EVERY + 5,
}
SHOWN_OTHERWISE = 10.0


def over(event: SandboxEvent) -> bool:
    """Whether an event is the end of what another began."""
    if event.what in ("subHealth", "drop", "hang", "silent"):
        return event.value is False
    return event.assertion == "recover" or (event.what, event.value) in (("ready", True), ("ping", "ok"))


def test_each_fault_of_the_sample_lasts_until_it_is_seen_at_the_speed_of_the_tour() -> None:
    said = re.search(r"--speed (\d+)", (SAMPLE.parents[2] / "README.md").read_text())
    assert said is not None
    begun: dict[tuple[Any, ...], float] = {}
    short = []
    for event in timeline.read(SAMPLE):
        place = (event.node, event.chip, event.what)
        if event.assertion == "once" or event.what in ("pod", "resetFails"):
            continue
        if not over(event):
            begun[place] = event.at
            continue
        lasted = (event.at - begun.pop(place)) / int(said[1])
        if lasted < SHOWN_WITHIN.get(event.what, SHOWN_OTHERWISE):
            short.append(f"line {event.line}: {event.what} ends after {lasted:.0f} s")
    assert not short and not begun


def test_the_sample_kills_a_pod_last_and_the_sample_job_starts_it_again() -> None:
    story = timeline.read(SAMPLE)
    assert [event.what for event in story if event.what == "pod"] == [story[-1].what]
    documents = yaml.safe_load_all((SAMPLE.parents[2] / "desired/jobs/pretrain.yaml").read_text())
    (job,) = [one for one in documents if one["kind"] == "AscendJob"]
    assert int(job["metadata"]["labels"]["fault-retry-times"]) >= 3, "each move of the job counts as well"


def test_events_are_played_in_order_of_time_then_of_lines() -> None:
    story = events(
        "{at: 1m, node: a, ready: false}", "{at: 0, node: b, ready: false}", "{at: 60s, node: c, ready: true}"
    )
    assert [event.node for event in story] == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("80E01801", "80E01801"), ("01000000", "01000000"), ("12345678", "12345678"), ('"81078603"', "81078603")],
)
def test_codes_stay_text_with_and_without_quotes(text: str, expected: str) -> None:
    assert events(f"{{at: 1s, node: a, chip: 1, code: {text}}}")[0].value == expected


@pytest.mark.parametrize(
    ("row", "place", "text"),
    [
        ("{at: 5, node: a, chip: 1, code: 80C98001}", "2:10", "at: 5 is not a duration"),
        ("{at: 200h, node: a, ready: true}", "2:10", "within seven days"),
        ("{at: 1s, node: a, chip: x, code: 80C98001}", "2:29", "chip: must be a whole number"),
        ("{at: 1s, node: A_b, ready: true}", "2:20", "node: 'A_b' is not a node name"),
        ("{at: 1s, node: a, chip: 1, code: XYZ}", "2:38", "code: 'XYZ' is not a fault code"),
        ("{at: 1s, node: a}", "2:5", "does not say what happens"),
        ("{at: 1s, node: a, ready: true, silent: true}", "2:5", "gives ready and silent"),
        ("{at: 1s, node: a, ready: maybe}", "2:30", "must be one of true, false"),
        ("{at: 1s, node: a, code: 80C98001}", "2:5", "code needs chip"),
        ("{node: a, ready: true}", "2:5", "ready needs at"),
        ("{at: 1s, node: a, ready: true, chip: 1}", "2:42", "ready takes no 'chip'"),
        ("{at: 1s, node: a, chip: 1, network: 81078603, assertion: once}", "2:62", "one of occur, recover"),
        ("{at: 1s, node: a, switch: '[0x1,2,3]'}", "2:31", "is not a switch code"),
        ("{at: 1s, node: a, public: 22000100}", "2:31", "is not a public code"),
        ("{at: 1s, node: a, public: 220001001, chips: [40]}", "2:49", "1 to 32 chip numbers"),
        ("{at: 1s, node: a, public: 220001001, faultId: abc}", "2:51", "fault id (8 to 128"),
        ("{at: 1s, pod: nowhere}", "2:19", "is not a pod"),
        ("{at: 1s, pod: a/b, exit: 0}", "2:30", "1 to 255"),
        ("{at: 1s, node: a, storage: nfs}", "2:32", "one of dpc, dtfs"),
        ("{at: 1s, at: 2s, node: a, ready: true}", "2:14", "given twice"),
        ("5", "2:5", "an event is a mapping"),
    ],
)
def test_every_mistake_is_reported_at_its_place(row: str, place: str, text: str) -> None:
    (told,) = mistakes(row)
    assert told.startswith(f"story.yaml:{place}: ") and text in told


def test_all_mistakes_are_reported_at_once_and_bounded() -> None:
    assert len(mistakes("{at: 5, node: a, ready: true}", "{at: 1s, node: A, ready: true}")) == 2
    assert mistakes(*["5"] * 100)[-1] == "and 80 more"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "1:1: must be one document"), (b"a: 1\n---\nb: 1\n", "3:1: must be one document"),
        (b"story: []\n", "unknown key 'story'"), (b"timeline: 5\n", "1:11: timeline must be a list"),
        (b"timeline: []\n", "timeline must be a list"), (b"timeline: [\n", "story.yaml:2:1"),
        (b"\xff", "not UTF-8"),
    ],
)  # fmt: skip
def test_a_file_without_a_timeline_is_rejected(data: bytes, text: str) -> None:
    with pytest.raises(InputError, match=r".*") as caught:
        timeline.parse(data, "story.yaml")
    assert text in caught.value.message


def test_a_timeline_that_is_too_long_or_unreadable_is_rejected(tmp_path: Path) -> None:
    rows = ["{at: 1s, node: a, ready: true}"] * (timeline.MAX_EVENTS + 1)
    assert "more than 10000 events" in mistakes(*rows)[0]
    with pytest.raises(InputError, match="No such file"):
        timeline.read(tmp_path / "nowhere.yaml")


class FakeKube:
    """Objects in a dict: what the player asks of the API server."""

    def __init__(self, nodes: int = 4) -> None:
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        for i in range(1, nodes + 1):
            base = {f"Ascend910-{chip}": {"IP": ""} for chip in range(8)}
            self.objects["Node", "", f"node-{i}"] = {
                "metadata": {"name": f"node-{i}", "annotations": {"baseDeviceInfos": json.dumps(base)}},
                "status": {"nodeInfo": {"containerRuntimeVersion": "belay-sandbox://1"}},
            }
        self.objects["Pod", "default", "pretrain-worker-0"] = {"metadata": {"name": "pretrain-worker-0"}}

    async def get(self, res: Any, name: str, ns: str | None = None) -> dict[str, Any] | None:
        return self.objects.get((res.kind, ns or "", name))

    async def create(self, res: Any, body: dict[str, Any]) -> None:
        meta = body["metadata"]
        assert (res.kind, meta["namespace"], meta["name"]) not in self.objects
        self.objects[res.kind, meta["namespace"], meta["name"]] = body

    async def replace(self, res: Any, body: dict[str, Any]) -> None:
        self.objects[res.kind, body["metadata"]["namespace"], body["metadata"]["name"]] = body

    async def patch(self, res: Any, name: str, patch: dict[str, Any], ns: str | None = None) -> None:
        live = self.objects[res.kind, ns or "", name]
        for part, value in patch.items():
            live[part] = {**live.get(part, {}), **value}

    def sim(self, node: str, key: str) -> dict[str, Any]:
        found = self.objects.get((CONFIGMAP.kind, names.NODES, names.SIM_PREFIX + node), {"data": {}})
        result: dict[str, Any] = json.loads(found["data"].get(key, "{}"))
        return result


def played(kube: FakeKube, *story: SandboxEvent) -> None:
    async def main() -> None:
        await play.check(kube, story)  # type: ignore[arg-type]
        for event in story:
            await play.apply(kube, event)  # type: ignore[arg-type]

    asyncio.run(main())


def test_the_sample_leaves_the_sandbox_as_it_found_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(step: Any) -> None:
        await step()

    monkeypatch.setattr(play, "_settled", at_once)
    kube = FakeKube()
    played(kube, *timeline.read(SAMPLE))
    assert {kube.sim(f"node-{i}", FAULTS_KEY).pop("resetFails", 0) for i in (1, 2, 3, 4)} == {0, 1}
    for i in (1, 2, 3, 4):
        assert kube.sim(f"node-{i}", FAULTS_KEY) in ({}, {"resetFails": 1})
        assert kube.sim(f"node-{i}", NODE_KEY) == {}
        around = kube.sim(f"node-{i}", play.SURROUNDINGS_KEY)
        SimulatedSurroundings(8, super_pod=False).apply(around)
        assert not around.get("hardware") and not around.get("switch") and not around.get("silent")
    assert kube.objects["Pod", "default", "pretrain-worker-0"]["metadata"]["annotations"] == {
        "sim.belay.dev/exit-now": "137"
    }


@pytest.mark.parametrize(
    ("row", "key", "expected"),
    [
        ('{at: 0, node: node-1, chip: 3, code: "80c98001"}', FAULTS_KEY, {"Ascend910-3": {"codes": ["80C98001"]}}),
        ('{at: 0, node: node-1, chip: 3, network: "81078603"}', FAULTS_KEY, {"Ascend910-3": {"network": ["81078603"]}}),
        ("{at: 0, node: node-1, chip: 3, drop: true}", FAULTS_KEY, {"Ascend910-3": {"drop": True}}),
        ("{at: 0, node: node-1, chip: 3, subHealth: true}", FAULTS_KEY, {"Ascend910-3": {"codes": ["80818C06"]}}),
        ("{at: 0, node: node-1, ready: false}", NODE_KEY, {"paused": True}),
        ("{at: 0, node: node-1, resetFails: 2}", FAULTS_KEY, {"resetFails": 2}),
        ("{at: 0, node: node-1, silent: true}", play.SURROUNDINGS_KEY, {"silent": True}),
        ("{at: 0, node: node-1, chip: 2, ping: lost}", play.SURROUNDINGS_KEY, {"chips": {"2": {"ping": "lost"}}}),
        ("{at: 0, node: node-1, chip: 2, hang: true}", play.SURROUNDINGS_KEY, {"chips": {"2": {"hang": True}}}),
        ("{at: 0, node: node-1, storage: dpc, part: memory}", play.SURROUNDINGS_KEY,
         {"storage": {"dpc": {"memory": True}}}),
        ("{at: 0, node: node-1, hardware: 2c000031, device: Fan, deviceId: 4}", play.SURROUNDINGS_KEY,
         {"hardware": [{"device_type": "Fan", "device_id": 4, "code": "2C000031"}]}),
        ("{at: 0, node: node-1, hardware: NotHandleFault}", play.SURROUNDINGS_KEY,
         {"hardware": [{"device_type": "CPU", "device_id": 1, "code": "0100000D"}]}),
        ("{at: 0, node: node-1, hardware: Healthy}", play.SURROUNDINGS_KEY, {"hardware": []}),
        ("{at: 0, node: node-1, switch: NotHandle}", play.SURROUNDINGS_KEY, {"switch": []}),
        ("{at: 0, node: node-1, chip: 3, code: 80C98001, level: RestartNPU}", FAULTS_KEY,
         {"Ascend910-3": {"codes": ["80C98001"]}}),
    ],
)  # fmt: skip
def test_each_kind_changes_what_the_simulated_agents_read(row: str, key: str, expected: dict[str, Any]) -> None:
    kube = FakeKube()
    played(kube, *events(row))
    found = kube.sim("node-1", key)
    assert found == expected
    if key == FAULTS_KEY:
        clock = VirtualClock()
        SimulatedDriver("node-1", now_ms=clock.now_ms, sleep=clock.sleep).apply(found)
    elif key == play.SURROUNDINGS_KEY:
        SimulatedSurroundings(8, super_pod=False).apply(found)


def test_a_switch_fault_is_described_with_its_time_and_taken_back_without() -> None:
    kube = FakeKube()
    row = '{at: %s, node: node-1, switch: "[0x00f103b6,155908,na,na]", switchPort: 7%s}'
    played(kube, *events(row % ("0", "")))
    (fault,) = kube.sim("node-1", play.SURROUNDINGS_KEY)["switch"]
    assert fault.pop("timeMs") > 0 and fault == {"code": "[0x00f103b6,155908,na,na]", "chip": 0, "port": 7}
    played(kube, *events(row % ("0", ", assertion: recover")))
    assert kube.sim("node-1", play.SURROUNDINGS_KEY)["switch"] == []


def test_levels_of_boards_and_switches_stand_for_a_code_of_that_level() -> None:
    kube = FakeKube()
    played(kube, *events("{at: 0, node: node-1, switch: Separate}"))
    (fault,) = kube.sim("node-1", play.SURROUNDINGS_KEY)["switch"]
    assert shipped_policy().rules.planes["switch"][fault["code"]] == "SeparateFault"


def test_public_faults_are_config_maps_whose_recovery_replaces_them() -> None:
    kube = FakeKube()
    row = '{at: %s, node: node-1, public: "020001001", faultId: Story_0001, chips: [1, 2]%s}'
    played(kube, *events(row % ("0", "")))
    (key,) = [k for k in kube.objects if k[1] == "cluster-system"]
    (report,) = observe([{**kube.objects[key], "kind": "ConfigMap", "apiVersion": "v1"}]).public.values()
    assert not report.problems
    assert (report.messages[0].resource, report.messages[0].faults[0].assertion) == ("CCAE", "occur")
    played(kube, *events(row % ("0", ", assertion: recover")))
    again = publicinfo.parse(kube.objects[key])
    assert again.messages[0].faults[0].assertion == "recover"


def test_a_timeline_with_unknown_objects_is_rejected_before_its_first_event() -> None:
    for row, text in (("{at: 5s, node: node-9, ready: false}", "line 3: there is no node 'node-9'"),
                      ("{at: 5s, node: node-1, chip: 9, drop: true}", "line 3: there is no chip '9'"),
                      ("{at: 5s, node: node-1, switch: PreSeparate}", "line 3: no switch code has level PreSeparate"),
                      ("{at: 5s, node: node-1, chip: 1, code: 80C98001, level: SeparateNPU}",
                       "line 3: agents grade 80C98001 as RestartNPU, not as SeparateNPU")):  # fmt: skip
        kube = FakeKube()
        with pytest.raises(InputError) as caught:
            played(kube, *events("{at: 0, node: node-1, ready: false}", row))
        assert caught.value.message == text
        assert kube.sim("node-1", NODE_KEY) == {}


def test_resources_are_named_as_the_api_names_them() -> None:
    assert (NODE.kind, POD.kind, CONFIGMAP.kind) == ("Node", "Pod", "ConfigMap")


def test_a_bare_list_and_the_states_of_belay_simulate_are_accepted() -> None:
    words = ("not-ready", "ready", "silent", "speaking")
    rows = "".join(f"- {{at: {i}m, node: a, state: {word}}}\n" for i, word in enumerate(words))
    story = timeline.parse(rows.replace("at: 0m", "at: 0").encode(), "story.yaml")
    assert [(e.what, e.value) for e in story] == [
        ("ready", False), ("ready", True), ("silent", True), ("silent", False),
    ]  # fmt: skip
    (ended,) = events("{at: 0, pod: default/pretrain-worker-0, phase: Succeeded}")
    assert (ended.what, ended.value, ended.more) == ("pod", "default/pretrain-worker-0", {"phase": "Succeeded"})
    kube = FakeKube()
    played(kube, ended)
    assert list(kube.objects["Pod", "default", "pretrain-worker-0"]["metadata"]["annotations"].values()) == ["0"]
