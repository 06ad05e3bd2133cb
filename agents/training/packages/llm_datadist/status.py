"""Result codes, where scripts import them from."""

from belay.agents.datadist import LLMException, LLMStatusCode

__all__ = ["LLMException", "LLMStatusCode"]
