"""Everything at once and nothing simulated but the chips: API server, kubelet, containerd with belay-oci-runtime,
Redis, Belay's controller, worker, server and agent as processes of their own, a Git repository, Prometheus.

``chain`` starts it all and ends it all, whatever happens between; ``Chain.until`` prints the ends of all logs when a
state does not come.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from belay import IMPORT_ROOT
from belay.agents.drivers.standin.state import Standin
from belay.engine.sandbox.processes import ChildProcess
from belay.engine.sandbox.reader import ApiReader
from belay.engine.sandbox.redis_process import start_redis
from belay.engine.settings import Settings, to_environment
from belay.engine.wire import names, sync
from tests.control_planes import closed_ports
from tests.gitrepo import Repo
from tests.kube_server import define, real_cluster
from tests.node_server import NODE, node_assets
from tests.runtime_host import LISTS, Host
from tests.test_exporter_prometheus import free_port, program
from tests.test_oci_kubelet import Node

ROOT = Path(__file__).resolve().parents[1]
MAJOR, VIRTUAL_MAJOR = 235, 236
"""Numbers of device nodes that no driver of the machine has: opening one fails, being allowed to is what counts."""
_LOG_BYTES = 3000


class Chain:
    """What runs. ``machine`` is the chips behind the driver, ``repo`` what people push to."""

    def __init__(self, node: Node, machine: Standin, repo: Repo, redis_url: str) -> None:
        self.node, self.machine, self.repo = node, machine, repo
        self.folder = node.folder
        self.reader = ApiReader(node.kubeconfig)
        self.children: dict[str, ChildProcess] = {}
        self.metrics_port, self.prometheus_port = free_port(20_000, 30_000), free_port(31_000, 39_000)
        self._server_port = free_port(40_000, 49_000)
        self._redis_url = redis_url
        self._came: list[str] = []

    # processes

    def start_agent(self, *flags: str) -> None:
        """The one agent of the node, on the node: reports, orders, device plugin, exporter; the driver as installed."""
        exporter = (
            f"-ip=127.0.0.1 -port={self.metrics_port} -updateTime=1 -limitIPReq=100/1 -containerMode=containerd "
            f"-containerd={self.node.socket} -endpoint={self.node.socket} -configDir={self.folder}"
        )
        command = [
            sys.executable, "-m", "belay.engine.cli", "agent", "--node", NODE, "--driver", "dcmi",
            "--kubeconfig", str(self.node.kubeconfig), "--journal", str(self.folder / "agent"), "--scale", "0.05",
            "--rank-tables", str(self.folder / "ranktables"), "--device-plugin", "-volcanoType=true",
            "--kubelet-dir", str(self.node.plugins), "--pod-resources", str(self.node.pod_resources),
            "-deviceResetTimeout=60", f"--exporter={exporter}", *flags,
        ]  # fmt: skip
        given = {"HOST_IP": "127.0.0.1", "ASCEND_DOCKER_RUNTIME": "True", "LD_LIBRARY_PATH": "/usr/local/dcmi"}
        self._start("agent", self.node.host.command(*command), given | self.node.host.env)

    def start_engine(self) -> None:
        """Controller, worker and server as they are deployed."""
        settings = Settings(
            redis_url=self._redis_url, kubeconfig=str(self.node.kubeconfig), data=str(self.folder / "engine"),
            source_url=str(self.repo.bare), source_interval=1.0, resync=2.0, grpc_listen="off",
        )  # fmt: skip
        listen = ("--listen", f"127.0.0.1:{self._server_port}")
        for verb, more in (("controller", ()), ("worker", ()), ("server", listen)):
            variables = to_environment(settings) | {"BELAY_IDENTITY": f"chain-{verb}"}
            self._start(verb, [sys.executable, "-m", "belay.engine.cli", verb, *more], variables)

    def start_prometheus(self) -> None:
        """A real one by the shipped configuration, but twice a second and with the addresses of exporter and server."""
        jobs = yaml.safe_load((ROOT / "deploy/monitoring/prometheus.yaml").read_text())["scrape_configs"]
        for job, port in zip(jobs, (self.metrics_port, self._server_port), strict=True):
            del job["kubernetes_sd_configs"], job["relabel_configs"]
            job |= {"scrape_interval": "500ms", "scrape_timeout": "400ms"}
            job["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
        config = self.folder / "prometheus.yml"
        config.write_text(yaml.safe_dump({"scrape_configs": jobs}))
        command = [
            program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={self.folder}/prometheus",
            f"--web.listen-address=127.0.0.1:{self.prometheus_port}", "--log.level=warn",
        ]  # fmt: skip
        self._start("prometheus", command, {})

    def start_controllers(self) -> None:
        """Kubernetes' own controllers: they collect the pods of jobs that are gone, and mind the node's taints."""
        program = self.node.assets / "kube-controller-manager"
        command = [
            str(program), "--kubeconfig", str(self.node.kubeconfig),
            "--service-account-private-key-file", str(self.folder / "sa.key"), "--leader-elect=false",
            "--bind-address=127.0.0.1", *closed_ports(program),
        ]  # fmt: skip
        self._start("controllers", command, {})

    def stop(self) -> None:
        """End all of Belay's processes, the last started first."""
        for child in reversed(self.children.values()):
            child.stop(10)

    def _start(self, name: str, command: Sequence[str], variables: dict[str, str]) -> None:
        given = {key: value for key, value in os.environ.items() if not key.startswith("BELAY_")}
        environment = given | {"PYTHONPATH": str(IMPORT_ROOT), "PYTHONUNBUFFERED": "1", "KUBECONFIG": ""} | variables
        self.children[name] = ChildProcess(name, command, environment, self.folder / f"{name}.log")
        self.children[name].start()

    # what there is

    def until(self, what: str, truth: Callable[[], Any], seconds: float = 150.0) -> Any:
        """Wait until it is true; what it then is. Fails as soon as a process has ended."""
        began = time.monotonic()
        ends = began + seconds
        while not (found := truth()):
            dead = [child.name for child in self.children.values() if not child.running]
            if dead or time.monotonic() > ends:
                why = f"{', '.join(dead)} ended" if dead else f"not within {seconds:g} s"
                pytest.fail(f"{what}: {why}\n{self.story(*dead)}", pytrace=False)
            time.sleep(0.15)
        self._came.append(f"{time.monotonic() - began:6.1f} s  {what}")
        return found

    def story(self, *dead: str) -> str:
        """The ends of logs, of those that ended first, and what the cluster says, bounded."""
        sync_map = self.reader.config_map(names.SYSTEM, names.SYNC)
        parts = ["== what came to be\n" + "\n".join(self._came)]
        parts += [f"== belay-sync\n{json.dumps(sync_map)[:_LOG_BYTES]}"]
        parts.append(f"== metrics\n{self.shown()[:4000]}")
        for pod in self.pods():
            parts.append(f"== pod {pod['metadata']['name']}\n{json.dumps(pod['metadata'].get('annotations'))[:800]}\n"
                         f"{json.dumps(pod.get('status'))[:800]}")  # fmt: skip
        for item in self.reader.list(f"/api/v1/namespaces/{names.SYSTEM}/configmaps"):
            if item["metadata"]["name"].startswith((names.ORDERS_PREFIX, "belay-job-")):
                parts.append(f"== {item['metadata']['name']}\n{json.dumps(item.get('data'))[:_LOG_BYTES]}")
        for name in dict.fromkeys((*dead, "agent", "controller", "worker", "controllers", "kubelet")):
            with contextlib.suppress(OSError):
                text = (self.folder / f"{name}.log").read_bytes()[-_LOG_BYTES:].decode(errors="replace")
                parts.insert(0, f"== {name}.log\n{text}") if name in dead else parts.append(f"== {name}.log\n{text}")
        return "\n".join(parts)

    def pods(self) -> list[dict[str, Any]]:
        """The pods of namespace default."""
        return self.reader.list("/api/v1/namespaces/default/pods")

    def applied(self) -> str:
        """The revision in force."""
        return self.reader.config_map(names.SYSTEM, names.SYNC).get(sync.APPLIED, "")

    def held_prune(self) -> dict[str, Any] | None:
        """The deletions that wait for a person, if any do."""
        written = self.reader.config_map(names.SYSTEM, names.SYNC).get(sync.HELD_PRUNE)
        return json.loads(written) if written else None

    def push(self, files: dict[str, str | bytes | None], message: str) -> str:
        """Commit and `git push`; None removes a file."""
        for name in [name for name, content in files.items() if content is None]:
            (self.repo.work / name).unlink()
        return self.repo.commit({name: text for name, text in files.items() if text is not None}, message=message)

    def shown(self) -> str:
        """The exporter's page, its lines of health."""
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=5) as answer,
        ):
            lines = answer.read().decode().splitlines()
            return "\n".join(
                line
                for line in lines
                if line.startswith(("npu_chip_info_health", "npu_container_info", "machine_", "vnpu_"))
            )
        return ""

    def running(self, name: str, but: str = "") -> dict[str, Any]:
        """The pod of that name once it runs, its chips written down, and is not the one of that uid."""

        def look() -> dict[str, Any] | None:
            pod = self.node.get("pod", name)
            if not pod or pod["metadata"]["uid"] == but:
                return None
            notes = pod["metadata"].get("annotations") or {}
            here = pod["status"].get("phase") == "Running" and "huawei.com/kltDev" in notes
            return pod if here and self.node.environment(pod) else None

        return dict(self.until(f"pod {name} runs", look))

    def allocatable(self, resource: str) -> tuple[str, str]:
        """(capacity, allocatable) that kubelet reports."""
        return self.node.devices(resource)

    def listed(self, resource: str, kind: str = "") -> list[str]:
        """A list of the device report; empty also where there is none."""
        name = f"mindx-dl-deviceinfo-{NODE}"
        text = self.reader.config_map("kube-system", name).get("DeviceInfoCfg", "{}")
        lists = json.loads(text).get("DeviceInfo", {}).get("DeviceList", {})
        return [chip for chip in lists.get(resource + kind, "").split(",") if chip]

    def query(self, text: str) -> list[dict[str, Any]]:
        """What Prometheus answers; empty while it does not."""
        address = f"http://127.0.0.1:{self.prometheus_port}/api/v1/query?{urllib.parse.urlencode({'query': text})}"
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                return list(json.load(answer)["data"]["result"])
        except OSError:
            return []

    def value(self, text: str) -> float | None:
        """The one value that a query has; None for none or several."""
        found = self.query(text)
        return float(found[0]["value"][1]) if len(found) == 1 else None


def inside(pod: dict[str, Any]) -> Path:
    """/proc of the program of a pod whose environment names its uid (``POD_UID``)."""
    wanted = f"POD_UID={pod['metadata']['uid']}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "comm").read_text() == "teller\n" and wanted in (entry / "environ").read_bytes().split(b"\0"):
                return entry
    raise AssertionError(f"no process of pod {pod['metadata']['name']}")


def allowed(host: Host, process: Path) -> set[str]:
    """Which devices of ours the container's device cgroup lets it use; empty under cgroup v2, where no program can read
    them."""
    lines = [line.split(":", 2) for line in (process / "cgroup").read_text().splitlines()]
    place = next((place for _, kinds, place in lines if "devices" in kinds.split(",")), "")
    if not place:
        return set()
    rules = host.read(f"/sys/fs/cgroup/devices{place}/devices.list").splitlines()
    return {rule for rule in rules if rule.startswith((f"c {MAJOR}:", f"c {VIRTUAL_MAJOR}:", "a "))}


@contextlib.contextmanager
def chain(programs: Sequence[Path], library: Path, **shape: Any) -> Iterator[Chain]:
    """A cluster of one node whose chips have ``shape`` (`Standin.create`); nothing of Belay's runs yet."""
    assets = node_assets()
    program("prometheus")
    # short, because the path of a socket may have 107 letters
    folder = Path(tempfile.mkdtemp(prefix="ch-", dir="/tmp"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        host = stack.enter_context(Host())
        kubeconfig = stack.enter_context(real_cluster(assets, folder))
        host.install(programs)
        machine = host.driver(library, **shape)
        chips = machine.state.chips
        host.nodes({f"davinci{n}": (MAJOR, n) for n in range(chips)})
        managers = ("davinci_manager", "devmm_svm", "hisi_hdc")
        host.nodes({name: (MAJOR, 200 + n) for n, name in enumerate(managers)})
        host.write("/usr/local/Ascend/driver/lib64/driver/libdriver.so", "driver", "0444")
        host.write(f"{LISTS}/base.list", "/usr/local/Ascend/driver/lib64\n", "0440")
        (folder / "redis").mkdir()
        redis = stack.enter_context(start_redis(folder / "redis"))
        node = Node(host, folder, kubeconfig, assets)
        stack.callback(node.stop)
        define(kubeconfig)
        node.kubectl("apply", "-f", str(ROOT / "deploy" / "base" / "namespaces.yaml"))
        node.start()
        made = Chain(node, machine, Repo(folder / "git"), redis.url)
        stack.callback(made.stop)
        yield made


__all__ = ["MAJOR", "ROOT", "VIRTUAL_MAJOR", "Chain", "allowed", "chain", "inside"]
