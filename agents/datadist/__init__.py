"""LLM-DataDist links: clusters of prefill and decode pods link to each other and move KV blocks. See README.md."""

from agents.datadist.caches import BlocksCacheKey, Cache, CacheDesc, DataType, Placement
from agents.datadist.clusters import LLMClusterInfo
from agents.datadist.config import LLMConfig, LLMRole
from agents.datadist.datadist import CacheManager, LLMDataDist
from agents.datadist.status import LLMException, LLMStatusCode

__all__ = [
    "BlocksCacheKey", "Cache", "CacheDesc", "CacheManager", "DataType", "LLMClusterInfo", "LLMConfig", "LLMDataDist",
    "LLMException", "LLMRole", "LLMStatusCode", "Placement",
]  # fmt: skip
