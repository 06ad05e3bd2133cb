"""`belay policy test`: recorded passes under the policies of their time and under another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from belay.engine import cli
from belay.engine.replay import recording
from belay.engine.replay.summary import RECORDING_SUFFIX
from belay.engine.wire.deviceinfo import build, fault_element
from tests import listing, worlds
from tests.simworld import A2, Node, World

HEAD = "apiVersion: belay.dev/v1alpha1\nkind: FaultPolicy\nmetadata: {name: %s}\nspec: %s\n"
CODE = "80DF8402"
"""SeparateNPU in the shipped table."""
MILD = "80DE0207"
"""SubHealthFault in the shipped table."""
JOB = b"""\
apiVersion: mindxdl.gitee.com/v1
kind: AscendJob
metadata: {name: j, namespace: train, labels: {framework: pytorch, fault-scheduling: force}}
spec:
  schedulerName: volcano
  replicaSpecs:
    Master:
      replicas: 1
      restartPolicy: Never
      template:
        spec:
          containers:
            - name: ascend
              image: train:1
              resources: {requests: {huawei.com/Ascend910: 8}, limits: {huawei.com/Ascend910: 8}}
"""


class Film:
    """A world of two servers that is recorded before every pass."""

    def __init__(self, folder: Path, files: dict[str, bytes] | None = None) -> None:
        self.folder = folder
        self.world = World(files or {"desired/j.yaml": JOB}, [Node(f"n{i}", labels=A2) for i in range(2)])
        for _ in range(4):
            self.world.step()
            self.world.pass_time(5)

    def run(self, seconds: float, every: float = 60.0) -> None:
        for _ in range(max(1, round(seconds / every))):
            world = self.world
            recording.write(
                self.folder, version="t", shard="main", now=world.now, revision=world.revision, files=world.files,
                objects=world.objects.values(), digest=world.plan().digest(),
            )  # fmt: skip
            world.step()
            world.pass_time(every)


def policy(tmp_path: Path, spec: str, name: str = "p") -> str:
    path = tmp_path / f"{name}.yaml"
    path.write_text(HEAD % (name, spec))
    return str(path)


def belay(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["policy", "test", *arguments])


def verdict(*arguments: str, code: int = 1) -> dict[str, Any]:
    result = belay(*arguments, "-o", "json")
    assert result.exit_code == code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def rows(changes: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(row["action"], row["on"]) for row in changes]


@pytest.fixture(scope="module")
def passing(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A fault that clears after two minutes."""
    film = Film(tmp_path_factory.mktemp("passing"))
    film.run(60)
    film.world.fault("n0", 3, CODE, "SeparateNPU")
    film.run(120)
    film.world.heal("n0", 3)
    film.run(900)
    return str(film.folder)


def test_the_same_policy_changes_nothing(tmp_path: Path, passing: str) -> None:
    found = verdict(policy(tmp_path, f'{{levels: {{"{CODE}": SeparateNPU}}}}'), "--against", passing, code=0)
    assert not found["avoided"] and not found["new"] and not found["missed"] and found["frames"] == 18
    assert "it would have done the same" in belay(policy(tmp_path, "{}"), "--against", passing).stdout


def test_a_milder_policy_avoids_actions_on_a_short_fault(tmp_path: Path, passing: str) -> None:
    found = verdict(policy(tmp_path, f'{{levels: {{"{CODE}": SubHealthFault}}}}'), "--against", passing)
    assert ("IsolateChip", "n0/Ascend910-3") in rows(found["avoided"]) and found["missed"] == []
    assert ("EvictPod", "train/j-master-0") in rows(found["avoided"])
    assert not [row for row in found["new"] if row["action"].startswith("Release")], "nothing to take back"
    table = belay(policy(tmp_path, f'{{levels: {{"{CODE}": SubHealthFault}}}}'), "--against", passing)
    assert table.exit_code == 1 and "avoided" in table.stdout and "n0/Ascend910-3" in table.stdout


def test_a_milder_policy_misses_actions_on_a_lasting_fault(tmp_path: Path) -> None:
    film = Film(tmp_path / "film")
    film.run(60)
    film.world.fault("n0", 3, CODE, "SeparateNPU")
    film.run(1200)
    found = verdict(policy(tmp_path, f'{{levels: {{"{CODE}": NotHandleFault}}}}'), "--against", str(film.folder))
    missed = {(row["action"], row["on"]): row["why"] for row in found["missed"]}
    assert missed[("IsolateChip", "n0/Ascend910-3")] == f"{CODE} still reported 19 minutes later"
    assert ("EvictPod", "train/j-master-0") in missed


def test_a_stricter_policy_adds_an_action_once(tmp_path: Path) -> None:
    film = Film(tmp_path / "film")
    film.world.fault("n0", 3, MILD, "SubHealthFault")
    film.run(600)
    found = verdict(policy(tmp_path, f'{{levels: {{"{MILD}": SeparateNPU}}}}'), "--against", str(film.folder))
    new = {(row["action"], row["on"]): row for row in found["new"]}
    assert set(new) == {("IsolateChip", "n0/Ascend910-3"), ("EvictPod", "train/j-master-0")}
    assert new[("IsolateChip", "n0/Ascend910-3")]["frames"] == 10
    assert new[("IsolateChip", "n0/Ascend910-3")]["first"] < new[("IsolateChip", "n0/Ascend910-3")]["last"]


def test_a_frequency_rule_counts_over_the_frames(tmp_path: Path) -> None:
    film = Film(tmp_path / "film")
    for _ in range(3):
        film.world.fault("n0", 3, MILD, "SubHealthFault")
        film.run(120)
        film.world.heal("n0", 3)
        film.run(120)
    rule = f'{{frequency: [{{codes: ["{MILD}"], times: %d, window: 1h, level: SeparateNPU, releaseAfter: 1h}}]}}'
    found = verdict(policy(tmp_path, rule % 3), "--against", str(film.folder))
    assert ("IsolateChip", "n0/Ascend910-3") in rows(found["new"])
    assert verdict(policy(tmp_path, rule % 4), "--against", str(film.folder), code=0)["new"] == []


def test_a_policy_of_a_name_replaces_and_a_shadow_is_enforced(tmp_path: Path) -> None:
    before = {
        "desired/j.yaml": JOB,
        "policies/p.yaml": (HEAD % ("p", f'{{levels: {{"{MILD}": SeparateNPU}}}}')).encode(),
    }
    film = Film(tmp_path / "film", before)
    film.world.fault("n0", 3, MILD, "SubHealthFault")
    film.run(240)
    milder = verdict(policy(tmp_path, "{mode: shadow}"), "--against", str(film.folder))
    assert ("IsolateChip", "n0/Ascend910-3") in rows(milder["avoided"]), "without the override the code is sub-health"


def test_a_policy_of_one_pool_is_tried_where_the_recording_declares_it(tmp_path: Path) -> None:
    declared = {
        "desired/j.yaml": JOB,
        "desired/pool.yaml": b"apiVersion: belay.dev/v1alpha1\nkind: NodePool\nmetadata: {name: training}\n"
        b"spec: {selector: {matchExpressions: [{key: kubernetes.io/hostname, operator: Exists}]}}\n",
    }
    film = Film(tmp_path / "passes", declared)
    film.run(60)
    film.world.fault("n1", 0, CODE, "SeparateNPU")
    film.run(300)
    scoped = policy(tmp_path, f'{{scope: {{pools: [training]}}, levels: {{"{CODE}": NotHandleFault}}}}')
    found = verdict(scoped, "--against", str(film.folder))
    assert ("IsolateChip", "n1/Ascend910-0") in rows(found["avoided"]) + rows(found["missed"])
    elsewhere = policy(tmp_path, f'{{scope: {{pools: [else]}}, levels: {{"{CODE}": NotHandleFault}}}}', "q")
    refused = belay(elsewhere, "--against", str(film.folder))
    assert refused.exit_code == 2 and "names a pool that was not declared then" in refused.stderr


def test_a_series_of_lists_is_a_recording_too(tmp_path: Path) -> None:
    film = Film(tmp_path / "unused")
    folder = tmp_path / "lists"
    folder.mkdir()
    film.world.fault("n0", 3, MILD, "SubHealthFault")
    for number in range(3):
        items = [obj for key, obj in film.world.objects.items()]
        (folder / f"{number}.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        film.world.step()
        film.world.pass_time(60)
    found = verdict(policy(tmp_path, f'{{levels: {{"{MILD}": SeparateNPU}}}}'), "--against", str(folder))
    assert ("IsolateChip", "n0/Ascend910-3") in rows(found["new"]) and found["frames"] == 3


def test_a_frequency_rule_counts_over_lists_of_a_cluster_without_belay(tmp_path: Path) -> None:
    """Such Lists hold no memory, neither of the policies of the time nor of the one that is tried."""
    lists = tmp_path / "lists"
    lists.mkdir()
    often = "80A18008"  # the shipped rule: twice in a day means ManuallySeparateNPU
    moments: tuple[tuple[int, dict[int, str]], ...] = (
        (0, {3: MILD}),
        (60, {}),
        (120, {3: MILD, 5: often}),
        (180, {}),
        (240, {3: MILD, 5: often}),
        (300, {}),
    )
    for second, bad in moments:
        now = int(worlds.NOW) + second
        codes = {
            c: (now * 1000 - 500, "SubHealthFault" if code == MILD else "NotHandleFault") for c, code in bad.items()
        }
        rows_ = [fault_element("CardUnhealthy", f"Ascend910-{c}", {bad[c]: codes[c]}, codes[c][1]) for c in bad]
        made = listing.report("n0")
        lists_of = json.loads(made["data"]["DeviceInfoCfg"])["DeviceInfo"]["DeviceList"]
        lists_of["huawei.com/Ascend910-Fault"] = json.dumps(rows_)
        body = build("n0", device_list=lists_of, update_time=now)
        items = [listing.node("n0", labels=worlds.A2_LABELS), body]
        (lists / f"{second:04d}.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    rule = "{frequency: [{codes: ['CODE'], times: TIMES, window: 1h, level: SeparateNPU, releaseAfter: 10m}]}"
    strict = rule.replace("CODE", MILD).replace("TIMES", "3")
    found = verdict(policy(tmp_path, strict), "--against", str(lists))
    (new,) = found["new"]
    assert (new["action"], new["on"], new["frames"]) == ("IsolateChip", "n0/Ascend910-3", 2)
    assert found["avoided"] == [] and found["missed"] == []
    lax = rule.replace("CODE", often).replace("TIMES", "100")
    found = verdict(policy(tmp_path, lax, "q"), "--against", str(lists))
    assert [(row["action"], row["on"]) for row in found["avoided"]] == [("IsolateChip", "n0/Ascend910-5")]


def test_invalid_input_is_reported_with_exit_code_2(tmp_path: Path, passing: str) -> None:
    good = policy(tmp_path, "{}")
    assert "does not exist" in belay(good, "--against", str(tmp_path / "none")).stderr
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "holds no recordings" in belay(good, "--against", str(empty)).stderr
    broken = policy(tmp_path, "{levels: {X: Bad}}", "broken")
    result = belay(broken, "--against", passing)
    assert result.exit_code == 2 and f"{broken}:4:" in result.stderr
    other = tmp_path / "budget.yaml"
    other.write_text("apiVersion: belay.dev/v1alpha1\nkind: SafetyBudget\nmetadata: {name: b}\nspec: {limits: []}\n")
    assert "holds no FaultPolicy" in belay(str(other), "--against", passing).stderr
    assert belay(str(tmp_path / "nothing.yaml"), "--against", passing).exit_code == 2
    damaged = tmp_path / f"x{RECORDING_SUFFIX}"
    damaged.write_bytes(b"no gzip")
    assert "is not a recording" in belay(good, "--against", str(damaged)).stderr


def test_missing_kinds_in_a_list_are_noted_and_an_empty_one_is_rejected(tmp_path: Path) -> None:
    good = policy(tmp_path, "{}")
    film = Film(tmp_path / "unused")
    items = list(film.world.objects.values())
    odd = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "d"}, "spec": {"containers": "x"}}
    nothing, some = tmp_path / "a.json", tmp_path / "b.json"
    nothing.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": []}))
    some.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*items, odd]}))
    refused = belay(good, "--against", str(nothing))
    assert refused.exit_code == 2 and f"{nothing}: holds no device report" in refused.stderr
    found = verdict(good, "--against", str(nothing), "--against", str(some), code=0)
    assert found["frames"] == 1 and len(found["notes"]) == 2
    assert found["notes"][0].startswith(f"{nothing}: left out")
    assert "Pod/d/p spec.containers" in found["notes"][1]


def test_a_mistake_in_a_folder_of_policies_names_its_file(tmp_path: Path, passing: str) -> None:
    folder = tmp_path / "mine"
    (folder / "sub").mkdir(parents=True)
    Path(policy(tmp_path, "{}")).rename(folder / "good.yaml")
    Path(policy(tmp_path, "{levels: {X: Bad}}", "broken")).rename(folder / "sub" / "good.yaml")
    result = belay(str(folder), "--against", passing)
    assert result.exit_code == 2 and f"{folder}/sub/good.yaml:4:" in result.stderr
