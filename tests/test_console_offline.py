"""`belay console` off loopback: who may look is said by the same settings as for `belay server`."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp

from tests.console_clusters import large, write


def test_off_loopback_the_settings_say_who_may_look(tmp_path: Path) -> None:
    write(large(1), tmp_path / "cluster.json")
    environment = {
        **os.environ, "BELAY_CONSOLE_HOSTS": "console.example", "BELAY_CONSOLE_PROXY_HEADER": "X-Forwarded-User",
        "BELAY_CONSOLE_PROXIES": "127.0.0.1",
    }  # fmt: skip
    command = [sys.executable, "-m", "belay.engine.cli", "console", "--cluster", str(tmp_path / "cluster.json")]
    with subprocess.Popen(
        [*command, "--listen", "0.0.0.0:0"], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            said = next(line for line in process.stdout if line.startswith("console: "))
            port = re.findall(r":(\d+)/", said)[0]
            assert asyncio.run(statuses(int(port))) == [200, 401, 421]
        finally:
            process.send_signal(signal.SIGTERM)


async def statuses(port: int) -> list[int]:
    """Of the proxy's user, of one without a name, and under a name of elsewhere."""
    callers = (
        {"Host": "console.example", "X-Forwarded-User": "ann"},
        {"Host": "console.example"},
        {"Host": "evil.example", "X-Forwarded-User": "ann"},
    )
    found = []
    async with aiohttp.ClientSession() as http:
        for headers in callers:
            async with http.get(f"http://127.0.0.1:{port}/api/v1/state", headers=headers) as reply:
                found.append(reply.status)
    return found
