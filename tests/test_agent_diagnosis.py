"""The agent's part of a diagnosis: which files it reads, what it hides and reports, what hostile logs cannot do."""

from __future__ import annotations

import asyncio
import gzip
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from belay.agents.common.clock import Clock
from belay.agents.node.diagnosis import archive, files
from belay.agents.node.diagnosis.matching import Findings, LogText
from belay.agents.node.diagnosis.part import DiagnosisPart, DiagnosisSettings, failures
from belay.agents.node.diagnosis.redaction import redacted
from belay.agents.node.diagnosis.rules import shipped_rules
from belay.engine.load import load
from belay.engine.model.log_evidence import EventRole, LogEvent, LogRule, LogSource, PodEvidence
from belay.engine.model.times import parse_rfc3339, rfc3339
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from belay.engine.status.diagnoses import rule_bodies
from belay.engine.status.jobs import job_status
from belay.engine.wire import evidence as wire
from belay.engine.wire import objects
from belay.engine.wire.errors import WireError
from belay.engine.wire.history import JOB_STATUS_KEY

NOW = parse_rfc3339("2026-11-23T08:00:00Z")
RULES = shipped_rules()


def body(name: str = "train-0", **status: Any) -> dict[str, Any]:
    owner = {"apiVersion": "mindxdl.gitee.com/v1", "kind": "AscendJob", "name": "train", "uid": "j", "controller": True}
    mounts = [{"name": "plog", "mountPath": "/root/ascend/log"}, {"name": "mindie", "mountPath": "/root/mindie/log"}]
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "team", "uid": f"{name}-uid", "creationTimestamp": rfc3339(NOW - 7200),
            "annotations": {"huawei.com/AscendReal": "Ascend910-0,Ascend910-1", "hccl/rankIndex": "0"},
            "ownerReferences": [owner],
        },
        "spec": {
            "nodeName": "node-1", "schedulerName": "volcano",
            "containers": [{"name": "ascend", "image": "i", "volumeMounts": mounts,
                            "resources": {"requests": {"huawei.com/Ascend910": "2"}}}],
            "volumes": [{"name": "plog", "hostPath": {"path": "/data/plog"}},
                        {"name": "mindie", "hostPath": {"path": "/data/mindie"}}],
        },
        "status": {"phase": "Running", **status},
    }  # fmt: skip


FAILED = {"phase": "Failed", "containerStatuses": [{"name": "ascend", "state": {"terminated": {"exitCode": 1}}}]}


class Moment(Clock):
    """A clock that stands at the tests' moment and never waits."""

    def now_ms(self) -> int:
        return int(NOW * 1000)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class Cluster:
    """The ConfigMaps that the part reads and writes."""

    def __init__(self, *bodies: Mapping[str, Any]) -> None:
        self.maps = {(b["metadata"]["namespace"], b["metadata"]["name"]): b for b in bodies}

    async def get_config_map(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        return self.maps.get((namespace, name))

    async def put_config_map(self, body: Mapping[str, Any]) -> None:
        self.maps[body["metadata"]["namespace"], body["metadata"]["name"]] = body


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host whose folders of logs lie below a folder of the test."""
    monkeypatch.setattr(files, "PODS", tmp_path / "pods")
    monkeypatch.setattr(files, "_DEVICE", tmp_path / "slog")
    monkeypatch.setattr(files, "_HOST", (str(tmp_path / "messages"),))
    return tmp_path


def write(path: Path, text: str | bytes, at: float = NOW) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    os.utime(path, (at, at))
    return path


def look(host: Path, cluster: Cluster, *bodies: Mapping[str, Any], looks: int = 1) -> tuple[DiagnosisPart, Any]:
    state = SimpleNamespace(pods=[objects.pod(b) for b in bodies], bodies=list(bodies), pods_read=True)
    part = DiagnosisPart(
        "node-1", cast(Any, cluster), lambda: cast(Any, state), host / "state", DiagnosisSettings((host,)), Moment()
    )
    for _ in range(looks):
        asyncio.run(part.look())
    return part, state


def reported(part: DiagnosisPart) -> tuple[PodEvidence, ...]:
    return wire.parse(wire.build("node-1", part._pods or ()))[1]


def test_the_logs_of_a_failed_pod_become_evidence(host: Path) -> None:
    write(host / "pods/team_train-0_train-0-uid/ascend/0.log",
          "2026-11-23T07:59:58.1Z stderr F [rank1]: RuntimeError: NPU out of memory. password=hunter2\n")  # fmt: skip
    write(host / "messages", "Nov 23 15:59:57 node-1 kernel: Out of memory: Killed process 4242 (python)\n")
    part, _ = look(host, Cluster(), body(**FAILED))
    (found,) = reported(part)
    assert (found.namespace, found.pod, found.owner, found.why) == ("team", "train-0", "train", "failed")
    assert (found.node, found.chips, found.pod_rank) == ("node-1", (0, 1), 0)
    told = {event.code: event for event in found.events}
    assert told["DeviceOutOfMemory"].rank == 1
    assert told["DeviceOutOfMemory"].first_ms == int((NOW - 1.9) * 1000)
    assert told["DeviceOutOfMemory"].example.endswith("password=***")
    assert told["HostOutOfMemory"].source is LogSource.HOST
    assert abs(told["HostOutOfMemory"].first_ms - (NOW - 3) * 1000) <= 1000, "local time, eight hours ahead"


def test_a_pod_is_read_once_and_again_after_its_next_end(host: Path) -> None:
    write(
        host / "pods/team_train-0_train-0-uid/ascend/0.log", "2026-11-23T07:59:58Z stderr F No space left on device\n"
    )
    look(host, Cluster(), body(**FAILED), looks=3)
    assert len(list((host / "state/logs").glob("*.gz"))) == 1
    again = body()
    again["status"]["containerStatuses"] = [
        {"name": "ascend", "restartCount": 1, "lastState": {"terminated": {"exitCode": 1}}}
    ]
    assert failures(again) == ["ascend ended 0"] == failures(body(containerStatuses=FAILED["containerStatuses"]))
    again["status"]["containerStatuses"][0]["restartCount"] = 2
    assert failures(again) == ["ascend ended 1"]


def test_a_deleted_pod_is_read_but_not_one_that_failed_before(host: Path) -> None:
    going = body()
    going["metadata"]["deletionTimestamp"] = rfc3339(NOW)
    part, _ = look(host, Cluster(), going)
    assert [one.why for one in reported(part)] == ["deleted"]
    part, state = look(host, Cluster(), body(**FAILED))
    state.bodies = [{**going, "status": {"phase": "Running"}}]
    asyncio.run(part.look())
    assert [one.why for one in reported(part)] == ["failed"]


def test_pods_without_chips_and_ended_well_are_left_alone(host: Path) -> None:
    plain = body(**FAILED)
    plain["metadata"]["annotations"] = {}
    plain["spec"]["containers"][0]["resources"] = {}
    part, _ = look(host, Cluster(), plain, body("train-1", phase="Succeeded"))
    assert part._pods is None


def test_rules_of_the_repository_reach_the_agent(host: Path) -> None:
    own = LogRule("TeamQuota", EventRole.CAUSE, (("quota of team",),))
    write(host / "pods/team_train-0_train-0-uid/ascend/0.log", "2026-11-23T07:59:58Z stderr F QUOTA of team spent\n")
    part, _ = look(host, Cluster(wire.build_rules([own])), body(**FAILED))
    assert [event.code for event in reported(part)[0].events] == ["TeamQuota"]


def test_evidence_of_an_earlier_process_of_the_agent_stays(host: Path) -> None:
    before = wire.build("node-1", [PodEvidence("team", "old", "old-uid", collected_ms=1)])
    part, _ = look(host, Cluster(before), body(**FAILED))
    assert [one.pod for one in reported(part)] == ["train-0", "old"]


def test_only_folders_below_the_roots_are_read_and_no_link_is_followed(host: Path, tmp_path_factory: Any) -> None:
    secret = write(tmp_path_factory.mktemp("other") / "shadow", "No space left on device\n")
    pod = body()
    folder = host / "plog"
    folder.mkdir()
    (folder / "plog-1_1.log").symlink_to(secret)
    (host / "linked").symlink_to(secret.parent)
    os.mkfifo(folder / "plog-2_1.log")
    for path in (str(folder), str(host / "linked"), str(secret.parent), f"{host}/../{secret.parent.name}", "/etc"):
        pod["spec"]["volumes"][0]["hostPath"]["path"] = path
        assert list(files.logs_of(pod, (host,), 0.0)) == [], path
    write(folder / "debug" / "plog-3_1.log", "text")
    pod["spec"]["volumes"][0]["hostPath"]["path"] = str(folder)
    assert [(log.source, log.data) for log in files.logs_of(pod, (host,), 0.0)] == [(LogSource.PLOG, b"text")]


def test_of_a_huge_log_only_the_end_is_read(host: Path) -> None:
    path = host / "pods/team_train-0_train-0-uid/ascend/0.log"
    write(path, b"")
    os.truncate(path, 1 << 30)  # one line of a gibibyte, without a place on the disk
    with path.open("ab") as stream:
        stream.write(b"\n2026-11-23T07:59:59Z stderr F No space left on device\n")
    os.utime(path, (NOW, NOW))
    part, _ = look(host, Cluster(), body(**FAILED))
    (found,) = reported(part)
    assert [event.code for event in found.events] == ["DiskFull"]
    assert found.cut
    (kept,) = (host / "state/logs").glob("*.gz")
    assert len(gzip.decompress(kept.read_bytes())) <= archive.POD_BYTES


def test_of_a_forest_of_folders_a_bounded_part_is_looked_at(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for first in range(30):
        for second in range(30):
            (host / f"plog/{first}/{second}").mkdir(parents=True)
    write(host / "pods/team_train-0_train-0-uid/ascend/0.log", "text")
    pod = body()
    pod["spec"]["volumes"][0]["hostPath"]["path"] = str(host / "plog")
    opened: list[Path] = []
    real = files._open
    monkeypatch.setattr(files, "_open", lambda path, *a, **k: (opened.append(path), real(path, *a, **k))[1])
    assert [log.data for log in files.logs_of(pod, (host,), 0.0)] == [b"text"]
    assert len(opened) < 600


def test_a_rank_of_a_hundred_digits_leaves_the_report_readable(host: Path) -> None:
    line = f"2026-11-23T07:59:59Z stderr F Failed to connect agent[{'9' * 100}, 5]: No space left on device\n"
    write(host / "pods/team_train-0_train-0-uid/ascend/0.log", line)
    part, _ = look(host, Cluster(), body(**FAILED))
    (found,) = reported(part)
    assert {remote for event in found.events for remote in event.remotes} == {5}


@pytest.mark.parametrize(
    "data",
    [
        random.Random(1).randbytes(1 << 20) + b"No space left on device" + random.Random(2).randbytes(1 << 20),
        b"\x1b[31m" * 50_000 + b"No space left on device" + b"\x1b]0;title\x07" * 1000,
        b"remote rank [" * 100_000 + b"No space left on device" + b"9" * 100_000,
        b"No space left on device" * 50_000,
        b"<script>alert(1)</script> No space left on device \xff\xfe\x00",
        b"password=" * 50_000 + b"No space left on device",
    ],
    ids=["binary", "terminal codes", "half a form", "one line", "markup", "half a secret"],
)  # fmt: skip
def test_hostile_logs_leave_no_control_characters(data: bytes) -> None:
    findings = Findings(RULES, 0)
    findings.read(LogText(LogSource.TRAINING, "0.log", data, int(NOW * 1000)))
    event = next(one for one in findings.events() if one.code == "DiskFull")
    assert len(event.example) <= 240
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in event.example)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("login password=hunter2 done", "login password=*** done"),
        ('{"api_key": "abcd1234", "n": 1}', '{"api_key": "***", "n": 1}'),
        ("Authorization: Bearer abc.def.ghi12345", "Authorization: Bearer ***"),
        ("git clone https://me:s3cret@host/x", "git clone https://me:***@host/x"),
        ("export HF_TOKEN=hf_abcdefghijklmnopqrstuvwx", "export HF_TOKEN=***"),
        ("run --password hunter2 --token-file x", "run --password *** --token-file x"),
        ("PASSWORD = 'my secret phrase' n=1", "PASSWORD = '***' n=1"),
        ("redis://:hunter2@host:6379", "redis://:***@host:6379"),
        ("GET https://host/x?X-Amz-Signature=dead&a=1&sig=beef", "GET https://host/x?X-Amz-Signature=***&a=1&sig=***"),
        ("passphrase=hunter2 Set-Cookie: session", "passphrase=*** Set-Cookie: ***"),
        ("with sk-proj-abcdefghijklmnopqrstuvwx", "with ***"),
        ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc", "jwt ***"),
        ("AKIAIOSFODNN7EXAMPLE is a key", "*** is a key"),
        ("-----BEGIN RSA PRIVATE KEY-----", "***"),
        ("\x1b[31mred\x1b[0m \x07bell\u202e", "red  bell "),
        ("rank 3 of 1000 at step 12: loss 3.14", "rank 3 of 1000 at step 12: loss 3.14"),
    ],
)
def test_secrets_are_hidden(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_addresses_are_hidden_on_demand() -> None:
    assert redacted("from 10.0.0.1 to fe80::1:2:3:4") == "from 10.0.0.1 to fe80::1:2:3:4"
    assert "10.0.0.1" not in redacted("from 10.0.0.1", addresses=True)


def test_archives_of_a_node_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_ARCHIVES", 3)
    store = archive.LogArchive(tmp_path / "logs")
    for at in range(6):
        store.keep(f"team.pod/{at}", at, [LogText(LogSource.PLOG, "p", b"secret=abc\x00 line\n" * 10, 0)])
    kept = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert kept == [f"{at:015d}-team.pod_{at}.log.gz" for at in (3, 4, 5)]
    text = gzip.decompress((tmp_path / "logs" / kept[0]).read_bytes()).decode()
    assert "secret=***" in text
    assert "abc" not in text


def _events(count: int) -> tuple[LogEvent, ...]:
    return tuple(LogEvent(f"Code{i}", EventRole.CAUSE) for i in range(count))


@pytest.mark.parametrize(
    "pods",
    [
        [PodEvidence("t", "p", "u", events=_events(49))],
        [PodEvidence("t", "p", "u", ranks=tuple(range(65)))],
        [PodEvidence("t", "p" * 300, "u")],
        [PodEvidence("t", "p", "u", events=(LogEvent("C", EventRole.CAUSE, example="x" * 241),))],
    ],
)
def test_evidence_beyond_its_bounds_is_refused(pods: Sequence[PodEvidence]) -> None:
    with pytest.raises(WireError, match="exceeds the bounds"):
        wire.parse(wire.build("node-1", pods))


def test_a_node_cannot_speak_for_another() -> None:
    forged = wire.build("node-1", [PodEvidence("t", "p", "u", node="node-2")])
    assert wire.parse(forged)[1][0].node == "node-1"
    forged["metadata"]["name"] = wire.PREFIX + "node-2"
    with pytest.raises(WireError, match="says 'node-1'"):
        wire.parse(forged)


def test_evidence_that_does_not_fit_loses_its_oldest_pods() -> None:
    pods = [PodEvidence("t", f"p{i}", f"u{i}", events=tuple(
        LogEvent(f"Code{n}", EventRole.CAUSE, example="x" * 240, places=("10.0.0.1/1",) * 16) for n in range(48)
    )) for i in range(32)]  # fmt: skip
    built = wire.build("node-1", pods)
    assert len(built["data"][wire.KEY]) <= wire.MAX_BYTES + 1000
    assert 0 < len(wire.parse(built)[1]) < 32


def test_evidence_reaches_the_status_of_its_job() -> None:
    event = LogEvent("DiskFull", EventRole.CAUSE, int((NOW - 60) * 1000), 1, 0, example="No space left on device")
    pods = [PodEvidence("team", "train-0", "old-uid", kind="AscendJob", owner="train", collected_ms=int(NOW * 1000),
                        api_version="mindxdl.gitee.com/v1", events=(event,), ranks=(0,), world=1)]  # fmt: skip
    seen = observe([body(), wire.build("node-1", pods)])
    assert seen.diagnostics == ()
    desired = load({}).desired
    (found,) = job_status(plan(desired, seen, NOW + 30), seen, desired)
    assert '"root": "rank 0 (train-0 on node-1): its own error came first"' in found["data"][JOB_STATUS_KEY] or (
        '"root":"rank 0 (train-0 on node-1): its own error came first"' in found["data"][JOB_STATUS_KEY]
    )


def test_rules_of_the_repository_are_published_and_withdrawn() -> None:
    text = ("apiVersion: belay.dev/v1alpha1\nkind: DiagnosisRules\nmetadata: {name: ours}\nspec:\n  rules:\n"
            "    - {code: Own, role: cause, match: [[a text]], title: {en: t}, advice: {en: a}}\n")  # fmt: skip
    own = load({"policies/diagnosis/ours.yaml": text.encode()}).desired
    assert rule_bodies(load({}).desired, observe([])) == []
    (published,) = rule_bodies(own, observe([]))
    assert [rule.code for rule in wire.parse_rules(published)] == ["Own"]
    (blank,) = rule_bodies(load({}).desired, observe([published]))
    assert wire.parse_rules(blank) == ()


@pytest.mark.parametrize(("age", "replaced", "root"), [(600.0, 30.0, "silent"), (600.0, 7200.0, ""), (60.0, 30.0, "")])
def test_a_replaced_pod_without_evidence_is_silent_once_agents_had_time(age: float, replaced: float, root: str) -> None:
    """Three pods wait; of the fourth nothing is known: it is the root if it was replaced, not if it still runs."""
    waits = LogEvent("NotifyWaitTimeout", EventRole.COLLECTIVE, int((NOW - age) * 1000))
    owner = {"kind": "AscendJob", "owner": "train", "api_version": "mindxdl.gitee.com/v1"}
    pods = [
        PodEvidence("team", f"train-{i}", f"old-{i}", collected_ms=int((NOW - age) * 1000), events=(waits,), **owner)
        for i in range(3)
    ]
    meta = {"name": "train", "namespace": "team", "uid": "j", "creationTimestamp": rfc3339(NOW - 90_000)}
    job = {"apiVersion": "mindxdl.gitee.com/v1", "kind": "AscendJob", "metadata": meta}
    live = [body(f"train-{i}") for i in range(4)]
    live[3]["metadata"]["creationTimestamp"] = rfc3339(NOW - replaced if replaced > age else NOW - age + replaced)
    seen = observe([job, *live, wire.build("node-1", pods)])
    desired = load({}).desired
    (found,) = job_status(plan(desired, seen, NOW), seen, desired)
    diagnosis = msgspec.json.decode(found["data"][JOB_STATUS_KEY])["diagnosis"]
    assert (diagnosis["rule"] if diagnosis["roots"] else "") == root
    assert not root or diagnosis["roots"][0]["pod"] == "train-3"


def test_evidence_of_an_earlier_job_of_the_name_does_not_count() -> None:
    event = LogEvent("DiskFull", EventRole.CAUSE, 1)
    old = PodEvidence("team", "train-0", "old", collected_ms=int((NOW - 90_000) * 1000), events=(event,),
                      kind="AscendJob", owner="train", api_version="mindxdl.gitee.com/v1")  # fmt: skip
    seen = observe([body(), wire.build("node-1", [old])])
    desired = load({}).desired
    (found,) = job_status(plan(desired, seen, NOW), seen, desired)
    assert "diagnosis" not in msgspec.json.decode(found["data"][JOB_STATUS_KEY])
