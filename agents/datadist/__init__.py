"""LLM-DataDist links: clusters of prefill and decode pods link to each other and move KV blocks. See README.md."""

from agents.datadist.cache_manager import CacheManager
from agents.datadist.caches import BlocksCacheKey, Cache, CacheDesc, CacheKeyByIdAndIndex, DataType, Placement
from agents.datadist.clusters import LLMClusterInfo
from agents.datadist.config import LLMConfig, LLMRole
from agents.datadist.datadist import LLMDataDist
from agents.datadist.status import LLMException, LLMStatusCode

__all__ = [
    "BlocksCacheKey", "Cache", "CacheDesc", "CacheKeyByIdAndIndex", "CacheManager", "DataType", "LLMClusterInfo",
    "LLMConfig", "LLMDataDist", "LLMException", "LLMRole", "LLMStatusCode", "Placement",
]  # fmt: skip
