"""A real containerd for tests, with folders of its own and an image made here: nothing is pulled.

`containerd_socket` is a fixture; it skips where the machine cannot run containers, and fails there in CI.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needs import lacking

IMAGE = "docker.io/library/sleeper:local"
_PROGRAM = r"""
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
int main(int n, char **a)
{
    (void)a;
    if (n > 1)
        return 0;
    signal(SIGTERM, SIG_IGN);
    setbuf(stdout, 0);
    puts("up");
    for (;;)
        pause();
}
"""


def missing() -> str:
    """What is missing to run containers; empty when nothing is."""
    tools = {"containerd": "containerd", "ctr": "containerd", "runc": "runc", "gcc": "gcc and libc6-dev"}
    absent = sorted({package for tool, package in tools.items() if shutil.which(tool) is None})
    if absent:
        return f"Debian packages {', '.join(absent)} (make test-packages)"
    return "" if os.geteuid() == 0 else "root"


@pytest.fixture(scope="session")
def containerd_socket() -> Iterator[Path]:
    """The socket of a running containerd that holds `IMAGE` in namespace ``default``."""
    if why := missing():
        lacking(f"no real containerd: {why} is missing")
    # short, because the path of a socket may have 107 letters
    folder = Path(tempfile.mkdtemp(prefix="cd-"))
    socket, process = folder / "c.sock", None
    (folder / "config.toml").write_text(
        f'version = 2\nroot = "{folder}/root"\nstate = "{folder}/state"\n'
        'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
        f'[grpc]\n  address = "{socket}"\n[ttrpc]\n  address = "{folder}/t.sock"\n'
    )
    try:
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                ["containerd", "--config", str(folder / "config.toml")], stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 30
        while ctr(socket, "version", check=False).returncode:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"containerd did not start: {(folder / 'log').read_text()[-2000:]}")
            time.sleep(0.1)
        ctr(socket, "images", "import", str(sleeper(folder)))
        probe = ctr(
            socket, "run", own_root(socket), "--rm", "--null-io", IMAGE, "probe", "/sleeper", "--version", check=False
        )
        if probe.returncode:
            lacking(f"containers cannot be run here: {probe.stderr[-300:]}")
        yield socket
    finally:
        if process is not None:
            end(socket, process)
        for line in Path("/proc/mounts").read_text().splitlines():
            if f" {folder}/" in line:
                subprocess.run(["umount", "-l", line.split()[1]], check=False, capture_output=True, timeout=20)
        shutil.rmtree(folder, ignore_errors=True)


def ctr(socket: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run containerd's own client."""
    done = subprocess.run(
        ["ctr", "--address", str(socket), *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    if check and done.returncode:
        raise RuntimeError(f"ctr {' '.join(arguments)}: {done.stderr[-1000:]}")
    return done


def own_root(socket: Path) -> str:
    """The option of `ctr run` that keeps containers of several containerds apart: runc's folder is the host's."""
    return f"--runc-root={socket.parent}/runc"


def tasks(socket: Path, namespace: str = "default") -> dict[str, str]:
    """The state of every task, by container."""
    lines = ctr(socket, "-n", namespace, "tasks", "ls").stdout.splitlines()[1:]
    return {line.split()[0]: line.split()[2] for line in lines}


def end(socket: Path, process: subprocess.Popen[bytes]) -> None:
    for namespace in ctr(socket, "namespaces", "ls", "-q", check=False).stdout.split():
        for container in ctr(socket, "-n", namespace, "tasks", "ls", "-q", check=False).stdout.split():
            ctr(socket, "-n", namespace, "tasks", "rm", "-f", container, check=False)
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def sleeper(folder: Path) -> Path:
    """The archive of `IMAGE`, whose program sleeps."""
    return image(folder, IMAGE, "sleeper", _PROGRAM)


def image(folder: Path, tag: str, name: str, source: str) -> Path:
    """An archive of an image that holds one program, ``/name``, compiled from C; ``folder`` keeps the program."""
    program = folder / name
    if not program.exists():
        (folder / f"{name}.c").write_text(source)
        subprocess.run(
            ["gcc", "-static", "-O2", "-o", str(program), str(folder / f"{name}.c")],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        _add(tar, name, program.read_bytes(), 0o755)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = json.dumps(
        {
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine),
            "os": "linux",
            "config": {"Cmd": [f"/{name}"], "Env": ["PATH=/"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    file = hashlib.sha256(config).hexdigest() + ".json"
    manifest = json.dumps([{"Config": file, "RepoTags": [tag], "Layers": ["layer.tar"]}]).encode()
    out = folder / f"{tag.rpartition('/')[2].replace(':', '-')}.tar"
    with tarfile.open(out, "w") as tar:
        for member, data in ((file, config), ("layer.tar", layer.getvalue()), ("manifest.json", manifest)):
            _add(tar, member, data, 0o644)
    return out


def _add(tar: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), mode
    tar.addfile(info, io.BytesIO(data))
