"""Numbers of the bus: answers of acknowledgements, and codes of messages.

Values are MindCluster's (component/taskd/taskd/go: toolkit_backend/net/common/code.go, common/constant/const.go).
"""

from __future__ import annotations

from typing import Final

OK: Final = 0
NO_MESSAGE: Final = 4000
NO_HEADER: Final = 4001
NO_POSITION: Final = 4002
BAD_ROLE: Final = 4003
BAD_SERVER_RANK: Final = 4004
BAD_PROCESS_RANK: Final = 4005
BAD_DESTINATION: Final = 4006
CLIENT_ERROR: Final = 4999
NO_BUFFER: Final = 5000
BUFFER_FULL: Final = 5001
NO_ROUTE: Final = 5002
TOO_MANY_MEMBERS: Final = 5003
SERVER_ERROR: Final = 5999
SEND_LOST: Final = 6000
ACK_LOST: Final = 6001
NO_STREAM: Final = 6002
NETWORK_ERROR: Final = 6999

WORDS: Final = {
    OK: "delivered",
    NO_MESSAGE: "the message is empty",
    NO_HEADER: "the message has no header",
    NO_POSITION: "source or destination is missing",
    BAD_ROLE: "the role is none of Mgr, Proxy, Agent, Worker, or not below this member",
    BAD_SERVER_RANK: "the server rank is neither a number, nor a comma list of numbers, nor All",
    BAD_PROCESS_RANK: "a worker's process rank is neither a number, nor a comma list of numbers, nor All",
    BAD_DESTINATION: "the destination is not a single member",
    CLIENT_ERROR: "the sender refused the message (too large, or another job's)",
    NO_BUFFER: "the receiver has ended",
    BUFFER_FULL: "the receiver's buffer stayed full for 10 ms",
    NO_ROUTE: "no route leads to the destination",
    TOO_MANY_MEMBERS: "5,000 members are registered already",
    SERVER_ERROR: "the receiver failed",
    SEND_LOST: "the connection broke while sending",
    ACK_LOST: "no acknowledgement within 3 s",
    NO_STREAM: "the member is not connected",
    NETWORK_ERROR: "the network failed",
}
"""The meaning of each answer, for log messages."""

REGISTER, STATUS, ACTION, KEEP_ALIVE = "REGISTER", "STATUS", "ACTION", "KEEP_ALIVE"
GRACE_EXIT: Final = "GRACE_EXIT"

AGENT_REGISTERED: Final = 0
WORKER_REGISTERED: Final = 101
RESTART_TIMES: Final = 201
FAULT_RANKS: Final = 202
EXIT_AGENT: Final = 203
SWITCH_NIC: Final = 204
STRESS_TEST: Final = 205
RESTART_AGENT: Final = 208
RESTART_WORKERS: Final = 209
START_AGENT: Final = 210
STOP_WORKERS: Final = 213

PROFILING_OFF: Final = 700
PROFILING_COMMUNICATION: Final = 701
PROFILING_DEFAULT: Final = 710
PROFILING_ALL: Final = 711
PROFILING_COMMANDS: Final = (PROFILING_OFF, PROFILING_COMMUNICATION, PROFILING_DEFAULT, PROFILING_ALL)
PROFILING_STATE: Final = 1400
"""State of a worker's profiling: 1400, + 10 default domain on or + 20 failed, + 1 communication on or + 2 failed."""


def explained(code: int) -> str:
    """An answer of the bus in words, with its number."""
    return f"{WORDS.get(code, 'unknown answer')} ({code})"
