"""The proxy of a pod."""

from belay.agents.training.compat.taskd.proxy_api import destroy_taskd_proxy, init_taskd_proxy

__all__ = ["destroy_taskd_proxy", "init_taskd_proxy"]
