"""One narrative per source of faults: from what happens to hardware to what becomes of jobs, until all is quiet."""

from __future__ import annotations

import pytest

from belay.engine.replay.recording import read as read_recording
from belay.engine.replay.recording import replay, write
from tests.fault_world import FaultWorld, story
from tests.golden.stories import compare, sample_files

#: The job runs on node-1 (master) and node-2 (worker) of the sample cluster.
STORIES = {
    "chip-event": """
  - {at: 10s, node: node-1, chip: 3, code: "80C98001"}
""",
    "chip-once": """
  - {at: 10s, node: node-4, chip: 3, code: "80C98001", assertion: once}
""",
    "chip-recovers": """
  - {at: 10s, node: node-4, chip: 3, code: "80DF8402"}
  - {at: 5m, node: node-4, chip: 3, code: "80DF8402", assertion: recover}
""",
    "chip-too-often": """
  - {at: 0, node: node-4, chip: 2, code: "80818200"}
  - {at: 10s, node: node-4, chip: 2, code: "80A18008"}
  - {at: 30s, node: node-4, chip: 2, code: "80A18008", assertion: recover}
  - {at: 60s, node: node-4, chip: 2, code: "80A18008"}
  - {at: 90s, node: node-4, chip: 2, code: "80A18008", assertion: recover}
  - {at: 90s, node: node-4, chip: 2, code: "80818200", assertion: recover}
""",
    "card-drop": """
  - {at: 10s, node: node-4, chip: 5, drop: true}
""",
    "link-down": """
  - {at: 10s, node: node-4, chip: 0, network: "81078603"}
  - {at: 60s, node: node-4, chip: 0, network: "81078603", assertion: recover}
""",
    "sub-health": """
  - {at: 10s, node: node-1, chip: 4, subHealth: true}
  - {at: 60s, node: node-1, chip: 4, subHealth: false}
""",
    "switch": """
  - {at: 10s, node: node-1, switch: "[0x00f1fef5,155912,cpu,na]"}
  - {at: 60s, node: node-4, switch: "[0x00f103b6,155908,na,na]"}
  - {at: 10m, node: node-1, switch: "[0x00f1fef5,155912,cpu,na]", assertion: recover}
  - {at: 10m, node: node-4, switch: "[0x00f103b6,155908,na,na]", assertion: recover}
""",
    "node-hardware": """
  - {at: 10s, node: node-2, hardware: "0000001D", device: Memory}
  - {at: 60s, node: node-1, hardware: "2C000031", device: System}
  - {at: 10m, node: node-1, hardware: "2C000031", device: System, assertion: recover}
  - {at: 10m, node: node-2, hardware: "0000001D", device: Memory, assertion: recover}
""",
    "storage": """
  - {at: 10s, node: node-4, storage: dpc}
  - {at: 20s, node: node-5, storage: dtfs}
  - {at: 5m, node: node-4, storage: dpc, assertion: recover}
  - {at: 5m, node: node-5, storage: dtfs, assertion: recover}
""",
    "not-ready": """
  - {at: 10s, node: node-1, ready: false}
  - {at: 10m, node: node-1, ready: true}
""",
    "pod-failure": """
  - {at: 10s, pod: default/pretrain-worker-0, exit: 137}
""",
    "public-fault": """
  - {at: 10s, node: node-1, public: "020001001", sender: CCAE, faultId: story-0001, chips: [1, 6]}
  - {at: 10m, node: node-1, public: "020001001", sender: CCAE, faultId: story-0001, chips: [1, 6], assertion: recover}
""",
    "pingmesh": """
  - {at: 10s, node: node-4, chip: 6, ping: lost}
  - {at: 5m, node: node-4, chip: 6, ping: ok}
""",
    "hang": """
  - {at: 10s, node: node-1, chip: 7, hang: true}
  - {at: 5m, node: node-1, chip: 7, hang: false}
""",
    "report-loss": """
  - {at: 10s, node: node-4, silent: true}
  - {at: 20m, node: node-4, silent: false}
""",
}


def settled(seed: int = 0) -> FaultWorld:
    world = FaultWorld(seed)
    world.until_quiet()
    return world


@pytest.mark.parametrize("name", STORIES)
def test_the_story_of_each_source(name: str, update_golden: bool) -> None:
    world = settled()
    last = world.play(story(STORIES[name]))
    compare(f"source-{name}", world.story, update_golden)
    assert all(pod["status"]["phase"] == "Running" for pod in world.pods().values())
    stuck = [(c.node, c.chip, c.state) for c in last.chips if c.state != "healthy"]
    held = {(n, f"Ascend910-{c}") for n, m in last.history.nodes.items() for c, row in m.chips.items() if row.holds}
    assert {(n, c) for n, c, _ in stuck} == held


@pytest.mark.parametrize("seed", range(3))
def test_all_sources_at_once_in_any_order_end_well(seed: int) -> None:
    world = settled(seed)
    rows = "".join(text for name, text in sorted(STORIES.items()) if name not in ("chip-too-often", "pod-failure"))
    world.play(story(rows), tick=15.0)
    assert all(pod["status"]["phase"] == "Running" for pod in world.pods().values())
    assert all(state.startswith("healthy") for state in world.states.values()), world.states


def test_a_recorded_pass_of_the_story_is_derived_again_byte_for_byte(tmp_path) -> None:  # type: ignore[no-untyped-def]
    world = settled()
    for event in story("".join(STORIES[n] for n in ("public-fault", "link-down", "node-hardware")))[:5]:
        world.now = max(world.now, world.began + event.at)
        world.happen(event)
        world.step()
    result = world.plan()
    file = write(
        tmp_path, version="0", shard="main", now=world.now, revision=world.revision, files=sample_files(),
        objects=world.objects.values(), digest=result.digest(),
    )  # fmt: skip
    assert read_recording(file).digest == result.digest()
    assert replay(file).same
