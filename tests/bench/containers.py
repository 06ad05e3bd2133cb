"""Making a container through belay-oci-runtime and through runc alone, by turns in the same run.

Each pair is one `create` of the same bundle by either program, begun after the container before was deleted; the
overhead is the difference of a pair. Hosts are made of a private mount namespace with the compiled stand-in of the
driver, so that the container with chips asks a driver that answers at once; mounts are made by the real hook.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from belay.agents.drivers.standin.build import build as build_driver
from belay.agents.runtime.build import build
from tests.bench.measure import Result, Skipped, number
from tests.runtime_host import LISTS, Host, possible

PAIRS = 25


def run() -> list[Result]:
    """Rows: overhead without chips and with eight."""
    lacks = possible() or next((f"needs {name}" for name in ("runc", "busybox") if not shutil.which(name)), "")
    if lacks:
        raise Skipped(lacks)
    with tempfile.TemporaryDirectory(prefix="belay-bench-", dir="/tmp") as folder, Host() as host:
        path = Path(folder)
        runtime = host.install(build(path / "programs"))
        host.driver(build_driver(path / "driver"))
        host.nodes({f"davinci{n}": (10, 229) for n in range(8)})
        host.nodes(dict.fromkeys(("davinci_manager", "devmm_svm", "hisi_hdc"), (10, 229)))
        host.shell(
            "for n in $(seq 300); do install -D -m 0444 /dev/null /usr/local/Ascend/driver/lib64/driver/lib$n.so; done"
        )
        host.write(f"{LISTS}/base.list", "/usr/local/Ascend/driver/lib64\n/usr/local/dcmi\n", "0440")
        _bundle(path)
        return [
            _own_part(host, path, runtime),
            _pairs(host, path, runtime, "container without chips", [], 20),
            _pairs(
                host, path, runtime, "container with 8 chips, hook and mounts", ["ASCEND_VISIBLE_DEVICES=0-7"], None
            ),
        ]


def _own_part(host: Host, folder: Path, runtime: str) -> Result:
    """What the runtime itself takes: runc is a program that ends at once."""
    _renew(folder, [])
    host.shell("mkdir -p /etc/idle; ln -sf /bin/true /etc/idle/runc")
    result = Result(
        "the runtime's own part, container without chips", "ms", 20, remark="runc replaced by `true`, less `true`"
    )
    for _ in range(PAIRS):
        both = []
        for command in ([runtime, "create", "--bundle", str(folder), "bench"], ["/bin/true"]):
            begin = time.perf_counter()
            subprocess.run(host.command("env", "PATH=/etc/idle", *command), env=host.env, check=True, timeout=60)
            both.append((time.perf_counter() - begin) * 1000)
        result.runs.append(both[0] - both[1])
    return result


def _bundle(folder: Path) -> None:
    (folder / "rootfs/bin").mkdir(parents=True)
    for name in ("proc", "dev", "sys"):
        (folder / "rootfs" / name).mkdir()
    shutil.copy(shutil.which("busybox") or "", folder / "rootfs/bin/sh")
    subprocess.run(["runc", "spec"], cwd=folder, check=True, timeout=30)


def _pairs(host: Host, folder: Path, runtime: str, what: str, env: list[str], limit: float | None) -> Result:
    ours: list[float] = []
    plain: list[float] = []
    for _ in range(PAIRS):
        ours.append(_create(host, folder, runtime, env))
        plain.append(_create(host, folder, "runc", env))
    over = sorted(mine - runc for mine, runc in zip(ours, plain, strict=True))
    remark = (
        f"runc alone {number(sorted(plain)[PAIRS // 2])} ms, through the runtime {number(sorted(ours)[PAIRS // 2])} ms"
    )
    return Result(f"overhead of `create`, {what}", "ms", limit, runs=over, remark=remark)


def _create(host: Host, folder: Path, program: str, env: list[str]) -> float:
    _renew(folder, env)
    command = host.command(program, "create", "--bundle", str(folder), "bench")
    begin = time.perf_counter()
    null = subprocess.DEVNULL
    subprocess.run(command, env=host.env, stdin=null, stdout=null, stderr=null, check=True, timeout=60)
    took = (time.perf_counter() - begin) * 1000
    host.run("runc", "delete", "--force", "bench")
    return took


def _renew(folder: Path, env: list[str]) -> None:
    file = folder / "config.json"
    spec = json.loads(file.read_text())
    spec["process"] |= {"terminal": False, "env": ["PATH=/bin", *env]}
    spec["linux"]["devices"] = []
    spec["linux"]["resources"] = {"devices": [{"allow": False, "access": "rwm"}]}
    file.write_text(json.dumps(spec))
