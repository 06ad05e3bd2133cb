"""The session of the manager with ClusterD or `belay server`: receives signals, sends reports, reconnects."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import grpc

from belay.agents.training.clusterd import constants
from belay.agents.training.clusterd.client import ClientInfo, RecoverClient, Status
from belay.agents.training.clusterd.state import Signal, StressRequest, SwitchRequest
from belay.agents.training.compat.manager.operations import SWITCHES, profiling_command
from belay.engine.wire.clusterd import profiling_pb2, profiling_pb2_grpc
from belay.engine.wire.clusterd import recover_pb2 as pb

log = logging.getLogger(__name__)

ROLE: Final = "taskd"
RETRY_SECONDS: Final = 1.0
REPORT_TRIES: Final = 4
REMINDER: Final = 60


class RecoverSession:
    """Reads the streams of a job in threads until it is stopped; calls ``on_event`` with a name and a value.

    Names: ``signal`` (`Signal`), ``subscribed`` (None), ``switch`` (`SwitchRequest`), ``stress`` (`StressRequest`),
    ``profiling`` (a command 7xx).
    """

    def __init__(self, job: str, address: str, on_event: Callable[[str, Any], None]) -> None:
        self._info = ClientInfo(job, ROLE)
        self.address, self._on_event = address, on_event
        self._stopped = threading.Event()
        self._registered = threading.Event()
        self._threads: list[threading.Thread] = []
        self._clients: list[RecoverClient] = []

    def start(self) -> None:
        """Start the threads that read the streams."""
        for name, follow in (
            ("signals", self._signals),
            ("links", self._links),
            ("stress", self._stress),
            ("profiling", self._profiling),
        ):  # fmt: skip
            client = RecoverClient(self._info, self.address)
            self._clients.append(client)
            thread = threading.Thread(
                target=self._follow, args=(name, follow, client), name=f"clusterd-{name}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """End; the streams are closed."""
        self._stopped.set()
        self._registered.set()
        for client in self._clients:
            client.drop()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(5.0)

    def _follow(self, name: str, follow: Callable[[RecoverClient], None], client: RecoverClient) -> None:
        failed = 0
        while not self._stopped.is_set():
            why = ""
            try:
                follow(client)
            except grpc.RpcError as error:
                why = _details(error) or "the stream broke"
            except ValueError as error:
                # stop closed the channel, or the answer cannot be read
                why = str(error)[:200] or "the answer cannot be read"
            if self._stopped.is_set():
                return
            if name == "signals":
                self._registered.clear()
                if not why:
                    log.info("a conversation with %s is over; subscribing again", self.address)
                elif failed % REMINDER == 0:
                    log.warning("no session with %s: %s; retrying every second", self.address, why)
            # the service ends a stream with its conversation: the connection is good
            failed = failed + 1 if why else 0
            if why:
                client.drop()
            self._stopped.wait(RETRY_SECONDS)

    def _signals(self, client: RecoverClient) -> None:
        for call in (client.init, client.register):
            if (status := call()).code != 0:
                raise ValueError(f"{status.code} {status.info[:160]}")
        stream = client.signals()
        self._registered.set()
        log.info("job %s has a session with %s", self._info.job_id, self.address)
        self._on_event("subscribed", None)
        for found in stream:
            if self._own(found.jobId):
                self._on_event("signal", signal(found))

    def _own(self, job: str) -> bool:
        if job and job != self._info.job_id:
            log.warning("a message for job %s is ignored", job[:64])
            return False
        return True

    def _links(self, client: RecoverClient) -> None:
        self._registered.wait()
        for found in client.stub.SubscribeNotifySwitch(client.info_message()):
            if self._own(found.jobId) and found.rankID:
                key = f"{time.time_ns():x}"
                self._on_event("switch", SwitchRequest(key, tuple(found.rankID), tuple(found.op)))

    def _stress(self, client: RecoverClient) -> None:
        self._registered.wait()
        for found in client.stub.SubscribeNotifyExecStressTest(client.info_message()):
            if self._own(found.jobId):
                ops = {int(rank): tuple(one.ops) for rank, one in found.stressParam.items() if rank.isdigit()}
                self._on_event("stress", StressRequest(f"{time.time_ns():x}", ops))

    def _profiling(self, client: RecoverClient) -> None:
        self._registered.wait()
        stub = profiling_pb2_grpc.TrainingDataTraceStub(client.channel)  # type: ignore[no-untyped-call]
        info = profiling_pb2.ProfilingClientInfo(jobId=self._info.job_id, role=ROLE)
        for found in stub.SubscribeDataTraceSwitch(info):
            switches = {name: getattr(found.profilingSwitch, name) for name in SWITCHES}
            self._on_event("profiling", profiling_command(switches))

    # reports

    def report(self, what: str, call: Callable[[RecoverClient], Status]) -> int:
        """Report over a separate connection, at most four times, 1 s apart; the last code, 599 without an answer."""
        code = 599
        for attempt in range(REPORT_TRIES):
            if attempt and self._stopped.wait(RETRY_SECONDS):
                break
            client = RecoverClient(self._info, self.address)
            try:
                status = call(client)
                if status.code == 0:
                    return 0
                code = status.code
                log.warning("%s is refused: %d %s", what, status.code, status.info[:200])
            except grpc.RpcError as error:
                log.warning("%s was not delivered: %s", what, _details(error))
            finally:
                client.drop()
        return code

    def callbacks(self) -> dict[str, Callable[..., int]]:
        """The callbacks of a training controller, by the names under which it registers them."""

        def fault_ranks(faults: Mapping[Any, Any], codes: Mapping[Any, Any] | None = None) -> int:
            return self.report("a process fault", lambda client: client.process_fault(faults))

        def stop_complete(code: int, msg: str, faults: Mapping[Any, Any]) -> int:
            return self.report("the stop", lambda client: client.stop_complete(code, msg, faults))

        def strategies(faults: Mapping[Any, Any], offered: list[str]) -> int:
            return self.report("the strategies", lambda client: client.recover_strategy(faults, list(offered)))

        def result(code: int, msg: str, faults: Mapping[Any, Any], strategy: str) -> int:
            # only with code 201 do ranks leave the job
            isolate = [str(rank) for rank in faults] if code == constants.ISOLATE_CODE else []
            return self.report("the result", lambda client: client.recover_status(code, msg, strategy, isolate))

        return {
            "report_fault_ranks": fault_ranks, "report_stop_complete": stop_complete,
            "report_strategies": strategies, "report_result": result,
        }  # fmt: skip

    def reply_switch(self, ok: bool) -> int:
        """Report the result of a link switch (ReplySwitchNicResult)."""
        message = pb.SwitchResult(jobId=self._info.job_id, result=ok)
        return self.report(
            "the result of the link switch", lambda client: client.status("ReplySwitchNicResult", message)
        )

    def reply_stress(self, results: Mapping[int, Mapping[int, tuple[str, str]]]) -> int:
        """Report the results of a stress test (ReplyStressTestResult)."""
        message = pb.StressTestResult(jobId=self._info.job_id)
        for rank, found in results.items():
            for op, (code, text) in found.items():
                one = message.stressResult[str(rank)].rankResult[str(op)]
                one.code, one.result = code, text
        return self.report(
            "the result of the stress test", lambda client: client.status("ReplyStressTestResult", message)
        )


def signal(found: Any) -> Signal:
    """A ProcessManageSignal; ranks and nodes that are not numbers are left out."""
    faults = {
        int(one.rankId): int(one.faultType)
        for one in found.faultRanks
        if one.rankId.isdigit() and one.faultType.isdigit()
    }
    return Signal(
        uuid=found.uuid,
        kind=found.signalType,
        actions=tuple(found.actions),
        faults=faults,
        strategy=found.changeStrategy,
        timeout=max(0, found.timeout),
        nodes=tuple(sorted({int(node) for node in found.nodeRankIds if node.isdigit()})),
        extra=found.extraParams,
    )


def _details(error: grpc.RpcError) -> str:
    details = getattr(error, "details", None)
    return str(details() if callable(details) else error)[:300]
