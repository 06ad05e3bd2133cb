"""How containers ended: exit codes, last lines, and the command that shows their logs.

The last lines are what kubelet put into the pod's status: what the container wrote to its termination log, or the end
of its log where the pod asks for that (``terminationMessagePolicy: FallbackToLogsOnError``). Belay leaves pod templates
as their authors wrote them, so without either the log itself has to be read.
"""

from __future__ import annotations

from typing import Final

from belay.engine.log import redact
from belay.engine.model.cluster import Container, Pod

_MOST_LINES: Final = 10


def exit_codes(pod: Pod) -> list[str]:
    """The containers that failed, and how."""
    return [_code(one, one.exit_code) for one in pod.containers if one.exit_code]


def last_lines(pod: Pod) -> dict[str, list[str]]:
    """The last lines of each container that failed, now or before its last start, as far as the status has them."""
    found = {one.name: _lines(one.message) for one in pod.containers if one.exit_code or _failed_before(one)}
    return {name: lines for name, lines in found.items() if lines}


def last_line(pod: Pod) -> str:
    """The very last line of the first container that failed; empty without one."""
    return next((lines[-1] for lines in last_lines(pod).values()), "")


def read_logs(pod: Pod) -> list[str]:
    """The commands that show how each container of a failed pod ended."""
    failed = [one for one in pod.containers if one.exit_code] or list(pod.containers[:1])
    return [logs_command(pod, one.name) for one in failed] or [logs_command(pod)]


def restarted(pod: Pod) -> list[str]:
    """What is said of containers that run again after a failure: how often, how they ended, and where to look."""
    return [
        f"container {one.name} was started again {_times(one.restarts)}, it ended with exit code "
        f"{one.last_exit_code}{f' ({one.reason})' if one.reason else ''}: "
        f"`{logs_command(pod, one.name, previous=True)}`"
        for one in pod.containers
        if _failed_before(one)
    ]


def logs_command(pod: Pod, container: str = "", *, previous: bool = False) -> str:
    """``kubectl logs`` for one container; ``previous``: of its run before the present one."""
    which = f" -c {container}" if container and len(pod.containers) > 1 else ""
    return f"kubectl logs -n {pod.namespace} {pod.name}{which}{' --previous' if previous else ''}"


def _failed_before(container: Container) -> bool:
    return container.exit_code is None and bool(container.last_exit_code) and container.restarts > 0


def _code(container: Container, code: int | None) -> str:
    # "Error" stands with every failure; OOMKilled, DeadlineExceeded and the like say more
    reason = f" ({container.reason})" if container.reason not in ("", "Error") else ""
    return f"{container.name}: {code}{reason}"


def _lines(message: str) -> list[str]:
    lines = [line.rstrip() for line in redact(message).splitlines() if line.strip()]
    return lines[-_MOST_LINES:]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
