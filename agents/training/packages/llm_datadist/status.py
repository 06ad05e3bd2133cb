"""Result codes, where scripts import them from."""

from agents.datadist import LLMException, LLMStatusCode

__all__ = ["LLMException", "LLMStatusCode"]
