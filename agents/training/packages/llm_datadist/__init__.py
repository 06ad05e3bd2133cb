"""The names of CANN's package `llm_datadist` over Belay's TCP links, for processes without CANN's own.

Where CANN's package is installed and first on the path, scripts get that one.
"""

from belay.agents.datadist import (
    BlocksCacheKey,
    Cache,
    CacheDesc,
    CacheKeyByIdAndIndex,
    CacheManager,
    DataType,
    LLMClusterInfo,
    LLMConfig,
    LLMDataDist,
    LLMException,
    LLMRole,
    LLMStatusCode,
    Placement,
)

LlmConfig = LLMConfig

_NATIVE = {
    "CacheKey": "keys of requests live in the memory pools of the chip: name rows by CacheKeyByIdAndIndex",
    "CacheTask": "transfers layer by layer belong to the chip: use push_blocks",
    "KvCache": "it belongs to the first version of the interface: use register_blocks_cache",
    "KvCacheManager": "it belongs to the first version of the interface: use LLMDataDist.cache_manager",
    "LayerSynchronizer": "transfers layer by layer belong to the chip: use push_blocks",
    "MemInfo": "memory of the chip is remapped by CANN alone",
    "Memtype": "memory of the chip is remapped by CANN alone",
    "RegisterMemStatus": "links by rank table belong to HCCL: use link_clusters",
    "Status": "it belongs to the first version of the interface: catch LLMException",
    "Tensor": "it belongs to the first version of the interface: register addresses or buffers",
    "TensorDesc": "it belongs to the first version of the interface: use CacheDesc",
    "TransferConfig": "transfers layer by layer belong to the chip: use push_blocks",
    "TransferWithCacheKeyConfig": "transfers layer by layer belong to the chip: use push_blocks",
}


def __getattr__(name: str) -> object:
    reason = _NATIVE.get(name)
    if reason is None:
        raise AttributeError(f"module 'llm_datadist' has no attribute {name!r}")
    raise ImportError(f"llm_datadist.{name} needs CANN's own package: {reason}")


__all__ = [
    "BlocksCacheKey", "Cache", "CacheDesc", "CacheKeyByIdAndIndex", "CacheManager", "DataType", "LLMClusterInfo",
    "LLMConfig", "LLMDataDist", "LLMException", "LLMRole", "LLMStatusCode", "LlmConfig", "Placement",
]  # fmt: skip
