"""Passes commands of the manager to the training controller, in its own thread, since the controller may block.

Map of actions and times: component/taskd/taskd/python/framework/manager/controller.py.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from belay.agents.training.clusterd import constants
from belay.agents.training.clusterd.controller import TrainingController
from belay.agents.training.clusterd.state import ToController

log = logging.getLogger(__name__)

MAX_WAITING: Final = 256


def pause_seconds(asked: int, environ: Mapping[str, str]) -> int:
    """Seconds of a pause: as asked; for 0 HCCL_CONNECT_TIMEOUT × 2.5 up to 7,200, or 600 where that is not set."""
    if asked > 0:
        return asked
    text = environ.get("HCCL_CONNECT_TIMEOUT", "")
    if not text.isdigit() or not int(text):
        return constants.PAUSE_SECONDS
    return min(constants.MAX_PAUSE_SECONDS, round(int(text) * 2.5))


class Bridge:
    """Calls a controller with one action after the other.

    ``make`` builds and starts a controller, at the start and after `restart_controller`. When it fails (no mindio_ttp
    in the image, POD_IP or TTP_PORT missing), training continues without one; the reason and dropped actions are
    logged.
    """

    def __init__(self, make: Callable[[], TrainingController], *, wait: Callable[[float], None] = time.sleep) -> None:
        self._make, self._wait = make, wait
        self._controller: TrainingController | None = None
        self._work: queue.Queue[ToController | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="training-controller", daemon=True)
        self.ready = threading.Event()
        self.lost = 0

    def start(self) -> None:
        """Start the controller, in the bridge's thread."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the current command, then destroy the controller."""
        self._work.put(None)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(10.0)

    def put(self, command: ToController) -> None:
        """Queue a command; when 256 wait already, the new one is dropped with an error in the log."""
        try:
            self._work.put_nowait(command)
        except queue.Full:
            self.lost += 1
            log.error("the controller is busy, %s is dropped (%d so far)", "+".join(command.actions), self.lost)

    def _begin(self) -> None:
        try:
            self._controller = self._make()
        except (ImportError, ValueError, OSError, RuntimeError, SystemExit) as error:
            log.error("no training controller: %s", str(error)[:300])
            self._controller = None

    def _run(self) -> None:
        self._begin()
        self.ready.set()
        while (command := self._work.get()) is not None:
            for action in command.actions:
                try:
                    self._act(action, command)
                except Exception:
                    # the controller is foreign code: an exception ends this action only
                    log.exception("the controller failed in %s", action)
        self._destroy()

    def _destroy(self) -> None:
        controller, self._controller = self._controller, None
        if controller is not None:
            controller.destroy()

    def _act(self, action: str, command: ToController) -> None:
        if action == constants.DESTROY_CONTROLLER:
            return self._destroy()
        if action == constants.RESTART_CONTROLLER:
            self._destroy()
            self._wait(constants.CONTROLLER_PAUSE)
            return self._begin()
        controller = self._controller
        if controller is None:
            log.warning("no training controller carries out %s", action)
            return None
        code = self._call(controller, action, command)
        if code:
            log.error("the controller answers %d to %s", code, action)
        return None

    def _call(self, controller: TrainingController, action: str, command: ToController) -> int:
        faults = dict(command.faults)
        match action:
            case constants.SAVE_ACTION:
                return controller.dump()
            case "stop_train":
                return controller.stop_train(faults, "stop", None)
            case "pause_train":
                return controller.stop_train(faults, "pause", pause_seconds(command.timeout, os.environ))
            case "on_global_rank":
                return controller.on_global_rank(faults, command.timeout or None)
            case constants.CHANGE_ACTION:
                return controller.change_strategy(command.strategy, command.params)
            case "hot switch" | "stop switch":
                return controller.prepare_action(action, faults)
            case "new pod running":
                log.info("a backup pod runs")
                return 0
        log.warning("action %s is unknown", action[:64])
        return 0
