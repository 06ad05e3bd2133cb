"""LLM-DataDist links: clusters of prefill and decode pods link to each other and move KV blocks. See README.md."""

from belay.agents.datadist.cache_manager import CacheManager
from belay.agents.datadist.caches import BlocksCacheKey, Cache, CacheDesc, CacheKeyByIdAndIndex, DataType, Placement
from belay.agents.datadist.clusters import LLMClusterInfo
from belay.agents.datadist.config import LLMConfig, LLMRole
from belay.agents.datadist.datadist import LLMDataDist
from belay.agents.datadist.status import LLMException, LLMStatusCode

__all__ = [
    "BlocksCacheKey", "Cache", "CacheDesc", "CacheKeyByIdAndIndex", "CacheManager", "DataType", "LLMClusterInfo",
    "LLMConfig", "LLMDataDist", "LLMException", "LLMRole", "LLMStatusCode", "Placement",
]  # fmt: skip
