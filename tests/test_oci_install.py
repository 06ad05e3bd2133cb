"""Engines' configuration files with the runtime in and out again, and what an installation leaves behind."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from belay.agents.runtime import engines, tomltext
from belay.agents.runtime.containers import MARK, running
from belay.agents.runtime.install import (
    HOME,
    LISTS,
    Host,
    InstallError,
    InstallOptions,
    check,
    install,
    status,
    uninstall,
    upgrade,
)
from belay.engine.cli import main
from tests.runtime_host import oci_programs

pytestmark = pytest.mark.real_time

__all__ = ["oci_programs"]

RUNTIME = "/usr/local/Ascend/Ascend-Docker-Runtime/belay-oci-runtime"
DEFAULTS = {
    "runtime_type": "io.containerd.runc.v2", "runtime_root": "", "runtime_engine": "",
    "privileged_without_host_devices": False, "options": {"SystemdCgroup": True, "BinaryName": RUNTIME},
}  # fmt: skip

V2 = """\
# our containerd
version = 2  # the second

[grpc]
  address = "/run/containerd/containerd.sock"

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    sandbox_image = "pause:3.9" # kept
    [plugins."io.containerd.grpc.v1.cri".containerd]
      snapshotter = "overlayfs"
      default_runtime_name = "runc" # was runc

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
        runtime_type = "io.containerd.runc.v2"
        pod_annotations = [
          "[not.a.table]",
        ]
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
          SystemdCgroup = true

# the end
[debug]
  level = "info"
"""


def containerd(document: Mapping[str, Any], plugin: str) -> Any:
    return document["plugins"][plugin]["containerd"]


@pytest.mark.parametrize(
    ("text", "plugin"),
    [
        ("", "io.containerd.grpc.v1.cri"),
        ("version = 1\n", "cri"),
        ("version = 2\n", "io.containerd.grpc.v1.cri"),
        ("version = 3\n", "io.containerd.cri.v1.runtime"),
        ("version = 4\n[plugins]\n", "io.containerd.cri.v1.runtime"),
        ("[plugins.cri.containerd]\nx = 1\n[debug]\n", "io.containerd.grpc.v1.cri"),
    ],
)
def test_containerd_without_runc_gets_the_defaults(text: str, plugin: str) -> None:
    edit = engines.add("containerd", text, RUNTIME)
    found = containerd(tomllib.loads(edit.text), plugin)
    assert found == {"default_runtime_name": "ascend", "runtimes": {"ascend": DEFAULTS}}
    assert edit.text.startswith(text.rstrip("\n"))
    left = tomllib.loads(engines.remove("containerd", edit.text, edit.default))
    assert containerd(left, plugin) == {"default_runtime_name": "runc"}


def test_containerd_copies_runc_and_keeps_every_other_line() -> None:
    edit = engines.add("containerd", V2, RUNTIME)
    assert edit.default == "runc" and not edit.notes
    before, after = V2.splitlines(), edit.text.splitlines()
    assert [line for line in before if line not in after] == ['      default_runtime_name = "runc" # was runc']
    assert '      default_runtime_name = "ascend" # was runc' in after
    found = containerd(tomllib.loads(edit.text), "io.containerd.grpc.v1.cri")
    assert found["runtimes"]["ascend"] == {
        "runtime_type": "io.containerd.runc.v2",
        "pod_annotations": ["[not.a.table]"],
        "options": {"SystemdCgroup": True, "BinaryName": RUNTIME},
    }
    assert found["snapshotter"] == "overlayfs" and "BinaryName" not in found["runtimes"]["runc"]["options"]
    assert engines.remove("containerd", edit.text, edit.default) == V2
    assert engines.add("containerd", edit.text, RUNTIME).text == edit.text, "twice is once"


def test_a_default_that_stays() -> None:
    edit = engines.add("containerd", V2, RUNTIME, default=False)
    found = containerd(tomllib.loads(edit.text), "io.containerd.grpc.v1.cri")
    assert found["default_runtime_name"] == "runc" and "ascend" in found["runtimes"]
    assert engines.remove("containerd", edit.text, edit.default) == V2


def test_another_default_comes_back() -> None:
    text = V2.replace('default_runtime_name = "runc"', 'default_runtime_name = "crun"')
    edit = engines.add("containerd", text, RUNTIME)
    assert engines.remove("containerd", edit.text, edit.default) == text


def test_another_binary_is_pointed_out() -> None:
    text = V2.replace("SystemdCgroup = true", 'BinaryName = "/opt/crun"')
    assert "/opt/crun" in engines.add("containerd", text, RUNTIME).notes[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("version = 2\nplugins = {a = {b = 1}}\n", "inline table"),
        ("version = 2\n[plugins]\n'io.containerd.grpc.v1.cri' = 3\n", "is not a table"),
        ('version = "two"\n', "version: 'two'"),
        ("version = 2\n[plugins\n", "at line 2, column 9"),
        ("a = 1\na = 2\n", "line 2"),
    ],
)
def test_what_cannot_be_edited_is_refused_by_key(text: str, reason: str) -> None:
    with pytest.raises(engines.EngineError, match=reason):
        engines.add("containerd", text, RUNTIME)


def test_docker() -> None:
    text = '{\n  "live-restore": true,\n  "runtimes": {"kata": {"path": "/k"}},\n  "default-runtime": "kata"\n}\n'
    edit = engines.add("docker", text, RUNTIME)
    found = json.loads(edit.text)
    assert found == {
        "live-restore": True,
        "runtimes": {"kata": {"path": "/k"}, "ascend": {"path": RUNTIME, "runtimeArgs": []}},
        "default-runtime": "ascend",
    }
    assert list(found) == ["live-restore", "runtimes", "default-runtime"]
    assert json.loads(engines.remove("docker", edit.text, edit.default)) == json.loads(text)
    assert json.loads(engines.remove("docker", engines.add("docker", "", RUNTIME).text, None)) == {}


def test_isula_keeps_its_default() -> None:
    assert "default-runtime" not in json.loads(engines.add("isula", "{}", RUNTIME).text)
    assert json.loads(engines.add("isula", "{}", RUNTIME, default=True).text)["default-runtime"] == "ascend"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "no JSON object"),
        ('{"a":1,"a":2}', "'a' is there twice"),
        ('{"runtimes": []}', "runtimes"),
        ("{\n,", "2:1:"),
    ],
)
def test_docker_files_that_cannot_be_edited(text: str, reason: str) -> None:
    with pytest.raises(engines.EngineError, match=reason):
        engines.add("docker", text, RUNTIME)


def test_crio() -> None:
    found = tomllib.loads(engines.add("crio", "", RUNTIME).text)["crio"]["runtime"]
    assert found["default_runtime"] == "ascend"
    assert found["runtimes"]["ascend"] == {
        "runtime_type": "oci", "runtime_root": "", "runtime_path": RUNTIME,
        "monitor_env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
    }  # fmt: skip
    text = '[crio.runtime]\n[crio.runtime.runtimes.runc]\nruntime_path = "/r"\nmonitor_path = "/m"\n'
    edit = engines.add("crio", text, RUNTIME)
    entry = tomllib.loads(edit.text)["crio"]["runtime"]["runtimes"]["ascend"]
    assert (entry["runtime_path"], entry["monitor_path"]) == (RUNTIME, "/m")
    left = tomllib.loads(engines.remove("crio", edit.text, edit.default))
    assert left["crio"]["runtime"] == {
        "default_runtime": "runc",
        "runtimes": {"runc": {"runtime_path": "/r", "monitor_path": "/m"}},
    }


names = st.sampled_from(["a", "b-1", "x.y", "io.containerd", 'q"', "\u00e9"])
values = st.integers(-5, 5) | st.booleans() | st.text(max_size=6) | st.lists(st.text(max_size=3), max_size=3)
tables = st.dictionaries(names, values | st.dictionaries(names, values, max_size=3), max_size=4)


@settings(max_examples=150, deadline=None)
@given(document=st.dictionaries(names, tables, max_size=3), path=st.lists(names, min_size=1, max_size=3), entry=tables)
def test_any_table_goes_in_and_out_without_a_trace(
    document: dict[str, Any], path: list[str], entry: dict[str, Any]
) -> None:
    text = "# head\n"
    for name, below in document.items():
        text = tomltext.add_table(text, [name], below)
    assert tomltext.read(text) == document
    try:
        there = tomltext.table(document, path)
        if there is not None:
            return
        edited = tomltext.add_table(text, path, entry)
    except tomltext.EditError:
        return  # something else stands on the path
    wanted: Any = tomltext.read(edited)
    for name in path[:-1]:
        wanted = wanted[name]
    assert wanted[path[-1]] == entry
    assert tomltext.read(tomltext.remove_table(edited, path)) == pruned(document, path[:-1])


# -- a whole host


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "etc").mkdir()
    (tmp_path / "proc").mkdir()
    (tmp_path / "etc/os-release").write_text('NAME="openEuler"\nID="openEuler"\n')
    return Host(tmp_path)


def options(built: Sequence[Path], **changes: Any) -> InstallOptions:
    return InstallOptions(**{"scene": "containerd", "programs": built[0].parent, **changes})


def pruned(document: dict[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """Without tables above ``path`` that are empty: an engine's file is not left with shells."""
    if not path or not isinstance(document.get(path[0]), dict):
        return document
    below = pruned(document[path[0]], path[1:])
    return {**document, path[0]: below} if below else {n: v for n, v in document.items() if n != path[0]}


def everything(host: Host) -> dict[str, bytes]:
    return {
        str(path.relative_to(host.root)): path.read_bytes() for path in sorted(host.root.rglob("*")) if path.is_file()
    }


def containerd_file(host: Host, text: str = V2) -> Path:
    path = host.at("/etc/containerd/config.toml")
    path.parent.mkdir()
    path.write_text(text)
    path.chmod(0o644)
    return path


def test_in_and_out_leaves_the_host_as_it_was(oci_programs: Sequence[Path], host: Host) -> None:
    config = containerd_file(host, V2.replace("\n", "\r\n") + "\n\n")
    before = everything(host)
    told = install(options(oci_programs), "0.1.0", host)
    assert told[-1] == "restart containerd to use it: systemctl restart containerd"
    home = host.at(HOME) / "Ascend-Docker-Runtime"
    assert config.stat().st_mode & 0o777 == 0o600
    inodes = {
        (home / name).stat().st_ino for name in ("belay-oci-runtime", "ascend-docker-runtime", "ascend-docker-cli")
    }
    assert len(inodes) == 1 and (home / "ascend-docker-hook").stat().st_mode & 0o777 == 0o550
    info = dict(line.split("=", 1) for line in (home / "ascend_docker_runtime_install.info").read_text().splitlines())
    assert info["install-scene"] == "containerd" and info["injection-mode"] == "legacy" and info["a200ia2"] == "n"
    assert list(info) == [
        "version", "arch", "os", "path", "build", "a500", "a200", "a200isoc", "a500a2", "a200ia2", "install-scene",
        "config-file-path", "injection-mode",
    ]  # fmt: skip
    lists = host.at(LISTS)
    assert [path.name for path in lists.iterdir()] == ["base.list"]
    assert (lists / "base.list").stat().st_mode & 0o777 == 0o440
    assert status(host=host)["engine"] == "installed" and not status(host=host)["missing"]
    told = uninstall(host=host)
    assert "as it was, byte for byte" in told[0]
    assert everything(host) == before and config.stat().st_mode & 0o777 == 0o644
    assert status(host=host)["installed"] is False


@pytest.mark.parametrize("target", ["/etc/real/containerd.toml", "../real/containerd.toml"])
def test_a_link_of_the_host_stays_and_is_followed_on_the_host(
    oci_programs: Sequence[Path], host: Host, target: str
) -> None:
    containerd_file(host).rename(host.root / "etc/moved")
    (host.root / "etc/real").mkdir()
    (host.root / "etc/moved").rename(host.root / "etc/real/containerd.toml")
    link = host.root / "etc/containerd/config.toml"
    link.symlink_to(target)
    install(options(oci_programs), "1", host)
    assert link.is_symlink() and RUNTIME in (host.root / "etc/real/containerd.toml").read_text()
    uninstall(host=host)
    assert link.is_symlink() and (host.root / "etc/real/containerd.toml").read_text() == V2


@pytest.mark.parametrize("scene", ["docker", "containerd", "crio", "isula"])
def test_a_file_that_was_not_there_goes_again(oci_programs: Sequence[Path], host: Host, scene: str) -> None:
    before = everything(host)
    install(options(oci_programs, scene=scene), "1", host)
    assert RUNTIME in host.at(engines.ENGINES[scene].file).read_text()
    uninstall(host=host)
    assert everything(host) == before


def test_edits_of_others_are_kept(oci_programs: Sequence[Path], host: Host) -> None:
    config = containerd_file(host)
    install(options(oci_programs), "1", host)
    config.write_text(config.read_text().replace('level = "info"', 'level = "debug"'))
    (host.at(LISTS) / "base.list").chmod(0o640)
    (host.at(LISTS) / "base.list").write_text("/mine\n")
    assert status(host=host)["engine"] == "edited"
    install(options(oci_programs, mode="cdi"), "2", host)
    assert status(host=host)["injectionMode"] == "cdi"
    (host.at(LISTS) / "base.list").chmod(0o640)
    (host.at(LISTS) / "base.list").write_text("/mine\n")
    told = uninstall(host=host)
    assert config.read_text() == V2.replace('level = "info"', 'level = "debug"')
    assert f"{LISTS}/base.list: was edited, kept" in told and (host.at(LISTS) / "base.list").read_text() == "/mine\n"


def test_renewing_keeps_the_way_back(oci_programs: Sequence[Path], host: Host) -> None:
    containerd_file(host)
    before = everything(host)
    for version in ("1", "2", "3"):
        install(options(oci_programs), version, host)
    assert status(host=host)["version"] == "3"
    uninstall(host=host)
    assert everything(host) == before


def info(host: Host) -> dict[str, str]:
    text = (host.at(HOME) / "Ascend-Docker-Runtime" / "ascend_docker_runtime_install.info").read_text()
    return dict(line.split("=", 1) for line in text.splitlines())


def edit_list(host: Host, text: str) -> Path:
    path = host.at(LISTS) / "base.list"
    path.chmod(0o640)
    path.write_text(text)
    return path


@pytest.mark.parametrize("again", ["install", "upgrade"])
def test_renewing_keeps_choices_and_edited_lists(oci_programs: Sequence[Path], host: Host, again: str) -> None:
    config = containerd_file(host)
    install(options(oci_programs, mode="cdi", kind="A200", default=False), "1", host)
    shipped = (host.at(LISTS) / "base.list").read_text()
    edit_list(host, shipped + "/opt/ours\n")
    text = config.read_text()
    bare = InstallOptions(programs=oci_programs[0].parent)
    done = (install if again == "install" else upgrade)(bare, "2", host)
    assert (host.at(LISTS) / "base.list").read_text() == shipped + "/opt/ours\n"
    assert (host.at(LISTS) / "base.list.new").read_text() == shipped
    assert any("base.list: was edited, kept" in line for line in done)
    assert (info(host)["injection-mode"], info(host)["a200"], info(host)["install-scene"]) == ("cdi", "y", "containerd")
    assert config.read_text() == text and not any("restart" in line for line in done), "the engine notices nothing"
    assert status(host=host)["version"] == "2" and check(host=host) == []
    edit_list(host, shipped)
    install(options(oci_programs, mode="legacy", kind="general"), "3", host)
    assert (info(host)["injection-mode"], info(host)["a200"]) == ("legacy", "n")
    assert (host.at(LISTS) / "base.list").read_text() != shipped and not (host.at(LISTS) / "base.list.new").exists()


def test_a_list_that_was_there_before_is_kept(oci_programs: Sequence[Path], host: Host) -> None:
    host.at(LISTS).mkdir()
    (host.at(LISTS) / "base.list").write_text("/opt/ours\n")
    install(options(oci_programs), "1", host)
    assert (host.at(LISTS) / "base.list").read_text() == "/opt/ours\n"
    uninstall(host=host)
    assert [path.name for path in host.at(LISTS).iterdir()] == ["base.list"]


def test_only_what_is_installed_can_be_upgraded_or_checked(oci_programs: Sequence[Path], host: Host) -> None:
    before = everything(host)
    with pytest.raises(InstallError, match="nothing of belay's is installed there; use belay runtime install"):
        upgrade(options(oci_programs), "1", host)
    with pytest.raises(InstallError, match="nothing of belay's is installed there; use belay runtime install"):
        check(host=host)
    assert everything(host) == before


def test_check_names_what_is_not_as_it_was_installed(oci_programs: Sequence[Path], host: Host) -> None:
    config = containerd_file(host)
    install(options(oci_programs), "1", host)
    assert check(host=host) == []
    home = host.at(HOME) / "Ascend-Docker-Runtime"
    (home / "ascend-docker-hook").unlink()
    (home / "belay-oci-driver").chmod(0o750)
    (home / "belay-oci-driver").write_bytes(b"other")
    (host.at(LISTS) / "base.list").unlink()
    config.write_text(V2)
    home.chmod(0o777)
    wrong = check(host=host)
    assert [line.partition(": ")[0].rpartition("/")[2] for line in wrong] == [
        "ascend-docker-hook", "belay-oci-driver", "base.list", "config.toml", "Ascend-Docker-Runtime",
    ]  # fmt: skip
    assert "is missing" in wrong[0] and "is not what was installed" in wrong[1] and "mode 0777" in wrong[4]
    home.chmod(0o755)
    upgrade(options(oci_programs), "1", host)
    assert check(host=host) == []


def test_the_verbs_of_the_host_end_as_scripts_expect(oci_programs: Sequence[Path], host: Host) -> None:
    containerd_file(host)

    def belay(*words: str) -> tuple[int, str]:
        answer = CliRunner().invoke(main, ["runtime", *words, "--root", str(host.root)])
        return answer.exit_code, answer.output

    programs = str(oci_programs[0].parent)
    assert belay("check")[0] == 2 and "installed: none" in belay("version")[1]
    assert belay("upgrade", "--programs", programs)[0] == 2
    assert belay("install", "--install-scene", "containerd", "--programs", programs)[0] == 0
    assert belay("check") == (0, "sound\n")
    assert belay("install", "--programs", programs)[0] == 0, "what is installed is renewed without naming it again"
    assert belay("upgrade", "--programs", programs, "--injection-mode", "cdi")[0] == 0
    assert info(host)["injection-mode"] == "cdi"
    assert "belay-oci-runtime version: " in belay("version")[1] and "installed: 0" in belay("version")[1]
    (host.at(LISTS) / "base.list").unlink()
    assert belay("check")[0] == 1


def test_an_installation_cut_short_can_be_undone(
    oci_programs: Sequence[Path], host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    containerd_file(host)
    before = everything(host)

    def broken(*_: object) -> None:
        raise InstallError("the disk is full")

    monkeypatch.setattr("belay.agents.runtime.install._programs", broken)
    with pytest.raises(InstallError, match="disk is full"):
        install(options(oci_programs), "1", host)
    told = uninstall(host=host)
    assert "holds nothing of ours" in told[0] and everything(host) == before


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"scene": "podman"}, "--install-scene: 'podman'"),
        ({"mode": "both"}, "--injection-mode"),
        ({"kind": "A300"}, "--install-type"),
        ({"base": "relative"}, "--install-path"),
        ({"config": "/etc/nowhere.toml"}, "--config-file-path: /etc/nowhere.toml does not exist"),
        ({"programs": Path("/nowhere")}, "/nowhere/belay-oci-runtime: is missing"),
    ],
)
def test_wishes_that_cannot_be(oci_programs: Sequence[Path], host: Host, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InstallError, match=reason):
        install(options(oci_programs, **changes), "1", host)
    assert not host.at(HOME).exists()


def test_a_broken_engine_file_is_named_with_its_key_and_nothing_is_touched(
    oci_programs: Sequence[Path], host: Host
) -> None:
    containerd_file(host, "version = 2\n[plugins\n")
    before = everything(host)
    with pytest.raises(InstallError, match=r"/etc/containerd/config\.toml: .*line 2"):
        install(options(oci_programs), "1", host)
    assert everything(host) == before


def test_a_place_that_others_may_write_is_refused_before_containers_are(
    oci_programs: Sequence[Path], host: Host
) -> None:
    host.at("/usr/local").mkdir(parents=True)
    host.at("/usr/local").chmod(0o2775)
    with pytest.raises(InstallError, match="/usr/local: mode 2775 lets others write; chmod go-w it"):
        install(options(oci_programs), "1", host)
    host.at("/usr/local").chmod(0o2755)
    install(options(oci_programs), "1", host)


def test_another_installation_is_left_alone(oci_programs: Sequence[Path], host: Host) -> None:
    home = host.at(HOME) / "Ascend-Docker-Runtime"
    home.mkdir(parents=True)
    (home / "ascend-docker-runtime").write_text("theirs")
    with pytest.raises(InstallError, match="holds another installation"):
        install(options(oci_programs), "1", host)
    with pytest.raises(InstallError, match="nothing of belay's"):
        uninstall(host=host)


@pytest.mark.parametrize(
    ("kind", "count", "has"),
    [
        (None, 5, "/usr/local/dcmi"), ("A200", 6, "/usr/local/sbin/npu-smi"), ("A200ISoC", 4, "/etc/hdcBasic.cfg"),
        ("A200IA2", 19, "/usr/lib64/libyaml-0.so.2"), ("A500", 4, "/home/data/miniD/driver/lib64"),
        ("A500A2", 23, "/usr/lib64/libmmpa.so"),
    ],
)  # fmt: skip
def test_lists_of_each_product(
    oci_programs: Sequence[Path], host: Host, kind: str | None, count: int, has: str
) -> None:
    host.at("/sys/class/unified_bus").mkdir(parents=True)
    install(options(oci_programs, kind=kind), "1", host)
    lines = (host.at(LISTS) / "base.list").read_text().splitlines()
    assert len(lines) == count and has in lines and all(line.startswith("/") for line in lines)
    assert len((host.at(LISTS) / "ub_driver.list").read_text().splitlines()) == 7


def test_an_unknown_system_lacks_its_libraries(oci_programs: Sequence[Path], host: Host) -> None:
    host.at("/etc/os-release").write_text("ID=plan9\n")
    with pytest.raises(InstallError, match="/etc/os-release: ID 'plan9'"):
        install(options(oci_programs, kind="A500A2"), "1", host)


# -- containers that run


def container(root: Path, pid: int, name: str, *, env: str = MARK, alive: bool = True) -> None:
    state = root / "run/containerd/runc/k8s.io" / name
    bundle = root / "bundles" / name
    state.mkdir(parents=True)
    bundle.mkdir(parents=True)
    labels = [f"bundle=/bundles/{name}"]
    (state / "state.json").write_text(json.dumps({"id": name, "init_process_pid": pid, "config": {"labels": labels}}))
    (bundle / "config.json").write_text(json.dumps({"process": {"env": ["A=b", env]}}))
    if alive:
        (root / "proc" / str(pid)).mkdir(parents=True)


def process(root: Path, pid: int, parent: int, *, mark: bool = True) -> None:
    entry = root / "proc" / str(pid)
    (entry / "ns").mkdir(parents=True, exist_ok=True)
    (entry / "environ").write_bytes(b"A=b\0" + (MARK.encode() if mark else b"") + b"\0")
    (entry / "comm").write_text("train\n")
    (entry / "stat").write_text(f"{pid} (tr) ain) S {parent} 0")
    os.symlink(f"mnt:[{pid}]", entry / "ns/mnt")


def test_who_runs(host: Host) -> None:
    container(host.root, 10, "one")
    container(host.root, 11, "dead", alive=False)
    container(host.root, 12, "other", env="B=c")
    process(host.root, 20, 1)
    process(host.root, 21, 20)
    process(host.root, 22, 1, mark=False)
    process(host.root, 23, 10)
    (host.root / "run/runc/broken").mkdir(parents=True)
    (host.root / "run/runc/broken/state.json").write_text("{")
    assert [tuple(found) for found in running(host.root)] == [("one", 10), ("train[20]", 20)]


def test_uninstall_waits_for_containers(oci_programs: Sequence[Path], host: Host) -> None:
    config = containerd_file(host)
    before = everything(host)
    install(options(oci_programs), "1", host)
    container(host.root, 10, "one")
    with pytest.raises(InstallError, match=r"1 containers made by it run \(one\); stop them, or give --force"):
        uninstall(host=host)
    assert RUNTIME in config.read_text()
    told = uninstall(host=host, force=True)
    assert config.read_text() == V2
    assert "stays for 1 running containers" in told[1] and host.at(RUNTIME).is_file(), (
        "its engine still stops it with this"
    )
    (host.root / "proc/10").rmdir()
    uninstall(host=host)
    assert not host.at(RUNTIME).exists()
    assert {
        name: body for name, body in everything(host).items() if not name.startswith(("run/", "bundles/"))
    } == before
