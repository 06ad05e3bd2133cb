"""Settings from the environment: read, bounded, and refused by name."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from belay.engine.errors import BelayError, InputError
from belay.engine.kube.credentials import loader
from belay.engine.serve.grpc.tls import Certificates, Files
from belay.engine.setting_meanings import FORMS, MEANINGS
from belay.engine.settings import Settings, from_environment, kube_variables, misspelt
from belay.engine.source.configuration import source_of
from belay.engine.store import connect

WRONG = {
    "RESYNC=nan": "from 0.001 to 86400, but is nan",
    "STALL=inf": "from 0.001 to 86400, but is inf",
    "RESYNC=soon": "must be a number, but is 'soon'",
    "RESYNC=": "must be a number, but is ''",
    "DEBOUNCE=-1": "from 0 to 60, but is -1",
    "BATCH=1.5": "must be a whole number, but is '1.5'",
    "BATCH=99999999999": "from 1 to 10000, but is 99999999999",
    "IN_FLIGHT=999999999999": "from 1 to 10000, but is 999999999999",
    "IN_FLIGHT=99999999999999999999": "from 1 to 10000, but is far beyond",
    "HEALTH_PORT=-99999999999999999999": "from 0 to 65535, but is far beyond",
    "BATCH_BYTES=-1": "from 1024 to 67108864, but is -1",
    "IN_FLIGHT=0": "from 1 to 10000, but is 0",
    "GRPC_HEALTH_PORT=65536": "from 0 to 65535, but is 65536",
    "RECORDINGS=maybe": "must be 0, 1, true or false, but is 'maybe'",
    "SOURCE_VERIFY=pgp": "must be none or ssh or gpg, but is 'pgp'",
    "SHARD=a b": "'a b' is not a shard",
    "SHARD=": "is empty",
    "IDENTITY=": "is empty",
    "DATA=": "is empty",
    "LOG_LEVEL=loud": "'loud' is not a log level: write DEBUG, INFO",
}


@pytest.mark.parametrize("given", WRONG)
def test_a_wrong_setting_is_refused_by_its_name(given: str) -> None:
    name, _, value = given.partition("=")
    with pytest.raises(InputError) as refused:
        from_environment({f"BELAY_{name}": value})
    assert str(refused.value).startswith(f"BELAY_{name}: ") and WRONG[given] in str(refused.value)


#: What is wrong is found out when the value is used.
USED = {
    "SOURCE_URL=ftp://x/y": "protocol 'ftp' is not allowed",
    "SOURCE_BRANCH=-x": "'-x' is not a branch name",
    "SOURCE_PATH=/abs/../x": "leaves the repository",
    "SOURCE_ANCHOR=zz": "is not the full name of a commit",
    "SOURCE_REWRITE=zz": "is not the full name of a commit",
    "SOURCE_REPOSITORY=a b": "holds spaces",
    "SOURCE_FILE=/nonexistent": "cannot be read: No such file",
    "REDIS_URL=http://x": "is not a Redis URL",
    "REDIS_URL=redis://127.0.0.1:99999/0": "is not a usable Redis URL",
    "REDIS_URL=redis+sentinel://": "is not a usable Redis URL",
    "KUBECONFIG=/nonexistent": "does not exist",
    "GRPC_TLS_KEY=/nonexistent": "cannot be read",
}


@pytest.mark.parametrize("given", USED)
def test_a_value_that_cannot_be_used_is_refused_by_the_name_of_its_variable(
    given: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name, _, value = given.partition("=")
    environ = {"BELAY_SOURCE_URL": "https://git.example.org/state.git", "BELAY_DATA": str(tmp_path)}
    if name.startswith("GRPC_TLS"):
        environ |= {f"BELAY_GRPC_TLS_{part}": "/nonexistent" for part in ("CERT", "KEY", "CA")}
    for variable, text in (environ | {f"BELAY_{name}": value}).items():
        monkeypatch.setenv(variable, text)

    with pytest.raises(BelayError) as refused:
        settings = from_environment()
        source_of(settings)
        connect(settings.redis_url)
        if settings.grpc_tls_key:
            Certificates(Files(*map(Path, (settings.grpc_tls_cert, settings.grpc_tls_key, settings.grpc_tls_ca))))
        loader(settings.kubeconfig, None, kube_variables(settings))()
    place = str(refused.value).partition(": ")[0]
    assert f"BELAY_{name}" in place and USED[given] in str(refused.value)


def test_an_option_of_the_command_line_is_not_called_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELAY_KUBECONFIG", "/elsewhere")
    settings = from_environment(kubeconfig="/nonexistent")
    with pytest.raises(InputError, match=r"^/nonexistent: does not exist"):
        loader(settings.kubeconfig, None, kube_variables(settings))()


def test_every_number_is_bounded() -> None:
    for field in msgspec.structs.fields(Settings):
        if field.type in (int, float):
            for value in ("9" * 12, "9" * 20, "9" * 400, "9" * 5000, "-1", "nan", "1e999"):
                with pytest.raises(InputError, match=f"BELAY_{field.name.upper()}"):
                    from_environment({f"BELAY_{field.name.upper()}": value})


def test_what_people_write_is_read() -> None:
    found = from_environment({"BELAY_LOG_LEVEL": "debug", "BELAY_RECORDINGS": "false", "BELAY_DEBOUNCE": "0"})
    assert (found.log_level, found.recordings, found.debounce) == ("debug", False, 0.0)


def test_a_misspelt_setting_is_named_with_the_similar_one() -> None:
    strange = {"BELAY_RESINC": "5", "BELAY_LOGLEVEL": "INFO", "BELAY_SOURCE_URI": "x", "BELAY_RESYNC": "5"}
    theirs = {
        "BELAY_REDIS_PORT": "tcp://10.0.0.1:6379",
        "BELAY_REDIS_PORT_6379_TCP_ADDR": "10.0.0.1",
        "BELAY_REDIS_SERVICE_HOST": "10.0.0.1",
        "BELAY_DEBUG": "1",
        "BELAY_WEBHOOK_SECRET": "s",
        "BELAY_CANARY": "1",
        "LEASE": "1",
    }
    assert misspelt(strange | theirs) == [
        ("BELAY_LOGLEVEL", "BELAY_LOG_LEVEL"),
        ("BELAY_RESINC", "BELAY_RESYNC"),
        ("BELAY_SOURCE_URI", "BELAY_SOURCE_URL"),
    ]


def test_every_setting_has_a_meaning_and_a_form_only_where_no_type_has_it() -> None:
    fields = [field.name for field in msgspec.structs.fields(Settings)]
    assert list(MEANINGS) == fields, "every setting, in the order of engine/settings.py"
    assert set(FORMS) <= {field.name for field in msgspec.structs.fields(Settings) if field.type is str}
