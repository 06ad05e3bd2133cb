"""The functions of `mindio_ttp.framework_ttp` besides those of the controller: one processor per process.

Names, parameters and limits are those of mindio_ttp 7.3.0 (docs/zh/scheduling, 06_api/09_mindio).
"""

from __future__ import annotations

import atexit
import gc
import os
import uuid
from collections.abc import Callable
from typing import Any

from belay.agents.training.compat.mindio import controller_api
from belay.agents.training.compat.mindio.controller_api import resolve, tft_destroy_controller, truth, whole
from belay.agents.training.compat.mindio.environment import Environment, log, start_log
from belay.agents.training.compat.mindio.framework import EXPORTS, Framework
from belay.agents.training.compat.mindio.processor_runner import ProcessorRunner, end_process
from belay.agents.training.compat.mindio.security import context
from belay.agents.training.compat.tft.constants import MAX_RANKS, ReportState
from belay.agents.training.compat.tft.processor_commands import ProcessorSettings
from belay.agents.training.compat.tft.replicas import ReplicaGroup

CONNECT_WAIT = 1.0
REGISTER_WAIT = 30.0
REPAIR_NAMES = {"dump": "dump", "retry": "retry", "recover": "recover", "migration": "recover"}

framework = Framework(Environment.read())
_wanted: dict[str, Any] = {}


def _runner() -> ProcessorRunner | None:
    return framework.runner


def tft_init_processor(
    rank: int, world_size: int, enable_local_copy: bool, enable_tls: bool = True, tls_info: str = "",
    enable_uce: bool = True, enable_arf: bool = False, enable_zit: bool = False,
) -> None:  # fmt: skip
    """Configure the processor of this rank. A rank or world size out of range ends the process with 2; other wrong
    arguments raise ValueError.
    """
    start_log()
    framework.environment = Environment.read()
    try:
        whole("world_size", world_size, 1, MAX_RANKS)
        whole("rank", rank, 0, world_size - 1)
    except ValueError as error:
        end_process(2, f"tft_init_processor: {error}")
    _wanted.clear()
    _wanted.update(
        rank=rank, world=world_size, local_copy=truth("enable_local_copy", enable_local_copy),
        uce=truth("enable_uce", enable_uce), arf=truth("enable_arf", enable_arf), zit=truth("enable_zit", enable_zit),
    )  # fmt: skip
    tls = context(False, tls_info, controller_api.host.decrypt) if truth("enable_tls", enable_tls) else None
    framework.rank, framework.uce = rank, enable_uce
    framework.catch_signals()
    framework.find_device()
    # modules that are there by now stay: collections in a repair then visit what training has made, not half a million
    # objects of PyTorch
    gc.freeze()
    framework.on_finish(_finished)
    _wanted["tls"] = tls


def tft_start_processor(master_ip: str, port: int, local_ip: str = "") -> None:
    """Connect to the controller and register; failing ends the process with 2. Raises RuntimeError before init."""
    if not _wanted:
        raise RuntimeError("tft_start_processor before tft_init_processor: who this rank is is not known")
    if framework.runner is not None:
        log.info("the processor of this process is started already")
        return
    environment = framework.environment
    try:
        address = resolve(master_ip)
        if local_ip:
            resolve(local_ip)
        whole("port", port, 1024, 65535)
    except (OSError, ValueError) as error:
        end_process(2, f"tft_start_processor: {error}")
    target = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    settings = ProcessorSettings(
        rank=_wanted["rank"], world=_wanted["world"], session=uuid.uuid4().hex, job=environment.task,
        local_copy=_wanted["local_copy"], uce=_wanted["uce"], arf=_wanted["arf"], zit=_wanted["zit"],
        controller=controller_api.host.address, addresses=(target,), action_limit=float(environment.action_limit),
        retry_wait=CONNECT_WAIT,
    )  # fmt: skip
    runner = ProcessorRunner(settings, framework.call, _wanted["tls"])
    framework.runner = runner
    if not runner.start(environment.retry_times * CONNECT_WAIT, REGISTER_WAIT):
        reason = runner.machine.refused or f"no answer after {environment.retry_times} tries"
        end_process(2, f"rank {settings.rank} cannot register at the controller {target}: {reason}")


def tft_destroy_processor() -> None:
    """Leave the controller; without a processor nothing happens."""
    runner, framework.runner = framework.runner, None
    if runner is not None:
        runner.leave()


def _finished() -> None:
    if framework.rank == 0 and not os.environ.get("MINDX_TASK_ID"):
        tft_destroy_processor()
        tft_destroy_controller()
    tft_destroy_processor()


def tft_start_updating_os(backup_step: int = -1) -> None:
    """The optimizer's state is about to change; waits while ranks are held. Raises RuntimeError FORCE STOP when this
    rank was stopped meanwhile, RuntimeError when the state is being saved, ValueError for a wrong step.
    """
    whole("backup_step", backup_step, -1, 2**63 - 1)
    if (runner := _runner()) is not None:
        runner.start_update(backup_step)


def tft_start_copy_os() -> None:
    """The local copy is being made."""
    if (runner := _runner()) is not None:
        runner.use(lambda p: p.lock.copy())


def tft_end_updating_os(step: int) -> None:
    """The state is that of ``step`` (from 1), whole; waits while ranks are held at it. Raises ValueError."""
    whole("step", step, 1, 2**63 - 2)
    if (runner := _runner()) is not None:
        runner.end_update(step)


def tft_reset_limit_step() -> None:
    """Release a thread that is held at a finished step."""
    if (runner := _runner()) is not None:
        runner.use(lambda p: p.lock.release())


def tft_pause_train(cur_step: int) -> None:
    """Wait while training is paused. Raises RuntimeError STEP FINISH in a hot switch, FORCE STOP for a fault."""
    if type(cur_step) is not int or cur_step < 0:
        log.error("tft_pause_train is ignored: cur_step must be a whole number from 0, got %.40r", cur_step)
        return
    if (runner := _runner()) is not None:
        runner.pause(cur_step)


def tft_set_optimizer_replica(rank: int, replica_info: list[dict[str, Any]]) -> None:
    """Declare the optimizer state of this rank: per kind (ATTENTION, MOE) group, copies, shift. Raises ValueError."""
    whole("rank", rank, 0, MAX_RANKS - 1)
    if not isinstance(replica_info, list) or not replica_info:
        raise ValueError(f"replica_info must be a list of {{rank_list, replica_cnt, replica_shift}}, rank {rank}")
    groups = []
    for index, info in enumerate(replica_info):
        if not isinstance(info, dict):
            raise ValueError(f"replica_info[{index}] of rank {rank} must be a dict, got {type(info).__name__}")
        ranks, copies, shift = info.get("rank_list"), info.get("replica_cnt"), info.get("replica_shift")
        if not isinstance(ranks, list) or not all(type(item) is int for item in ranks):
            raise ValueError(f"replica_info[{index}].rank_list of rank {rank} must be a list of whole numbers")
        if type(copies) is not int or type(shift) is not int:
            raise ValueError(f"replica_info[{index}] of rank {rank} needs whole numbers replica_cnt and replica_shift")
        if rank not in ranks:
            raise ValueError(f"replica_info[{index}].rank_list does not hold its own rank {rank}")
        if framework.environment.mindspore and copies != len(ranks):
            raise ValueError(f"replica_info[{index}].replica_cnt must be {len(ranks)} with MindSpore, got {copies}")
        groups.append(ReplicaGroup(index, tuple(sorted(set(ranks))), copies, max(0, shift)))
    if (runner := _runner()) is None:
        raise RuntimeError("tft_set_optimizer_replica before tft_start_processor: call that first")
    runner.use(lambda p: p.set_replicas(tuple(groups)))


def tft_set_dp_group_info(rank: int, dp_rank_list: list[int]) -> None:
    """Declare the original data-parallel group, which elastic training needs. Raises ValueError."""
    whole("rank", rank, 0, MAX_RANKS - 1)
    if not isinstance(dp_rank_list, list) or not all(type(item) is int for item in dp_rank_list):
        raise ValueError(f"dp_rank_list of rank {rank} must be a list of whole numbers")
    if rank not in dp_rank_list:
        raise ValueError(f"dp_rank_list does not hold its own rank {rank}")
    if (runner := _runner()) is None:
        raise RuntimeError("tft_set_dp_group_info before tft_start_processor: call that first")
    runner.use(lambda p: p.set_dp_group(tuple(dp_rank_list)))


def tft_set_step_args(args: Any) -> None:
    """Set the arguments of callbacks; None is ignored, and with MindSpeed the train function's arguments stay."""
    if args is None or framework.export in EXPORTS:
        log.warning("tft_set_step_args is ignored")
        return
    framework.set_args(args)


def tft_exception_handler(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the train function: its exceptions are reported and repaired, and it is entered again."""
    return framework.decorate(func)


def tft_report_error(error_type: Any, error_code: str = "") -> None:
    """Report a state (value of ReportState) with a code below 16 characters; RS_UNKNOWN waits for the end. Raises
    ValueError.
    """
    try:
        state = error_type if isinstance(error_type, ReportState) else ReportState(error_type)
    except ValueError:
        raise ValueError(f"error_type must be a value of ReportState (0..8), got {error_type!r:.40}") from None
    if not isinstance(error_code, str) or len(error_code) > 15:
        raise ValueError("error_code must be a text below 16 characters")
    framework.report(state, error_code)


def tft_report_load_ckpt_step(step: int) -> None:
    """Report the step of the loaded periodic checkpoint. Raises ValueError."""
    whole("step", step, 1, 2**63 - 2)
    if (runner := _runner()) is not None:
        runner.use(lambda p: p.load_step(step))


def tft_wait_next_action() -> int:
    """Wait until links are stopped and cleaned (a new rank: until its groups are made). 0 continue, 1 leave."""
    runner = _runner()
    return 0 if runner is None else runner.next_action().value


def tft_wait_repair_action() -> int:
    """Wait until state is repaired and rolled back. 0 continue, 1 leave."""
    runner = _runner()
    return 0 if runner is None else runner.repair_action().value


def tft_get_repair_step() -> int:
    """The step that was repaired last."""
    return framework.repair_step


def tft_get_repair_type() -> str:
    """The current repair: dump, retry, recover, otherwise unknow."""
    runner = _runner()
    name = "" if runner is None else runner.use(lambda p: p.ordered)
    return REPAIR_NAMES.get(name, "unknow")


def tft_is_reboot_node() -> bool:
    """Whether this process replaces a lost one."""
    runner = _runner()
    return runner is not None and runner.machine.repair_id != 0


def tft_get_reboot_type() -> str:
    """How this process replaces a lost one: hot switch or arf."""
    runner = _runner()
    return "hot switch" if runner is not None and runner.machine.hot else "arf"


def set_mindio_export_version(framework_type: str) -> None:
    """The adaptation in use, MindSpeed or MindSpeed-LLM: links are stopped and cleaned before a dump. Raises
    ValueError for another one.
    """
    if framework_type not in EXPORTS:
        raise ValueError(f"framework {framework_type!r:.40} is not supported; known are {', '.join(EXPORTS)}")
    framework.export = framework_type
    os.environ["TTP_STOP_CLEAN_BEFORE_DUMP"] = "1"


def get_mindio_export_version() -> str | None:
    """The adaptation that set_mindio_export_version named; None before."""
    return framework.export


def get_device() -> Any:
    """The index of the accelerator that this rank uses; None on CPU."""
    return None if framework.device is None else framework.device[1]


def tft_register_exception_handler(fault_pattern: str, fault_type: str, fault_handle: Callable[[str], str]) -> None:
    """Register a text of exceptions, the state that it means, and a function of the whole text. That function answers
    the name of the pattern, or of another one, such as OTHER, whose state is reported instead. The error code is the
    number after `device error type` in the text; without one, any other answer. Raises TypeError, ValueError.
    """
    framework.register_pattern(fault_pattern, fault_type, fault_handle)


def tft_register_decrypt_handler(decryptor: Callable[[str], str] | None) -> None:
    """Register the function that decrypts tlsPkPwd; None is accepted. Raises TypeError."""
    if decryptor is not None and not callable(decryptor):
        raise TypeError(f"decryptor must be a callable, got {type(decryptor).__name__}")
    controller_api.host.decrypt = decryptor


def _registration(name: str) -> Callable[..., None]:
    def register(func: Callable[..., Any], ctx: Any = None) -> None:
        framework.register(name, func, ctx)

    register.__doc__ = f"The framework's {name} handler. Raises TypeError unless it is callable."
    return register


tft_register_rename_handler = _registration("rename")
tft_register_save_ckpt_handler = _registration("save")
tft_register_exit_handler = _registration("exit")
tft_register_stop_handler = _registration("stop")
tft_register_clean_handler = _registration("clean")
tft_register_rebuild_group_handler = _registration("rebuild")
tft_register_repair_handler = _registration("repair")
tft_register_rollback_handler = _registration("rollback")
tft_register_stream_sync_handler = _registration("sync")
tft_register_zit_downgrade_rebuild_handler = _registration("downgrade")
tft_register_zit_upgrade_rebuild_handler = _registration("upgrade rebuild")
tft_register_zit_upgrade_repair_handler = _registration("upgrade repair")
tft_register_zit_upgrade_rollback_handler = _registration("upgrade rollback")

atexit.register(tft_destroy_processor)
