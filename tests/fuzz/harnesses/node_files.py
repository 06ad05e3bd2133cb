"""Files and answers that a node's agents read: configurations, checkpoints of kubelet, container descriptions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from belay.agents.common import linefile
from belay.agents.containers import codes, docker
from belay.agents.containers import status as container_status
from belay.agents.containers.containerd import chips_of_spec
from belay.agents.containers.runtime import RuntimeFailure
from belay.agents.containers.usage import UsageError, chips_of_environment
from belay.agents.containers.usage import majors as usage_majors
from belay.agents.daemon import fleet
from belay.agents.exporter import groups, runtimes, textfiles, visible
from belay.agents.exporter import settings as exporter_settings
from belay.agents.kubelet import device_holdings, duplicates, hangs, slownode
from belay.agents.kubelet import names as kubelet_names
from belay.agents.kubelet.topology import cpus
from belay.agents.node import plugins, publicnames, steprecords, steptimes
from belay.agents.node.diagnosis.checks import look_at_checks
from belay.agents.node.diagnosis.matching import Findings, LogText
from belay.agents.node.diagnosis.rules import shipped_rules
from belay.agents.node.policy import DiskCache
from belay.agents.runtime import engines, tomltext
from belay.agents.runtime.containers import _json as container_json
from belay.agents.storage import check, exports
from belay.agents.training.checkpoint import places
from belay.engine.model.log_evidence import LogSource, PodEvidence
from belay.engine.wire import evidence, links
from belay.engine.wire.errors import WireError
from tests.fuzz.harness import Form, Harness, scratch, text

_MAJORS: Final = frozenset({236, 240})
_TOML_WORDS: Final = (
    b'[plugins."io.containerd.grpc.v1.cri"]\n',
    b"[[a]]\n",
    b"a = {b = 1}\n",
    b"'''",
    b'"""',
    b"version = 2\n",
    b"[a.b]\n",
    b"a.b = 1\n",
    b"= 0xff\n",
    b"1979-05-27T07:32:00Z",
    b"inf",
    b'"\\U00110000"',
)


def _document(use: Callable[[Any], object]) -> Callable[[bytes], object]:
    """A feed of decoded JSON objects."""

    def feed(data: bytes) -> object:
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            return None
        return use(body) if isinstance(body, dict) else None

    return feed


_RULES: Final = shipped_rules()


def _log(data: bytes) -> None:
    """A log of each source: what is found always fits into a report, which is read back."""
    for source in LogSource:
        findings = Findings(_RULES, 0)
        log = LogText(source, "plog-1_1.log", data, 1_764_000_000_000)
        findings.read(log)
        look_at_checks(findings, log)
        events = findings.events()
        pod = PodEvidence(
            "n", "p", "u", ranks=findings.ranks, world=findings.world, chips=findings.devices, host_ip=findings.host,
            events=events,
        )  # fmt: skip
        (read,) = evidence.parse(evidence.build("node", [pod]))[1]
        assert read.events == events
        assert not any(ord(one) < 32 for event in events for one in event.example)


def _spec(data: bytes) -> None:
    """The OCI description of a container, by each of its readers."""
    try:
        chips_of_spec(data, _MAJORS)
    except UsageError as error:
        assert len(str(error)) < 400
    try:
        body = runtimes._object(data)
    except ValueError:
        return
    visible.of_spec(body, _MAJORS)
    visible.of_inspection(body)


def _bundle(data: bytes) -> None:
    """The device plugin looks for chips that two containers use."""
    folder = scratch(data, "bundles/a/config.json").parent.parent
    check = duplicates.Duplicates(_State(), _Nothing(), folders=(folder,), driver=_MAJORS)  # type: ignore[arg-type]
    check.check()
    container_json(folder / "a/config.json")


class _State:
    """The state of a node, as far as the check writes to it."""

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}


class _Nothing:
    def __call__(self) -> float:
        return 0.0


def _environment(found: str) -> None:
    entries = found.split("\n")
    visible.of_environment(entries)
    usage_majors(found)
    cpus(found)
    for use in (
        lambda: chips_of_environment(entries),
        lambda: kubelet_names.parse(found),
        lambda: kubelet_names.parse(found, shared=True),
    ):
        try:
            use()
        except (UsageError, ValueError) as error:
            assert len(str(error)) < 600


def _flags(found: str) -> None:
    exporter_settings.parse(found.split("\n"))


def _text_file(data: bytes) -> None:
    path = scratch(data)
    path.chmod(0o600)
    textfiles.TextFiles(str(path)).read()


def _groups(data: bytes) -> None:
    folder = scratch(data, f"groups/{groups.METRICS_FILE}").parent
    scratch(data, f"groups/{groups.PLUGINS_FILE}")
    groups.configured(folder)


def _exports(found: str) -> None:
    """A server's /etc/exports; every finding is short and says what to do."""
    findings = exports.check_exports(found)
    assert findings
    for one in findings:
        assert len(one.found) < 400 and (one.state == "ok" or (one.cause and one.next_step))


def _mounts(found: str) -> None:
    """The table of mounts, which holds names that users of the host chose."""
    for folder in ("/data/a b", "/", "/data/atlas_dls/output"):
        mount = places.mount_of(Path(folder), found)
        if mount is not None:
            list(check.check_mount(mount))


def _links(data: bytes) -> None:
    for read in (links.parse_end, links.parse_end_report):
        try:
            read("a", data.decode("utf-8", "replace"))
        except WireError as error:
            assert len(str(error)) < 1000


def _engines(found: str) -> None:
    for scene in ("docker", "containerd", "crio"):
        try:
            edit = engines.add(scene, found, "/usr/local/bin/belay-oci-runtime")
            engines.remove(scene, edit.text, edit.default)
            engines.remove(scene, found, None)
        except engines.EngineError as error:
            assert len(str(error)) < 2000


def _toml(found: str) -> None:
    tomltext.read(found)
    for edit in (
        lambda: tomltext.set_value(found, ("plugins", "a b"), "x", "y"),
        lambda: tomltext.add_table(found, ("plugins", "new"), {"k": "v"}),
        lambda: tomltext.remove_table(found, ("plugins", "a")),
    ):
        try:
            after = edit()
        except tomltext.EditError:
            continue
        tomltext.read(after)


class _Record(msgspec.Struct):
    epoch: int
    chip: str = ""


def _lines(data: bytes) -> None:
    list(linefile.records_of(data, _Record))
    list(linefile.records_of(linefile.lines_of([_Record(1, data.decode("latin-1"))]), _Record))


def _kept(data: bytes) -> None:
    scratch(data, "kept/a.json")
    DiskCache(scratch(data, "kept/a.json").parent).get("a")


def _names(body: Any) -> None:
    found = body.get("names")
    names = publicnames.read_names(scratch(json.dumps(found).encode()))
    data = body.get("data")
    if isinstance(data, dict) and all(isinstance(value, str) for value in data.values()):
        for outward in (True, False):
            names.annotations(data, outward=outward)
            names.node_annotations(data, outward=outward)
            for value in data.values():
                names.devices(value, outward=outward)


def _kubelet(data: bytes) -> None:
    device_holdings.parse_checkpoint(data)


def _docker(data: bytes) -> None:
    docker._said(data)


def _control(body: Any) -> None:
    data = body.get("data")
    if isinstance(data, dict) and all(isinstance(value, str) for value in data.values()):
        fleet._spec(body)


def _steps(data: bytes) -> None:
    groups = steptimes.groups_of(data)
    steprecords.RankSteps(0).take(data.split(b"\n"), groups)


def _degradation(body: Any) -> None:
    data = body.get("data")
    if isinstance(data, dict) and all(isinstance(value, str) for value in data.values()):
        slownode.settings_of(data)


def _status(data: bytes) -> None:
    path = scratch(data)
    path.chmod(0o600)
    container_status.read(path)
    container_status.earlier(path)


HARNESSES: Final = (
    Harness(
        "oci-spec",
        _spec,
        (
            "agents/containers/containerd.py",
            "agents/containers/usage.py",
            "agents/exporter/visible.py",
            "agents/exporter/runtimes.py",
        ),
    ),
    Harness("step-records", _steps, ("agents/node/steprecords.py", "agents/node/steptimes.py")),
    Harness("degradation-settings", _document(_degradation), ("agents/kubelet/slownode.py",), log_lines=1000),
    Harness("oci-bundle", _bundle, ("agents/kubelet/duplicates.py", "agents/runtime/containers.py")),
    Harness(
        "device-names",
        text(_environment),
        (
            "agents/exporter/visible.py",
            "agents/containers/usage.py",
            "agents/kubelet/names.py",
            "agents/kubelet/topology.py",
        ),
        form=Form.TEXT,
        words=(b"ASCEND_VISIBLE_DEVICES=", b"Ascend910-", b"0-9999", b"npu-"),
    ),
    Harness(
        "exporter-flags",
        text(_flags),
        ("agents/exporter/settings.py",),
        (exporter_settings.FlagError,),
        Form.TEXT,
        words=(b"-port=", b"-ip=", b"-updateTime="),
    ),
    Harness("exporter-text-file", _text_file, ("agents/exporter/textfiles.py",), (textfiles.TextFileError,)),
    Harness("exporter-groups", _groups, ("agents/exporter/groups.py",), log_lines=10_000),
    Harness(
        "nfs-exports",
        text(_exports),
        ("agents/storage/exports.py",),
        form=Form.TEXT,
        words=(b"(rw,sync)", b"*", b"-async", b" (", b"anonuid=9000", b'"/data set"', b"\\\n", b"# ", b"all_squash"),
        seeds=lambda: (
            b"/data 10.0.0.0/16(rw,sync,root_squash) # c\n",
            b'"/data set" -async,rw \\\n a(insecure) *(all_squash) (rw)\n/x\nrel a(rw\n',
        ),
    ),
    Harness(
        "mount-table",
        text(_mounts),
        ("agents/training/checkpoint/places.py", "agents/storage/check.py"),
        form=Form.TEXT,
        words=(b"\\040", b" - nfs4 ", b",vers=4.2", b"rsize=1048576", b" soft,"),
        seeds=lambda: (
            b"1 0 0:1 / / rw - ext4 /dev/a rw\n"
            b"2 1 0:2 / /data rw,relatime shared:1 - nfs4 s:/e rw,vers=3,rsize=8192,soft\n"
            b"3 1 0:3 / /data/a\\040b rw - overlay o rw\n"
            b"4 1 0:4 / /data/atlas_dls ro - nfs s:/e ro,vers=4.2,nolock,proto=udp\n",
        ),
    ),
    Harness(
        "collected-log",
        _log,
        (
            "agents/node/diagnosis/matching.py",
            "agents/node/diagnosis/codes.py",
            "agents/node/diagnosis/checks.py",
            "agents/node/diagnosis/times.py",
        ),
        form=Form.TEXT,
        words=(
            b"EI0002",
            b"remote rank[",
            b"rank[9]",
            b"| 10.0.0.1(3) |",
            b"event_state=",
            b"0x80c98008",
            b"\n",
            b"2026-11-23",
        ),
        steps=2_000_000,
        steps_per_byte=20_000,
        tries=0.2,
    ),
    Harness("link-files", _links, ("engine/wire/links.py",)),
    Harness(
        "runtime-engines",
        text(_engines),
        ("agents/runtime/engines.py", "agents/runtime/tomltext.py"),
        form=Form.TEXT,
        words=_TOML_WORDS,
    ),
    Harness("toml", text(_toml), ("agents/runtime/tomltext.py",), (tomltext.EditError,), Form.TEXT, words=_TOML_WORDS),
    Harness("line-file", _lines, ("agents/common/linefile.py",), (ValueError,), Form.BYTES),
    Harness("kept-config-map", _kept, ("agents/node/policy.py",), (WireError,)),
    Harness("public-names", _document(_names), ("agents/node/publicnames.py",), (ValueError,)),
    Harness("kubelet-checkpoint", _kubelet, ("agents/kubelet/device_holdings.py",), (ValueError,)),
    Harness("reset-plugins", lambda data: plugins.ResetPlugins(scratch(data)).read(), ("agents/node/plugins.py",)),
    Harness("hang-limits", lambda data: hangs.limits(scratch(data)), ("agents/kubelet/hangs.py",), (ValueError,)),
    Harness("fault-codes", lambda data: codes.custom(scratch(data)), ("agents/containers/codes.py",), (ValueError,)),
    Harness("container-status", _status, ("agents/containers/status.py",), (container_status.StatusError,)),
    Harness("docker-answer", _docker, ("agents/containers/docker.py",), (RuntimeFailure,)),
    Harness("simulated-faults", _document(_control), ("agents/daemon/fleet.py",), (ValueError,)),
)
