"""Real processes in simulated pods: containers whose command is `belay train …` run on this machine (`--training`).

A pod's process gets its container's environment, command and volumes as a kubelet would give them. What a laptop lacks
is replaced: addresses of the job's master and of the recovery service become the loopback address, ConfigMap volumes
are folders of this sandbox, hostPath and claimed volumes are folders that all its pods share.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from belay import IMPORT_ROOT
from belay.engine.kube import CONFIGMAP, Kube, KubeError
from belay.engine.log import get
from belay.engine.model.labels import SANDBOX_LOG
from belay.engine.sandbox import nodes_pods
from belay.engine.sandbox.cache import uid_of
from belay.engine.sandbox.containers_shape import LOOPBACK, command_of, environment, mounted
from belay.engine.sandbox.nodes_pods import RealProcess
from belay.engine.sandbox.processes import MAX_LOG_BYTES, end_with_parent
from belay.engine.workloads import objects as o
from belay.engine.workloads.writes import Json, Write, patch

_log = get("sandbox.containers")
LOG_EVERY_S: Final = 2.0
"""Seconds between two writes of a pod's log into its annotation."""
LOST: Final = 137
"""Exit code of a container whose process ended with an earlier kubelet."""
NOT_STARTED: Final = 128
"""Exit code of a container that could not be started, as container runtimes give it."""
_SHOWN: Final = 4000
_END_S: Final = 3.0
_OF_OURS: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "USER", "LD_LIBRARY_PATH", "OMP_NUM_THREADS")
"""Variables of this machine that a container's process inherits, because Python and PyTorch need them."""


class _Process:
    """One run of a container."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.code: int | None = None
        self.running: asyncio.subprocess.Process | None = None
        self.watch: asyncio.Task[None] | None = None
        self.asked_to_end = False
        self.shown = ""
        self.checked_at = 0.0


class Containers:
    """The real processes of all simulated pods. ``server`` is the address of the recovery service, empty without one;
    ``touch`` is called with a node's name when a process on it has ended.
    """

    def __init__(self, kube: Kube, folder: Path, server: str, touch: Callable[[str], None]) -> None:
        self._kube, self._folder, self._server, self._touch = kube, folder, server, touch
        self._processes: dict[tuple[str, int], _Process] = {}
        self._prepared: set[str] = set()
        self._ports: dict[tuple[str, str], str] = {}

    def process_of(self, pod: Json) -> RealProcess | None:
        """The state of the pod's process; None for a pod whose containers are only simulated."""
        if command_of(pod) is None:
            return None
        uid, run = uid_of(pod), nodes_pods.restarts_of(pod)
        if nodes_pods.state_of(pod) != "running":
            self._prepared.add(uid)
        known = self._processes.get((uid, run))
        if known is not None:
            return RealProcess(known.code, alive=known.running is not None and known.code is None)
        if nodes_pods.state_of(pod) == "running" and uid not in self._prepared:
            return RealProcess(LOST)
        return RealProcess()

    async def advance(self, pod: Json, now: float) -> tuple[tuple[Write, ...], float | None]:
        """Start or end a pod's process according to the pod's status. Returns the write of its log, if it changed,
        and the seconds until the next call.
        """
        uid, run = uid_of(pod), nodes_pods.restarts_of(pod)
        if o.deleting(pod) or o.finished(pod) or nodes_pods.state_of(pod) != "running":
            for (owner, _), process in self._processes.items():
                if owner == uid:
                    _ask_to_end(process)
            return self._shown(pod, now, last=True), None
        if (uid, run) not in self._processes and uid in self._prepared:
            await self._start(pod, uid, run)
        return self._shown(pod, now), LOG_EVERY_S

    def forget(self, uid: str) -> None:
        """Kill all processes of a pod that is gone."""
        for key in [key for key in self._processes if key[0] == uid]:
            _kill(self._processes.pop(key))
        self._prepared.discard(uid)

    async def close(self) -> None:
        """End every process; kill those that do not end in time."""
        running = [one for one in self._processes.values() if one.running is not None and one.code is None]
        for one in running:
            _ask_to_end(one)
        watches = [one.watch for one in running if one.watch is not None]
        if watches:
            await asyncio.wait(watches, timeout=_END_S)
        for one in running:
            _kill(one)

    async def _start(self, pod: Json, uid: str, run: int) -> None:
        metadata = pod["metadata"]
        node = str(pod["spec"].get("nodeName") or "")
        home = self._folder / "pods" / uid
        home.mkdir(parents=True, exist_ok=True)
        one = self._processes[uid, run] = _Process(home / f"log-{run}")
        try:
            places = await self._volumes(pod, home)
            given = environment(pod)
            env = {name: os.environ[name] for name in _OF_OURS if name in os.environ}
            env |= {name: mounted(value, places) for name, value in given.items()} | self._addresses(pod, given)
            env.setdefault("TORCHINDUCTOR_CACHE_DIR", str(self._folder / "torchinductor"))  # else in the host's /tmp
            env["PYTHONPATH"] = os.pathsep.join(
                part for part in (str(IMPORT_ROOT), given.get("PYTHONPATH", "")) if part
            )
            command = [mounted(word, places) for word in command_of(pod, env) or ()]
            await self._run(one, command, env, home, node)
        except (OSError, ValueError, KubeError) as error:
            one.code = NOT_STARTED
            with contextlib.suppress(OSError), one.log.open("a") as log:
                log.write(f"the container cannot start: {error}\n")
            self._touch(node)
        _log.info("container", pod=f"{metadata.get('namespace')}/{metadata['name']}", node=node, run=run, log=one.log)

    async def _run(self, one: _Process, command: Sequence[str], env: Mapping[str, str], home: Path, node: str) -> None:
        parent = os.getpid()
        with one.log.open("ab") as output:
            process = one.running = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "belay.engine.cli", "train", *command,
                env=dict(env), cwd=home, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True, preexec_fn=lambda: end_with_parent(parent),
            )  # fmt: skip

        async def ended() -> None:
            code = await process.wait()
            one.code = code if code >= 0 else 128 - code
            self._touch(node)

        one.watch = asyncio.create_task(ended())

    async def _volumes(self, pod: Json, home: Path) -> dict[str, str]:
        """Mount path → folder on this machine. Raises KubeError, or ``ValueError`` for a ConfigMap that does not
        exist.
        """
        spec, namespace = pod["spec"], str(pod["metadata"].get("namespace"))
        folders: dict[str, Path] = {}
        for volume in spec.get("volumes") or ():
            name = str(volume["name"])
            folder = home / "volumes" / name.replace("/", "_")
            if source := volume.get("configMap"):
                found = await self._kube.get(CONFIGMAP, str(source["name"]), namespace)
                if found is None and not source.get("optional"):
                    raise ValueError(f"volume {name}: ConfigMap {namespace}/{source['name']} does not exist")
                folder.mkdir(parents=True, exist_ok=True)
                for key, text in ((found or {}).get("data") or {}).items():
                    (folder / Path(key).name).write_text(str(text))
            elif path := (volume.get("hostPath") or {}).get("path"):
                folder = self._shared("host", str(path))
            elif claim := (volume.get("persistentVolumeClaim") or {}).get("claimName"):
                folder = self._shared(f"claims/{namespace}", str(claim))
            folder.mkdir(parents=True, exist_ok=True)
            folders[name] = folder
        container = nodes_pods.containers_of(pod)[0]
        return {
            str(mount["mountPath"]).rstrip("/"): str(folders[mount["name"]])
            for mount in container.get("volumeMounts") or ()
            if mount["name"] in folders and str(mount["mountPath"]).strip("/")
        }

    def _shared(self, kind: str, path: str) -> Path:
        root = (self._folder / "shared" / kind).resolve()
        found = (root / path.strip("/")).resolve()
        if not found.is_relative_to(root):
            raise ValueError(f"the path {path} of a volume leads out of the sandbox")
        return found

    def _addresses(self, pod: Json, given: Mapping[str, str]) -> dict[str, str]:
        """Addresses of the job's master and of the recovery service on this machine."""
        out = {"POD_IP": LOOPBACK} if "POD_IP" in given else {}
        if "MASTER_ADDR" in given:
            job = next((str(owner["uid"]) for owner in pod["metadata"].get("ownerReferences") or ()), uid_of(pod))
            out |= {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": self._port(job, given.get("MASTER_PORT", ""))}
        if "MINDX_SERVER_IP" in given:
            out["MINDX_SERVER_IP"] = self._server
        return out

    def _port(self, job: str, port: str) -> str:
        """The port of this machine that replaces the one that all pods of the job use."""
        if (job, port) not in self._ports:
            with socket.socket() as probe:
                probe.bind((LOOPBACK, 0))
                self._ports[job, port] = str(probe.getsockname()[1])
        return self._ports[job, port]

    def _shown(self, pod: Json, now: float, *, last: bool = False) -> tuple[Write, ...]:
        one = self._processes.get((uid_of(pod), nodes_pods.restarts_of(pod)))
        if one is None or (not last and now - one.checked_at < LOG_EVERY_S):
            return ()
        one.checked_at = now
        text = _tail(one.log)
        if not text or text == one.shown:
            return ()
        one.shown = text
        return (patch(pod, "Pod", {"metadata": {"annotations": {SANDBOX_LOG: text}}}),)


def _tail(file: Path) -> str:
    """The end of a log, from the start of a line; a log that has grown too large is emptied."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            stream.seek(max(0, size - _SHOWN))
            text = stream.read(_SHOWN).decode("utf-8", "replace")
        if size > MAX_LOG_BYTES:
            os.truncate(file, 0)
    except OSError:
        return ""
    return text.partition("\n")[2] if size > _SHOWN else text


def _ask_to_end(one: _Process) -> None:
    if one.running is None or one.code is not None or one.asked_to_end:
        return
    one.asked_to_end = True
    with contextlib.suppress(ProcessLookupError):
        one.running.terminate()


def _kill(one: _Process) -> None:
    """Kill the launcher; the kernel then kills everything that it started."""
    if one.running is None or one.code is not None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(one.running.pid, signal.SIGKILL)


class Training(msgspec.Struct, frozen=True):
    """What `--training` needs: the folder of pods' files, and where the recovery service listens."""

    folder: Path
    server: str = ""

    def containers(self, kube: Any, touch: Callable[[str], None]) -> Containers:
        """Create the runner of real processes."""
        return Containers(kube, self.folder, self.server, touch)


__all__ = ["LOG_EVERY_S", "LOST", "NOT_STARTED", "Containers", "Training"]
