"""DLRecoverManager: registers a job, receives its signals, passes them to the training controller, reports back.

Behaviour of the pure-Python recovery module of MindCluster's TaskD
(component/taskd/taskd/python/toolkit/recover_module) and of the Elastic Agent's API, which share it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final

import grpc

from belay.agents.training.clusterd.bridge import pause_seconds
from belay.agents.training.clusterd.client import ClientInfo, RecoverClient, Status, server_address
from belay.agents.training.clusterd.controller import MindIO, TrainingController

log = logging.getLogger(__name__)

OK, ENABLE_OFF, UNREGISTERED, INNER = 0, 403, 400, 599
RETRY_SECONDS: Final = 5.0
HEALTH_SECONDS: Final = 1.0
MAX_BACKOFF: Final = 10
REGISTER_TRIES: Final = 3
KILL, KEEP_ALIVE = "killMaster", "keep-alive"
CONTROLLERLESS: Final = frozenset({"new pod running", "fault_nodes_exit", "fault_nodes_restart"})
"""Actions that the agent of a pod handles, not the controller."""


class DLRecoverManager:
    """The recovery session of a job, on the side of its processes; one per process. TaskD's connects without TLS.

    ``info`` (`ClientInfo`, ours or the service's message) names the job; ``cert_path`` is a folder with ca.crt, tls.crt
    and tls.key when ``secure_conn``. ``wait`` sleeps and returns whether the manager was stopped meanwhile.
    """

    _only: ClassVar[DLRecoverManager | None] = None
    _creating: ClassVar[threading.Lock] = threading.Lock()

    def __new__(cls, *_: Any, **__: Any) -> DLRecoverManager:
        """The manager of the process; later calls return the first one."""
        with cls._creating:
            if DLRecoverManager._only is None:
                DLRecoverManager._only = super().__new__(cls)
            return DLRecoverManager._only

    def __init__(
        self,
        info: Any,
        server_addr: str,
        secure_conn: bool = False,
        cert_path: str = "",
        *,
        controller: TrainingController | None = None,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        if hasattr(self, "client"):
            return
        try:
            self.client = RecoverClient(info, server_addr, secure=secure_conn, cert_path=cert_path)
        except (TypeError, ValueError):
            DLRecoverManager._only = None
            raise
        self._controller = controller
        self._stopped = threading.Event()
        self._wait = wait or self._stopped.wait
        self._reporting = threading.Lock()

    @property
    def controller(self) -> TrainingController:
        """The training controller; MindIO's unless another was given."""
        if self._controller is None:
            self._controller = MindIO()
        return self._controller

    def init_clusterd(self) -> bool:
        """Call Init until it is accepted; False when the job has no recovery (403) or the manager was stopped."""
        while not self._stopped.is_set():
            try:
                status = self.client.init()
                if status.code == OK:
                    return True
                if status.code == ENABLE_OFF:
                    log.warning("this job has no process-level recovery: %s", status.info[:300])
                    return False
                log.warning("init is refused: %s %s", status.code, status.info[:300])
            except grpc.RpcError as error:
                log.warning("the recovery service does not answer: %s", _details(error))
                self.client.drop()
            if self._wait(RETRY_SECONDS):
                break
        return False

    def register(self, request: Any = None) -> Status:
        """Call Register for the manager's job; ``request`` is accepted for compatibility and ignored."""
        del request
        return self.client.register()

    def start_subscribe(self, frame: str = "pytorch") -> None:
        """Handle the job's signals until one ends the manager: Init, Register, subscribe, dispatch, reconnect."""
        log.info("recovery starts, framework %s", frame)
        threading.Thread(target=self._watch_health, name="recover-health", daemon=True).start()
        broken = 0
        while not self._stopped.is_set():
            if not self.init_clusterd():
                return
            try:
                status = self.register()
                if status.code == OK:
                    for signal in self._signals():
                        broken = 0
                        if not self.dispatch(signal):
                            return
                else:
                    log.warning("register is refused: %s %s", status.code, status.info[:300])
            except grpc.RpcError as error:
                log.warning("the stream of signals broke: %s", _details(error))
                self.client.drop()
            broken += 1
            if self._wait(float(min(MAX_BACKOFF, broken))):
                return

    def _signals(self) -> Iterator[Any]:
        for signal in self.client.signals():
            if self._stopped.is_set():
                return
            yield signal

    def _watch_health(self) -> None:
        lost = False
        while not self._wait(HEALTH_SECONDS):
            try:
                self.client.health_check()
                if lost:
                    self.register()
                lost = False
            except grpc.RpcError:
                lost = True

    def stop(self) -> None:
        """End everything; used by tests and at the end of a process."""
        self._stopped.set()
        self.client.drop()
        DLRecoverManager._only = None

    def dispatch(self, signal: Any) -> bool:
        """Carry out a signal; False when it was the last one. Unknown actions are logged and ignored."""
        if signal.signalType == KILL:
            self.controller.destroy()
            self._stopped.set()
            return False
        if signal.signalType == KEEP_ALIVE or not signal.actions:
            return True
        if signal.jobId != self.client.info.job_id:
            log.warning("a signal for job %s is ignored", signal.jobId[:64])
            return True
        faults = _faults(signal.faultRanks)
        for action in dict.fromkeys(signal.actions):
            if action == "save_and_exit":
                self.controller.dump()
            elif action in ("stop_train", "pause_train"):
                pausing = action == "pause_train"
                limit = pause_seconds(signal.timeout, os.environ) if pausing else None
                self.controller.stop_train(faults, "pause" if pausing else "stop", limit)
            elif action == "on_global_rank":
                self.controller.on_global_rank(faults, signal.timeout or None)
            elif action == "change_strategy":
                self.controller.change_strategy(signal.changeStrategy, signal.extraParams)
            elif action in ("hot switch", "stop switch"):
                self.controller.prepare_action(action, faults)
            elif action in CONTROLLERLESS:
                log.info("the agent handles %s", action)
            else:
                log.warning("action %s is unknown", action[:64])
        return True

    def report(self, call: Callable[[], Status]) -> int:
        """Report; a refused one is repeated once after a new registration. 599 when the service does not answer."""
        with self._reporting:
            try:
                status = call()
                if status.code != OK:
                    log.warning("a report is refused: %s %s", status.code, status.info[:300])
                    self.register()
                    status = call()
                return status.code
            except grpc.RpcError as error:
                log.warning("a report was not delivered: %s", _details(error))
                self.client.drop()
                return INNER


class ElasticRecoverManager(DLRecoverManager):
    """The Elastic Agent's, which connects with TLS by default."""

    def __init__(
        self, info: Any, server_addr: str, secure_conn: bool = True, cert_path: str = "", **others: Any
    ) -> None:
        super().__init__(info, server_addr, secure_conn, cert_path, **others)


_making = threading.Lock()


def _manager() -> DLRecoverManager | None:
    """The manager of the process; without one it is made of MINDX_TASK_ID and MINDX_SERVER_IP, as TaskD does. None
    where those are not set."""
    with _making:
        job = os.environ.get("MINDX_TASK_ID", "")
        if DLRecoverManager._only is None and job:
            try:
                return DLRecoverManager(ClientInfo(job), server_address())
            except ValueError:
                return None
        return DLRecoverManager._only


def report_stop_complete(code: int, msg: str, fault_ranks: Mapping[Any, Any]) -> int:
    """Report that every process has stopped (0), is missing (404) or failed (499). The server's code, 400 where the
    environment names no job and no server."""
    manager = _manager()
    if manager is None:
        return UNREGISTERED
    return manager.report(lambda: manager.client.stop_complete(code, msg, fault_ranks))


def report_recover_strategy(fault_ranks: Mapping[Any, Any], strategy_list: list[str]) -> int:
    """Report the possible strategies."""
    manager = _manager()
    if manager is None:
        return UNREGISTERED
    return manager.report(lambda: manager.client.recover_strategy(fault_ranks, strategy_list))


def report_recover_status(code: int, msg: str, fault_ranks: Mapping[Any, Any], strategy: str) -> int:
    """Report the result; with code 201 the fault ranks are also those that leave."""
    manager = _manager()
    if manager is None:
        return UNREGISTERED
    isolate = [str(rank) for rank in fault_ranks] if code == 201 else []
    return manager.report(lambda: manager.client.recover_status(code, msg, strategy, isolate))


def report_process_fault(fault_ranks: Mapping[Any, Any], fault_codes: Mapping[Any, Any] | None = None) -> int:
    """Report failed processes; ``fault_codes`` are only logged, since the message has no field for them."""
    manager = _manager()
    if manager is None:
        return UNREGISTERED
    if fault_codes:
        log.info("fault codes of %d ranks", len(fault_codes))
    return manager.report(lambda: manager.client.process_fault(fault_ranks))


def callbacks() -> dict[str, Callable[..., int]]:
    """The callbacks of MindIO's controller, by the names under which it registers them."""
    return {
        "report_fault_ranks": report_process_fault,
        "report_stop_complete": report_stop_complete,
        "report_strategies": report_recover_strategy,
        "report_result": report_recover_status,
    }


def register_with_retries(manager: DLRecoverManager) -> bool:
    """Register, at most three times."""
    for attempt in range(REGISTER_TRIES):
        try:
            if manager.register().code == OK:
                return True
        except grpc.RpcError as error:
            log.warning("register was not delivered: %s", _details(error))
            manager.client.drop()
        if attempt + 1 < REGISTER_TRIES and manager._wait(1.0):
            break
    return False


def _faults(found: Any) -> dict[int, int]:
    return {int(r.rankId): int(r.faultType) for r in found if r.rankId.isdigit() and r.faultType.isdigit()}


def _details(error: grpc.RpcError) -> str:
    details = getattr(error, "details", None)
    return str(details() if callable(details) else error)[:300]
