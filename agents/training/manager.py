"""DLRecoverManager: register a job, follow its signals, hand them to the training controller, report back.

Behaviour of the pure-Python recovery module of MindCluster's TaskD
(component/taskd/taskd/python/toolkit/recover_module) and of the Elastic Agent's API, which share it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final

import grpc

from agents.training.client import Client, Status
from agents.training.controller import Controller, MindIO

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
    """The recovery conversation of one job, from the side of its processes. There is one in a process.

    ``info`` (`ClientInfo`, ours or the service's message) names the job; ``cert_path`` is a folder with ca.crt, tls.crt
    and tls.key when ``secure_conn``. ``wait`` sleeps and answers whether the manager was stopped meanwhile.
    """

    _only: ClassVar[DLRecoverManager | None] = None
    _creating: ClassVar[threading.Lock] = threading.Lock()

    def __new__(cls, *_: Any, **__: Any) -> DLRecoverManager:
        """The one manager of the process; later calls answer the first."""
        with cls._creating:
            if cls._only is None:
                cls._only = super().__new__(cls)
            return cls._only

    def __init__(
        self,
        info: Any,
        server_addr: str,
        secure_conn: bool = True,
        cert_path: str = "",
        *,
        controller: Controller | None = None,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        if hasattr(self, "client"):
            return
        self.client = Client(info, server_addr, secure=secure_conn, cert_path=cert_path)
        self._controller = controller
        self._stopped = threading.Event()
        self._wait = wait or self._stopped.wait
        self._reporting = threading.Lock()

    @property
    def controller(self) -> Controller:
        """The training controller; MindIO's unless another was given."""
        if self._controller is None:
            self._controller = MindIO()
        return self._controller

    def init_clusterd(self) -> bool:
        """Init until it is accepted; False when the job has no recovery (403), or the manager was stopped."""
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
                log.warning("the recovery service does not answer: %s", _words(error))
                self.client.drop()
            if self._wait(RETRY_SECONDS):
                break
        return False

    def register(self, request: Any = None) -> Status:
        """One Register call; ``request`` is accepted for compatibility, the manager's own job is meant."""
        del request
        return self.client.register()

    def start_subscribe(self, frame: str = "pytorch") -> None:
        """Follow the job's signals until it is told to end: Init, Register, subscribe, dispatch, again and again."""
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
                log.warning("the stream of signals broke: %s", _words(error))
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
        type(self)._only = None

    def dispatch(self, signal: Any) -> bool:
        """Do what a signal asks; False when it was the last one. Unknown actions are logged and passed over."""
        if signal.signalType == KILL:
            self.controller.destroy()
            self._stopped.set()
            return False
        if signal.signalType == KEEP_ALIVE or not signal.actions:
            return True
        if signal.jobId != self.client.info.job_id:
            log.warning("a signal for job %s is passed over", signal.jobId[:64])
            return True
        faults = _faults(signal.faultRanks)
        timeout = signal.timeout or None
        for action in dict.fromkeys(signal.actions):
            if action == "save_and_exit":
                self.controller.dump()
            elif action in ("stop_train", "pause_train"):
                pausing = action == "pause_train"
                self.controller.stop_train(faults, "pause" if pausing else "stop", timeout if pausing else None)
            elif action == "on_global_rank":
                self.controller.on_global_rank(faults, timeout)
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
                log.warning("a report was not heard: %s", _words(error))
                self.client.drop()
                return INNER


def _manager() -> DLRecoverManager | None:
    return DLRecoverManager._only


def report_stop_complete(code: int, msg: str, fault_ranks: Mapping[Any, Any]) -> int:
    """Every process stands (code 0), is not there (404) or failed (499). Answers the server's code, 400 without one."""
    manager = _manager()
    if manager is None:
        return UNREGISTERED
    return manager.report(lambda: manager.client.stop_complete(code, msg, fault_ranks))


def report_recover_strategy(fault_ranks: Mapping[Any, Any], strategy_list: list[str]) -> int:
    """What the processes can do."""
    manager = _manager()
    if manager is None:
        return UNREGISTERED
    return manager.report(lambda: manager.client.recover_strategy(fault_ranks, strategy_list))


def report_recover_status(code: int, msg: str, fault_ranks: Mapping[Any, Any], strategy: str) -> int:
    """How it went; with code 201 the fault ranks are those that leave as well."""
    manager = _manager()
    if manager is None:
        return UNREGISTERED
    isolate = [str(rank) for rank in fault_ranks] if code == 201 else []
    return manager.report(lambda: manager.client.recover_status(code, msg, strategy, isolate))


def report_process_fault(fault_ranks: Mapping[Any, Any], fault_codes: Mapping[Any, Any] | None = None) -> int:
    """Processes failed; ``fault_codes`` are only logged, as the wire has no field for them."""
    manager = _manager()
    if manager is None:
        return UNREGISTERED
    if fault_codes:
        log.info("fault codes of %d ranks", len(fault_codes))
    return manager.report(lambda: manager.client.process_fault(fault_ranks))


def callbacks() -> dict[str, Callable[..., int]]:
    """What MindIO's controller reports through, by the names that it registers."""
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
            log.warning("register was not heard: %s", _words(error))
            manager.client.drop()
        if attempt + 1 < REGISTER_TRIES and manager._wait(1.0):
            break
    return False


def _faults(found: Any) -> dict[int, int]:
    return {int(r.rankId): int(r.faultType) for r in found if r.rankId.isdigit() and r.faultType.isdigit()}


def _words(error: grpc.RpcError) -> str:
    details = getattr(error, "details", None)
    return str(details() if callable(details) else error)[:300]


__all__ = [
    "DLRecoverManager", "callbacks", "register_with_retries", "report_process_fault", "report_recover_status",
    "report_recover_strategy", "report_stop_complete",
]  # fmt: skip
