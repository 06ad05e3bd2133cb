"""A secret that reaches a log of an end-to-end test fails that test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.planted import harvest, is_log, leaks

ROOT = Path(__file__).resolve().parents[1]
PEM = "-----BEGIN PRIVATE KEY-----\n" + "A" * 64 + "\n-----END PRIVATE KEY-----\n"
TOKEN = "eyJhbGciOi" + "x" * 40


def test_secrets_are_found_where_tests_keep_them(tmp_path: Path) -> None:
    (tmp_path / "mount" / "redis").mkdir(parents=True)
    (tmp_path / "mount" / "redis" / "password").write_text("0123456789abcdef0123456789\n")
    (tmp_path / "key").write_text(PEM)
    (tmp_path / "kubeconfig").write_text(f'{{"apiVersion": "v1", "users": [{{"user": {{"token": "{TOKEN}"}}}}]}}')
    (tmp_path / "other.yaml").write_text("token: 0123456789abcdefgh")
    assert set(harvest([tmp_path])) == {b"0123456789abcdef0123456789", b"A" * 64, TOKEN.encode()}


def test_a_log_with_a_secret_is_named_without_the_secret(tmp_path: Path) -> None:
    (tmp_path / "worker.log").write_text(f"connected with {TOKEN}\n")
    (tmp_path / "kubeconfig").write_text(TOKEN)
    (found,) = leaks([tmp_path], {TOKEN.encode(): "kubeconfig"})
    assert "worker.log" in found and "kubeconfig" in found and TOKEN not in found


@pytest.mark.parametrize(
    ("name", "log"),
    [
        ("log", True),
        ("worker.log", True),
        ("server.out", True),
        ("worker.log.1", True),
        ("catalog", False),
        ("blog.md", False),
    ],
)
def test_logs_are_known_by_their_names(name: str, log: bool) -> None:
    assert is_log(Path(name)) is log


@pytest.mark.parametrize("leak", [False, True])
def test_the_check_runs_after_each_end_to_end_test(leak: bool, tmp_path: Path) -> None:
    """In a pytest of its own, with this repository's conftest."""
    written = "os.environ['BELAY_WEBHOOK_SECRET']" if leak else "'nothing'"
    (tmp_path / "conftest.py").write_text("from tests.planted import planted_secrets, pytest_runtest_protocol\n")
    (tmp_path / "test_one.py").write_text(
        "import os, pytest\n\n@pytest.fixture(scope='module')\ndef place(tmp_path_factory):\n"
        "    return tmp_path_factory.mktemp('server')\n\n@pytest.mark.e2e\ndef test_it(place):\n"
        f"    (place / 'server.log').write_text({written})\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = e2e: end to end\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "test_one.py"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == (1 if leak else 0), done.stdout
    assert ("holds the secret of BELAY_WEBHOOK_SECRET" in done.stdout) is leak
