"""The whole way with a real Docker: `belay runtime install`, containers looked at from inside, recovery over its
socket, `belay runtime uninstall`. The daemon is the test's own: its data, socket and configuration. It has no network.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from belay.agents.containers import status
from belay.agents.containers.docker import Docker as Client
from belay.agents.containers.manager import Manager
from belay.agents.drivers.dcmi.driver import DcmiDriver
from belay.agents.drivers.standin.state import Standin
from tests.runtime_host import FUSE, HOME, LOOP_CONTROL, ON_A_HOST, Host, busybox, libdcmi, need, oci_programs
from tests.test_containers import CODES, FREE, Faster, eventually, managed
from tests.test_dcmi import ME

__all__ = ["libdcmi", "oci_programs"]

BELAY = str(Path(sys.executable).with_name("belay"))
CONFIG = "/etc/docker/daemon.json"
IMAGE = "belay-busybox"
BEFORE = '{\n  "debug": false,\n  "runtimes": {"other": {"path": "/usr/sbin/runc"}}\n}\n'

pytestmark = ON_A_HOST


class Docker:
    """dockerd on a private host."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.host, self.folder, self.socket = host, folder, folder / "d.sock"
        command = host.command(
            "dockerd", "--config-file", CONFIG, "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec",
            "--pidfile", f"{folder}/pid", "--host", f"unix://{self.socket}", "--iptables=false", "--ip-masq=false",
            "--bridge=none", "--log-level", "warn",
        )  # fmt: skip
        with (folder / "dockerd.log").open("w") as log:
            self.process = subprocess.Popen(command, env=host.env, stdout=log, stderr=log, start_new_session=True)
        for _ in range(300):
            if self.call("version", check=False).returncode == 0:
                break
            assert self.process.poll() is None, (folder / "dockerd.log").read_text()
            time.sleep(0.1)
        else:
            raise AssertionError((folder / "dockerd.log").read_text())
        rootfs = folder / "rootfs"
        busybox(rootfs, ("sh", "ls", "cat", "env", "sleep", "head", "mknod"))
        subprocess.run(["tar", "-C", str(rootfs), "-cf", f"{folder}/image.tar", "."], check=True, timeout=30)
        self.call("import", f"{folder}/image.tar", IMAGE)

    def call(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """The docker command; standard error is part of what a person sees."""
        command = ["docker", "--host", f"unix://{self.socket}", *arguments]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, timeout=60
        )
        assert not check or done.returncode == 0, done.stdout
        return done

    def run(self, script: str, *env: str, options: Sequence[str] = ("--rm",)) -> subprocess.CompletedProcess[str]:
        flags = [flag for line in env for flag in ("--env", line)]
        return self.call("run", "--network=none", *options, *flags, IMAGE, "/bin/sh", "-c", script, check=False)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


@pytest.fixture(scope="module")
def host(oci_programs: Sequence[Path], libdcmi: Path) -> Iterator[Host]:
    need("dockerd", "docker", "runc", "busybox")
    with Host() as made:
        made.driver(libdcmi)
        made.chips()
        made.write("/usr/local/Ascend/driver/lib64/driver/libdriver.so", "driver", "0444")
        made.write(CONFIG, BEFORE)
        yield made


@pytest.fixture(scope="module")
def docker(host: Host, oci_programs: Sequence[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    folder = str(oci_programs[0].parent)
    told = host.run(BELAY, "runtime", "install", "--install-scene", "docker", "--programs", folder).stdout
    assert f"{CONFIG}: runtime ascend, the default" in told
    running = Docker(host, tmp_path_factory.mktemp("docker"))
    yield running
    running.stop()
    host.run(BELAY, "runtime", "uninstall", "--force")  # the machine may have containers of others
    assert host.read(CONFIG) == BEFORE


def test_docker_takes_the_configuration(docker: Docker) -> None:
    found = json.loads(docker.call("info", "--format", "{{json .}}").stdout)
    assert found["DefaultRuntime"] == "ascend" and {"ascend", "other", "runc"} <= set(found["Runtimes"])
    assert found["Runtimes"]["ascend"]["path"].startswith(f"{HOME}/")


def test_a_container_gets_its_chips_and_no_more(docker: Docker) -> None:
    script = (
        "ls /dev; env; cat /proc/mounts; cat /usr/local/Ascend/driver/lib64/driver/libdriver.so; echo;"
        f"head -c 0 /dev/davinci2 && echo opened; mknod /other c {LOOP_CONTROL[0]} {LOOP_CONTROL[1]};"
        "head -c 0 /other || echo refused"
    )
    done = docker.run(script, "ASCEND_VISIBLE_DEVICES=2,5")
    assert done.returncode == 0, done.stdout
    words = done.stdout.split()
    assert [word for word in words if word.startswith("davinci")] == ["davinci2", "davinci5", "davinci_manager"]
    assert {"devmm_svm", "hisi_hdc", "ASCEND_DOCKER_RUNTIME=True", "opened", "refused"} <= set(words)
    assert " /usr/local/Ascend/driver/lib64 overlay ro,nosuid" in done.stdout and "driver" in words


def test_a_container_without_chips_gets_none(docker: Docker) -> None:
    done = docker.run(f"ls /dev; env; mknod /x c {FUSE[0]} {FUSE[1]}; head -c 0 /x || echo refused")
    assert done.returncode == 0 and "davinci" not in done.stdout
    assert {"ASCEND_DOCKER_RUNTIME=True", "refused"} <= set(done.stdout.split())


def test_dockers_own_runtime_is_untouched(docker: Docker) -> None:
    done = docker.run("ls /dev; env", "ASCEND_VISIBLE_DEVICES=2", options=("--rm", "--runtime=runc"))
    assert done.returncode == 0 and "davinci" not in done.stdout and "ASCEND_DOCKER_RUNTIME" not in done.stdout


def test_docker_shows_why_it_failed(docker: Docker) -> None:
    done = docker.run("true", "ASCEND_VISIBLE_DEVICES=4-3")
    assert done.returncode and "ASCEND_VISIBLE_DEVICES: the range 4-3 runs backwards" in done.stdout


def test_a_vnpu_lives_as_long_as_its_container(host: Host, docker: Docker, libdcmi: Path) -> None:
    state = host.driver(libdcmi, chip_name="310P3", templates=[("vir04", 4.0, 12000)], aicores=8).state
    host.nodes({"vdavinci148": LOOP_CONTROL})
    try:
        done = docker.run("ls /dev; env", "ASCEND_VISIBLE_DEVICES=3", "ASCEND_VNPU_SPECS=vir04")
        assert done.returncode == 0, done.stdout
        assert "davinci148" in done.stdout.split() and "ASCEND_RUNTIME_OPTIONS=VIRTUAL" in done.stdout
        vdev = state.chip[3].vdevs[0]
        assert (vdev.id, vdev.name) == (0, b"vir04"), "it was there and is gone with the container"
    finally:
        host.driver(libdcmi)


def test_uninstall_waits_for_running_containers(host: Host, docker: Docker) -> None:
    name = f"long-{os.getpid()}"
    assert docker.run("sleep 600", "ASCEND_VISIBLE_DEVICES=1", options=("-d", "--name", name)).returncode == 0
    try:
        refused = host.run(BELAY, "runtime", "uninstall", check=False)
        assert refused.returncode == 2 and "containers made by it run" in refused.stderr
        found = json.loads(host.run(BELAY, "runtime", "status", "-o", "json").stdout)
        assert found["engine"] == "installed" and found["containers"]
        assert json.loads(host.read(CONFIG))["default-runtime"] == "ascend"
    finally:
        docker.call("rm", "-f", name)


def test_fault_stop_reset_start_over_dockers_socket(docker: Docker, libdcmi: Path, tmp_path: Path) -> None:
    for name, chips in (("train", "0-3"), ("infer", "7"), ("plain", "")):
        env = [f"ASCEND_VISIBLE_DEVICES={chips}"] if chips else []
        done = docker.run("ls /dev; sleep 600", *env, options=("-d", "--name", name, "--stop-timeout=0"))
        assert done.returncode == 0, done.stdout

    def running() -> set[str]:
        return set(docker.call("ps", "--format", "{{.Names}}").stdout.split())

    async def main() -> None:
        standin, file = Standin.create(tmp_path / "state", reset_ms=300), tmp_path / "status.json"
        driver = DcmiDriver(libdcmi, sleep=asyncio.sleep, owners=ME, env={"BELAY_SIM_DCMI_STATE": str(standin.file)})
        client = Client(docker.socket)
        async with managed(Manager(driver, client, CODES, "ringRecover", Faster(), file=file)):
            await eventually(lambda: len(status.read(file)) == 2)
            standin.processes(2, [4711])
            standin.raise_code(2, FREE)
            await eventually(lambda: running() == {"plain"})
            assert standin.chip(2).resets == 0, "a process is on the chip"
            standin.processes(2, [])
            await eventually(lambda: running() == {"train", "infer", "plain"}, 40)
            assert {standin.chip(phy).resets for phy in range(8)} == {1}
        await client.close()
        await driver.close()

    try:
        asyncio.run(asyncio.wait_for(main(), 100))
        found = [word for word in docker.call("logs", "train").stdout.split() if word.startswith("davinci")]
        assert found == 2 * [*(f"davinci{n}" for n in range(4)), "davinci_manager"], "both lives have their chips"
    finally:
        docker.call("rm", "-f", "train", "infer", "plain")
