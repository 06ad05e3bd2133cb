"""Checkpoints: the container stands still while it is saved, and never afterwards.

runc is real but for `checkpoint`, which needs CRIU: that and `ctr` are programs that note what they were given.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.runtime_host import HOME, ON_A_HOST, Host, need, oci_programs

__all__ = ["oci_programs"]

RUNTIME = f"{HOME}/ascend-docker-runtime"
RUNC = """#!/bin/bash
real=$(PATH=${PATH#*:} command -v runc)
for word; do [ "$word" = checkpoint ] && break; done
[ "$word" = checkpoint ] || exec "$real" "$@"
printf '%s\\n' "$@" >/etc/given
env >/etc/given-env
"$real" --root "$2" state "${@: -1}" >/etc/given-state
while [ $# -gt 0 ]; do [ "$1" = --work-path ] && work=$2; shift; done
cat /etc/dump.log >"$work/dump.log" 2>/dev/null
if [ -e /etc/slow ]; then mkfifo /etc/wait; read line </etc/wait; fi
exit "$(cat /etc/code 2>/dev/null || echo 0)"
"""
CTR = """#!/bin/bash
printf '%s\\n' "$@" >/etc/given-ctr
[ ! -e /etc/no-ctr ] || exit 1
cat /etc/hostname /etc/passwd
"""

pytestmark = ON_A_HOST


@pytest.fixture(scope="module")
def host(oci_programs: Sequence[Path]) -> Iterator[Host]:
    need("runc", "busybox")
    with Host() as made:
        made.install(oci_programs)
        made.write("/usr/local/bin/runc", RUNC, "0755")
        made.write("/usr/local/bin/ctr", CTR, "0755")
        made.env["PATH"] = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
        yield made


class Running:
    """A busybox that sleeps."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.host, self.folder, self.name = host, folder, f"snap-{os.getpid()}"
        self.root, self.image = folder / "k8s.io", folder / "image-7"
        (folder / "rootfs/bin").mkdir(parents=True)
        for name in ("proc", "dev", "sys"):
            (folder / "rootfs" / name).mkdir()
        shutil.copy(shutil.which("busybox") or "", folder / "rootfs/bin/sleep")
        subprocess.run(["runc", "spec"], cwd=folder, check=True, timeout=30)
        spec = json.loads((folder / "config.json").read_text())
        spec["process"] |= {"terminal": False, "args": ["/bin/sleep", "600"]}
        for mount in spec["mounts"]:
            if mount["destination"] == "/dev/shm":
                mount |= {"type": "bind", "source": "/dev/shm", "options": ["rbind"]}
        (folder / "config.json").write_text(json.dumps(spec))
        null = subprocess.DEVNULL
        command = host.command(RUNTIME, "--root", str(self.root), "create", "--bundle", str(folder), self.name)
        subprocess.run(command, env=host.env, stdin=null, stdout=null, stderr=null, check=True, timeout=60)
        host.run(RUNTIME, "--root", str(self.root), "start", self.name)

    def call(self, verb: str, *more: str) -> subprocess.CompletedProcess[str]:
        return self.host.run(RUNTIME, "--root", str(self.root), verb, *more, self.name, check=False)

    def status(self) -> str:
        return str(json.loads(self.host.run("runc", "--root", str(self.root), "state", self.name).stdout)["status"])

    def checkpoint(self) -> subprocess.CompletedProcess[str]:
        return self.call("checkpoint", "--image-path", str(self.image))


@pytest.fixture
def running(host: Host, tmp_path: Path) -> Iterator[Running]:
    host.shell("rm -f /etc/given* /etc/dump.log /etc/code /etc/no-ctr /etc/slow /etc/wait")
    made = Running(host, tmp_path)
    yield made
    host.run("runc", "--root", str(made.root), "delete", "--force", made.name)


def given(host: Host) -> dict[str, Any]:
    lines = host.read("/etc/given-env").splitlines()
    return {line.partition("=")[0]: line.partition("=")[2] for line in lines}


def test_a_checkpoint(host: Host, running: Running) -> None:
    done = running.checkpoint()
    assert done.returncode == 0, done.stderr
    assert json.loads(host.read("/etc/given-state"))["status"] == "paused"
    assert running.status() == "running"
    assert host.read("/etc/given").splitlines() == [
        "--root", str(running.root), "checkpoint", "--image-path", f"{running.image}/image", "--work-path",
        f"{running.image}/image/work", "--leave-running", "--ext-unix-sk", "--file-locks", running.name,
    ]  # fmt: skip
    env = given(host)
    assert (env["CRIU_CALL_BY_GRUS"], env["CRIU_LOG_LEVEL"]) == ("1", "1")
    assert env["SNAPSHOT_LINK_REMAP_SRC"] == "/dev/shm"
    assert env["SNAPSHOT_LINK_REMAP_DST"] == f"{running.image}/rootfs-external-diff.tar"
    assert host.read("/etc/given-ctr").splitlines() == [
        "--address", "/run/containerd/containerd.sock", "--namespace", "k8s.io", "snapshots", "diff", "--media-type",
        "application/vnd.oci.image.layer.v1.tar", running.name,
    ]  # fmt: skip
    body = (running.image / "rootfs-diff.tar").read_bytes()
    assert body == host.read("/etc/hostname").encode() + host.read("/etc/passwd").encode()
    assert (running.image / "rootfs-diff.digest").read_text() == f"sha256:{hashlib.sha256(body).hexdigest()}"
    assert (running.image / "rootfs-diff.digest").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("echo 3 >/etc/code", "checkpoint failed (3)"),
        ("echo 'x [npu-plugin fini-dump err] y' >/etc/dump.log", "CRIU's log says: [npu-plugin fini-dump err]"),
        ("touch /etc/no-ctr", "ctr snapshots diff failed (1)"),
    ],
)
def test_a_checkpoint_that_fails_lets_the_container_go_on(
    host: Host, running: Running, setting: str, reason: str
) -> None:
    host.shell(setting)
    done = running.checkpoint()
    assert done.returncode == 1 and f"container {running.name}: " in done.stderr and reason in done.stderr
    assert running.status() == "running" and not (running.image / "rootfs-diff.digest").exists()


def test_a_second_checkpoint_that_fails_leaves_none_to_go_on_from(host: Host, running: Running) -> None:
    assert running.checkpoint().returncode == 0 and (running.image / "rootfs-diff.digest").exists()
    host.shell("echo 3 >/etc/code")
    assert running.checkpoint().returncode == 1
    # half of its files are of the second: the container must start afresh
    assert not (running.image / "rootfs-diff.digest").exists() and running.status() == "running"


def test_who_ends_the_checkpoint_does_not_leave_the_container_standing(host: Host, running: Running) -> None:
    host.shell("touch /etc/slow")
    arguments = [RUNTIME, "--root", str(running.root), "checkpoint", "--image-path", str(running.image), running.name]
    # nsenter without --fork becomes the program
    process = subprocess.Popen(host.command(*arguments), env=host.env, stderr=subprocess.DEVNULL)
    for _ in range(200):
        if host.run("test", "-p", "/etc/wait", check=False).returncode == 0:
            break
        time.sleep(0.05)
    assert running.status() == "paused"
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 1
    assert running.status() == "running"


def test_resume_is_for_those_that_stand(host: Host, running: Running) -> None:
    assert running.call("resume").returncode == 0 and running.status() == "running"
    host.run("runc", "--root", str(running.root), "pause", running.name)
    assert running.call("resume").returncode == 0 and running.status() == "running"
    unknown = host.run(RUNTIME, "--root", str(running.root), "resume", "nobody", check=False)
    assert unknown.returncode and "container does not exist" in unknown.stderr


def test_the_log_level_is_a_digit(host: Host, running: Running) -> None:
    host.env["CRIU_LOG_LEVEL"] = "4"
    assert running.checkpoint().returncode == 0 and given(host)["CRIU_LOG_LEVEL"] == "4"
    host.env["CRIU_LOG_LEVEL"] = "9"
    assert running.checkpoint().returncode == 0 and given(host)["CRIU_LOG_LEVEL"] == "1"
    del host.env["CRIU_LOG_LEVEL"]


def test_checkpoints_of_engines_are_runcs(host: Host, running: Running) -> None:
    work = running.folder / "work"
    work.mkdir()
    assert running.call("checkpoint", "--image-path", str(running.image), "--work-path", str(work)).returncode == 0
    assert "--leave-running" not in host.read("/etc/given") and not running.image.exists()
    assert json.loads(host.read("/etc/given-state"))["status"] == "running"


@pytest.mark.parametrize("size", [0, 1, 55, 56, 63, 64, 65, 1000])
def test_the_digest(host: Host, running: Running, size: int) -> None:
    host.shell("cp /usr/local/bin/ctr /etc/kept-ctr")
    try:
        host.write("/usr/local/bin/ctr", f"#!/bin/sh\nhead -c {size} /dev/zero\n", "0755")
        assert running.checkpoint().returncode == 0
    finally:
        host.shell("cp /etc/kept-ctr /usr/local/bin/ctr")
    assert (running.image / "rootfs-diff.digest").read_text() == f"sha256:{hashlib.sha256(bytes(size)).hexdigest()}"
