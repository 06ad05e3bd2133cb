"""Orders of the recovery service for a job that can go on with fewer hosts: shrink and grow, as the planner decides.

`belay train --nodes MIN:MAX` in a pod with MINDX_TASK_ID and MINDX_SERVER_IP is a client of `Recover`, as MindIO's
controller is: it reports lost nodes, offers ``downgrade`` where the others can go on, carries ``downgrade`` and
``upgrade`` out, and says when training goes on. Without the service, or an answer, the limits of the coordinator count.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from belay.agents.training.train.decide.coordinator_commands import CoordinatorCommand
from belay.agents.training.train.notices import say

if TYPE_CHECKING:
    from belay.agents.training.train.decide.coordinator import Coordinator

OK, ISOLATED, FAILED = 0, 201, 499
NORMAL: Final = 1
"""Type of a fault that is none of a chip's memory or network."""
TAKES = 600.0
"""Seconds for a strategy to be carried out."""
ANSWER = 30.0
"""Seconds for the loop of the node agent to take an order."""
Asked = Callable[["Coordinator", float], tuple[Any, list[CoordinatorCommand]]]


class ClusterOrders:
    """Stands between the session with the service, in threads, and the coordinator, in the loop that calls `turn`.

    It is the training controller of that session: every method returns 0 on success.
    """

    def __init__(self, job: str, address: str, nproc: int) -> None:
        from belay.agents.training.clusterd.client import ClientInfo
        from belay.agents.training.clusterd.recovery_client import DLRecoverManager

        self._nproc = nproc
        self._manager = DLRecoverManager(ClientInfo(job), address, controller=self)
        self._asked: queue.SimpleQueue[tuple[Asked, Future[Any]]] = queue.SimpleQueue()
        self._training: frozenset[int] | None = None
        self._every: frozenset[int] = frozenset()
        """The nodes that train, while all their ranks do; all nodes of the job."""
        self._changed = threading.Condition()
        self._reported: frozenset[int] = frozenset()
        self._faults: dict[int, int] = {}
        self._closed = False

    def start(self) -> None:
        """Begin the session."""
        self._apart(self._manager.start_subscribe)

    def close(self) -> None:
        """End it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._manager.stop()

    def turn(self, coordinator: Coordinator, now: float) -> list[CoordinatorCommand]:
        """Carry out what was ordered, and take notice of the coordinator's state."""
        commands: list[CoordinatorCommand] = []
        while not self._asked.empty():
            asked, answer = self._asked.get()
            result, found = asked(coordinator, now)
            commands += found
            answer.set_result(result)
        lost, self._every = coordinator.lost(), frozenset(coordinator.places.values())
        if new := lost - self._reported:
            faults = dict.fromkeys(self._ranks(new), NORMAL)
            self._apart(lambda: self._report("process_fault", faults))
        self._reported = lost
        if (training := coordinator.training()) != self._training:
            with self._changed:
                self._training = training
                self._changed.notify_all()
        return commands

    def stop_train(self, fault_ranks: Mapping[int, int], stop_type: str, timeout: int | None) -> int:
        """Ranks have stopped, or are about to, since they meet in every step."""
        return self._report("stop_complete", OK, "", dict(fault_ranks))

    def on_global_rank(self, fault_ranks: Mapping[int, int], timeout: int | None) -> int:
        """Say what can be done about these faults."""
        self._faults = dict(fault_ranks)
        nodes = self._nodes()
        unable = self._ask(lambda coordinator, now: (coordinator.unable(nodes), []))
        if unable:
            say(f"a smaller job is not offered to the recovery service: {unable}")
        strategies = ["recover", *([] if unable else ["downgrade"]), "exit"]
        return self._report("recover_strategy", self._faults, strategies)

    def change_strategy(self, strategy: str, params: str) -> int:
        """Carry out what was decided, and report it when training goes on."""
        nodes = self._nodes()
        if strategy == "downgrade":
            why = f"the recovery service orders a smaller job, without nodes {sorted(nodes)[:20]}"
            unable = self._ask(lambda coordinator, now: _shrink(coordinator, nodes, why, now))
            if unable:
                return self._report("recover_status", FAILED, unable, strategy, [])
            leave = [str(rank) for rank in self._ranks(nodes)]
            self._report("recover_status", ISOLATED, "", strategy, leave)
            self._apart(lambda: self._report_training(strategy, nodes))
        elif strategy in ("upgrade", "recover"):
            self._ask(lambda coordinator, now: (None, coordinator.grow(now)))
            self._apart(lambda: self._report_training(strategy, frozenset()))
        else:
            return self._report("recover_status", OK, "", strategy, [])
        return OK

    def dump(self) -> int:
        """Do nothing: ``--checkpoints`` saves what has to be saved."""
        return OK

    def prepare_action(self, action: str, fault_ranks: Mapping[int, int]) -> int:
        """Do nothing: a rank that ends is replaced."""
        return OK

    def destroy(self) -> int:
        """The service ends the session."""
        return OK

    def _nodes(self) -> frozenset[int]:
        return frozenset(rank // self._nproc for rank in self._faults)

    def _ranks(self, nodes: frozenset[int]) -> list[int]:
        return [node * self._nproc + index for node in sorted(nodes) for index in range(self._nproc)]

    def _ask(self, asked: Asked) -> Any:
        """Let the loop do something; what it returns, or a text that says why it does not."""
        answer: Future[Any] = Future()
        self._asked.put((asked, answer))
        try:
            return answer.result(ANSWER)
        except TimeoutError:
            return "the node agent does not answer"

    def _report_training(self, strategy: str, without: frozenset[int]) -> None:
        """Report once all nodes but these train."""
        end = time.monotonic() + TAKES
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._goes_on(without), TAKES)
            code, text = (OK, "") if self._goes_on(without) else (FAILED, "training does not go on")
        # the service may not have come so far yet
        while self._report("recover_status", code, text, strategy, []) and time.monotonic() < end and not self._closed:
            time.sleep(0.5)

    def _goes_on(self, without: frozenset[int]) -> bool:
        """Whether training goes on without these nodes, or, when there are none, with all."""
        if self._training is None:
            return False
        return not self._training & without if without else self._training == self._every

    def _report(self, name: str, *arguments: Any) -> int:
        return self._manager.report(lambda: getattr(self._manager.client, name)(*arguments))

    @staticmethod
    def _apart(what: Callable[[], object]) -> None:
        threading.Thread(target=what, name="belay-orders", daemon=True).start()


def _shrink(
    coordinator: Coordinator, nodes: frozenset[int], why: str, now: float
) -> tuple[str, list[CoordinatorCommand]]:
    unable = coordinator.unable(nodes)
    return unable, [] if unable else coordinator.shrink(nodes, why, now)


def of_environment(nproc: int) -> ClusterOrders | None:
    """The orders for the job in this process's environment; None where no service is named."""
    job = os.environ.get("MINDX_TASK_ID", "")
    if not job or not (os.environ.get("MINDX_SERVER_IP") or os.environ.get("LOCAL_PROXY_ENABLE") == "on"):
        return None
    try:
        from belay.agents.training.clusterd.client import server_address

        return ClusterOrders(job, server_address(), nproc)
    except ImportError:
        say("orders of the recovery service are not followed: grpcio is not installed")
        return None
