"""The whole way with the real containerd: `belay runtime install`, containers by ctr, `belay runtime uninstall`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.runtime_host import HOME, LOOP_CONTROL, ON_A_HOST, Host, busybox, libdcmi, need, oci_programs

__all__ = ["libdcmi", "oci_programs"]

RUNTIME = f"{HOME}/belay-oci-runtime"
BELAY = str(Path(sys.executable).with_name("belay"))
CONFIG = "/etc/containerd/config.toml"

pytestmark = ON_A_HOST


class Containerd:
    """containerd on a private host, its state in a folder of the test."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.host, self.folder, self.socket = host, folder, folder / "c.sock"
        self.rootfs = folder / "rootfs"
        programs = ("sh", "ls", "cat", "env", "grep", "sleep", "head")
        busybox(self.rootfs, programs, ("proc", "dev", "sys", "tmp", "run"))
        command = host.command(
            "containerd", "--config", CONFIG, "--root", f"{folder}/root", "--state", f"{folder}/state",
            "--address", str(self.socket), "--log-level", "warn",
        )  # fmt: skip
        with (folder / "containerd.log").open("w") as log:
            self.process = subprocess.Popen(command, env=host.env, stdout=log, stderr=log)
        for _ in range(150):
            if host.run(*self.ctr("version"), check=False).returncode == 0:
                return
            assert self.process.poll() is None, (folder / "containerd.log").read_text()
            time.sleep(0.1)
        raise AssertionError((folder / "containerd.log").read_text())

    def ctr(self, *arguments: str) -> list[str]:
        return ["ctr", "--address", str(self.socket), "-n", "belay", *arguments]

    def run(self, name: str, script: str, *env: str, detach: bool = False) -> subprocess.CompletedProcess[str]:
        """A container of the runtime; its output."""
        flags = [flag for line in env for flag in ("--env", line)] + (["--detach"] if detach else ["--rm"])
        command = self.ctr(
            "run", "--runc-binary", RUNTIME, "--cgroup", f"/belay-{name}", *flags, "--rootfs", str(self.rootfs), name,
            "/bin/sh", "-c", script,
        )  # fmt: skip
        with (self.folder / f"{name}.out").open("w+") as out:
            done = subprocess.run(
                self.host.command(*command),
                env=self.host.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                timeout=60,
            )
            out.seek(0)
            return subprocess.CompletedProcess(command, done.returncode, out.read())

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)


@pytest.fixture(scope="module")
def host(oci_programs: Sequence[Path], libdcmi: Path) -> Iterator[Host]:
    need("containerd", "runc", "busybox")
    with Host() as made:
        made.driver(libdcmi)
        made.chips()
        made.write("/usr/local/Ascend/driver/lib64/driver/libdriver.so", "driver", "0444")
        made.shell("mkdir -p /etc/containerd; containerd config default >/etc/containerd/config.toml")
        yield made


@pytest.fixture(scope="module")
def containerd(
    host: Host, oci_programs: Sequence[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Containerd]:
    before = host.read(CONFIG)
    folder = str(oci_programs[0].parent)
    told = host.run(BELAY, "runtime", "install", "--install-scene", "containerd", "--programs", folder).stdout
    assert f"{CONFIG}: runtime ascend, the default" in told
    running = Containerd(host, tmp_path_factory.mktemp("containerd"))
    yield running
    running.stop()
    host.run(BELAY, "runtime", "uninstall", "--force")
    assert host.read(CONFIG) == before


def test_containerd_takes_the_configuration(host: Host, containerd: Containerd) -> None:
    found = tomllib.loads(host.run("containerd", "--config", CONFIG, "config", "dump").stdout)
    cri = found["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]
    assert cri["default_runtime_name"] == "ascend"
    assert cri["runtimes"]["ascend"]["options"]["BinaryName"] == RUNTIME
    assert cri["runtimes"]["ascend"]["runtime_type"] == cri["runtimes"]["runc"]["runtime_type"]
    plugins = host.run(*containerd.ctr("plugins", "ls")).stdout
    assert "error" not in next(line for line in plugins.splitlines() if " cri " in line)


def test_a_container_gets_its_chips_and_no_more(containerd: Containerd) -> None:
    script = (
        "ls /dev; env; cat /proc/mounts; cat /usr/local/Ascend/driver/lib64/driver/libdriver.so; echo;"
        "head -c 0 /dev/davinci2 && echo opened"
    )
    done = containerd.run("asks", script, "ASCEND_VISIBLE_DEVICES=2,5")
    assert done.returncode == 0, done.stdout
    lines = done.stdout.split()
    assert [name for name in lines if name.startswith("davinci")] == ["davinci2", "davinci5", "davinci_manager"]
    assert {"devmm_svm", "hisi_hdc", "ASCEND_DOCKER_RUNTIME=True", "opened"} <= set(lines)
    assert " /usr/local/Ascend/driver/lib64 overlay ro,nosuid" in done.stdout and lines[-2] == "driver"


def test_a_container_without_chips_gets_none(containerd: Containerd) -> None:
    done = containerd.run("plain", "ls /dev; env")
    assert done.returncode == 0 and "davinci" not in done.stdout and "ASCEND_DOCKER_RUNTIME=True" in done.stdout


def test_a_vnpu_is_made_and_destroyed_under_the_shim(host: Host, containerd: Containerd, libdcmi: Path) -> None:
    state = host.driver(libdcmi, chip_name="310P3", templates=[("vir04", 4.0, 12000)], aicores=8).state
    host.nodes({"vdavinci148": LOOP_CONTROL})
    try:
        done = containerd.run("cut", "ls /dev; env", "ASCEND_VISIBLE_DEVICES=3", "ASCEND_VNPU_SPECS=vir04")
        assert done.returncode == 0, done.stdout
        assert "davinci148" in done.stdout.split() and "ASCEND_RUNTIME_OPTIONS=VIRTUAL" in done.stdout
        vdev = state.chip[3].vdevs[0]
        assert (vdev.id, vdev.name) == (0, b"vir04"), "it was there and is gone with the container"
        done = containerd.run(
            "late", "true", "ASCEND_VISIBLE_DEVICES=3", "ASCEND_VNPU_SPECS=vir04", "ASCEND_ALLOW_LINK=x"
        )
        assert done.returncode and "ASCEND_ALLOW_LINK: 'x'" in done.stdout
        assert vdev.id == 0, "a container whose hook failed gave its vNPU back"
    finally:
        host.driver(libdcmi)


def test_the_engine_shows_why_it_failed(containerd: Containerd) -> None:
    done = containerd.run("wrong", "true", "ASCEND_VISIBLE_DEVICES=4-3")
    assert done.returncode
    assert "container wrong asks for NPUs: ASCEND_VISIBLE_DEVICES: the range 4-3 runs backwards" in done.stdout


def test_uninstall_waits_for_running_containers(host: Host, containerd: Containerd) -> None:
    name = f"long-{os.getpid()}"
    assert containerd.run(name, "sleep 600", "ASCEND_VISIBLE_DEVICES=1", detach=True).returncode == 0
    try:
        refused = host.run(BELAY, "runtime", "uninstall", check=False)
        assert refused.returncode == 2 and "containers made by it run" in refused.stderr
        found = json.loads(host.run(BELAY, "runtime", "status", "-o", "json").stdout)
        assert found["engine"] == "installed" and found["containers"] and found["injectionMode"] == "legacy"
    finally:
        host.run(*containerd.ctr("task", "kill", "--signal", "SIGKILL", name))
        for _ in range(100):
            if host.run(*containerd.ctr("task", "rm", name), check=False).returncode == 0:
                break
            time.sleep(0.1)
        host.run(*containerd.ctr("containers", "rm", name))
    assert name not in host.run(*containerd.ctr("tasks", "ls")).stdout
