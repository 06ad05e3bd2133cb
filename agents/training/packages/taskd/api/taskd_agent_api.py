"""The agent of a pod."""

from belay.agents.training.compat.taskd.agent_api import init_taskd_agent, register_func, start_taskd_agent

__all__ = ["init_taskd_agent", "register_func", "start_taskd_agent"]
