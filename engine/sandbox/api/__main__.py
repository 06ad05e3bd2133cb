"""Runs the API server alone: `python -m belay.engine.sandbox.api --port N --data DIR --kubeconfig FILE`."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from belay.engine.errors import BelayError
from belay.engine.sandbox.api.server import ApiServer


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m belay.engine.sandbox.api", description="A Kubernetes API server on loopback."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0 takes a free one")
    parser.add_argument("--data", type=Path, help="folder that keeps the objects; in memory only without it")
    parser.add_argument("--kubeconfig", type=Path, help="file to write the kubeconfig to, once the server listens")
    parser.add_argument("--console", default="", help="where belay server will listen, for the kubeconfig")
    parser.add_argument("--no-auth", action="store_true", help="accept requests without the token")
    return parser.parse_args(argv)


async def _serve(arguments: argparse.Namespace) -> None:
    token = "" if arguments.no_auth else None
    server = ApiServer(host=arguments.host, port=arguments.port, data_dir=arguments.data, token=token)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stopped.set)
    await server.start()
    try:
        if arguments.kubeconfig is not None:
            server.write_kubeconfig(arguments.kubeconfig, arguments.console)
        else:
            sys.stdout.write(server.kubeconfig(arguments.console))
            sys.stdout.flush()
        await stopped.wait()
    finally:
        await server.stop()


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Exit code 1 when the server cannot start."""
    try:
        asyncio.run(_serve(_arguments(argv)))
    except (BelayError, OSError) as error:
        sys.stderr.write(f"api server: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
