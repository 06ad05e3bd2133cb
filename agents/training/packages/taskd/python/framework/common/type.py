"""Keys and defaults of agents' and proxies' configurations, for launchers that start TaskD (MindSpore's msrun)."""

LOCAL_HOST = "127.0.0.1"
CONFIG_UPSTREAMIP_KEY = "UpstreamAddr"
CONFIG_LISTENIP_KEY = "ListenAddr"
CONFIG_UPSTREAMPORT_KEY = "UpstreamPort"
CONFIG_LISTENPORT_KEY = "ListenPort"
CONFIG_SERVERRANK_KEY = "ServerRank"
CONFIG_FRAMEWORK_KEY = "Framework"

__all__ = [
    "CONFIG_FRAMEWORK_KEY", "CONFIG_LISTENIP_KEY", "CONFIG_LISTENPORT_KEY", "CONFIG_SERVERRANK_KEY",
    "CONFIG_UPSTREAMIP_KEY", "CONFIG_UPSTREAMPORT_KEY", "LOCAL_HOST",
]  # fmt: skip
