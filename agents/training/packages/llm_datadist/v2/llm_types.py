"""Caches and their keys, where scripts import them from."""

from belay.agents.datadist import BlocksCacheKey, Cache, CacheDesc, CacheKeyByIdAndIndex, Placement

__all__ = ["BlocksCacheKey", "Cache", "CacheDesc", "CacheKeyByIdAndIndex", "Placement"]
