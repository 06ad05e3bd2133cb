"""Everything that runs: API server, Redis, Git, engine, agents and kubelets, as processes that a test can break.

Each process of Belay is a machine of its own: it reaches the API server and Redis through the proxy, has a wall clock
(libfaketime), where root allows a disk (tmpfs) and a network (namespace). One that ends is started again, as kubelet
and systemd do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from belay.engine.sandbox.processes import ChildProcess, end_with_parent
from belay.engine.sandbox.redis_process import RedisProcess, start_redis
from belay.engine.settings import Settings, to_environment
from tests import netns
from tests.chaos.node import Hardware
from tests.chaos.proxy import Weather
from tests.gitrepo import Repo
from tests.kube_server import real_cluster
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
STARTS = 180.0
STOPS = 30.0
SCALE = 0.05
CHIPS = 8
DISKS = {"agent": "256k", "engine": "32m"}
FAKETIME = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib64/faketime/libfaketimeMT.so.1")
QUICK: dict[str, Any] = {
    "resync": 1.0,
    "debounce": 0.02,
    "lease": 4.0,
    "claim": 6.0,
    "expiry": 8.0,
    "patience": 2.0,
    "visibility": 8.0,
    "order_life": 60.0,
}
"""Settings that make everything that ends with time end soon."""
_CONNECTED = ("controller-1", "worker-1", "agent-node-1")
"""Those with a network of their own."""
_CLOCKED = ("controller-2", "worker-2", "worker-3", "agent-node-2")
"""Those with a clock of their own. Not all: under libfaketime a thread's sleep sometimes fails with EINVAL."""


def import_root(tree: Path) -> str:
    """From where processes of a version import it, and the tests beside it; up to 0.2 that was the top of its tree."""
    places = [tree / "src", tree] if (tree / "src/belay").is_dir() else [tree]
    return os.pathsep.join(map(str, places))


def module_of(tree: Path, word: str) -> str:
    """A word of a command, where a module has the name that it has in that version."""
    return word if (tree / "src/belay").is_dir() else word.removeprefix("belay.")


class Size(msgspec.Struct, frozen=True):
    """How many of what."""

    nodes: int = 3
    controllers: int = 2
    workers: int = 3
    servers: int = 1


class Machine:
    """One process of Belay with all that is its own."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.kind = name.partition("-")[0]
        self.folder = folder / name
        self.disk = self.folder / "disk"
        self.clock = self.folder / "clock"
        self.clocked = False
        """Whether ``set_clock`` has an effect."""
        self.host: netns.Host | None = None
        self.process: ChildProcess | None = None
        self.redis_url = ""
        self.lives = 0
        self.due = 0.0
        self.paused = False
        self.down = False
        """It is dead and stays so until this is taken back."""
        self.mounted = False

    @property
    def address(self) -> str:
        """Where this machine finds what runs beside it."""
        return self.host.near if self.host is not None else "127.0.0.1"

    def set_clock(self, seconds: float) -> None:
        """Its wall clock is wrong by so many seconds from now on, if it is ``clocked``."""
        fresh = self.clock.with_suffix(".new")
        fresh.write_text(f"{seconds:+g}\n")
        fresh.replace(self.clock)

    @property
    def running(self) -> bool:
        """Whether it lives, though it may sleep."""
        return self.process is not None and self.process.running

    def kill(self) -> None:
        """SIGKILL, as a power cut would; nothing that it started survives."""
        if self.process is not None:
            self.process.kill()
            self.paused = False

    def pause(self) -> None:
        """SIGSTOP: it knows nothing of the time that passes."""
        if self.process is not None and self.process.running:
            os.killpg(self.process.pid, signal.SIGSTOP)
            self.paused = True

    def resume(self) -> None:
        if self.paused and self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGCONT)
        self.paused = False

    def fill_disk(self) -> None:
        """Nothing more can be written to its disk."""
        with contextlib.suppress(OSError), (self.disk / "ballast").open("ab", buffering=0) as file:
            while True:
                file.write(b"\0" * 512)

    def empty_disk(self) -> None:
        (self.disk / "ballast").unlink(missing_ok=True)


class Site:
    """Use it through ``site``."""

    def __init__(self, folder: Path, kubeconfig: Path, size: Size, seed: int, *, quick: bool = True) -> None:
        self.folder, self.kubeconfig, self.size, self.seed = folder, kubeconfig, size, seed
        self._quick: dict[str, Any] = QUICK if quick else {}
        self.chance = random.Random(f"site/{seed}")
        self.repository = Repo(folder / "git")
        self.redis: RedisProcess = start_redis(folder / "redis")
        self.nodes = [f"node-{number + 1}" for number in range(size.nodes)]
        (folder / "hardware").mkdir()
        self._key = folder / "batch-keys"
        self._key.touch(mode=0o600)
        self._key.write_text(f"{secrets.token_hex(32)}\n")
        self.hardware = {name: Hardware(folder / "hardware", name) for name in self.nodes}
        self.machines: dict[str, Machine] = {}
        self.missing: dict[str, str] = {}
        """What this machine cannot break, and why."""
        self.deaths = 0
        self.trees: dict[str, Path] = {}
        """By kind of machine, the sources that it runs; those of this test where none are named."""
        self.pythons: dict[Path, str] = {}
        """By sources, the interpreter whose packages they need; this one where none is named."""
        self._network = netns.Network()
        self._faketime = next((str(f) for one in FAKETIME for f in Path("/").glob(one[1:])), "")
        self._kubelets: ChildProcess | None = None
        self._proxy: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start everything and wait until nodes are registered."""
        self._proxy = self._start_proxy()
        if not self._faketime:
            self.missing["clock"] = "libfaketime is not installed: make test-packages"
        if os.geteuid() != 0:
            self.missing["disk"] = "only root may mount a small disk"
        if why := netns.missing():
            self.missing["network"] = why
        ready = self.folder / "ready"
        self._kubelets = self._child(
            "kubelets", ["-m", "tests.chaos.kubelets", "--kubeconfig", str(self.kubeconfig), "--nodes",
                         str(self.size.nodes), "--scale", str(SCALE), "--ready", str(ready)], {}, self.folder,
        )  # fmt: skip
        self._kubelets.start()
        self._wait(ready.exists, "the nodes")
        for kind, count in (
            ("controller", self.size.controllers), ("worker", self.size.workers), ("server", self.size.servers)
        ):  # fmt: skip
            for number in range(count):
                self._add(f"{kind}-{number + 1}")
        for name in self.nodes:
            self._add(f"agent-{name}")

    def close(self) -> None:
        for machine in self.machines.values():
            machine.kill()
            if machine.mounted:
                subprocess.run(["umount", "-l", str(machine.disk)], check=False, capture_output=True)
        if self._kubelets is not None:
            self._kubelets.kill()
        if self._proxy is not None:
            self._proxy.kill()
            self._proxy.wait()
        self.redis.stop()
        self._network.close()

    # machines

    def _add(self, name: str) -> None:
        machine = self.machines[name] = Machine(name, self.folder)
        machine.disk.mkdir(parents=True)
        machine.set_clock(0)
        machine.clocked = bool(self._faketime) and name in _CLOCKED
        if name in _CONNECTED and "network" not in self.missing:
            machine.host = self._network.host()
        if "disk" not in self.missing:
            size = DISKS.get(machine.kind, DISKS["engine"])
            done = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "belay-chaos", str(machine.disk)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            machine.mounted = done.returncode == 0
            if not machine.mounted:
                self.missing["disk"] = done.stderr.strip()[:200]
        api, redis = free_port(), free_port()
        self.tell({"client": name, "port": api, "address": machine.address})
        self.tell({"client": name, "port": redis, "address": machine.address, "redis": True})
        self._write_kubeconfig(machine, api)
        machine.redis_url = f"redis://{machine.address}:{redis}/0"
        machine.process = self._process(machine)
        self._start(machine)

    def change(self, kinds: Sequence[str], tree: Path) -> None:
        """Machines of these kinds end, as a Deployment's pods do, and start again from other sources."""
        for kind in kinds:
            self.trees[kind] = tree
        for machine in self.of(*kinds):
            assert machine.process is not None
            machine.down = True
            machine.process.stop(STOPS)
            machine.process = self._process(machine)
            self._start(machine)
            machine.down = False

    def _start(self, machine: Machine) -> None:
        assert machine.process is not None
        machine.lives += 1
        machine.due = 0.0
        machine.process.start()

    def _write_kubeconfig(self, machine: Machine, port: int) -> None:
        config = yaml.safe_load(self.kubeconfig.read_text())
        config["clusters"][0]["cluster"] = {"server": f"http://{machine.address}:{port}"}
        (machine.folder / "kubeconfig").write_text(json.dumps(config))

    def _process(self, machine: Machine) -> ChildProcess:
        kubeconfig = str(machine.folder / "kubeconfig")
        if machine.kind == "agent":
            node = machine.name.removeprefix("agent-")
            command = ["-m", "tests.chaos.node", node, "--hardware", str(self.folder / "hardware"), "--state",
                       str(machine.disk), "--kubeconfig", kubeconfig, "--direct", str(self.kubeconfig),
                       "--scale", str(SCALE)]  # fmt: skip
            return self._child(machine.name, command, {}, machine.folder, machine)
        settings = Settings(
            redis_url=machine.redis_url,
            kubeconfig=kubeconfig,
            identity=machine.name,
            batch_key_file=str(self._key),
            data=str(machine.disk),
            source_url=str(self.repository.bare),
            source_interval=1.0,
            grpc_listen="off",
            grpc_health_port=0,
            **self._quick,
        )
        command = ["-m", "belay.engine.cli", machine.kind]
        command += ["--listen", "127.0.0.1:0"] if machine.kind == "server" else []
        return self._child(machine.name, command, to_environment(settings), machine.folder, machine)

    def _child(
        self, name: str, arguments: list[str], more: dict[str, str], folder: Path, machine: Machine | None = None
    ) -> ChildProcess:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("BELAY_")}
        tree = self.trees.get(machine.kind, ROOT) if machine is not None else ROOT
        environment = kept | {"PYTHONPATH": import_root(tree), "PYTHONUNBUFFERED": "1"}
        environment |= {"BELAY_TIME_SCALE": str(SCALE), **more}
        environment["PYTHONSAFEPATH"] = "1"  # the folder that the test is called in is not a source of modules
        command = [self.pythons.get(tree, sys.executable), *(module_of(tree, word) for word in arguments)]
        if machine is not None and machine.clocked:
            environment |= {
                "LD_PRELOAD": self._faketime,
                "FAKETIME_TIMESTAMP_FILE": str(machine.clock),
                "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        if machine is not None and machine.host is not None:
            command = machine.host.command(*command)
        return ChildProcess(name, command, environment, folder / "log")

    async def keep(self) -> None:
        """Start again what ended, after a while."""
        while True:
            now = time.monotonic()
            if not self.redis.running:
                self.redis = start_redis(self.folder / "redis")
            for machine in self.machines.values():
                assert machine.process is not None
                machine.process.keep_log_small()
                if machine.process.running or machine.down:
                    continue
                if not machine.due:
                    self.deaths += 1
                    machine.due = now + self.chance.uniform(0.1, 2.0)
                elif now >= machine.due:
                    self._start(machine)
            await asyncio.sleep(0.1)

    def of(self, *kinds: str) -> list[Machine]:
        return [machine for machine in self.machines.values() if not kinds or machine.kind in kinds]

    # the proxy

    def _start_proxy(self) -> subprocess.Popen[bytes]:
        parent = os.getpid()
        with (self.folder / "proxy.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.proxy", "--kubeconfig", str(self.kubeconfig), "--redis",
                 self.redis.url.removeprefix("unix://"), "--seed", str(self.seed)],
                cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
                preexec_fn=lambda: end_with_parent(parent),
            )  # fmt: skip

    def tell(self, command: dict[str, Any]) -> None:
        """Have the proxy carry out a command."""
        assert self._proxy is not None and self._proxy.stdin is not None and self._proxy.stdout is not None
        self._proxy.stdin.write(msgspec.json.encode(command) + b"\n")
        self._proxy.stdin.flush()
        answer = json.loads(self._proxy.stdout.readline() or b'{"error": "the proxy has ended"}')
        assert not answer, answer["error"]

    def weather(self, weather: Weather, *machines: Machine) -> None:
        """Change what happens on the way of these machines, or of all."""
        for machine in machines or self.machines.values():
            self.tell({"client": machine.name, "weather": msgspec.to_builtins(weather)})

    def calm(self) -> None:
        """Take every fault back."""
        self.weather(Weather())
        for machine in self.machines.values():
            machine.down = False
            machine.resume()
            machine.set_clock(0)
            machine.empty_disk()
            if machine.host is not None:
                machine.host.pass_again()
        for hardware in self.hardware.values():
            with hardware.changed() as content:
                content.clear()

    def _wait(self, condition: Any, what: str) -> None:
        ends = time.monotonic() + STARTS
        while not condition():
            assert self._kubelets is None or self._kubelets.running, self._kubelets.log_end()
            assert time.monotonic() < ends, f"{what}: not within {STARTS:.0f} s; logs are in {self.folder}"
            time.sleep(0.05)

    def log_ends(self) -> str:
        """The last line of each log."""
        return "\n".join(f"{one.name}: {one.process.last_line(300)}" for one in self.machines.values() if one.process)


@contextlib.contextmanager
def site(folder: Path, size: Size, seed: int, *, assets: Path | None, quick: bool = True) -> Iterator[Site]:
    """A running site on a real kube-apiserver, or without ``assets`` on the sandbox's. Its folder is left to the
    caller."""
    with contextlib.ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        if assets is not None:
            (folder / "kube").mkdir()
            kubeconfig = stack.enter_context(real_cluster(assets, folder / "kube"))
        else:
            kubeconfig = stack.enter_context(_sandbox(folder))
        made = Site(folder, kubeconfig, size, seed, quick=quick)
        stack.callback(made.close)
        yield made


@contextlib.contextmanager
def _sandbox(folder: Path) -> Iterator[Path]:
    kubeconfig = folder / "api.kubeconfig"
    command = [
        sys.executable,
        "-m",
        "belay.engine.sandbox.api",
        "--kubeconfig",
        str(kubeconfig),
        "--data",
        str(folder / "api"),
    ]
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT / "src")}
    api = ChildProcess("api", command, environment, folder / "api.log")
    api.start()
    try:
        ends = time.monotonic() + STARTS
        while not kubeconfig.exists():
            assert api.running and time.monotonic() < ends, f"the API server does not come up: {api.log_end()}"
            time.sleep(0.05)
        yield kubeconfig
    finally:
        api.kill()


def remove(folder: Path) -> None:
    """Delete what a site has left."""
    shutil.rmtree(folder, ignore_errors=True)
