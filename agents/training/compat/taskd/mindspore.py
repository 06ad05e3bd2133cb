"""MindSpore's msrun: its processes, controlled by the callbacks that it registers.

Callbacks (component/taskd/taskd/python/framework/agent, and MindSpore's own msrun): KILL_WORKER(list of pids, [-1]
all), START_ALL_WORKER(), START_WORKER_LIST(list of local ranks), MONITOR([-1]) → {local rank: {pid, status,
global_rank}}; status None means running, 0 done, 200 not started (its pid is None), anything else failed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from belay.agents.training.compat import logs, resetfile
from belay.agents.training.compat.taskd import bus_proxy
from belay.agents.training.compat.taskd.bus_agent import GRACE_SECONDS, BusAgent, NoManager, terminate
from belay.agents.training.compat.taskd.msrun_facts import DONE, NOT_STARTED, RUNS, MsRunFacts, local_ranks
from belay.agents.training.compat.taskd.processes import (
    KILL_WORKER,
    MONITOR,
    START_ALL_WORKER,
    START_WORKER_LIST,
    Function,
    ProcessState,
    ProcessStatus,
)
from belay.agents.training.compat.taskd.proxy_api import init_taskd_proxy

log = logging.getLogger(__name__)

EVERY: Final = [-1]
NEEDED: Final = (KILL_WORKER, START_ALL_WORKER, START_WORKER_LIST, MONITOR)
RESTARTS: Final = 32767
#: Seconds for which the reset file may keep processes from starting.
START_SECONDS: Final = 900.0
#: Seconds for which a failed process waits to be named in the reset file, where ENABLE_RESTART_FAULT_PROCESS is on.
NAMED_SECONDS: Final = 120.0


class MindSporeProcesses:
    """The processes of msrun, for `BusAgent`. Raises ValueError when a callback is missing."""

    def __init__(self, functions: Mapping[str, Function]) -> None:
        missing = [name for name in NEEDED if not callable(functions.get(name))]
        if missing:
            raise ValueError(f"MindSpore has not registered {', '.join(missing)}")
        self._functions = functions
        self._restarts = RESTARTS
        self._known: dict[int, tuple[int, int, Any]] = {}
        self._descriptors: dict[int, int] = {}

    def _refresh(self) -> None:
        """Ask msrun for its processes: global rank → (local rank, pid, status). An unreadable answer changes
        nothing."""
        found = self._functions[MONITOR](EVERY)
        if not isinstance(found, Mapping):
            log.warning("MONITOR answers a %s, not a dict", type(found).__name__)
            return
        try:
            known = {
                int(one["global_rank"]): (int(local), int(one["pid"] or 0), one["status"])
                for local, one in found.items()
            }
        except (KeyError, TypeError, ValueError) as error:
            log.warning("MONITOR's answer cannot be read: %r", error)
            return
        for rank in [rank for rank in self._descriptors if known.get(rank, (0, 0, DONE))[:2] != self._known[rank][:2]]:
            os.close(self._descriptors.pop(rank))
        self._known = known
        for rank, (_, pid, status) in known.items():
            if status is not RUNS and rank in self._descriptors:
                os.close(self._descriptors.pop(rank))
            elif status is RUNS and rank not in self._descriptors and pid > 0:
                with contextlib.suppress(OSError):
                    self._descriptors[rank] = os.pidfd_open(pid)

    def ranks(self) -> tuple[int, ...]:
        """Global ranks of this pod."""
        return tuple(sorted(self._known))

    def restarts(self) -> int:
        """Remaining restarts."""
        return self._restarts

    def start(self, restarts: int) -> None:
        """Start every process."""
        self._restarts = restarts
        self._functions[START_ALL_WORKER]()
        self._refresh()

    def stop(self, ranks: Collection[int] | None = None, *, grace: float = 0.0) -> None:
        """End processes."""
        if grace:
            terminate({rank: one[1] for rank, one in self._known.items() if ranks is None or rank in ranks}, grace)
        self._kill(ranks)

    def restart(self, ranks: Collection[int]) -> None:
        """End and start these ranks only."""
        locals_ = [self._known[rank][0] for rank in sorted(ranks)]
        self._kill(ranks)
        self._functions[START_WORKER_LIST](locals_)
        self._refresh()

    def _kill(self, ranks: Collection[int] | None) -> None:
        """End all processes, or those of these ranks; msrun knows them by their pids."""
        pids = EVERY if ranks is None else [self._known[rank][1] for rank in sorted(ranks) if rank in self._known]
        if pids := [pid for pid in pids if pid]:
            self._functions[KILL_WORKER](pids)

    def monitor(self) -> ProcessStatus:
        """State of the processes."""
        self._refresh()
        states = {rank: one[2] for rank, one in self._known.items()}
        failed = frozenset(rank for rank, state in states.items() if state not in (RUNS, DONE, NOT_STARTED))
        if failed:
            return ProcessStatus(ProcessState.FAILED, failed)
        done = bool(states) and all(state is not RUNS and state == DONE for state in states.values())
        return ProcessStatus(ProcessState.SUCCEEDED if done else ProcessState.HEALTHY)

    def descriptors(self) -> Sequence[int]:
        """pidfds of the processes that run."""
        return list(self._descriptors.values())

    def finish(self, status: ProcessStatus) -> Any:
        """End what msrun started beside them, such as processes that show their logs; the status."""
        self._kill(None)
        return status


class MSRunPlugin(MsRunFacts):
    """The plugin that msrun creates: it registers callbacks, then `start` watches the processes until they are done."""

    join_seconds: float = 30.0
    monitor_interval: float = 1.0

    def __init__(self) -> None:
        super().__init__()
        self._functions: dict[str, Function] = {}

    def register_callbacks(self, operator: str, func: Function) -> None:
        """Register a function of msrun."""
        self._functions[operator] = func

    def start_proxy(self) -> None:
        """Start the pod's proxy, by which the job's manager is reached."""
        init_taskd_proxy({"UpstreamAddr": os.environ.get("MS_SCHED_HOST", "127.0.0.1")})

    def start_mindspore_workers(self) -> None:
        """Start every process of the pod once the reset file lets them. Raises ValueError after 900 s."""
        self._start_when_allowed(START_ALL_WORKER)

    def start_mindspore_worker_list(self, global_rank_list: Sequence[int]) -> None:
        """Start the processes of these ranks once the reset file lets them. Raises ValueError after 900 s, and when
        MS_LOCAL_WORKER is missing."""
        self._start_when_allowed(START_WORKER_LIST, local_ranks(global_rank_list))

    def _start_when_allowed(self, name: str, *given: list[int]) -> None:
        begin = self._functions.get(name)
        if begin is None:
            raise ValueError(f"MindSpore has not registered {name}")
        end = time.monotonic() + START_SECONDS
        while not self.wait_to_start():
            if time.monotonic() >= end:
                raise ValueError(f"the reset file did not let the processes start within {START_SECONDS:.0f} s")
            time.sleep(self.monitor_interval)
        begin(*given)

    def start(self) -> None:
        """Run until the end: under the job's manager if there is one, otherwise by the reset file.

        Raises ValueError when callbacks are missing. Exits with 0 when all processes are done, with 1 when the pod must
        be restarted.
        """
        rank = os.environ.get("MS_NODE_RANK", "0")
        logs.to_file(f"agent-{rank}.log")
        processes = MindSporeProcesses(self._functions)
        self.start_proxy()
        upstream = bus_proxy.address(bus_proxy.HOST, bus_proxy.port(os.environ))
        agent = BusAgent(int(rank), upstream, processes, job=os.environ.get("MINDX_TASK_ID", ""))
        try:
            agent.run(join=self.join_seconds)
        except NoManager as error:
            log.warning("%s; the reset file decides instead", error)
            self.follow_reset_file(processes)
        sys.exit(0)

    def follow_reset_file(self, processes: MindSporeProcesses, sleep: Any = time.sleep) -> None:
        """Without a manager: start once no fault is being collected, restart the processes that the file names, or
        leave, at once or gracefully."""
        state = self._allowed(processes, sleep)
        retries = state.retry_time
        processes.start(RESTARTS)
        faulty = 0.0
        while True:
            sleep(self.monitor_interval)
            status = processes.monitor()
            if status.state is ProcessState.SUCCEEDED:
                processes.finish(status)
                return
            state = self._read() or state
            if state.graceful_exit:
                log.warning("the processes get SIGTERM and time to end, then the pod ends")
                processes.stop(grace=GRACE_SECONDS)
                sys.exit(0 if processes.monitor().state is ProcessState.SUCCEEDED else 1)
            faulty = faulty + self.monitor_interval if status.failed else 0.0
            own = state.broken(processes.ranks())
            if state.retry_time > retries:
                retries = state.retry_time
                processes.stop()
                self._allowed(processes, sleep)
                processes.start(RESTARTS)
            elif own and state.restart_process and status.failed:
                failed = sorted(status.failed)
                self._allowed(processes, sleep)
                processes.restart(failed)
            elif (status.failed and faulty > _named_within(state)) or (own and not state.restart_process):
                log.error("ranks %s failed; the pod ends and must be restarted", sorted(status.failed or own)[:16])
                processes.stop()
                sys.exit(1)

    def _read(self) -> resetfile.ResetState | None:
        try:
            return resetfile.read()
        except ValueError as error:
            log.debug("%s", error)
            return None

    def _allowed(self, processes: MindSporeProcesses, sleep: Any, limit: float = START_SECONDS) -> resetfile.ResetState:
        """Wait until the file lets these processes start, at most 900 s."""
        waited = 0.0
        while (state := self._read()) is None or not state.may_start(processes.ranks()):
            if waited >= limit:
                raise ValueError(f"the reset file did not let the processes start within {limit:.0f} s")
            sleep(1.0)
            waited += 1.0
        return state


def _named_within(state: resetfile.ResetState) -> float:
    """Seconds in which the file may name a failed process for a restart alone; rank 0's pod restarts as a whole."""
    enabled = os.environ.get("ENABLE_RESTART_FAULT_PROCESS") == "on" and os.environ.get("MS_NODE_RANK", "0") != "0"
    return NAMED_SECONDS if enabled or state.restart_process else 0.0
