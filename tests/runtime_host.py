"""A host with chips, made of a private mount namespace: its own /dev, /etc, /usr/local and /var/log over the machine's.

Nothing of it reaches the machine outside, and it ends with the process that holds it. Needs root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from belay.agents.drivers.standin.build import build as build_driver
from belay.agents.drivers.standin.state import Standin
from belay.agents.runtime.build import build
from tests.needs import required

HOME = "/usr/local/Ascend/Ascend-Docker-Runtime"
LISTS = "/etc/ascend-docker-runtime.d"
NODES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "fuse", "kmsg", "loop-control")
"""What the private /dev takes from the machine's."""
FUSE, LOOP_CONTROL = (10, 229), (10, 237)
"""Real devices of the kernel that no container may open by default, standing for chips."""
_PACKAGES = {"busybox": "busybox-static", "docker": "docker.io", "dockerd": "docker.io"}

_SETUP = r"""
set -eu
mount -t tmpfs -o mode=755 host "$1"
for folder in etc usr/local var/log; do
  mkdir -p "$1/up/$folder" "$1/work/$folder"
  mount -t overlay overlay -o "lowerdir=/$folder,upperdir=$1/up/$folder,workdir=$1/work/$folder" "/$folder"
done
mkdir -m 755 "$1/dev"
mount -t tmpfs -o mode=755,dev dev "$1/dev"
for node in NODES; do [ -e "/dev/$node" ] && cp -a "/dev/$node" "$1/dev/$node"; done
mkdir "$1/dev/pts" "$1/dev/shm"
mount --bind /dev/pts "$1/dev/pts"
mount --bind /dev/shm "$1/dev/shm"
mount --move "$1/dev" /dev
ln -s /proc/self/fd /dev/fd
echo ready
exec sleep infinity
"""


def possible() -> str:
    """Why this machine cannot hold such a host; empty when it can, and where it has to."""
    if required():
        return ""
    if os.geteuid():
        return "needs root"
    if not shutil.which("unshare") or not shutil.which("nsenter"):
        return "needs unshare and nsenter (util-linux)"
    return ""


def need(*programs: str) -> None:
    """Fail, saying which Debian package is missing, unless all of them are there."""
    for program in programs:
        assert shutil.which(program), (
            f"{program} is missing; on Debian: apt-get install {_PACKAGES.get(program, program)}"
        )


ON_A_HOST = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("real-node"),
    pytest.mark.skipif(bool(possible()), reason=f"a private host {possible()}"),
]
"""The marks of tests with a real runtime on such a host."""


def busybox(rootfs: Path, programs: Sequence[str], folders: Sequence[str] = ()) -> None:
    """A container's root with these programs in ``bin``, and empty folders."""
    for below in ("bin", *folders):
        (rootfs / below).mkdir(parents=True)
    shutil.copy(shutil.which("busybox") or "", rootfs / "bin/busybox")
    for name in programs:
        (rootfs / "bin" / name).symlink_to("busybox")


class Host:
    """The namespace; ``run`` starts programs in it."""

    def __init__(self) -> None:
        # the folder must not be one of those that get covered
        self.folder = Path(tempfile.mkdtemp(prefix="belay-host-", dir="/tmp"))
        (self.folder / "host").mkdir()
        script = _SETUP.replace("NODES", " ".join(NODES))
        command = [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "bash",
            "-c",
            script,
            "host",
            str(self.folder / "host"),
        ]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self._holder.stdout and self._holder.stderr
        if self._holder.stdout.readline() != "ready\n":
            self._holder.wait(10)
            raise RuntimeError(f"no private host: {self._holder.stderr.read()}")
        self.env: dict[str, str] = {"PATH": os.environ["PATH"], "BELAY_SIM_DCMI_STATE": str(self.folder / "state")}

    def __enter__(self) -> Host:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._holder.kill()
        self._holder.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def command(self, *arguments: str) -> list[str]:
        """The command line that runs ``arguments`` on this host."""
        return ["nsenter", "--mount", "-t", str(self._holder.pid), "--", *arguments]

    def run(
        self,
        *arguments: str,
        input: str | None = None,
        check: bool = True,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end."""
        done = subprocess.run(
            self.command("env", "-C", str(cwd or "/"), *arguments), input=input, capture_output=True, text=True,
            timeout=60, env=dict(self.env if env is None else env),
        )  # fmt: skip
        if check and done.returncode:
            raise AssertionError(f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def shell(self, script: str) -> str:
        """Run a script; its output."""
        return self.run("bash", "-euc", script).stdout

    def write(self, path: str, text: str, mode: str = "0644") -> None:
        """A file of this host."""
        self.run(
            "bash",
            "-euc",
            'mkdir -p "$(dirname "$1")"; rm -f "$1"; cat >"$1"; chmod "$2" "$1"',
            "write",
            path,
            mode,
            input=text,
        )

    def read(self, path: str) -> str:
        """A file of this host."""
        return self.run("cat", path).stdout

    def nodes(self, nodes: Mapping[str, tuple[int, int]]) -> None:
        """Character devices by name below /dev."""
        lines = [
            f'mkdir -p "$(dirname /dev/{n})"; rm -f /dev/{n}; mknod -m 660 /dev/{n} c {a} {b}'
            for n, (a, b) in nodes.items()
        ]
        self.shell("\n".join(lines))

    def chips(self, count: int = 8, *, even: tuple[int, int] = FUSE) -> None:
        """The devices of so many chips and of their manager; those of ``even`` numbers may be other devices."""
        self.nodes({f"davinci{n}": FUSE if n % 2 else even for n in range(count)})
        self.nodes(dict.fromkeys(("davinci_manager", "devmm_svm", "hisi_hdc"), FUSE))

    def driver(self, library: Path, **shape: Any) -> Standin:
        """A machine of chips behind the stand-in library, where the driver package puts it."""
        self.run(
            "bash",
            "-euc",
            'mkdir -p /usr/local/dcmi; install -m 0555 "$1" /usr/local/dcmi/libdcmi.so',
            "driver",
            str(library),
        )
        return Standin.create(self.folder / "state", **shape)

    def install(self, programs: Sequence[Path], *, mode: str = "legacy") -> str:
        """The runtime under its four names; the path of the runtime."""
        runtime, driver = map(str, programs)
        self.shell(
            f"""mkdir -p {HOME}; cd {HOME}; rm -f *; install -m 0550 {runtime} {driver} .
            for name in runtime hook cli destroy; do ln belay-oci-runtime ascend-docker-$name; done
            echo injection-mode={mode} >ascend_docker_runtime_install.info; chmod 0640 *.info"""
        )
        return f"{HOME}/belay-oci-runtime"


@pytest.fixture(scope="session")
def oci_programs(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """The runtime and its driver companion, compiled once."""
    return build(tmp_path_factory.mktemp("oci"))


@pytest.fixture(scope="session")
def libdcmi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in of the NPU driver."""
    return build_driver(tmp_path_factory.mktemp("dcmi"))


__all__ = [
    "FUSE", "HOME", "LISTS", "LOOP_CONTROL", "ON_A_HOST", "Host", "busybox", "libdcmi", "need", "oci_programs",
    "possible",
]  # fmt: skip
