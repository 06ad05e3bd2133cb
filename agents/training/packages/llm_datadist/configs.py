"""Settings, where scripts import them from."""

from belay.agents.datadist import LLMClusterInfo, LLMConfig, LLMRole

LlmConfig = LLMConfig

__all__ = ["LLMClusterInfo", "LLMConfig", "LLMRole", "LlmConfig"]
