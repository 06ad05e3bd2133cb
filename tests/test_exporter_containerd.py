"""Attribution against a real containerd: a pod made through CRI, its container and its process found on its chips."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from belay.agents.exporter.page import Page
from belay.agents.exporter.runtimes import LABELS, Runtimes
from belay.agents.exporter.samples import Cache, Value
from tests import containerd_server
from tests.containerd_server import IMAGE, ctr
from tests.exporter_world import TIME_MS, Now, chip, machine
from tests.needs import lacking

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("real-node")]


@pytest.fixture(scope="module")
def cri() -> Iterator[Path]:
    """The socket of a containerd with CRI, whose sandboxes are made of the test's own image."""
    if why := containerd_server.missing():
        lacking(f"no real containerd: {why} is missing")
    folder = Path(tempfile.mkdtemp(prefix="cri-"))
    socket = folder / "c.sock"
    (folder / "config.toml").write_text(
        f'version = 2\nroot = "{folder}/root"\nstate = "{folder}/state"\n'
        f'[grpc]\n  address = "{socket}"\n[ttrpc]\n  address = "{folder}/t.sock"\n'
        f'[plugins."io.containerd.grpc.v1.cri"]\n  sandbox_image = "{IMAGE}"\n  disable_apparmor = true\n'
        "  restrict_oom_score_adj = true\n"
    )
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            ["containerd", "--config", str(folder / "config.toml")], stdout=log, stderr=log, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 30
        while ctr(socket, "version", check=False).returncode:
            assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()[-2000:]
            time.sleep(0.1)
        ctr(socket, "-n", "k8s.io", "images", "import", str(containerd_server.sleeper(folder)))
        yield socket
    finally:
        containerd_server.end(socket, process)
        for line in Path("/proc/mounts").read_text().splitlines():
            if f" {folder}/" in line:
                subprocess.run(["umount", "-l", line.split()[1]], check=False, capture_output=True, timeout=20)
        shutil.rmtree(folder, ignore_errors=True)


def field(number: int, value: int | str | bytes) -> bytes:
    """One field on the wire: a small number, a text or a message."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    data = value.encode() if isinstance(value, str) else value
    length, size = len(data), b""
    while length > 127:
        size, length = size + bytes([length & 127 | 128]), length >> 7
    return bytes([number << 3 | 2]) + size + bytes([length]) + data


def entry(number: int, key: str, value: str) -> bytes:
    return field(number, field(1, key) + field(2, value))


def call(socket: Path, method: str, request: bytes) -> str:
    """A call of CRI whose answer's first field is a name."""
    options = [("grpc.default_authority", "localhost")]
    with grpc.insecure_channel(f"unix://{socket}", options=options) as channel:
        answer: bytes = channel.unary_unary(f"/runtime.v1.RuntimeService/{method}")(request, timeout=60)
    return answer[2 : 2 + answer[1]].decode() if answer else ""


def pod(socket: Path, name: str, env: str) -> str:
    """Start a pod with one container; answers the container's id."""
    metadata = field(1, name) + field(2, f"uid-{name}") + field(3, "ns")
    # the host's network, so that no CNI is needed
    linux = field(8, field(2, field(1, field(1, 2))))
    config = field(1, metadata) + field(3, "/tmp") + linux
    sandbox = call(socket, "RunPodSandbox", field(1, config))
    labels = b"".join(entry(9, key, value) for key, value in zip(LABELS, ("ns", name, "main"), strict=True))
    variable, _, value = env.partition("=")
    container = (
        field(1, field(1, "main")) + field(2, field(1, IMAGE)) + field(6, field(1, variable) + field(2, value)) + labels
    )
    made = call(socket, "CreateContainer", field(1, sandbox) + field(2, container) + field(3, config))
    call(socket, "StartContainer", field(1, made))
    return made


def test_a_pod_of_a_real_containerd_is_named_on_its_chips(cri: Path) -> None:
    made = pod(cri, "train-0", "ASCEND_VISIBLE_DEVICES=0-1")
    other = pod(cri, "web-0", "COLOUR=red")

    async def go() -> None:
        asking = Runtimes("containerd", Now(), cri=str(cri), oci=str(cri), owners=frozenset({0}))
        found = await asking.read()
        assert sorted(found) == [0, 1]
        (container,) = found[0]
        assert (container.id, container.name) == (made, "ns_train-0_main") and other != made
        (pid,) = container.pids
        assert Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"/sleeper")
        now, cache = Now(), Cache()
        page = Page(cache, now)
        page.show(machine(chips=[chip(0), chip(2)]), found)
        from belay.agents.exporter.groups import Group

        for phy in (0, 2):
            cache.put(Group("npu", 5), phy, [Value("npu_chip_info_process_info", 7, (str(pid),))], TIME_MS, now())
        lines = [line for line in page.plain().decode().splitlines() if line.startswith("npu_")]
        assert [f'containerID="{made}"' in line for line in lines if "npu_container_info" in line] == [True]
        assert [('pod_name="train-0"' in line) for line in lines if "process_info{" in line] == [True, False]
        call(cri, "StopContainer", field(1, made))
        assert await asking.read() == {}
        await asking.close()

    asyncio.run(asyncio.wait_for(go(), 60))
