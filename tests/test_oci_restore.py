"""Containers that go on from a checkpoint: their files, their address, CRIU's arguments; nothing starts twice.

runc is real but for `restore`, which needs CRIU: a program in its place notes what it was given, makes the container of
the same bundle and starts it, as a restore leaves one.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.runtime_host import HOME, ON_A_HOST, Host, busybox, libdcmi, need, oci_programs

__all__ = ["libdcmi", "oci_programs"]

RUNTIME = f"{HOME}/ascend-docker-runtime"
RUNC = """#!/bin/bash
real=$(PATH=${PATH#*:} command -v runc)
for word; do [ "$word" = restore ] && break; done
[ "$word" = restore ] || exec "$real" "$@"
printf '%s\\n' "$@" >/etc/given
env >/etc/given-env
[ ! -e /etc/fails ] || exit 3
kept=()
while [ $# -gt 0 ]; do
  case $1 in
    restore) kept+=(create);;
    --detach|--ext-unix-sk|--file-locks) ;;
    --image-path|--work-path) shift;;
    *) kept+=("$1");;
  esac
  shift
done
"$real" "${kept[@]}" && "$real" --root "${kept[1]}" start "${kept[-1]}"
"""
SCRIPT = "ls /dev; env; cat /etc/saved; ls /root/.grusflag; echo ended"

pytestmark = ON_A_HOST


@pytest.fixture(scope="module")
def host(oci_programs: Sequence[Path], libdcmi: Path) -> Iterator[Host]:
    need("runc", "busybox")
    with Host() as made:
        made.install(oci_programs)
        made.driver(libdcmi)
        made.chips(2)
        made.write("/etc/ascend-docker-runtime.d/base.list", "")
        made.write("/usr/local/bin/runc", RUNC, "0755")
        made.env["PATH"] = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
        yield made


def entry(name: str, text: str = "", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    """One entry of a layer."""
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = 0o644, 1_700_000_000
    for key, value in fields.items():
        setattr(info, key, value)
    info.size = len(text.encode()) if info.isreg() else 0
    return info, text.encode()


LAYER = (
    entry("data/", type=tarfile.DIRTYPE, mode=0o750, uid=7),
    entry("data/new", "written by the container\n", mode=0o600, uid=1000, gid=1001),
    entry("data/.wh.old"),
    entry("data/.wh.folder"),
    entry("data/link", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    entry("data/again", type=tarfile.LNKTYPE, linkname="data/new"),
    entry("data/pipe", type=tarfile.FIFOTYPE),
    entry("data/kept", "newer\n", mode=0o4755),
    entry("etc/saved", "before it was saved\n"),
    entry("deep/" * 60 + "file", "far\n"),
    entry("data/" + "ü" * 60, "name\n", pax_headers={"SCHILY.xattr.trusted.belay": "1"}),
)


class Case:
    """A bundle, and the image folder that its environment names."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.host, self.folder, self.name = host, folder, f"back-{os.getpid()}"
        self.root, self.image, self.rootfs = folder / "k8s.io", folder / "images/7", folder / "rootfs"
        folders = ("proc", "dev", "sys", "data/folder/below", "root", "etc")
        busybox(self.rootfs, ("sh", "ls", "cat", "env", "sleep"), folders)
        for name in ("data/old", "data/kept", "data/folder/below/file"):
            (self.rootfs / name).write_text("old\n")
        subprocess.run(["runc", "spec"], cwd=folder, check=True, timeout=30)
        self.env = {"host_snapshot_path": str(folder / "images"), "pod_name": "decode-3-7", "PATH": "/bin"}

    def save(self, *entries: tuple[tarfile.TarInfo, bytes], digest: str | None = None) -> bytes:
        body = io.BytesIO()
        with tarfile.open(fileobj=body, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for info, text in entries:
                tar.addfile(info, io.BytesIO(text))
        (self.image / "image").mkdir(parents=True, exist_ok=True)
        (self.image / "rootfs-diff.tar").write_bytes(body.getvalue())
        found = f"sha256:{hashlib.sha256(body.getvalue()).hexdigest()}"
        (self.image / "rootfs-diff.digest").write_text(found if digest is None else digest)
        return body.getvalue()

    def create(self, *more: str, script: str = "sleep 600", space: str = "") -> subprocess.CompletedProcess[str]:
        spec = json.loads((self.folder / "config.json").read_text())
        env = [f"{key}={value}" for key, value in self.env.items()]
        spec["process"] |= {"terminal": False, "args": ["/bin/sh", "-c", script], "env": env}
        spec["root"]["readonly"] = False
        if space:
            next(n for n in spec["linux"]["namespaces"] if n["type"] == "network")["path"] = space
        (self.folder / "config.json").write_text(json.dumps(spec))
        with (self.folder / "out").open("w") as out, (self.folder / "err").open("w+") as err:
            command = self.host.command(
                RUNTIME, "--root", str(self.root), "create", "--bundle", str(self.folder), "--pid-file",
                str(self.folder / "pid"), *more, self.name,
            )  # fmt: skip
            done = subprocess.run(
                command, env=self.host.env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, timeout=60
            )
            err.seek(0)
            return subprocess.CompletedProcess(command, done.returncode, "", err.read())

    def call(self, verb: str) -> subprocess.CompletedProcess[str]:
        return self.host.run(RUNTIME, "--root", str(self.root), verb, self.name, check=False)

    def status(self) -> str:
        done = self.host.run("runc", "--root", str(self.root), "state", self.name, check=False)
        return str(json.loads(done.stdout)["status"]) if done.returncode == 0 else "unknown"

    def given(self) -> list[str]:
        return self.host.run("cat", "/etc/given", check=False).stdout.splitlines()

    def criu(self) -> Mapping[str, str]:
        lines = self.host.read("/etc/given-env").splitlines()
        return {line.partition("=")[0]: line.partition("=")[2] for line in lines}

    def spec_env(self) -> list[str]:
        return list(json.loads((self.folder / "config.json").read_text())["process"]["env"])


@pytest.fixture
def case(host: Host, tmp_path: Path) -> Iterator[Case]:
    host.shell("rm -rf /etc/given* /etc/fails /var/log/ascend-docker-runtime/restore")
    # an image is trusted where root alone can write, above it, too
    folder = Path(f"/var/lib/belay-test-{os.getpid()}") / tmp_path.name
    folder.mkdir(parents=True)
    made = Case(host, folder)
    yield made
    host.run("runc", "--root", str(made.root), "delete", "--force", made.name, check=False)
    shutil.rmtree(folder.parent)


def test_a_container_goes_on_with_its_files(case: Case) -> None:
    case.save(*LAYER)
    done = case.create()
    assert done.returncode == 0, done.stderr
    assert case.given() == [
        "--root", str(case.root), "restore", "--bundle", str(case.folder), "--pid-file", f"{case.folder}/pid",
        "--detach", "--ext-unix-sk", "--file-locks", "--image-path", f"{case.image}/image", "--work-path",
        f"/var/log/ascend-docker-runtime/restore/k8s.io_{case.name}/work", case.name,
    ]  # fmt: skip
    env = case.criu()
    assert (env["CRIU_FAULT"], env["CRIU_CALL_BY_GRUS"], env["CRIU_LOG_LEVEL"]) == ("130", "1", "1")
    assert "SNAPSHOT_LINK_REMAP_SRC" not in env and "INETSK_LOCAL_IPV4_KEY" not in env
    data = case.rootfs / "data"
    assert sorted(p.name for p in data.iterdir()) == ["again", "kept", "link", "new", "pipe", "ü" * 60]
    new = (data / "new").stat()
    assert (new.st_mode & 0o7777, new.st_uid, new.st_gid, new.st_mtime, new.st_nlink) == (0o600, 1000, 1001, 1.7e9, 2)
    assert ((data / "kept").stat().st_mode & 0o7777, (data / "kept").read_text()) == (0o4755, "newer\n")
    assert (data.stat().st_mode & 0o777, data.stat().st_uid, data.stat().st_mtime) == (0o750, 7, 1.7e9)
    assert os.readlink(data / "link") == "/etc/passwd" and (data / "pipe").is_fifo()
    assert os.getxattr(data / ("ü" * 60), "trusted.belay") == b"1"
    assert (case.rootfs / ("deep/" * 60) / "file").read_text() == "far\n"
    assert not (case.rootfs / "root/.grusflag").exists()


def test_what_runs_is_not_started_again(case: Case) -> None:
    case.save(*LAYER)
    assert case.create().returncode == 0 and case.status() == "running"
    assert case.call("start").returncode == 0
    assert case.host.run("runc", "--root", str(case.root), "start", case.name, check=False).returncode, "runc refuses"


def test_it_has_its_chips_too(case: Case) -> None:
    case.save(*LAYER)
    case.env |= {"ASCEND_VISIBLE_DEVICES": "1", "GRUS_SNAPSHOT_RESTORED_FLAG": "True", "CRIU_LOG_LEVEL": "4"}
    done = case.create(script=SCRIPT)
    assert done.returncode == 0, done.stderr
    for _ in range(100):
        if (said := (case.folder / "out").read_text()).endswith("ended\n"):
            break
        case.host.run("sleep", "0.05")
    assert [word for word in said.split() if word.startswith("davinci")] == ["davinci1", "davinci_manager"]
    assert "before it was saved" in said and "/root/.grusflag" in said and "ASCEND_DOCKER_RUNTIME=True" in said
    assert case.criu()["CRIU_LOG_LEVEL"] == "4"


def test_it_learns_its_new_address(case: Case) -> None:
    case.save(*LAYER)
    case.env["POD_IP"] = "10.0.0.1"
    space = f"belay-{os.getpid()}"
    for command in (
        ["ip", "netns", "add", space],
        ["ip", "-n", space, "link", "set", "lo", "up"],
        ["ip", "-n", space, "addr", "add", "10.9.8.7/32", "dev", "lo"],
    ):
        subprocess.run(command, check=True, capture_output=True, timeout=30)
    try:
        # the host of the test has a mount namespace of its own: it sees the file through its holder's
        done = case.create(space=f"/proc/{os.getpid()}/root/run/netns/{space}")
    finally:
        subprocess.run(["ip", "netns", "del", space], check=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert case.criu()["INETSK_LOCAL_IPV4_KEY"] == "10.9.8.7"
    assert [line for line in case.spec_env() if line.startswith("POD_IP=")] == ["POD_IP=10.9.8.7"]


def test_shared_memory_of_the_host_is_named(case: Case) -> None:
    case.save(*LAYER)
    spec = json.loads((case.folder / "config.json").read_text())
    for mount in spec["mounts"]:
        if mount["destination"] == "/dev/shm":
            mount |= {"type": "bind", "source": "/dev/shm", "options": ["rbind"]}
    (case.folder / "config.json").write_text(json.dumps(spec))
    assert case.create().returncode == 0
    assert case.criu()["SNAPSHOT_LINK_REMAP_SRC"] == "/dev/shm"
    assert case.criu()["SNAPSHOT_LINK_REMAP_DST"] == f"{case.image}/rootfs-external-diff.tar"


def test_options_that_restore_does_not_know_are_left_out(case: Case) -> None:
    case.save(*LAYER)
    assert case.create("--no-new-keyring", "--preserve-fds", "0").returncode == 0
    assert not {"--no-new-keyring", "--preserve-fds", "0"} & set(case.given())


@pytest.mark.parametrize(
    "afresh", ["no variable", "relative", "no folder", "a file", "empty", "no number", "did not end"]
)
def test_without_a_checkpoint_it_starts_afresh(case: Case, afresh: str) -> None:
    case.save(*LAYER)
    match afresh:
        case "no variable":
            del case.env["host_snapshot_path"]
        case "relative":
            case.env["host_snapshot_path"] = "images"
        case "no folder":
            case.env["pod_name"] = "decode-8"
        case "a file":
            (case.folder / "images/8").write_text("x")
            case.env["pod_name"] = "decode-8"
        case "empty":
            (case.folder / "images/8").mkdir()
            case.env["pod_name"] = "decode-8"
        case "no number":
            case.env["pod_name"] = "decode"
        case _:
            (case.image / "rootfs-diff.digest").unlink()
    done = case.create()
    assert done.returncode == 0, done.stderr
    assert case.status() == "created" and case.given() == [] and (case.rootfs / "data/old").exists()
    assert case.call("start").returncode == 0 and case.status() == "running"


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("digest", "rootfs-diff.tar is damaged: its digest is not the one in rootfs-diff.digest"),
        ("cut", "the layer ends in the middle of an entry"),
        ("sum", "the layer is damaged: a header's sum is wrong"),
        ("upwards", "../evil: a name in the layer leads upwards"),
        ("others", "rootfs-diff.tar: is not a file that root alone can write"),
        ("folder", "lets others write"),
    ],
)
def test_what_cannot_be_trusted_is_refused(case: Case, broken: str, reason: str) -> None:
    body = case.save(*LAYER, *([entry("data/../../evil", "x")] if broken == "upwards" else []))
    if broken == "upwards":
        reason = "data/../../evil: a name in the layer leads upwards"
    if broken in ("cut", "sum"):
        body = body[:1000] if broken == "cut" else body[:10] + b"!" + body[11:]
        (case.image / "rootfs-diff.tar").write_bytes(body)
        (case.image / "rootfs-diff.digest").write_text(f"sha256:{hashlib.sha256(body).hexdigest()}")
    elif broken == "digest":
        (case.image / "rootfs-diff.digest").write_text("sha256:" + 64 * "0")
    elif broken == "others":
        (case.image / "rootfs-diff.tar").chmod(0o666)
    elif broken == "folder":
        case.image.chmod(0o777)
    done = case.create()
    assert done.returncode == 1 and reason in done.stderr, done.stderr
    assert f"container {case.name} cannot go on: the checkpoint in {case.image}: " in done.stderr
    assert case.status() == "unknown" and case.given() == []


def test_a_link_in_the_layer_leads_nowhere_else(case: Case, tmp_path: Path) -> None:
    outside = case.folder / "outside"
    outside.mkdir()
    case.save(
        entry("way", type=tarfile.SYMTYPE, linkname=str(outside)),
        entry("way/in", "x"),
    )
    done = case.create()
    assert list(outside.iterdir()) == [] and done.returncode == 1, done.stderr


def test_a_restore_that_fails_says_so(case: Case) -> None:
    case.save(*LAYER)
    case.host.shell("touch /etc/fails")
    assert case.create().returncode == 3
    assert case.call("start").returncode, "nothing that could be started"


def test_old_logs_go(case: Case) -> None:
    case.save(*LAYER)
    folder = "/var/log/ascend-docker-runtime/restore"
    case.host.shell(f"mkdir -p {folder}/old/work {folder}/new/work; touch {folder}/old/work/restore.log")
    case.host.shell(f"touch -d '8 days ago' {folder}/old")
    assert case.create().returncode == 0
    assert case.host.shell(f"ls {folder}").split() == sorted([f"k8s.io_{case.name}", "new"])
