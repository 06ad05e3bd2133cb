"""`belay mcp`, driven by the SDK's own client: the answers of the verbs, bounded, read only. And `llms.txt`."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from click.testing import CliRunner

from belay.engine.cli import main
from belay.engine.cli.mcp_answers import MOST_CHARS, McpAnswers, fitted
from belay.engine.errors import BelayError, InputError
from belay.engine.sandbox.api import ApiServer
from tests import llms_page
from tests.bench import clusters
from tests.history_world import HistoryWorld
from tests.needs import lacking
from tests.test_published import config_maps

ROOT = Path(__file__).resolve().parents[1]
Talk = Callable[[Any], Awaitable[Any]]
POOL = """apiVersion: belay.dev/v1alpha1
kind: NodePool
metadata: {name: a}
spec: {product: atlas-800t-a2, selector: {matchLabels: {pool: a}}}
"""


class RecordingServer(ApiServer):
    """An API server that notes what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.append(request.method)
        return await super()._handle(request)


def talk(arguments: list[str], ask: Talk) -> Any:
    """What ``ask`` gets from a client of the SDK that talks to `belay mcp` over its standard input and output."""
    if importlib.util.find_spec("mcp") is None:
        lacking("the SDK of MCP is not installed: run make venv-mcp")
    from mcp import StdioServerParameters
    from mcp.client.client import Client
    from mcp.client.stdio import stdio_client

    async def run() -> Any:
        server = StdioServerParameters(command=sys.executable, args=["-m", "belay.engine", "mcp", *arguments], cwd="/")
        async with Client(stdio_client(server)) as client:
            return await ask(client)

    return asyncio.run(run())


def text_of(result: Any) -> str:
    return str(result.content[0].text)


@pytest.mark.real_time
def test_an_assistant_gets_the_answers_of_the_verbs_with_evidence(tmp_path: Path) -> None:
    world = HistoryWorld(f"sqlite:///{tmp_path / 'history.db'}")
    world.submit("default/AscendJob/llm", user="ann")
    world.look()
    items = clusters.cluster(2, 1)
    items += config_maps(items)
    (tmp_path / "state" / "desired").mkdir(parents=True)
    (tmp_path / "state" / "desired" / "pool.yaml").write_text(POOL)
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))

    async def ask(client: Any) -> Any:
        tools = (await client.list_tools()).tools
        said = [
            await client.call_tool("get", {"what": "nodes", "labels": "kubernetes.io/hostname!=none"}),
            await client.call_tool("history", {"since": "2026-01-01"}),
            await client.call_tool("explain", {"kind": "node", "name": "--kubeconfig=/etc/shadow"}),
            await client.call_tool("explain", {"kind": "code", "name": "ReportHeld"}),
            await client.call_tool("explain", {"kind": "code", "name": "80c98001"}),
            await client.call_tool("explain", {"kind": "queue", "name": "default"}),
        ]
        return tools, said

    options = ["--cluster", str(file), "--database", world.url, "--desired", str(tmp_path / "state")]
    tools, (nodes, history, refused, word, fault, queue) = talk(options, ask)
    assert [tool.name for tool in tools] == ["status", "get", "explain", "plan", "history", "report"]
    assert all(tool.annotations.read_only_hint and not tool.annotations.destructive_hint for tool in tools)

    answer = json.loads(text_of(nodes))
    verb = CliRunner().invoke(main, ["get", "nodes", *options[:2], *options[4:], "-o", "json"])
    assert answer["answer"] == json.loads(verb.stdout) and len(answer["answer"]) == 2
    assert answer["evidence"]["command"].startswith("belay get -o json")
    assert json.loads(text_of(history))["answer"]["records"][0]["job"] == "default/AscendJob/llm"
    assert not json.loads(text_of(history))["evidence"]["command"].endswith("--"), "as a person types it"
    assert json.loads(text_of(word))["answer"][0]["wayOut"].startswith("Wait for the next report")
    assert json.loads(text_of(fault))["answer"]["code"] == "80C98001"
    assert json.loads(text_of(queue))["answer"]["queue"] == "default"
    # a name is never an option
    assert refused.is_error and "'--kubeconfig=/etc/shadow'" in text_of(refused)


@pytest.mark.real_time
def test_no_tool_writes_to_the_api_server(tmp_path: Path) -> None:
    async def run() -> tuple[list[str], list[str]]:
        server = RecordingServer()
        await server.start()
        try:
            kubeconfig = tmp_path / "kubeconfig"
            server.write_kubeconfig(kubeconfig)
            answers = McpAnswers({"--kubeconfig": str(kubeconfig)})
            said = [await answers.ask("plan", options={"--now-only": True})]
            for verb, words in (("get", ["jobs"]), ("history", []), ("report", []), ("explain", ["node", "none"]),
                                ("status", [])):  # fmt: skip
                try:
                    said.append(await answers.ask(verb, words))
                except BelayError as error:
                    said.append(str(error))
            return said, server.asked
        finally:
            await server.stop()

    said, asked = asyncio.run(run())
    assert set(asked) == {"GET"} and len(asked) > 10
    assert json.loads(said[0])["answer"]["actions"] == [] and "'none'" in said[4]


def test_nothing_but_the_listed_questions_can_be_asked() -> None:
    answers = McpAnswers({"--cluster": "live"})
    for verb, words, options in (
        ("up", [], {}), ("scale", ["job", "8"], {}), ("get", ["nodes"], {"--watch": True}),
        ("explain", ["job", "a\nb"], {}), ("history", [], {"--database": "sqlite:////etc/passwd"}),
        ("plan", [], {"--desired": "x" * 1000}),
    ):  # fmt: skip
        with pytest.raises(InputError):
            asyncio.run(answers.ask(verb, words, options))


def test_an_answer_is_bounded_and_says_what_it_leaves_out() -> None:
    rows = [{"job": f"default/job-{number}", "nodes": ["node-1"] * 9} for number in range(20_000)]
    text = fitted({"evidence": {"command": "belay get jobs"}, "answer": {"rows": rows, "total": 20_000}})
    body = json.loads(text)
    assert len(text) <= MOST_CHARS and body["answer"]["total"] == 20_000
    assert len(body["answer"]["rows"]) + body["leftOut"]["answer.rows"] == 20_000
    assert len(fitted({"evidence": {"command": "x"}, "answer": '"' * 1_000_000})) <= MOST_CHARS
    secret = fitted({"answer": "https://ann:hunter2-secret@git.example.org/state.git"})
    assert "hunter2" not in secret and msgspec.json.decode(secret)


def test_without_the_sdk_the_verb_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    result = CliRunner().invoke(main, ["mcp"])
    assert result.exit_code == 2 and "make venv-mcp" in result.stderr and "Traceback" not in result.stderr


def test_the_extra_and_its_lock_name_the_same_sdk() -> None:
    wanted = re.search(r'^mcp = \["mcp>=([0-9.]+),<([0-9]+)"\]', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    locked = re.search(r"^mcp==([0-9.]+)", (ROOT / "requirements-mcp.lock").read_text(), re.MULTILINE)
    assert wanted and locked
    numbers = [tuple(map(int, text.split("."))) for text in (wanted[1], locked[1], wanted[2])]
    assert numbers[0] <= numbers[1] < numbers[2]


def test_llms_txt_is_current_and_leads_to_pages_that_exist() -> None:
    text = llms_page.FILE.read_text(encoding="utf-8")
    assert text == llms_page.page(), "run make reference"
    assert text.startswith("# Belay\n\n> Belay keeps")
    links = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", text, re.MULTILINE)
    assert len(links) > 60 and len(links) == len(set(links))
    for link in links:
        assert (llms_page.DOCS / link.replace("index.html", "README.md").replace(".html", ".md")).is_file(), link
