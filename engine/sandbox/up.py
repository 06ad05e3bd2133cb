"""`belay up`: a whole cluster and the engine that keeps it, in one command.

Redis, the API server, the simulated cluster, the controller and a worker run as children that end with us; what dies
is started again.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec

from engine.errors import BelayError
from engine.redis_process import RedisProcess, start_redis
from engine.sandbox import depot
from engine.sandbox.folder import DataFolder
from engine.sandbox.processes import Child, Crew
from engine.sandbox.reader import Reader
from engine.sandbox.settings import NODE_KEY, TIME_SCALE_ENV, time_scale
from engine.settings import Settings, to_environment
from engine.wire import names, sync

STARTS_WITHIN_S: Final = 60.0
REVISION_WITHIN_S: Final = 30.0
_TICK_S: Final = 0.05
_SOCKET_PATH_LIMIT: Final = 90
_FORBIDDEN: Final = ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "GIT_DIR", "GIT_WORK_TREE")
"""Variables of ours that would lead a child to another cluster or repository."""

Say = Callable[[str], None]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says; ``time_scale`` None reads $BELAY_TIME_SCALE, ``server`` adds the web process.

    ``cluster`` is the kubeconfig of an API server without controllers to use instead of one of our own (for tests);
    ``definitions`` false leaves it without CustomResourceDefinitions.
    """

    nodes: int = 8
    product: str = "atlas-800t-a2"
    state: str | None = None
    data: str | None = None
    time_scale: float | None = None
    seed: int = 1
    server: bool = True
    cluster: str | None = None
    definitions: bool = True


class Stopped(BelayError):
    """The person asked to end while the sandbox was still coming up."""


class Sandbox:
    """A running sandbox. Use it from one thread that lives as long as it: the kernel ends children with their
    thread."""

    def __init__(self, options: Options, say: Say, stopping: Callable[[], bool] = lambda: False) -> None:
        self.options = options
        self.folder = DataFolder(options.data)
        self.kubeconfig = Path(options.cluster) if options.cluster else self.folder.kubeconfig
        self.reader = Reader(self.kubeconfig)
        self.crew = Crew(say)
        self.scale = time_scale(options.time_scale)
        self.server_url = ""
        self._say = say
        self._stopping = stopping
        self._redis: RedisProcess | None = None
        self._redis_folder: Path | None = None
        self._began = time.monotonic()

    # life

    def start(self) -> None:
        """Bring everything up.

        Raises:
            InputError: an option or a folder cannot be used. BelayError: a part does not come up. Stopped: asked to
            end.
        """
        self.folder.open()
        self._start_redis()
        api = self._start_api() if self.options.cluster is None else None
        tip = self._prepare_source()
        self.wait("the API server", lambda: self.reader.answers, api)
        self._tell("API server answers")
        world = self._start_world()
        self.wait("the definitions", lambda: self._stage() in ("definitions", "nodes"), world)
        self._start_engine()
        self.wait("the nodes", lambda: self._stage() == "nodes", world)
        self.wait("the nodes", self._nodes_ready, world)
        silenced = sorted(self._silenced())
        self._tell(
            f"{self.node_count - len(silenced)} nodes ready"
            + (f"; {', '.join(silenced)} made silent earlier (belay inject node NODE ready)" if silenced else "")
        )
        self.wait("reports of all agents", self._reports_there, world)
        self._tell("agents report")
        self._await_revision(tip)

    def _await_revision(self, tip: str) -> None:
        """A repository that cannot be used is no reason not to come up: it is said, and mended by a push."""
        try:
            self.wait(f"revision {tip[:12]} in force", lambda: self.applied() == tip, seconds=REVISION_WITHIN_S)
            self._tell(f"revision {tip[:12]} is in force")
        except Stopped:
            raise
        except BelayError:
            self._tell(
                f"revision {tip[:12]} is not in force; see ConfigMap {names.SYSTEM}/{names.SYNC} and {self.folder.logs}"
            )

    def tend(self) -> None:
        """Look after the children once: start again what died."""
        if self._redis is not None and not self._redis.running:
            self._say("redis ended, starting it again")
            self._redis = start_redis(self._redis.log.parent)
        self.crew.tend()

    def stop(self) -> None:
        """End everything, the last started first, and give the folder back."""
        self.crew.stop()
        if self._redis is not None:
            self._redis.stop()
        self._release()

    def kill(self) -> None:
        """End everything at once."""
        self.crew.kill()
        if self._redis is not None:
            self._redis.kill()
        self._release()

    def _release(self) -> None:
        if self._redis_folder is not None:
            for file in self._redis_folder.iterdir():
                file.unlink(missing_ok=True)
            self._redis_folder.rmdir()
            self._redis_folder = None
        self.folder.close()

    def wait(
        self, what: str, check: Callable[[], bool], child: Child | None = None, seconds: float = STARTS_WITHIN_S
    ) -> None:
        """Return when ``check`` holds.

        Raises:
            BelayError: not within ``seconds``, or ``child`` ended meanwhile; Stopped: the person asked to end.
        """
        ends = time.monotonic() + seconds
        while not check():
            if self._stopping():
                raise Stopped("asked to end")
            if child is None:
                self.tend()
            if child is not None and not child.running:
                words = child.last_words()
                _, refused, why = words.rpartition("belay: ")  # what was wrong with an option, said by who reads it
                raise BelayError(why if refused else f"{child.name} ended while waiting for {what}: {words}")
            if time.monotonic() > ends:
                words = f"; {child.name} says: {child.last_words()}" if child is not None else ""
                raise BelayError(f"{what}: not within {seconds:.0f} s{words}", hint=f"Logs are in {self.folder.logs}.")
            time.sleep(_TICK_S)

    # parts

    def _start_redis(self) -> None:
        place = self.folder.redis
        if len(os.fsencode(place)) > _SOCKET_PATH_LIMIT:
            place = self._redis_folder = Path(tempfile.mkdtemp(prefix="belay-redis-"))
        self._redis = start_redis(place)
        self._tell("Redis answers")

    def _start_api(self) -> Child:
        port = self._port()
        command = ["-m", "engine.sandbox.api", "--port", str(port), "--data", str(self.folder.api)]
        return self._child("api", [*command, "--kubeconfig", str(self.folder.kubeconfig)], {})

    def _port(self) -> int:
        """The port of last time where it is free, so that an exported kubeconfig goes on working."""
        file = self.folder.root / "port"
        kept = file.read_text().strip() if file.exists() else ""
        for number in (int(kept) if kept.isdecimal() else 0, 0):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", number))
                except OSError:
                    continue
                found = int(probe.getsockname()[1])
                file.write_text(f"{found}\n")
                return found
        raise BelayError("no free port on 127.0.0.1")

    def _prepare_source(self) -> str:
        state = Path(self.options.state).resolve() if self.options.state else None
        existed = self.folder.repository.exists()
        tip = depot.ensure(self.folder.repository, state)
        if existed and state is not None:
            self._say(f"--state {state} is not used: {self.folder.repository} has a history already")
        self._tell(f"repository at {tip[:12]}")
        return tip

    def _start_world(self) -> Child:
        ready = self._ready_file
        ready.unlink(missing_ok=True)
        options = self.options
        command = ["-m", "engine.sandbox.host", "--kubeconfig", str(self.kubeconfig), "--ready", str(ready)]
        command += ["--nodes", str(options.nodes), "--product", options.product, "--seed", str(options.seed)]
        command += ["--owner-gc"] if options.cluster else []
        command += [] if options.definitions else ["--no-definitions"]
        return self._child("world", [*command, "--agents", str(self.folder.agents)], {})

    def _start_engine(self) -> None:
        for verb in ("controller", "worker"):
            self._child(verb, ["-m", "engine.cli", verb], to_environment(self.settings(verb)))
        if self.options.server:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                listen = f"127.0.0.1:{probe.getsockname()[1]}"
            self.server_url = f"http://{listen}"
            command = ["-m", "engine.cli", "server", "--listen", listen]
            self._child("server", command, to_environment(self.settings("server")))

    def settings(self, role: str) -> Settings:
        """The engine's settings of one process here; its identity is the same after every restart."""
        assert self._redis is not None
        return Settings(
            redis_url=self._redis.url,
            kubeconfig=str(self.kubeconfig),
            identity=f"belay-up-{role}",
            data=str(self.folder.engine),
            source_url=str(self.folder.repository),
            source_branch=depot.BRANCH,
            source_interval=1.0,
            resync=max(2.0, 10.0 * self.scale),
        )

    def _child(self, name: str, arguments: list[str], more: Mapping[str, str]) -> Child:
        environment = {key: value for key, value in os.environ.items() if key not in _FORBIDDEN}
        environment |= {
            TIME_SCALE_ENV: str(self.scale),
            "KUBECONFIG": str(self.kubeconfig),
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join(
                [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
            ).rstrip(os.pathsep),
            **more,
        }
        return self.crew.start(Child(name, [sys.executable, *arguments], environment, self.folder.logs / f"{name}.log"))

    # what there is

    @property
    def node_count(self) -> int:
        """Nodes that the sandbox simulates."""
        return self.options.nodes + 1

    @property
    def _ready_file(self) -> Path:
        return self.folder.root / "world.json"

    def _stage(self) -> str:
        try:
            return str(msgspec.json.decode(self._ready_file.read_bytes(), type=dict[str, str]).get("stage", ""))
        except (OSError, msgspec.DecodeError):
            return ""

    def _nodes_ready(self) -> bool:
        return len(settled(self.reader.list("/api/v1/nodes"), self._silenced())) >= self.node_count

    def _silenced(self) -> set[str]:
        return silenced(self.reader.list(f"/api/v1/namespaces/{names.NODES}/configmaps"))

    def _reports_there(self) -> bool:
        maps = self.reader.list(f"/api/v1/namespaces/{names.NODES}/configmaps")
        found = [m for m in maps if str(m["metadata"]["name"]).startswith(names.REPORT_PREFIX)]
        return len(found) >= self.node_count

    def applied(self) -> str:
        """The revision in force, empty while there is none."""
        return self.reader.config_map(names.SYSTEM, names.SYNC).get(sync.APPLIED, "")

    def _tell(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._began:5.1f}s  {text}")


def silenced(config_maps: Iterable[Mapping[str, Any]]) -> set[str]:
    """Nodes that somebody has made silent, perhaps in an earlier run; nobody waits for those."""
    out = set()
    for item in config_maps:
        name, text = str(item["metadata"]["name"]), str((item.get("data") or {}).get(NODE_KEY) or "{}")
        try:
            said = json.loads(text)
        except ValueError:
            continue  # broken by hand: the world warns of it and lets the node run
        if (
            name.startswith(names.SIM_PREFIX)
            and isinstance(said, dict)
            and (said.get("paused") or said.get("ready") is False)
        ):
            out.add(name.removeprefix(names.SIM_PREFIX))
    return out


def settled(nodes: Iterable[Mapping[str, Any]], silent: Collection[str]) -> list[str]:
    """Nodes that are Ready, or of which nothing more is to be expected."""
    return [
        node["metadata"]["name"]
        for node in nodes
        if node["metadata"]["name"] in silent
        or any(
            c.get("type") == "Ready" and c.get("status") == "True"
            for c in (node.get("status") or {}).get("conditions") or ()
        )
    ]


def main(*, nodes: int, product: str, state: str | None, data: str | None, time_scale: float | None) -> int:
    """Run until Ctrl-C. Exit code 0 when asked to end, 130 when asked twice, else the error is raised."""
    asked: list[int] = []

    def on_signal(number: int, _: FrameType | None) -> None:
        asked.append(number)

    options = Options(nodes=nodes, product=product, state=state, data=data, time_scale=time_scale)
    sandbox = Sandbox(options, lambda line: print(line, flush=True), lambda: bool(asked))
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        try:
            sandbox.start()
            _print_summary(sandbox)
            while not asked:
                sandbox.tend()
                time.sleep(_TICK_S * 4)
        except Stopped:
            print("asked to end before it was up", flush=True)
        finally:
            print("ending …", flush=True)
            for number in before:
                signal.signal(number, _impatient(sandbox))
            sandbox.stop()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    kept = "" if sandbox.folder.temporary else f"; {sandbox.folder.root} keeps the state"
    print(f"everything has ended{kept}", flush=True)
    return 0


def _impatient(sandbox: Sandbox) -> Callable[[int, FrameType | None], None]:
    """A second Ctrl-C ends everything at once."""

    def handler(_: int, __: FrameType | None) -> None:
        sandbox.kill()
        os._exit(130)

    return handler


def _print_summary(sandbox: Sandbox) -> None:
    lines = [
        "",
        f"  export KUBECONFIG={sandbox.kubeconfig}",
        f"  git clone {sandbox.folder.repository}    # edit desired/, commit, push",
    ]
    if sandbox.server_url:
        lines.append(f"  web page and webhook: {sandbox.server_url}")
    lines += [f"  logs: {sandbox.folder.logs}", "", "Ctrl-C ends everything."]
    print("\n".join(lines), flush=True)
