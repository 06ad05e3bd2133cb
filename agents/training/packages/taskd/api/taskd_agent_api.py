"""The agent of a pod."""

from agents.training.compat.taskd.agent_api import init_taskd_agent, register_func, start_taskd_agent

__all__ = ["init_taskd_agent", "register_func", "start_taskd_agent"]
