"""Result codes of LLM-DataDist and the exception that carries one.

Numbers are those of the CANN Python package `llm_datadist` (public documentation of LLM-DataDist, LLMStatusCode).
"""

from __future__ import annotations

from enum import IntEnum


class LLMStatusCode(IntEnum):
    """The result of one call or of one link; the value is the native status."""

    LLM_SUCCESS = 0
    LLM_FAILED = 0xFFFFFFFF
    LLM_WAIT_PROCESS_TIMEOUT = 0x5010B001
    LLM_KV_CACHE_NOT_EXIST = 0x5010B002
    LLM_PARAM_INVALID = 0x5010B005
    LLM_NOT_YET_LINK = 0x5010B007
    LLM_ALREADY_LINK = 0x5010B008
    LLM_LINK_FAILED = 0x5010B009
    LLM_UNLINK_FAILED = 0x5010B00A
    LLM_NOTIFY_PROMPT_UNLINK_FAILED = 0x5010B00B
    LLM_CLUSTER_NUM_EXCEED_LIMIT = 0x5010B00C
    LLM_PROCESSING_LINK = 0x5010B00D
    LLM_DEVICE_OUT_OF_MEMORY = 0x5010B00E
    LLM_EXIST_LINK = 0x5010B018
    LLM_FEATURE_NOT_ENABLED = 0x5010B019
    LLM_TIMEOUT = 0x5010B01A
    LLM_LINK_BUSY = 0x5010B01B
    LLM_OUT_OF_MEMORY = 0x5010B01C
    # Nothing here answers with these: scripts that compare with them find them. They stand behind the others, since the
    # place of a code is what travels between ends.
    LLM_REPEAT_REQUEST = 0x5010B003
    LLM_REQUEST_ALREADY_COMPLETED = 0x5010B004
    LLM_ENGINE_FINALIZED = 0x5010B006
    LLM_PREFIX_ALREADY_EXIST = 0x5010B00F
    LLM_PREFIX_NOT_EXIST = 0x5010B010
    LLM_SEQ_LENOVERLIMIT = 0x5010B011
    LLM_NO_FREE_BLOCK = 0x5010B012
    LLM_BLOCKS_OUT_OF_MEMORY = 0x5010B013
    LLM_DEVICE_MEM_ERROR = 507053
    LLM_SUSPECT_REMOTE_ERROR = 507057
    LLM_UNKNOWN_ERROR = -1
    # the name in C++, which older scripts of this package used
    LLM_WAIT_PROC_TIMEOUT = LLM_WAIT_PROCESS_TIMEOUT

    @property
    def recoverable(self) -> bool:
        """Whether a retry may succeed; other failures need a new LLMDataDist."""
        return self not in (LLMStatusCode.LLM_FAILED, LLMStatusCode.LLM_TIMEOUT)


class LLMException(RuntimeError):
    """A call failed; ``status_code`` is its result code."""

    def __init__(self, message: str, status_code: LLMStatusCode = LLMStatusCode.LLM_FAILED) -> None:
        super().__init__(f"{message} ({status_code.name})")
        self.status_code = status_code
