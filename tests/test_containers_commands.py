"""The verbs of the container manager as a person runs them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from belay.agents.common.logfile import LogFile
from belay.agents.containers.commands import Options, checked_socket
from belay.agents.containers.install import InstallError, install, uninstall, upgrade
from belay.engine.cli.hosts import containers_run
from tests.test_containers import Engine

BELAY = [sys.executable, "-m", "belay.engine.cli", "containers"]


def test_the_daemon_and_its_table(tmp_path: Path) -> None:
    async def main() -> None:
        engine, socket, state = Engine(), tmp_path / "d.sock", tmp_path / "status.json"
        engine.add("a" * 64, ["ASCEND_VISIBLE_DEVICES=0-3"])
        runner = await engine.serve(socket)
        process = await asyncio.create_subprocess_exec(
            *BELAY, "run", "-runtimeType=docker", f"-sockPath={socket}", "-ctrStrategy", "ringRecover", "--driver",
            "simulated", "--state", str(state), f"-logPath={tmp_path}/log/manager.log", "-logLevel=-1",
        )  # fmt: skip
        try:
            async with asyncio.timeout(30):
                while not state.exists():
                    assert process.returncode is None
                    await asyncio.sleep(0.05)
            shown = await asyncio.to_thread(
                subprocess.run, [*BELAY, "status", "--state", str(state)], capture_output=True, text=True, timeout=30
            )
            assert shown.returncode == 0 and "a" * 64 in shown.stdout
            assert f"| {'Container Description':<27}: {'normal':<67} |" in shown.stdout
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 60) == 0
            lines = [json.loads(line) for line in (tmp_path / "log" / "manager.log").read_text().splitlines()]
            assert any(line["message"] == "chips are managed" for line in lines)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            await runner.cleanup()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["run", "--socket", "/nowhere/d.sock", "--driver", "simulated"], 2, "is docker running?"),
        (["run", "--strategy", "always"], 2, "always"),
        (["run", "-maxAge", "3"], 2, "log days 3 is out of range; use 7 to 700"),
        (["run", "--fault-config", "/nowhere/codes.json", "--driver", "simulated"], 2, "cannot be read"),
        (["status", "--state", "/nowhere/status.json"], 2, "is not there; does `belay containers run` run?"),
        (["restart"], 2, "restart"),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], code: int, said: str) -> None:
    done = subprocess.run([*BELAY, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == code and said in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["containers", "status", "--state", "/nowhere/status.json"], "is not there"),
        (["containers", "install", "--timer-delay", "soon"], "timer delay 'soon'"),
        (["runtime", "install", "--install-scene", "podman"], "--install-scene: 'podman'"),
        (["runtime", "install", "--root", "/nowhere"], "--root: /nowhere is not a folder"),
        (["runtime", "install", "--programs", "/nowhere"], "belay runtime build makes it"),
        (["inject", "--timeline", "/nowhere/story.yaml"], "/nowhere/story.yaml: cannot be read"),
    ],
)
def test_what_could_not_be_done_is_one_line_and_exit_2(arguments: list[str], said: str) -> None:
    done = subprocess.run([*BELAY[:-1], *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith("belay: ") and said in done.stderr
    assert done.stderr.count("\n") == 1 and done.stdout == ""


def test_links_and_files_are_no_sockets(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("")
    link.symlink_to(file)
    with pytest.raises(ValueError, match="is not a socket"):
        checked_socket(Options(socket=str(file)))
    with pytest.raises(ValueError, match="is a link"):
        checked_socket(Options(socket=str(link)))


def test_old_log_files_go(tmp_path: Path) -> None:
    file = tmp_path / "m.log"
    for name, days in (("m.log.1", 1), ("m.log.2", 8)):
        (tmp_path / name).write_text("old")
        os.utime(tmp_path / name, (time.time() - days * 86_400,) * 2)
    handler = LogFile(file, backups=3, days=7)
    handler.doRollover()
    handler.close()
    # the one of eight days went, the young one moved on
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.log", "m.log.1", "m.log.2"]
    assert (tmp_path / "m.log.2").read_text() == "old" and (tmp_path / "m.log.1").read_text() == ""
    os.utime(tmp_path / "m.log.2", (time.time() - 8 * 86_400,) * 2)
    LogFile(file, backups=3, days=7).close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.log", "m.log.1"]
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_service_is_installed_and_taken_away_again(tmp_path: Path) -> None:
    calls: list[list[str]] = []
    options = Options(runtime="containerd", strategy="ringRecover", log_file="/var/log/mindx-dl/cm.log")
    written = install(
        options, delay="2m", root=tmp_path, program="/opt/belay/bin/belay", run=lambda a: calls.append([*a])
    )
    assert [str(path.relative_to(tmp_path)) for path in written] == [
        "etc/systemd/system/belay-containers.service", "etc/systemd/system/belay-containers.timer",
        "etc/belay/containers.env",
    ]  # fmt: skip
    service, timer, flags = (path.read_text() for path in written)
    assert "ExecStart=/opt/belay/bin/belay containers run $BELAY_CONTAINERS_FLAGS" in service
    assert "OnBootSec=2m\n" in timer
    # what systemd will give to the program is what the program understands
    words = flags.strip().partition("=")[2].split()
    assert "--socket=/run/containerd/containerd.sock" in words and "--strategy=ringRecover" in words
    context = containers_run.make_context("run", words)
    assert Options(**context.params) == Options(
        runtime="containerd", strategy="ringRecover", log_file="/var/log/mindx-dl/cm.log",
        socket="/run/containerd/containerd.sock",
    )  # fmt: skip
    assert calls == [["daemon-reload"], ["enable", "--now", "belay-containers.timer"]]
    log = tmp_path / "var" / "log"
    log.mkdir(parents=True)
    assert uninstall(root=tmp_path, run=lambda a: calls.append([*a])) == written
    assert not any(path.exists() for path in written) and log.is_dir()
    assert calls[2:] == [
        ["disable", "--now", "belay-containers.timer"], ["disable", "--now", "belay-containers.service"],
        ["daemon-reload"],
    ]  # fmt: skip
    assert uninstall(root=tmp_path, run=lambda a: calls.append([*a])) == []


def test_an_upgrade_restarts_the_service_and_keeps_its_settings(tmp_path: Path) -> None:
    calls: list[list[str]] = []

    def run(arguments: Sequence[str]) -> None:
        calls.append([*arguments])

    with pytest.raises(InstallError, match="use belay containers install"):
        upgrade("2", lambda words: "", root=tmp_path, run=run)
    written = install(Options(strategy="ringRecover"), delay="2m", root=tmp_path, program="/opt/belay", run=run)
    with pytest.raises(InstallError, match="'/opt/belay' cannot be run"):
        upgrade("2", lambda words: "", root=tmp_path, run=run)
    (tmp_path / "opt").mkdir()
    (tmp_path / "opt/belay").touch(mode=0o755)
    before, asked = [path.read_text() for path in written], []

    def fits(words: list[str]) -> str:
        asked.append(containers_run.make_context("run", list(words)).params["strategy"])
        return ""

    calls.clear()
    assert "restarted with version 2" in upgrade("2", fits, root=tmp_path, run=run)[0]
    service = "belay-containers.service"
    assert calls == [["daemon-reload"], ["restart", service], ["is-active", "--quiet", service]]
    assert asked == ["ringRecover"] and [path.read_text() for path in written] == before
    calls.clear()
    with pytest.raises(InstallError, match="No such option: --old; the service was not touched"):
        upgrade("3", lambda words: "No such option: --old", root=tmp_path, run=run)
    assert calls == []


@pytest.mark.parametrize(
    ("change", "delay", "said"),
    [
        ({"log_file": "/var/log/a b"}, "60s", "--log-file"), ({"fault_config": "/a;reboot"}, "60s", "--fault-config"),
        ({"socket": "/run/$HOME.sock"}, "60s", "--socket"), ({}, "soon", "timer delay 'soon'"), ({}, "60d", "60d"),
    ],
)  # fmt: skip
def test_values_that_systemd_would_read_otherwise_are_refused(
    tmp_path: Path, change: dict[str, str], delay: str, said: str
) -> None:
    with pytest.raises(InstallError, match=said):
        install(Options(**change), delay=delay, root=tmp_path, program="/bin/belay", run=lambda a: None)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
