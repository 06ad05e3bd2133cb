"""`belay up`: a simulated cluster and the engine in one command.

Redis, the API server, the simulated cluster, the controller and a worker run as children that end with this
process and are restarted when they end.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from belay import IMPORT_ROOT
from belay.engine.errors import BelayError, InputError
from belay.engine.sandbox import git_repository
from belay.engine.sandbox.folder import DataFolder
from belay.engine.sandbox.ports import CONSOLE, GRPC, GRPC_HEALTH, Ports
from belay.engine.sandbox.processes import ChildProcess, ChildProcesses
from belay.engine.sandbox.reader import ApiReader
from belay.engine.sandbox.readiness import settled, silenced
from belay.engine.sandbox.redis_process import RedisProcess, start_redis
from belay.engine.sandbox.settings import TIME_SCALE_ENV, time_scale
from belay.engine.sandbox.terminal import StopSignals
from belay.engine.settings import Settings, to_environment
from belay.engine.wire import names, sync

STARTS_WITHIN_S: Final = 60.0
REVISION_WITHIN_S: Final = 30.0
#: More time for each node, of a machine of two cores that is busy with other work too.
A_NODE_WITHIN_S: Final = 1.0
#: A check of a thousand nodes is work for the API server: pauses are so many times as long as it took.
_PAUSES: Final = 4
_TICK_S: Final = 0.05
_SOCKET_PATH_LIMIT: Final = 90
_FORBIDDEN: Final = ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "GIT_DIR", "GIT_WORK_TREE")
"""Variables that must not reach a child, since they name another cluster or repository."""

Print = Callable[[str], None]


class SandboxOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the command line; ``time_scale`` None reads $BELAY_TIME_SCALE, ``server`` adds the web process.

    ``servers``: how many of which product, instead of ``nodes`` of ``product`` and one for inference.
    ``training`` runs pods with the command `belay train` as real processes.
    ``cluster`` is the kubeconfig of an API server without controllers to use instead of one of our own (for tests);
    ``definitions`` false leaves it without CustomResourceDefinitions.
    """

    nodes: int = 8
    product: str = "atlas-800t-a2"
    servers: tuple[tuple[str, int], ...] = ()
    state: str | None = None
    data: str | None = None
    time_scale: float | None = None
    seed: int = 1
    server: bool = True
    cluster: str | None = None
    definitions: bool = True
    training: bool = False


class StartInterrupted(BelayError):
    """The user ended the sandbox while it was starting."""

    code = "Interrupted"


class Sandbox:
    """A running sandbox. Use it from one thread that lives as long: the kernel ends children with their thread."""

    def __init__(self, options: SandboxOptions, say: Print, stopping: Callable[[], bool] = lambda: False) -> None:
        self.options = options
        self.folder = DataFolder(options.data)
        self.kubeconfig = Path(options.cluster) if options.cluster else self.folder.kubeconfig
        self.reader = ApiReader(self.kubeconfig)
        self.processes = ChildProcesses(say)
        self.scale = time_scale(options.time_scale)
        self.server_url = ""
        self.grpc_address = ""
        self._grpc_health_port = 0
        self._ports = Ports(self.folder.root)
        self._say = say
        self._stopping = stopping
        self._redis: RedisProcess | None = None
        self._redis_folder: Path | None = None
        self._began = time.monotonic()

    # life

    def start(self) -> None:
        """Start everything.

        Raises:
            InputError: an option or a folder cannot be used. BelayError: a part does not start. StartInterrupted:
            asked to end.
        """
        if self.options.training:
            need_torch("--training")
        if self._state is not None and not self.folder.repository.exists():
            git_repository.check(self._state, self.folder.root)
        self.folder.open()
        self.choose_grpc_ports()
        self._start_redis()
        api = self._start_api() if self.options.cluster is None else None
        tip = self._prepare_source()
        self.wait("the API server", lambda: self.reader.answers, api)
        self._print("API server answers")
        world = self._start_world()
        self.wait("the definitions", lambda: self._stage() in ("definitions", "nodes"), world)
        self._start_engine()
        self.wait("the nodes", lambda: self._stage() == "nodes", world)
        self.wait("the nodes", self._nodes_ready, world)
        silenced = sorted(self._silenced())
        self._print(
            f"{self.node_count - len(silenced)} nodes ready"
            + (f"; {', '.join(silenced)} made silent earlier (belay inject node NODE ready)" if silenced else "")
        )
        self.wait("reports of all agents", self._reports_there, world)
        self._print("agents report")
        self._await_revision(tip)

    def _await_revision(self, tip: str) -> None:
        """Wait for the revision. An invalid repository is reported, not fatal: a push can fix it."""
        try:
            self.wait(f"revision {tip[:12]} in force", lambda: self.applied() == tip, seconds=REVISION_WITHIN_S)
            self._print(f"revision {tip[:12]} is in force")
        except StartInterrupted:
            raise
        except BelayError:
            self._print(
                f"revision {tip[:12]} is not in force; see ConfigMap {names.SYSTEM}/{names.SYNC} and {self.folder.logs}"
            )

    def restart_ended(self) -> None:
        """Check the children once and restart those that ended."""
        if self._redis is not None and not self._redis.running:
            self._say("redis ended, starting it again")
            self._redis = start_redis(self._redis.log.parent)
        self.processes.restart_ended()

    def stop(self) -> None:
        """Stop everything, the last started first, and unlock the folder."""
        self.processes.stop()
        if self._redis is not None:
            self._redis.stop()
        self._release()

    def kill(self) -> None:
        """Kill every child without a clean end, as in a crash."""
        self.processes.kill()
        if self._redis is not None:
            self._redis.kill()
        self._release()

    def _release(self) -> None:
        self._ports.release()
        if self._redis_folder is not None:
            for file in self._redis_folder.iterdir():
                file.unlink(missing_ok=True)
            self._redis_folder.rmdir()
            self._redis_folder = None
        self.folder.close()

    def wait(
        self, what: str, check: Callable[[], bool], child: ChildProcess | None = None, seconds: float = STARTS_WITHIN_S
    ) -> None:
        """Return when ``check`` holds.

        Raises:
            BelayError: not within ``seconds`` and a while for each node, or ``child`` ended meanwhile.
            StartInterrupted: the user asked to end.
        """
        seconds += self.node_count * A_NODE_WITHIN_S
        ends = time.monotonic() + seconds
        began = time.monotonic()
        while not check():
            spent = time.monotonic() - began
            self._go_on()
            if child is None:
                self.restart_ended()
            if child is not None and not child.running:
                # an error about an option lists what there is, such as every product
                words = child.log_end(1000)
                _, refused, why = words.rpartition("belay: ")  # the child's own error about an option
                raise BelayError(why if refused else f"{child.name} ended while waiting for {what}: {words}")
            if time.monotonic() > ends:
                words = f"; {child.name} says: {child.log_end()}" if child is not None else ""
                raise BelayError(f"{what}: not within {seconds:.0f} s{words}", hint=f"Logs are in {self.folder.logs}.")
            time.sleep(max(_TICK_S, _PAUSES * spent))
            began = time.monotonic()

    # parts

    def choose_grpc_ports(self) -> None:
        """Choose ClusterD's ports for the gRPC services and their health, or free ones where those are taken."""
        if self.options.server:
            self.grpc_address = f"127.0.0.1:{self._ports.choose('grpc-port', GRPC)}"
            self._grpc_health_port = self._ports.choose("grpc-health-port", GRPC_HEALTH)

    def _start_redis(self) -> None:
        place = self.folder.redis
        if len(os.fsencode(place)) > _SOCKET_PATH_LIMIT:
            place = self._redis_folder = Path(tempfile.mkdtemp(prefix="belay-redis-"))
        self._redis = start_redis(place)
        self._print("Redis answers")

    def _start_api(self) -> ChildProcess:
        port = self._ports.choose("port")
        command = ["-m", "belay.engine.sandbox.api", "--port", str(port), "--data", str(self.folder.api)]
        if self.options.server:
            self.server_url = f"http://127.0.0.1:{self._ports.choose('console-port', CONSOLE)}"
            command += ["--console", self.server_url]
        return self._child("api", [*command, "--kubeconfig", str(self.folder.kubeconfig)], {})

    @property
    def _state(self) -> Path | None:
        given = self.options.state
        if given == "":
            raise InputError("the name of the folder is empty", where="--state")
        return Path(given).resolve() if given is not None else None

    def _go_on(self) -> None:
        if self._stopping():
            raise StartInterrupted("asked to end")

    def _prepare_source(self) -> str:
        existed, state = self.folder.repository.exists(), self._state
        tip = git_repository.ensure(self.folder.repository, state, self._go_on)
        if existed and state is not None:
            self._say(f"--state {state} is not used: {self.folder.repository} has a history already")
        self._print(f"repository at {tip[:12]}")
        return tip

    def _start_world(self) -> ChildProcess:
        ready = self._ready_file
        ready.unlink(missing_ok=True)
        options = self.options
        command = ["-m", "belay.engine.sandbox.host", "--kubeconfig", str(self.kubeconfig), "--ready", str(ready)]
        command += ["--nodes", str(options.nodes), "--product", options.product, "--seed", str(options.seed)]
        for product, count in options.servers:
            command += ["--server", product, str(count)]
        command += ["--owner-gc"] if options.cluster else []
        command += [] if options.definitions else ["--no-definitions"]
        if options.training:
            command += ["--training", str(self.folder.root / "training"), "--recovery-service", self.grpc_address]
        return self._child("world", [*command, "--agents", str(self.folder.agents)], {})

    def _start_engine(self) -> None:
        for verb in ("controller", "worker"):
            self._child(verb, ["-m", "belay.engine.cli", verb], to_environment(self.settings(verb)))
        if self.options.server:
            # without an API server of its own the port has not been chosen yet
            self.server_url = self.server_url or f"http://127.0.0.1:{self._ports.choose('console-port', CONSOLE)}"
            command = ["-m", "belay.engine.cli", "server", "--listen", self.server_url.removeprefix("http://")]
            self._child("server", command, to_environment(self.settings("server")))

    def settings(self, role: str) -> Settings:
        """The engine's settings of one process; its identity survives restarts."""
        assert self._redis is not None
        return Settings(
            redis_url=self._redis.url,
            batch_key_file=str(self.folder.batch_keys),
            kubeconfig=str(self.kubeconfig),
            identity=f"belay-up-{role}",
            data=str(self.folder.engine),
            source_url=str(self.folder.repository),
            source_branch=git_repository.BRANCH,
            source_interval=1.0,
            resync=max(2.0, 10.0 * self.scale),
            grpc_listen=self.grpc_address or "off",
            grpc_callers="any",  # on loopback, for the person who runs it
            grpc_health_port=self._grpc_health_port,
            console_url=self.server_url,
            # what its person says of notifications: hosts that take them without TLS, the folder of their secrets
            notify_hosts=os.environ.get("BELAY_NOTIFY_HOSTS", ""),
            notify_secrets=os.environ.get("BELAY_NOTIFY_SECRETS", "/etc/belay/notify"),
        )

    def _child(self, name: str, arguments: list[str], more: Mapping[str, str]) -> ChildProcess:
        environment = {key: value for key, value in os.environ.items() if key not in _FORBIDDEN}
        environment |= {
            TIME_SCALE_ENV: str(self.scale),
            "KUBECONFIG": str(self.kubeconfig),
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join([str(IMPORT_ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            **more,
        }
        return self.processes.start(
            ChildProcess(name, [sys.executable, *arguments], environment, self.folder.logs / f"{name}.log")
        )

    # state

    @property
    def node_count(self) -> int:
        """Nodes that the sandbox simulates."""
        servers = self.options.servers
        return sum(count for _, count in servers) if servers else self.options.nodes + 1

    @property
    def _ready_file(self) -> Path:
        return self.folder.root / "world.json"

    def _stage(self) -> str:
        try:
            return str(msgspec.json.decode(self._ready_file.read_bytes(), type=dict[str, str]).get("stage", ""))
        except (OSError, msgspec.DecodeError, UnicodeError, RecursionError):
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
        """The revision in force; empty if there is none."""
        return self.reader.config_map(names.SYSTEM, names.SYNC).get(sync.APPLIED, "")

    def _print(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._began:5.1f}s  {text}")


def need_torch(where: str) -> None:
    """Raise InputError if PyTorch is not installed, with the command that installs it."""
    if importlib.util.find_spec("torch") is None:
        raise InputError("PyTorch is not installed", where=where, hint="Run make venv-training, then this again.")


def main(
    *,
    nodes: int,
    product: str,
    state: str | None,
    data: str | None,
    time_scale: float | None,
    training: bool = False,
    servers: tuple[tuple[str, int], ...] = (),
) -> int:
    """Run until Ctrl-C, SIGTERM or the end of the terminal. Returns exit code 0, or 130 on a second signal."""
    options = SandboxOptions(
        nodes=nodes, product=product, state=state, data=data, time_scale=time_scale, training=training,
        servers=servers,
    )  # fmt: skip
    with StopSignals() as ending:
        sandbox = Sandbox(options, ending.say, lambda: ending.asked)
        try:
            sandbox.start()
            _print_summary(sandbox, ending.say)
            while not ending.asked:
                sandbox.restart_ended()
                time.sleep(_TICK_S * 4)
        except BelayError as error:  # Ctrl-C reaches git too, which then fails
            if not ending.asked and not isinstance(error, StartInterrupted):
                raise
            ending.say("asked to end before it was up")
        finally:
            ending.insist = functools.partial(_end_at_once, sandbox)
            ending.say("ending …")
            sandbox.stop()
        kept = "" if sandbox.folder.temporary else f"; {sandbox.folder.root} keeps the state"
        ending.say(f"everything has ended{kept}")
    return 0


def _end_at_once(sandbox: Sandbox) -> NoReturn:
    """A second Ctrl-C."""
    sandbox.kill()
    os._exit(130)


def _print_summary(sandbox: Sandbox, say: Print) -> None:
    clone = git_repository.clone_command(sandbox.folder.repository, Path.cwd())
    lines = [
        "",
        "In another terminal:",
        *(f"  {line}" for line in exports(sandbox.kubeconfig)),
        f"  {clone}    # edit {git_repository.CLONE}/desired/, commit, push",
        "",
    ]
    if sandbox.server_url:
        lines.append(f"console: {sandbox.server_url}/console/    webhook: {sandbox.server_url}/webhook")
        lines.append(f"ClusterD's gRPC services: {sandbox.grpc_address}")
    lines += [f"logs: {sandbox.folder.logs}", "", "Ctrl-C ends everything."]
    say("\n".join(lines))


def exports(kubeconfig: Path) -> list[str]:
    """What a shell runs to use this `belay`, and the cluster of a kubeconfig."""
    return [
        f"export PATH={shlex.quote(str(own_folder()))}:$PATH",
        f"export KUBECONFIG={shlex.quote(str(kubeconfig))}",
    ]


def own_folder() -> Path:
    """The folder of this `belay`, printed whatever PATH this terminal has: that of the next one may lack it."""
    beside = Path(sys.executable).with_name("belay")
    started = Path(sys.argv[0])
    return beside.parent if beside.is_file() or started.name != "belay" else started.absolute().parent
