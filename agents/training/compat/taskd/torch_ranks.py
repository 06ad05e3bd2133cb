"""Processes of torch's elastic agent, one context per rank, so that each can be stopped and started alone.

Only the launcher imports this file (it imports torch). Environment and folders: docs of torch.distributed.elastic and
component/taskd/taskd/python/adaptor/patch of MindCluster.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Collection, Sequence
from string import Template
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.multiprocessing import LogsSpecs, start_processes
from torch.distributed.elastic.multiprocessing.api import LogsDest
from torch.distributed.elastic.utils import macros

from belay.agents.training.compat.taskd.processes import (
    KILL_WORKER,
    MONITOR,
    RESTART,
    START_ALL_WORKER,
    Function,
    ProcessState,
    ProcessStatus,
)
from belay.agents.training.compat.taskd.warm_ranks import WarmContext, WarmStart, script_of

log = logging.getLogger(__name__)

KILL_SECONDS = 30
WARM_SECONDS = 5.0
"""From the start of the ranks to the start of the warm process, from which restarted ranks are forked."""


class RankLogs(LogsSpecs):  # type: ignore[misc]
    """The log settings of the launch, for one rank: `<log>/<local rank>/attempt_<n>/0`; n counts the rank's starts."""

    def __init__(self, whole: Any, local_rank: int, starts: int) -> None:
        own = copy.copy(whole)
        for name in ("_redirects", "_tee"):
            value = getattr(whole, name)
            if isinstance(value, dict):
                setattr(
                    own, name, {0: value[local_rank]} if local_rank in value else type(next(iter(value.values())))(0)
                )
        if getattr(whole, "_local_ranks_filter", None):
            own._local_ranks_filter = {0} if local_rank in whole._local_ranks_filter else {-1}
        if whole.root_log_dir and whole.root_log_dir != os.devnull:
            folder = os.path.join(whole.root_log_dir, str(local_rank))
            os.makedirs(folder, exist_ok=True)
            own._root_log_dir = own._run_log_dir = folder
        self._own, self._starts = own, starts

    @property
    def root_log_dir(self) -> str:
        """The rank's folder."""
        return str(self._own.root_log_dir)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Folders and files of this start."""
        counted = {rank: {**env, "TORCHELASTIC_RESTART_COUNT": str(self._starts)} for rank, env in envs.items()}
        found = self._own.reify(counted)
        for rank, env in counted.items():
            if "TORCHELASTIC_ERROR_FILE" in env:
                envs[rank]["TORCHELASTIC_ERROR_FILE"] = env["TORCHELASTIC_ERROR_FILE"]
        return found


class Contexts:
    """The processes of one elastic agent: a context and a pidfd for each local rank."""

    def __init__(self) -> None:
        self.running: dict[int, Any] = {}
        self.ended: dict[int, Any] = {}
        self._descriptors: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self.warm = WarmStart()
        self._warm_at = 0.0

    def keep_warm(self) -> None:
        """Start the warm process once the ranks have had time to start, and receive its messages."""
        if self._warm_at and time.monotonic() >= self._warm_at:
            self.warm.prepare()
        self.warm.receive()

    def put(self, local_rank: int, context: Any) -> None:
        """Add a started rank."""
        self.running[local_rank] = context
        self.ended.pop(local_rank, None)
        self._starts[local_rank] = self._starts.get(local_rank, 0) + 1
        self._warm_at = self._warm_at or time.monotonic() + WARM_SECONDS
        with contextlib.suppress(OSError, AttributeError):
            self._descriptors[local_rank] = os.pidfd_open(context.pids()[0])

    def starts(self, local_rank: int) -> int:
        """Number of starts of a rank."""
        return self._starts.get(local_rank, 0)

    def poll(self) -> None:
        """Record the ranks that have ended."""
        for local_rank, context in self.running.items():
            if local_rank not in self.ended and (result := context.wait(0)) is not None:
                self.ended[local_rank] = result
                self._forget(local_rank)
                for failure in result.failures.values():
                    log.warning("local rank %d (process %d) ended with %d", local_rank, failure.pid, failure.exitcode)

    def close(self, local_ranks: Collection[int], death: signal.Signals, timeout: int = KILL_SECONDS) -> None:
        """End ranks, all at the same time."""
        found = [(rank, self.running.pop(rank)) for rank in local_ranks if rank in self.running]
        threads = [threading.Thread(target=context.close, args=(death, timeout)) for _, context in found]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for rank, _ in found:
            self.ended.pop(rank, None)
            self._forget(rank)

    def descriptors(self) -> list[int]:
        """pidfds of the ranks that run."""
        return list(self._descriptors.values())

    def pids(self) -> dict[int, int]:
        """Local rank → process."""
        return {rank: context.pids()[0] for rank, context in self.running.items()}

    def _forget(self, local_rank: int) -> None:
        if (descriptor := self._descriptors.pop(local_rank, None)) is not None:
            os.close(descriptor)


def contexts(agent: Any) -> Contexts:
    """The contexts of an elastic agent."""
    found = getattr(agent, "_rank_contexts", None)
    if found is None:
        found = agent._rank_contexts = Contexts()
    return found


def start_workers(agent: Any, group: Any) -> dict[int, Any]:
    """Start the ranks of a group, which may be a part of the pod's; local rank → pid."""
    spec, own = group.spec, contexts(agent)
    attempt = spec.max_restarts - agent._remaining_restarts
    address, port, agent_store = rendezvous_address(agent, group, attempt)
    envs = {}
    for worker in group.workers:
        env = environment(agent, group, worker, attempt)
        env.update(MASTER_ADDR=address, MASTER_PORT=port, TORCHELASTIC_USE_AGENT_STORE=agent_store)
        envs[worker.local_rank] = env
    if not own.running:
        agent._setup_local_watchdog(envs=envs)
        if hasattr(agent, "_setup_healthcheck"):
            agent._setup_healthcheck()
    for worker in group.workers:
        local = worker.local_rank
        prefix = agent._log_line_prefix_template
        if prefix:
            prefix = Template(prefix).safe_substitute(role_name=spec.role, rank=worker.global_rank, local_rank=local)
        more = {
            name: getattr(spec, name)
            for name in ("numa_options", "duplicate_stdout_filters", "duplicate_stderr_filters")
            if hasattr(spec, name)
        }
        arguments = tuple(macros.substitute(list(spec.args), str(local)))
        rank_logs = RankLogs(agent._logs_specs, local, own.starts(local))
        context = None
        if own.starts(local) and more.get("numa_options") is None:
            context = start_warm(own.warm, spec.entrypoint, arguments, envs[local], rank_logs)
        own.put(
            local,
            context
            or start_processes(
                name=spec.role,
                entrypoint=spec.entrypoint,
                args={0: arguments},
                envs={0: envs[local]},
                logs_specs=rank_logs,
                log_line_prefixes={0: prefix} if prefix else None,
                start_method=agent._start_method,
                **more,
            ),
        )
    return {worker.local_rank: own.running[worker.local_rank].pids()[0] for worker in group.workers}


def start_warm(warm: WarmStart, entrypoint: Any, args: Any, env: dict[str, str], logs: RankLogs) -> Any:
    """Start a rank from the warm process; None where it must be started as torchrun does."""
    argv = script_of(entrypoint, args)
    if argv is None or not warm.ready():
        return None
    found = logs.reify({0: env})
    if found.tee_stdouts or found.tee_stderrs:
        return None
    pid = warm.start(env, argv, found.stdouts[0], found.stderrs[0])
    return None if pid is None else WarmContext(warm, pid, found)


def environment(agent: Any, group: Any, worker: Any, attempt: int) -> dict[str, str]:
    """Variables of one worker, without the rendezvous address."""
    spec = group.spec
    env = {
        "RANK": str(worker.global_rank),
        "GROUP_RANK": str(group.group_rank),
        "ROLE_RANK": str(worker.role_rank),
        "ROLE_NAME": spec.role,
        "LOCAL_WORLD_SIZE": str(spec.local_world_size),
        "WORLD_SIZE": str(worker.world_size),
        "GROUP_WORLD_SIZE": str(group.group_world_size),
        "ROLE_WORLD_SIZE": str(worker.role_world_size),
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(spec.max_restarts),
        "TORCHELASTIC_RUN_ID": spec.rdzv_handler.get_run_id(),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        "RESTART_FAULT_PROCESS_TYPE": os.environ.get("RESTART_FAULT_PROCESS_TYPE", "pod"),
        "LOCAL_RANK": str(worker.local_rank),
    }
    if hasattr(agent, "_set_local_rank_env"):
        agent._set_local_rank_env(env, worker.local_rank, spec)
    if "OMP_NUM_THREADS" in os.environ:
        env["OMP_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"]
    return env


def rendezvous_address(agent: Any, group: Any, attempt: int) -> tuple[str, str, str]:
    """MASTER_ADDR, MASTER_PORT and whether the agent's store serves the ranks there.

    The first attempt uses the agent's store. A later attempt would find the keys of the first one there and fail, so
    its rank 0 serves a new store, on a port that the first pod's agent chooses and publishes.
    """
    spec = group.spec
    address = os.environ.get("MASTER_ADDR") or group.master_addr
    port = os.environ.get("MASTER_PORT") or str(group.master_port)
    served = bool(spec.rdzv_handler.use_agent_store)
    if attempt <= 0 or not served or group.store is None:
        return address, port, str(served)
    key = f"taskd/attempt_{attempt}/port"
    if group.group_rank == 0 and not (group.store.check([key])):
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind(("", 0))
            group.store.set(key, str(probe.getsockname()[1]))
    return address, group.store.get(key).decode(), "False"


def stop_workers(agent: Any, group: Any) -> None:
    """End the ranks of a group, which may be a part of the pod's."""
    own = contexts(agent)
    locals_ = [worker.local_rank for worker in group.workers]
    if len(locals_) >= len(own.running) and agent._worker_watchdog is not None:
        agent._worker_watchdog.stop()
        agent._worker_watchdog = None
    own.close(locals_, signal.SIGKILL)


def restart_workers(agent: Any, group: Any) -> None:
    """Restart the ranks of a group; the group, the store and all other processes stay."""
    stop_workers(agent, group)
    for local, pid in start_workers(agent, group).items():
        agent._worker_group.workers[local].id = pid
    group.state = agent._worker_group.state = WorkerState.HEALTHY


def monitor_workers(agent: Any, group: Any) -> RunResult:
    """The state of the pod's ranks: failed as soon as one has failed, succeeded when all have."""
    own = contexts(agent)
    own.poll()
    own.keep_warm()
    workers = {worker.local_rank: worker for worker in agent._worker_group.workers}
    failures, values = {}, {}
    for local, result in own.ended.items():
        rank = workers[local].global_rank
        if result.is_failed():
            failures[rank] = next(iter(result.failures.values()))
        else:
            values[rank] = next(iter(result.return_values.values()), None)
    if failures:
        return RunResult(state=WorkerState.FAILED, failures=failures)
    if own.running and len(values) == len(workers):
        return RunResult(state=WorkerState.SUCCEEDED, return_values=values)
    return RunResult(state=WorkerState.HEALTHY if own.running else WorkerState.STOPPED)


def succeeded(agent: Any, node: int) -> RunResult:
    """The result of a pod whose ranks were started elsewhere and have ended with 0."""
    group = agent._worker_group
    for worker in group.workers:
        worker.global_rank = node * group.spec.local_world_size + worker.local_rank
    return RunResult(state=WorkerState.SUCCEEDED, return_values={worker.global_rank: None for worker in group.workers})


class TorchProcesses:
    """The ranks of an elastic agent, for `BusAgent`; ``functions`` are those that were registered for it."""

    def __init__(self, agent: Any, functions: dict[str, Function]) -> None:
        self._agent = agent
        self._functions = {
            KILL_WORKER: agent._stop_workers, START_ALL_WORKER: agent._initialize_workers,
            MONITOR: agent._monitor_workers, RESTART: agent._restart_workers, **functions,
        }  # fmt: skip

    @property
    def _group(self) -> Any:
        return self._agent._worker_group

    def _part(self, ranks: Collection[int]) -> Any:
        part = copy.copy(self._group)
        part.workers = [worker for worker in self._group.workers if worker.global_rank in ranks]
        return part

    def ranks(self) -> tuple[int, ...]:
        """Global ranks of this pod."""
        return tuple(worker.global_rank for worker in self._group.workers if worker.global_rank >= 0)

    def restarts(self) -> int:
        """Remaining restarts."""
        return int(self._agent._remaining_restarts)

    def start(self, restarts: int) -> None:
        """Join the rendezvous of the pods and start every rank."""
        limit = self._group.spec.max_restarts
        self._agent._remaining_restarts = min(restarts, limit) if restarts >= 0 else limit
        self._functions[START_ALL_WORKER](self._group)

    def stop(self, ranks: Collection[int] | None = None, *, grace: float = 0.0) -> None:
        """End ranks; the group counts as stopped."""
        part = self._group if ranks is None else self._part(ranks)
        if grace:
            contexts(self._agent).poll()
            alive = [w.local_rank for w in part.workers if w.local_rank not in contexts(self._agent).ended]
            contexts(self._agent).close(alive, signal.SIGTERM, round(grace))
        if part.workers:
            self._functions[KILL_WORKER](part)
        self._group.state = WorkerState.STOPPED

    def restart(self, ranks: Collection[int]) -> None:
        """End and start these ranks only."""
        self._functions[RESTART](self._part(ranks))

    def monitor(self) -> ProcessStatus:
        """State of the ranks."""
        result = self._functions[MONITOR](self._group)
        self._group.state = result.state
        if result.state is WorkerState.SUCCEEDED:
            return ProcessStatus(ProcessState.SUCCEEDED, result=result)
        if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
            return ProcessStatus(ProcessState.FAILED, frozenset(result.failures or ()), result)
        return ProcessStatus(
            ProcessState.STOPPED if result.state is WorkerState.STOPPED else ProcessState.HEALTHY, result=result
        )

    def descriptors(self) -> Sequence[int]:
        """pidfds of the ranks that run."""
        return contexts(self._agent).descriptors()

    def finish(self, status: ProcessStatus) -> Any:
        """Wait for the other pods at torch's exit barrier."""
        self._agent._exit_barrier()
        return status.result
