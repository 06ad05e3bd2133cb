"""The training framework's side of one rank, for `mindio_ttp.framework_ttp`: callbacks with their arguments, patterns
of exceptions, the decorated train function.

Conventions of MindIO TFT (docs/zh/scheduling, 06_api/09_mindio): callbacks run in threads of the processor, the train
thread waits in the decorator meanwhile.
"""

from __future__ import annotations

import functools
import gc
import re
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from belay.agents.training.compat.mindio.environment import Environment, log
from belay.agents.training.compat.mindio.processor_runner import ProcessorRunner, end_process
from belay.agents.training.compat.mindio.update_times import HBM, can_repair, error_time
from belay.agents.training.compat.tft.constants import Action, RepairType, ReportState

BUILT_IN = (
    ("FORCE STOP", ReportState.RS_NORMAL), ("UCE ERROR", ReportState.RS_UCE), (HBM, ReportState.RS_UCE),
    ("ARF FINISH", ReportState.RS_PREREPAIR_FINISH), ("STEP FINISH", ReportState.RS_STEP_FINISH),
    ("HCCL OP RETRY FAILED", ReportState.RS_HCCL_FAILED), ("SUSPECT REMOTE ERROR", ReportState.RS_HCCL_FAILED),
    ("UB LINK ERROR", ReportState.RS_HCCL_FAILED), ("HCCS LINK ERROR", ReportState.RS_HCCL_FAILED),
)  # fmt: skip
NEEDS_UCE = frozenset(
    {ReportState.RS_RETRY, ReportState.RS_UCE, ReportState.RS_UCE_CORRUPTED, ReportState.RS_HCCL_FAILED}
)
# what handles may answer besides the names of patterns
ANSWERS = {
    f"{HBM} can repair": ReportState.RS_UCE, f"{HBM} can't repair": ReportState.RS_UCE_CORRUPTED,
    "OTHER": ReportState.RS_UNKNOWN,
}  # fmt: skip
NO_WAIT = frozenset({ReportState.RS_PREREPAIR_FINISH, ReportState.RS_STEP_FINISH})
REBUILDING = frozenset({RepairType.RT_UCE_HIGHLEVEL.value, RepairType.RT_LOAD_REBUILD.value})
CODE = re.compile(r"device error type[\s:=]{0,4}((?:0x)?[0-9a-f]{1,13})\b", re.IGNORECASE)
EXPORTS = ("MindSpeed", "MindSpeed-LLM")


class Framework:
    """The callbacks of one rank. Without a started processor nothing waits, so that a script can run unprotected."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.rank: int | None = None
        self.runner: ProcessorRunner | None = None
        self.uce = True
        self.args: Any = None
        self.export: str | None = None
        self.repair_step = 0
        self.patterns: list[tuple[str, ReportState, Callable[[str], Any] | None]] = [
            (pattern, state, None) for pattern, state in BUILT_IN
        ]
        self.device: Any = None
        self._callbacks: dict[str, tuple[Callable[..., Any], Any]] = {}
        self._repair: tuple[int, bool, list[int], dict[str, Any]] = (0, False, [], {})
        self._finish: Callable[[], None] = lambda: None

    # -- registration --------------------------------------------------------------------------------------------

    def register(self, name: str, function: Any, context: Any = None) -> None:
        """Register a callback. Raises TypeError unless it is callable."""
        if not callable(function):
            raise TypeError(f"func of the {name} handler must be a callable, got {type(function).__name__}")
        self._callbacks[name] = (function, context)

    def register_pattern(self, pattern: str, state: str, handle: Any) -> None:
        """Register a text of exceptions of the train function; one that is registered again is replaced. The handle
        answers the name of a pattern, whose state is reported. Raises TypeError, ValueError.
        """
        if not callable(handle):
            raise TypeError(f"fault_handle must be a callable, got {type(handle).__name__}")
        if not isinstance(pattern, str) or not pattern:
            raise ValueError("fault_pattern must be a text that is not empty")
        if state not in ReportState.__members__:
            raise ValueError(f"fault_type {state!r:.40} is unknown; known are {', '.join(ReportState.__members__)}")
        entry = (pattern, ReportState[state], handle)
        known = [name for name, _, _ in self.patterns]
        if pattern in known:
            self.patterns[known.index(pattern)] = entry
        else:
            self.patterns.append(entry)

    def set_args(self, args: Any) -> None:
        """Set the arguments of callbacks. Raises RuntimeError once the last checkpoint is being saved."""
        if self.runner is not None and self.runner.machine.lock.dumping:
            raise RuntimeError("the last checkpoint is being saved: its arguments cannot change any more")
        self.args = args

    def catch_signals(self) -> None:
        """Ignore SIGTERM and SIGINT, so that a last checkpoint can be saved; a handler of the script stays."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, default in ((signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
            if signal.getsignal(number) in (default, signal.SIG_DFL):
                signal.signal(number, lambda caught, _: log.info("signal %d is ignored", caught))

    def find_device(self) -> None:
        """Find the accelerator of the main thread, for callbacks, without importing anything."""
        torch = sys.modules.get("torch")
        for kind in ("npu", "cuda"):
            module = getattr(torch, kind, None)
            if module is not None and module.is_available():
                self.device = (module, module.current_device())
                return

    # -- callbacks -----------------------------------------------------------------------------------------------

    def call(self, name: str, given: dict[str, Any]) -> int:
        """Call a callback; 0 on success, 1 on failure (2 of clean: no rebuild is needed)."""
        if name not in self._callbacks:
            if name in ("save", "stop"):
                log.error("no %s handler is registered", name)
                return 1
            return 0
        function, context = self._callbacks[name]
        try:
            if self.device is not None:
                self.device[0].set_device(self.device[1])
            answer = self._dispatch(name, function, context, given)
        except BaseException as error:
            log.exception("rank %s: the %s handler raised %s", self.rank, name, type(error).__name__)
            return 1
        return int(answer) if name == "clean" and isinstance(answer, int) else 0

    def _dispatch(self, name: str, function: Callable[..., Any], context: Any, given: dict[str, Any]) -> Any:
        if "step" in given and name != "stop":
            self.repair_step = given["step"]
        step, param = given.get("step", 0), given.get("param", "")
        if name == "stop":
            return function(self.args, context)
        if name == "clean":
            return function(given["uce"], self.args, context)
        if name == "rebuild":
            return function(given["ranks"], self.args, context)
        if name in ("repair", "upgrade repair"):
            kind = given["type"]
            info = {"type": given["kinds"], "repair_type": kind, "src": given["src"], "dst": given["dst"],
                    "rank_list": given["ranks"]}  # fmt: skip
            last = context if name == "repair" else param
            return function(step, kind in REBUILDING, given["dst"], info, self.args, last)
        if name == "rollback":
            return function(step, self.args, context)
        if name == "save":
            return function(step, given["info"], self.args, context)
        if name == "rename":
            return function(step, context if self.environment.mindspore else self.args)
        if name == "exit":
            return function(context)
        if name == "sync":
            return function()
        if name == "downgrade":
            return function(given["group"], given["world"], self.args, param)
        if name == "upgrade rebuild":
            return function(given["ranks"], self.args, param)
        return function(step, self.args, param)  # upgrade rollback

    # -- the train function --------------------------------------------------------------------------------------

    def on_finish(self, finish: Callable[[], None]) -> None:
        """Set the function to call when the train function has returned."""
        self._finish = finish

    def decorate(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a train function, which is entered again after a repair. Raises TypeError unless it is callable."""
        if not callable(function):
            raise TypeError(f"func must be a callable, got {type(function).__name__}")

        @functools.wraps(function)
        def train(*args: Any, **kwargs: Any) -> Any:
            given: Any = args if self.export in EXPORTS else list(args)
            self.set_args(given)
            while True:
                try:
                    answer = function(*given, **kwargs)
                except RuntimeError as error:
                    state = self.classify(str(error))
                    if state is None:
                        log.exception("rank %s: the train function raised", self.rank)
                        self.report(ReportState.RS_UNKNOWN)
                        raise
                    log.warning("rank %s: %s: %.300s", self.rank, state[0].name, error)
                except Exception:
                    log.exception("rank %s: the train function raised", self.rank)
                    self.report(ReportState.RS_UNKNOWN)
                    raise
                else:
                    if self._may_leave():
                        self._finish()
                        return answer
                    state = ReportState.RS_NORMAL, ""
                self._repaired(*state)

        return train

    def _may_leave(self) -> bool:
        """Whether a finished rank may leave. It stays while another rank is being repaired, since it may be the donor;
        its train function is then entered again and returns at once."""
        runner = self.runner
        if runner is None:
            return True
        runner.wait(lambda p: p.lock.limit is None or p.lock.stopping or not p.registered)
        return not (runner.machine.lock.stopping and runner.machine.registered)

    def classify(self, text: str) -> tuple[ReportState, str] | None:
        """The state and error code of the first pattern in an exception's text; None for a bug."""
        for pattern, state, handle in self.patterns:
            if pattern not in text:
                continue
            found = CODE.search(text)
            code = found.group(1) if found else ""
            if handle is not None:
                answer = str(handle(text) or "")
                named = ANSWERS | {name: known for name, known, _ in self.patterns}
                state = named.get(answer, state)
                code = code or ("" if answer in named else answer[:15])
            elif pattern == HBM and not can_repair(error_time(text)):
                state = ReportState.RS_UCE_CORRUPTED
            if (state in NEEDS_UCE and not self.uce) or state is ReportState.RS_UNKNOWN or self.runner is None:
                return None
            return state, code
        return None

    def _repaired(self, state: ReportState, code: str) -> None:
        """Report, free memory, wait until the train function may be entered again."""
        assert self.runner is not None
        self.runner.report(state, code)
        if state not in NO_WAIT and self.runner.next_action() is not Action.RETRY:
            self.wait_for_end()
        self.free_memory()
        if self.runner.repair_action() is not Action.RETRY:
            self.wait_for_end()
        self.free_memory()

    def free_memory(self) -> None:
        """Collect garbage (tensors of the broken step) and empty the device's cache."""
        gc.collect()
        if self.device is not None:
            self.device[0].empty_cache()

    def report(self, state: ReportState, code: str = "") -> None:
        """Report; RS_UNKNOWN then waits for the end, at most the action limit."""
        if self.runner is None:
            return
        self.runner.report(state, code)
        if state is ReportState.RS_UNKNOWN and self.runner.machine.registered:
            self.runner.wait(lambda p: p.leaving, self.environment.action_limit)

    def wait_for_end(self) -> None:
        """Wait for the control thread to end the process, within ten seconds."""
        threading.Event().wait(15.0)
        end_process(2, "the end was ordered, and nothing did it")
