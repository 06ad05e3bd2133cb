"""`belay console`: the console alone, on one's own machine: of a live cluster, a recording, or a file.

A live cluster is read with the rights of the kubeconfig; files never change, so nothing is followed.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web

from belay.engine import log
from belay.engine.errors import BelayError, InputError
from belay.engine.kube import Kube
from belay.engine.serve.console.answers import Answers, Unanswered
from belay.engine.serve.console.changes import ChangeStream
from belay.engine.serve.console.document import StateDocument
from belay.engine.serve.console.follower import StatusFollower
from belay.engine.serve.console.history import PastMoments, one_recording
from belay.engine.serve.console.layout import Layout
from belay.engine.serve.console.questions import DOCUMENT_SECONDS, AskedCluster, Questions
from belay.engine.serve.console.routes import PREFIXES, Console, guarded
from belay.engine.serve.console.viewers import Viewers, rules
from belay.engine.serve.slow_connections import SlowConnections

_SHUTDOWN_SECONDS: Final = 2.0
_LOADING_SECONDS: Final = 10 * DOCUMENT_SECONDS


class AccessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``BELAY_CONSOLE_HOSTS``, ``_PROXY_HEADER`` and ``_PROXIES``, as `belay server` takes them."""

    hosts: str = ""
    proxy_header: str = ""
    proxies: str = ""


class ConsoleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown, and where: ``cluster`` is a file or ``live``, ``recording`` a file or a folder of them."""

    cluster: str = ""
    recording: str = ""
    access: AccessSettings = AccessSettings()
    desired: str = ""
    policies: tuple[str, ...] = ()
    repository: str = ""
    listen: str = "127.0.0.1:8081"
    kubeconfig: str = ""


class _Encoded(StateDocument, frozen=True):
    """A document that another process derived, and that never changes."""

    data: bytes = b""

    def encoded(self) -> bytes:
        return self.data


def main(options: ConsoleOptions, answers: Sequence[str], say: Callable[[str], object]) -> int:
    """Serve until SIGTERM or SIGINT.

    Raises:
        BelayError: the cluster does not answer, or a file cannot be read. InputError: an option is wrong.
    """
    if options.cluster not in ("", "live") and options.recording:
        raise InputError("give one of --cluster and --recording")
    log.configure("WARNING", "console")
    asyncio.run(_serve(options, answers, say))
    return 0


async def _serve(options: ConsoleOptions, command: Sequence[str], say: Callable[[str], object]) -> None:
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    async with AsyncExitStack() as stack:
        answers, changes = Answers(command), ChangeStream()
        stack.push_async_callback(answers.close)
        stack.callback(changes.close)
        data = stack.enter_context(tempfile.TemporaryDirectory(prefix="belay-console-"))
        kube: Kube | None = None
        if options.recording:
            source, past, first = _recorded(Path(options.recording), options)
        elif options.cluster not in ("", "live"):
            past, first = PastMoments(), _file(options)
            source = first
        else:
            kube = await stack.enter_async_context(Kube.from_config(options.kubeconfig or None))
            past, first = PastMoments(), None
            source = {"kind": "live", "kubeconfig": options.kubeconfig}
        asked = AskedCluster(source=source, repository=options.repository, data=data)
        questions = Questions(changes, past, asked, answers)
        if first is not None:
            say("reading …")
            changes.publish(await _read(answers, first))
        host, port = _address(options.listen)
        free = host in ("127.0.0.1", "::1", "localhost")
        kind = "cluster" if kube is not None else "recording" if options.recording else "cluster file"
        access = options.access
        may = rules(free=free, hosts=access.hosts, proxy_header=access.proxy_header, proxies=access.proxies)
        console = Console(changes, Viewers(may, kube), source=kind, live=kube is not None, questions=questions)
        app = web.Application(middlewares=[guarded, _looking(console)])
        app.router.add_get("/", _to_console)
        console.add_to(app)
        runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=_SHUTDOWN_SECONDS,
            handler_cancellation=True,  # a question whose caller left is not answered
        )  # fmt: skip
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        stack.callback(changes.close)
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            text = f"cannot listen: {error.strerror or error}"
            raise InputError(text, where=f"--listen {options.listen}", hint="Choose another port.") from error
        slow = SlowConnections()
        slow.streaming = console.streaming
        tasks = [asyncio.create_task(slow.run(lambda: runner.server.connections if runner.server else ()))]
        if kube is not None:
            follower = StatusFollower(kube, changes, commits=questions.commits, published=past.see)
            tasks.append(asyncio.create_task(follower.run()))
        tasks.append(asyncio.create_task(answers.end_idle_ones()))
        if options.recording and questions.spare:
            questions.ahead.reach = None  # the folder is what the person wants to see, all of it
            tasks.append(asyncio.create_task(questions.ahead.run()))
        for task in tasks:
            stack.callback(task.cancel)
        shown = f"[{host}]" if ":" in host else host
        say(f"console: http://{shown}:{runner.addresses[0][1]}/console/")
        await stop.wait()


def _recorded(path: Path, options: ConsoleOptions) -> tuple[dict[str, Any], PastMoments, dict[str, Any]]:
    if path.is_dir():
        past = PastMoments(path)
        moments = past.moments()
        if not moments:
            raise InputError("holds no recordings", where=str(path), hint="They end with .belay.json.gz.")
        file = past.recording(moments[-1].id)
    elif path.is_file():
        past = one_recording(path)
        moments, file = past.moments(), path
    else:
        raise InputError("does not exist", where=str(path))
    source = {
        "kind": "recording", "path": str(file), "identity": moments[-1].id, "policies": list(options.policies),
    }  # fmt: skip
    return source, past, source


def _file(options: ConsoleOptions) -> dict[str, Any]:
    return {
        "kind": "cluster", "path": options.cluster, "desired": options.desired, "policies": list(options.policies),
    }  # fmt: skip


async def _read(answers: Answers, source: dict[str, Any]) -> StateDocument:
    """The document of a source that does not change. Raises BelayError."""
    try:
        topic = f"{source.get('kind')} {source.get('identity', '')}"
        data = await answers.ask({"ask": "document", "source": source}, _LOADING_SECONDS, topic)
    except Unanswered as error:
        raise BelayError(error.text, hint=error.hint) from error
    body = msgspec.json.decode(data)
    sections = {key: value for key, value in body.items() if isinstance(value, dict | list)}
    return _Encoded(body["moment"], sections, Layout(()), data=data)


def _looking(console: Console) -> Any:
    @web.middleware
    async def looking(request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        # the page itself holds nothing: it asks for the token
        if not request.path.startswith(PREFIXES):
            response: web.StreamResponse = await handler(request)
            return response
        return await console.admitted(request, handler)

    return looking


async def _to_console(request: web.Request) -> web.Response:
    return web.Response(status=302, headers={"Location": "/console/"})


def _address(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        hint = "Write HOST:PORT, such as 127.0.0.1:8081."
        raise InputError(f"{listen!r} is not an address", where="--listen", hint=hint)
    host = host.removeprefix("[").removesuffix("]") or "0.0.0.0"
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        raise InputError(f"{host!r} is not an address", where="--listen") from error
    return host, int(port)
