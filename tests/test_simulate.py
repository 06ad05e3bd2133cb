"""`belay simulate`: the planner played forward on a copied cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from belay.engine import cli
from tests.golden.stories import sample_world

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The sample cluster, its jobs running, as `kubectl get … -o json` prints it."""
    world = sample_world()
    world.until_quiet()
    path = tmp_path_factory.mktemp("cluster") / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(world.objects.values())}))
    return str(path)


def belay(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["simulate", *arguments])


def play(cluster: str, tmp_path: Path, timeline: str, *more: str) -> dict[str, Any]:
    path = tmp_path / "timeline.yaml"
    path.write_text(timeline)
    given = ["--desired", str(ROOT), "--cluster", cluster, "--timeline", str(path), "-o", "json", *more]
    result = belay(*given)
    assert result.exit_code == 0, result.output
    again = belay(*given)
    assert again.stdout == result.stdout, "the same story twice"
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def kinds(story: dict[str, Any], after: float = 0.0) -> list[str]:
    return [a["kind"] for m in story["moments"] if m["after"] >= after for a in m["actions"]]


def test_a_cluster_at_rest_has_no_actions(cluster: str, tmp_path: Path) -> None:
    result = belay("--desired", str(ROOT), "--cluster", cluster, "-o", "json")
    story = json.loads(result.stdout)
    assert story["ended"] == "quiet" and story["moments"] == [] and story["counts"] == {}


def test_a_chip_fault_is_isolated_moved_reset_and_released(cluster: str, tmp_path: Path) -> None:
    story = play(cluster, tmp_path, '- {at: 10s, node: node-1, chip: 3, code: "80C98001"}\n')
    assert story["moments"][0]["after"] == 10 and story["moments"][0]["events"] == ["80C98001 occurs on node-1/3"]
    assert [k for k in kinds(story) if k not in ("PatchObject", "WriteRankTable", "CreatePod")] == [
        "IsolateChip", "EvictPod", "EvictPod", "ResetChips", "ReleaseChip", "BindPod", "BindPod",
    ]  # fmt: skip
    assert story["ended"] == "quiet" and story["state"]["pending"] == [] and story["state"]["actions"] == []
    assert all(chip["state"] == "healthy" for chip in story["state"]["chips"])


def test_resets_that_fail_stop_at_their_budget(cluster: str, tmp_path: Path) -> None:
    events = '- {at: 1s, node: node-8, resetFails: 20}\n- {at: 2s, node: node-8, chip: 0, code: "80C98001"}\n'
    story = play(cluster, tmp_path, events, "--for", "5h")
    assert kinds(story).count("ResetChips") <= 3 and story["ended"] == "duration"
    chip = next(c for c in story["state"]["chips"] if c["node"] == "node-8" and c["chip"] == "Ascend910-0")
    assert chip["state"] in ("isolated", "manually-isolated")


def test_a_lost_node_moves_its_job_and_comes_back(cluster: str, tmp_path: Path) -> None:
    events = "- {at: 1m, node: node-1, state: not-ready}\n- {at: 1h, node: node-1, state: ready}\n"
    story = play(cluster, tmp_path, events)
    assert story["counts"]["EvictPod"] >= 2 and story["ended"] == "quiet" and story["state"]["pending"] == []
    assert {n["node"]: n["state"] for n in story["state"]["nodes"]}["node-1"] == "healthy"


def test_a_node_leaves_and_returns(cluster: str, tmp_path: Path) -> None:
    events = "- {at: 1m, node: node-1, state: gone}\n- {at: 20m, node: node-1, state: back}\n"
    story = play(cluster, tmp_path, events)
    assert story["ended"] == "quiet" and story["state"]["pending"] == []
    assert "node-1" in {n["node"] for n in story["state"]["nodes"]}


def test_hardware_and_switch_reports_close_a_node_and_open_it_again(cluster: str, tmp_path: Path) -> None:
    events = (
        "- {at: 1m, node: node-1, hardware: SeparateFault}\n- {at: 30m, node: node-1, hardware: Healthy}\n"
        "- {at: 40m, node: node-7, switch: PreSeparate}\n- {at: 50m, node: node-7, switch: NotHandle}\n"
    )
    story = play(cluster, tmp_path, events)
    assert kinds(story).count("IsolateNode") == kinds(story).count("ReleaseNode") >= 2
    assert all(n["state"] == "healthy" for n in story["state"]["nodes"])


def test_an_ended_pod_and_a_deleted_one_are_replaced(cluster: str, tmp_path: Path) -> None:
    story = play(cluster, tmp_path, "- {at: 1m, pod: default/pretrain-worker-0, phase: Deleted}\n")
    assert story["counts"]["CreatePod"] >= 1 and story["counts"]["BindPod"] >= 1 and story["state"]["pending"] == []


def test_the_table_shows_the_story(cluster: str, tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text('- {at: 90s, node: node-1, chip: 3, code: "80DF8402"}\n')
    result = belay("--desired", str(ROOT), "--cluster", cluster, "--timeline", str(path))
    assert "1m30s" in result.stdout and "80DF8402 occurs on node-1/3" in result.stdout
    assert "\nquiet at " in result.stdout and "1 IsolateChip" in result.stdout
    assert "SeparateNPU" in result.stdout.partition("quiet at")[2], "what is left is listed at the end"


def test_a_timeline_of_inject_can_be_simulated(cluster: str, tmp_path: Path) -> None:
    sample = (ROOT / "deploy" / "samples" / "faults-timeline.yaml").read_text()
    story = play(cluster, tmp_path, sample)
    told = [event for m in story["moments"] for event in m["events"]]
    assert len(told) == 31 and "hang begins on node-2/7" in told and "200001002 occurs on node-2/7" in told
    assert not [c for c in story["state"]["chips"] if c["codes"]], "everything ends in this story"
    isolated = {
        (a["node"], a["chips"][0]) for m in story["moments"] for a in m["actions"] if a["kind"] == "IsolateChip"
    }
    assert {("node-1", "Ascend910-3"), ("node-1", "Ascend910-5"), ("node-2", "Ascend910-6")} <= isolated
    assert [a["node"] for m in story["moments"] for a in m["actions"] if a["kind"] == "IsolateNode"] == ["node-3"]


@pytest.mark.parametrize(
    ("rows", "codes", "state", "level"),
    [
        ("chip: 1, network: '81078603'", ["81078603"], "suspect", "NotHandleFault"),
        ("chip: 1, subHealth: true", ["80818C06"], "sub-healthy", "SubHealthFault"),
        ("chip: 1, ping: lost", ["220001001"], "isolated", "SeparateNPU"),
        ("public: '220001001', sender: CCAE, chips: [1]", ["220001001"], "isolated", "SeparateNPU"),
    ],
)
def test_every_source_of_faults_reaches_its_chip(
    cluster: str, tmp_path: Path, rows: str, codes: list[str], state: str, level: str
) -> None:
    story = play(cluster, tmp_path, f"timeline:\n  - {{at: 0, node: node-8, {rows}}}\n", "--for", "1s")
    found = next(c for c in story["state"]["chips"] if (c["node"], c["chip"]) == ("node-8", "Ascend910-1"))
    assert (found["codes"], found["state"], found["level"]) == (codes, state, level)


def test_boards_and_switches_are_graded_by_their_tables(cluster: str, tmp_path: Path) -> None:
    story = play(
        cluster,
        tmp_path,
        """
- {at: 1s, node: node-7, hardware: "0000001D", device: Memory, deviceId: 3}
- {at: 2s, node: node-8, switch: "[0x00f103b6,155908,na,na]", switchChip: 1, switchPort: 7}
- {at: 3s, node: node-8, switch: "[0xffffffff,1,na,na]"}
""",
        "--for",
        "5s",
    )
    rows = {n["node"]: n for n in story["state"]["nodes"]}
    assert (rows["node-7"]["state"], rows["node-7"]["codes"]) == ("pre-isolated", ["0000001D"])
    assert (rows["node-8"]["state"], rows["node-8"]["codes"]) == ("sub-healthy", ["[0x00f103b6,155908,na,na]"])


def test_memory_errors_of_storage_clients_count_after_ten_minutes(cluster: str, tmp_path: Path) -> None:
    brief = "- {at: 0, node: node-8, storage: dpc, part: memory}\n" \
            "- {at: 9m, node: node-8, storage: dpc, part: memory, assertion: recover}\n"  # fmt: skip
    assert not any("110001021" in str(m) for m in play(cluster, tmp_path, brief)["moments"])
    long = play(cluster, tmp_path, brief.replace("9m", "11m"))
    assert [m["after"] for m in long["moments"] if any("110001021" in e for e in m["events"])] == [600.0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- {at: 1s, node: node-1, chip: 0, code: '80C98001', chips: [1]}", "code takes no chips"),
        ("- {at: 1s, node: node-1, chip: 0, network: '81078603', assertion: once}", "occurs or recovers"),
        ("- {at: 1s, node: node-1, chip: 0, ready: true}", "ready takes no chip"),
        ("timeline:\n  - {at: 1s, node: node-1, hardware: Bad}", ":2:38: timeline[0].hardware"),
        ("{}", "is not a list of events"),
        ("[", ":1:"),
        ("- {at: 10s, node: node-1, chip: 3, code: '80 C9'}", ":1:42: [0].code"),
        ("- {at: 10, node: node-1, state: ready}", ":1:8: [0].at: 10 is not a duration"),
        ("- {at: 1s, node: node-1}", "give exactly one of code, network, subHealth, drop,"),
        ("- {at: 1s, state: ready}", "give the node on which it happens"),
        ("- {at: 1s, node: node-1, code: '80C98001'}", "give node, chip and code together"),
        (
            "- {at: 2s, node: node-1, state: ready}\n- {at: 1s, node: node-1, state: ready}",
            ":2:8: the events must be in",
        ),
        ("- {at: 1s, node: other, state: ready}", "event 1: no node 'other' with a good device report"),
        ("- {at: 1s, node: node-1, chip: 9, code: '80C98001'}", "node node-1 has no chip 9"),
        ("- {at: 1s, node: node-1, states: ready}", "[0].states"),
    ],
)
def test_bad_timelines_are_refused_at_their_place(cluster: str, tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    result = belay("--cluster", cluster, "--timeline", str(path))
    assert result.exit_code == 2 and words in result.stderr, result.stderr
    assert str(path) in result.stderr


def test_what_if_is_asked_without_a_file_and_answered_in_a_sentence(cluster: str) -> None:
    given = ("--desired", str(ROOT), "--cluster", cluster)
    killed = json.loads(belay(*given, "--kill", "node-1", "-o", "json").stdout)
    assert killed["moments"][0]["events"] == ["node-1: not-ready"]
    assert "default/pretrain loses" in killed["summary"] and "has its place again" in killed["summary"]
    assert "in the end node-1 takes no new work" in killed["summary"]
    drained = json.loads(belay(*given, "--drain", "node-1,node-2", "-o", "json").stdout)
    assert [one["state"] for one in drained["state"]["nodes"] if one["node"] in ("node-1", "node-2")] != ["healthy"] * 2
    faulty = belay(*given, "--fault", "node-1/3", "--fault", "node-1/4=80DF8402")
    assert "80C98001 occurs on node-1/3" in faulty.stdout and "80DF8402 occurs on node-1/4" in faulty.stdout
    last = " ".join(faulty.stdout.rpartition("What happens: ")[2].split())
    assert last.startswith("default/pretrain loses 2 pods") and last.endswith(
        "in the end 0 chips are out of service by a fault."
    )
    separated = belay(*given, "--fault", "node-1/4=80DF8402").stdout.rpartition("What happens: ")[2]
    assert " ".join(separated.split()).endswith("in the end 1 chip is out of service by a fault."), "no reset heals it"
    items = json.loads(Path(cluster).read_text())
    for item in items["items"]:
        item["metadata"].get("labels", {}).pop("fault-scheduling", None)
    unmoved = Path(cluster).with_name("unmoved.json")
    unmoved.write_text(json.dumps(items))
    stays = json.loads(belay("--cluster", str(unmoved), "--kill", "node-1", "-o", "json").stdout)["summary"]
    assert "default/pretrain has 1 pod on a node that is down and is not moved" in stays and "no job" not in stays
    rest = belay(*given)
    assert "What happens: no job loses a pod; in the end 0 chips are out of service by a fault." in rest.stdout


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("--kill", "node-9"), "--kill: no node 'node-9' with a good device report. There are infer-1, node-1"),
        (("--drain", "node-9"), "--drain: no node 'node-9'"),
        (("--fault", "node-1"), "Write NODE/3 or NODE/3=80C98001"),
        (("--fault", "node-1/99"), "node node-1 has no chip 99"),
        (("--fault", "node-1/3=no code"), "'no code' is no fault code"),
    ],
)
def test_a_what_if_about_nothing_is_refused(cluster: str, words: tuple[str, ...], answer: str) -> None:
    result = belay("--desired", str(ROOT), "--cluster", cluster, *words)
    assert result.exit_code == 2 and answer in result.stderr


def test_bad_options_are_refused(cluster: str, tmp_path: Path) -> None:
    assert "--for: 'soon' is not a duration" in belay("--cluster", cluster, "--for", "soon").stderr
    assert belay("--cluster", cluster, "--timeline", str(tmp_path / "none")).exit_code == 2
    empty = tmp_path / "empty.json"
    empty.write_text('{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Node", '
                     '"metadata": {"name": "n"}}]}')  # fmt: skip
    assert "there is nothing to simulate" in belay("--cluster", str(empty)).stderr
