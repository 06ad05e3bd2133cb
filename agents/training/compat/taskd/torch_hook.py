"""The changes of `import taskd.python.adaptor.patch` to torch's elastic agent: it obeys the job's manager.

The import is in `torch/distributed/run.py`; the changes are those of component/taskd/taskd/python/adaptor/patch.
Without a MindCluster job (MINDX_TASK_ID is not set) and without a manager, torch's own agent runs at once, unchanged. A
script that imports ``belay_training`` runs under Belay's node agent.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import socket
from typing import Any, Final

from belay.agents.training.clusterd import constants
from belay.agents.training.compat import logs

log = logging.getLogger(__name__)

MAX_RESTARTS: Final = 32767
LONE_JOIN_SECONDS: Final = 5.0
"""Seconds to join a manager where no job is named."""
ANSWER_SECONDS: Final = 0.3
"""Seconds for a manager's port to accept a connection."""
_MARK: Final = "_listens_to_manager"
_restarts_asked: int | None = None
_launched: Any = None
"""The settings of the launch."""


def apply() -> None:
    """Patch torch. A second call changes nothing. Raises ImportError without torch."""
    api = importlib.import_module("torch.distributed.elastic.agent.server.api")
    if hasattr(api.SimpleElasticAgent, _MARK):
        return
    local = importlib.import_module("torch.distributed.elastic.agent.server.local_elastic_agent")
    processes: Any = importlib.import_module("torch.distributed.elastic.multiprocessing.api")
    launcher: Any = importlib.import_module("torch.distributed.launcher.api")
    ranks = importlib.import_module("belay.agents.training.compat.taskd.torch_ranks")
    own_loop, own_shutdown, launch = (
        api.SimpleElasticAgent._invoke_run,
        local.LocalElasticAgent._shutdown,
        launcher.launch_agent,
    )
    own = {
        name: getattr(local.LocalElasticAgent, name)
        for name in ("_restart_workers", "_start_workers", "_stop_workers", "_monitor_workers")
    }
    own_signal = processes._get_default_signal

    def unless_alone(name: str, function: Any) -> Any:
        # without a manager torch's own agent starts, watches and restarts, with a new rendezvous for the whole pod
        def chosen(self: Any, *given: Any, **named: Any) -> Any:
            found = own[name] if getattr(self, "_lone", False) else function
            return found(self, *given, **named)

        return chosen

    def invoke_run(self: Any, role: str = "default") -> Any:
        def alone() -> Any:
            processes._get_default_signal = own_signal
            return own_loop(self, role)

        return listen(self, alone)

    def shutdown(self: Any, death_sig: signal.Signals = signal.SIGTERM, *more: Any, **named: Any) -> None:
        found = ranks.contexts(self)
        found.close(list(found.running), death_sig, int(named.get("timeout", 30)))
        found.warm.close()
        own_shutdown(self, death_sig, *more, **named)

    def launch_agent(config: Any, *more: Any, **named: Any) -> Any:
        global _restarts_asked, _launched
        _restarts_asked, _launched = config.max_restarts, config
        if config.max_restarts == 0:
            config.max_restarts = MAX_RESTARTS
        return launch(config, *more, **named)

    setattr(api.SimpleElasticAgent, _MARK, True)
    api.SimpleElasticAgent._invoke_run = invoke_run
    for name in own:
        setattr(local.LocalElasticAgent, name, unless_alone(name, getattr(ranks, name.removeprefix("_"))))
    local.LocalElasticAgent._shutdown = shutdown
    # the context of a rank is closed after the rank has ended: there is nothing to wait for
    processes._get_default_signal = lambda: signal.SIGKILL
    launcher.launch_agent = launch_agent
    wrap_rendezvous()


def protected(agent: Any) -> Any:
    """The result of a script that protects itself, under Belay's node agent; None for any other. Exits with the code of
    ``belay train`` where that is not 0."""
    from belay.agents.training.compat.taskd import native_script, torch_ranks, warm_ranks

    spec = agent._worker_group.spec
    argv = warm_ranks.script_of(spec.entrypoint, spec.args)
    options = None if _launched is None else native_script.possible(_launched, argv)
    if options is None:
        return None
    if code := native_script.run(options, _launched.run_id):
        raise SystemExit(code)
    return torch_ranks.succeeded(agent, node_rank(agent))


def listen(agent: Any, alone: Any) -> Any:
    """Serve the pod's proxy, join the bus as its agent, run until the end; ``alone`` runs torch's own agent."""
    if (result := protected(agent)) is not None:
        return result
    job = os.environ.get("MINDX_TASK_ID", "")
    if not job and not manager_answers():
        return leave_to_torch(agent, alone)

    from belay.agents.training.compat.taskd import bus_proxy
    from belay.agents.training.compat.taskd.bus_agent import JOIN_SECONDS, BusAgent, NoManager
    from belay.agents.training.compat.taskd.torch_ranks import TorchProcesses

    rank = os.environ.get("RANK") or str(getattr(agent._worker_group.spec, "node_rank", None) or node_rank(agent))
    logs.to_file(f"agent-{rank}.log")
    proxy = start_proxy(rank, job)
    os.environ["RESTART_FAULT_PROCESS_TYPE"] = "pod"
    upstream = bus_proxy.address(bus_proxy.HOST, bus_proxy.port(os.environ))
    bus = BusAgent(int(rank), upstream, TorchProcesses(agent, {}), job=job)
    try:
        return bus.run(join=JOIN_SECONDS if job else LONE_JOIN_SECONDS)
    except NoManager as error:
        if job:
            raise
        log.warning("%s; MINDX_TASK_ID is not set, so torch's own agent continues", error)
        return leave_to_torch(agent, alone)
    finally:
        if proxy is not None:
            proxy.close()


def manager_answers() -> bool:
    """Whether a manager may be there for a launch that names no job: it is announced, or its port accepts."""
    if os.environ.get("TASKD_PROCESS_ENABLE") == "on":
        return True
    port = int(constants.own_port(os.environ, "TASKD_MANAGER_PORT", constants.PORT))
    try:
        with socket.create_connection((manager_host(), port), ANSWER_SECONDS):
            return True
    except OSError:
        return False


def leave_to_torch(agent: Any, alone: Any) -> Any:
    """Run torch's own agent."""
    agent._lone = True
    if _restarts_asked is not None:
        # the large number of restarts is for the manager; torch's own loop uses the requested number
        agent._worker_group.spec.max_restarts = agent._remaining_restarts = _restarts_asked
    return alone()


def node_rank(agent: Any) -> int:
    """The pod's number: the rank of a static rendezvous, else 0."""
    handler = agent._worker_group.spec.rdzv_handler
    return int(getattr(handler, "rank", 0) or 0)


def manager_host() -> str:
    """Where the job's manager listens."""
    local = os.environ.get("LOCAL_PROXY_ENABLE") == "on"
    return "127.0.0.1" if local else os.environ.get("MASTER_ADDR") or "127.0.0.1"


def start_proxy(rank: str, job: str) -> Any:
    """Start the pod's proxy; None when it is shared or cannot start, with the reason in the log."""
    from belay.agents.training.compat.taskd import bus_proxy

    try:
        return bus_proxy.start(
            bus_proxy.address(bus_proxy.HOST, bus_proxy.port(os.environ)),
            bus_proxy.address(manager_host(), bus_proxy.manager_port(os.environ)), rank, job,
        )  # fmt: skip
    except OSError as error:
        log.error("no proxy: %s", error)
        return None


def wrap_rendezvous() -> None:
    """Give the rendezvous of each attempt a prefix of its own in the store."""
    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
    own = c10d.rendezvous
    if getattr(own, _MARK, False):
        return

    def rendezvous(*args: Any, **named: Any) -> Any:
        for store, rank, world in own(*args, **named):
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            yield c10d.PrefixStore(f"/worker/attempt_{attempt}", store), rank, world

    setattr(rendezvous, _MARK, True)
    c10d.rendezvous = rendezvous
