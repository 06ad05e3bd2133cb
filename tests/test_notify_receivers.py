"""What receivers get over the network, and what becomes of each of their answers: against stand-ins on loopback."""

from __future__ import annotations

import asyncio
import base64
import email
import email.policy
import hashlib
import hmac
import logging
import re
import socket
import ssl
import threading
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

from belay.engine.documents import Receiver, ReceiverType
from belay.engine.serve.notify import delivery
from belay.engine.serve.notify.addresses import AllowedHosts, HostNotAllowed
from belay.engine.serve.notify.delivery import NetworkDelivery, NotSent
from belay.engine.serve.notify.messages import Message, MessageItem
from belay.engine.serve.notify.shapes import refusal
from tests.certificates import authority, certificate
from tests.notify_world import NotifyWorld, policy
from tests.receivers import Answer, HttpReceiver, MailReceiver

TIME = 1_790_000_123_456
HOSTILE = "<!channel> *all* [here](https://evil.example) & \\ `x` 中文"
LINK = "https://belay.example.org/console/#/map?at=2026-09-21T14%3A15%3A23Z&select=chip/node-1/3"
TOKEN, KEY = "hook-token-5f2c", "SECsigning-81ab"
ROBOTS = ("DingTalk", "Feishu", "WeCom")


def item(text: str = HOSTILE, **more: Any) -> MessageItem:
    begun = TIME - 60_000
    return MessageItem("k1", "Fault", text, begun, 0, "desired/a.yaml:3", "belay explain", LINK, "RestartNPU", **more)


def message(*items: MessageItem, more: int = 0) -> Message:
    return Message("key-1", "Belay: 2 new", "on-call/broken", items or (item(),), more, TIME)


class Sender:
    """A server's delivery whose secrets lie in a folder."""

    def __init__(self, folder: Path, *hosts: str) -> None:
        self.folder = folder
        self.delivery = NetworkDelivery(folder, ",".join(hosts), {})

    def receiver(self, kind: str, url: str, **more: Any) -> Receiver:
        (self.folder / "url").write_text(f"{url}\n")
        (self.folder / "key").write_text(KEY)
        return Receiver.model_validate({"name": "chat", "type": kind, "url": {"secret": "url"}, **more})

    def send(self, receiver: Receiver, sent: Message | None = None) -> str:
        """Why it was not sent; empty where it was."""
        try:
            asyncio.run(self.delivery.send(receiver, sent or message()))
        except NotSent as error:
            return str(error)
        return ""


def taken_by(folder: Path, kind: str, sent: Message | None = None, **more: Any) -> Any:
    """The one request that a receiver of a kind got."""
    with HttpReceiver() as http:
        sender = Sender(folder, http.address)
        receiver = sender.receiver(kind, f"http://{http.address}/robot/send?access_token={TOKEN}", **more)
        assert sender.send(receiver, sent) == ""
    (one,) = http.taken
    return one


# what each takes


def test_slack_gets_text_in_which_nothing_from_the_cluster_is_markup_of_slack(tmp_path: Path) -> None:
    one = taken_by(tmp_path, "Slack")
    assert one.headers["Content-Type"] == "application/json; charset=utf-8" and list(one.json) == ["text"]
    lines = one.json["text"].split("\n")
    assert lines[0] == "*Belay: 2 new*" and "&lt;!channel&gt;" in lines[1] and "<!" not in one.json["text"]
    assert lines[2:4] == ["   cause: desired/a.yaml:3", "   way out: belay explain"]
    assert lines[4] == f"   <{LINK.replace('&', '&amp;')}|console>"


def test_dingtalk_gets_markdown_at_an_address_signed_as_its_rule_says(tmp_path: Path) -> None:
    one = taken_by(tmp_path, "DingTalk", signingKey={"secret": "key"})
    assert one.json["msgtype"] == "markdown" and set(one.json["markdown"]) == {"title", "text"}
    assert "\\[here\\](https" in one.json["markdown"]["text"] and f"[console]({LINK})" in one.json["markdown"]["text"]
    # the rule: HMAC-SHA256 of "timestamp\nsecret" by the secret, base64, beside the token in the query
    proof = hmac.new(KEY.encode(), f"{TIME}\n{KEY}".encode(), hashlib.sha256).digest()
    assert one.query == {
        "access_token": [TOKEN], "timestamp": [str(TIME)], "sign": [base64.b64encode(proof).decode()],
    }  # fmt: skip


def test_feishu_gets_a_post_signed_as_its_rule_says(tmp_path: Path) -> None:
    one = taken_by(tmp_path, "Feishu", signingKey={"secret": "key"})
    body = one.json
    assert body["msg_type"] == "post"
    post = body["content"]["post"]["en_us"]
    assert post["title"] == "Belay: 2 new" and post["content"][0] == [{"tag": "text", "text": f"• {HOSTILE}"}]
    assert post["content"][-1][1] == {"tag": "a", "text": "console", "href": LINK}
    # the rule: seconds; HMAC-SHA256 of nothing by "timestamp\nsecret", base64, in the body
    assert body["timestamp"] == str(TIME // 1000)
    proof = hmac.new(f"{TIME // 1000}\n{KEY}".encode(), b"", hashlib.sha256).digest()
    assert base64.b64decode(body["sign"]) == proof and one.query == {"access_token": [TOKEN]}
    assert "sign" not in taken_by(tmp_path, "Feishu").json


def test_wecom_gets_markdown(tmp_path: Path) -> None:
    one = taken_by(tmp_path, "WeCom")
    assert one.json["msgtype"] == "markdown" and one.json["markdown"]["content"].startswith("**Belay: 2 new**\n- ")


def test_alertmanager_gets_alerts_of_its_api_with_what_lasts_until_when(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("bearer-33c1")
    sent = Message("k", "t", "on-call/broken", (item(), item(over=True)), 0, TIME, TIME + 7_800_000)
    with HttpReceiver() as http:
        sender = Sender(tmp_path, http.address)
        receiver = Receiver.model_validate(
            {"name": "am", "type": "Alertmanager", "address": f"http://{http.address}/", "token": {"secret": "token"}}
        )
        assert sender.send(receiver, sent) == ""
    (one,) = http.taken
    assert one.path == "/api/v2/alerts" and one.headers["Authorization"] == "Bearer bearer-33c1"
    first, _ = one.json
    assert first["labels"] == {
        "alertname": "BelayFault", "belay_notice": "k1", "belay_rule": "on-call/broken", "level": "RestartNPU",
    }  # fmt: skip
    assert first["annotations"]["summary"] == HOSTILE and first["generatorURL"] == LINK
    assert first["startsAt"] < first["endsAt"] and first["startsAt"].endswith("Z")


@pytest.mark.parametrize("letter", ["x", "中", "\\", '"', "\x01", "😀"])
@pytest.mark.parametrize(
    ("kind", "most"), [("DingTalk", 20_000), ("Feishu", 20 * 1024), ("Slack", 4_000), ("WeCom", 4_096)]
)
def test_a_message_fits_and_counts_what_it_leaves_out(kind: str, most: int, letter: str, tmp_path: Path) -> None:
    # as long as the ledger lets texts be
    long = MessageItem("k", "Fault", letter * 300, TIME, 0, letter * 200, letter * 200, f"{LINK}{'a' * 120}")
    one = taken_by(tmp_path, kind, message(*[long] * 50, more=7))
    assert len(one.body) <= most
    text = one.body.decode()
    listed = text.count("#/map?at=")
    assert listed >= 1 and f"and {57 - listed} more: belay history" in text


# what they answer


@pytest.mark.parametrize("kind", ROBOTS)
@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (200, b'{"errcode":310000,"code":19021,"errmsg":"sign not match"}', "sign not match"),
        (200, b'{"code":11232,"StatusCode":11232,"msg":"frequency limited"}', "it answers code 11232"),
        (200, b"<html>sign in</html>", "is the address the one of a robot?"),
        (200, b"[" * 100_000, "is the address the one of a robot?"),
        (200, b"[0]", "it answers code None"),
        (404, b"no such\r\nhook \x1b[31m", "it answers 404: no such hook [31m"),
        (302, b"", "it answers 302"),
        (200, b'{"errcode":0,"code":0}', ""),
    ],
)
def test_a_robots_answer_is_judged_by_its_code(kind: str, status: int, body: bytes, why: str) -> None:
    found = refusal(ReceiverType(kind), status, body)
    assert (why in found) if why else found == ""
    assert len(found) < 300


def test_a_receiver_is_tried_again_after_growing_waits_or_when_it_asks_to_be(tmp_path: Path) -> None:
    world = NotifyWorld(policy({"events": ["Fault"]}, receivers=[chat()]))
    with HttpReceiver(lambda: world.now) as http:
        (tmp_path / "url").write_text(f"http://{http.address}/hook/{TOKEN}")
        world.delivered_by(NetworkDelivery(tmp_path, http.address, {}))
        world.notice()
        http.answers += [
            Answer(503, b"maintenance"), Answer(429, b"slow down", {"Retry-After": "120"}), Answer(500),
            Answer(403, b"invalid_token"),
        ]  # fmt: skip
        world.fault("node-1", 3)
        world.goes_on(600)
    waits = [round(later.at - one.at) for one, later in zip(http.taken, http.taken[1:], strict=False)]
    assert waits == [5, 120, 20, 40], "5 s, then twice as long each time, and never sooner than it asks"
    assert len({one.body for one in http.taken}) == 1, "the same message each time"
    assert world.notifiers[0].problems() == [] and world.kept.state.failing == {}


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    with HttpReceiver() as http, HttpReceiver() as inside:
        http.answers.append(Answer(307, b"", {"Location": f"http://{inside.address}/"}))
        # not even to a host that is named
        sender = Sender(tmp_path, http.address, inside.address)
        assert "it answers 307" in sender.send(sender.receiver("Slack", f"http://{http.address}/"))
    assert len(http.taken) == 1 and inside.connections == 0


def test_a_connection_that_fails_says_how(tls: tuple[ssl.SSLContext, Path], tmp_path: Path) -> None:
    with HttpReceiver() as http, socket.create_server(("127.0.0.1", 0)) as free:
        gone = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        sender = Sender(tmp_path, gone, http.address)
        said = sender.send(sender.receiver("Slack", f"http://{gone}/{TOKEN}"))
        assert said == f"{gone.partition(':')[0]} cannot be reached: Connection refused"
        # a server that speaks no TLS
        said = sender.send(sender.receiver("Slack", f"https://{http.address}/{TOKEN}"))
        assert re.fullmatch(r"127.0.0.1 cannot be reached: TLS fails \([A-Z0-9_]+\)", said)
        # one whose certificate is of no known authority
        http.server.socket = tls[0].wrap_socket(http.server.socket, server_side=True)
        said = sender.send(sender.receiver("Slack", f"https://{http.address}/{TOKEN}"))
        assert said.startswith("127.0.0.1 has a certificate that is not trusted: unable to get local issuer")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        thread = threading.Thread(target=lambda: silent.accept()[0].close())
        thread.start()
        sender = Sender(tmp_path, address)
        said = sender.send(sender.receiver("Slack", f"http://{address}/{TOKEN}"))
        thread.join(5)
        assert said == "127.0.0.1 closed the connection without an answer"


def test_a_receiver_that_does_not_answer_is_not_called_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        sender = Sender(tmp_path, address)
        assert "does not answer within" in sender.send(sender.receiver("Slack", f"http://{address}/{TOKEN}"))


# where messages may go


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.org/x", "https://127.0.0.1/x", "https://[::1]/x", "https://[::ffff:10.0.0.1]/x",
        "https://169.254.169.254/latest/meta-data", "https://127。0。0。1/x", "https://１２７.0.0.1/x",
        "https://[64:ff9b::a00:1]/x", "https://[2002:a00:1::]/x", "https://ann:pw@hooks.example.org/x", "ftp://a/",
        "https:///x", "https://a:99999/", "https://a\\@10.0.0.1/", "https://[", "", "https://10.0.0.1:8443/x",
    ],
)  # fmt: skip
def test_an_address_inside_is_refused_however_it_is_written(url: str) -> None:
    with pytest.raises(HostNotAllowed):
        AllowedHosts("am.example.org:9093, 10.0.0.1:9093").check_url(url)


def test_hosts_that_the_operator_names_may_be_reached() -> None:
    allowed = AllowedHosts("am.example.org:9093, 10.0.0.1:9093,mail.example.org")
    for url in ("http://10.0.0.1:9093/", "http://AM.example.org:9093/x", "https://mail.example.org:1/",
                "https://hooks.example.com/services/x", "https://8.8.8.8/"):  # fmt: skip
        allowed.check_url(url)


def test_a_name_that_leads_inside_is_refused_where_the_connection_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo

    def lookup(host: Any, port: Any, *rest: Any, **more: Any) -> Any:
        if host == "hooks.example.org":
            # one public address beside it changes nothing
            return [*real("93.184.215.14", port, *rest, **more), *real("127.0.0.1", port, *rest, **more)]
        return real(host, port, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    with HttpReceiver() as http, MailReceiver() as mail:
        sender = Sender(tmp_path, http.address)
        for host in ("hooks.example.org", "localhost"):
            said = sender.send(sender.receiver("Slack", f"https://{host}:{http.port}/{TOKEN}"))
            assert f"{host} leads to 127.0.0.1, which is not a public address" in said or "::1" in said
            assert TOKEN not in said
        said = sender.send(mailbox("localhost", mail.port, security="starttls"))
        assert "which is not a public address" in said and "BELAY_NOTIFY_HOSTS" in said
        said = sender.send(mailbox("localhost", mail.port, security="none"))
        assert "without TLS" in said
        assert http.connections == 0 and mail.said == []


# e-mail


def mailbox(host: str, port: int, **more: Any) -> Receiver:
    server = {"host": host, "port": port, "from": "belay@example.org", "to": ["ann@example.org", "bo@example.org"]}
    return Receiver.model_validate({"name": "mail", "type": "Email", "email": {**server, **more}})


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, Path]:
    """What a mail server of loopback shows, and the authority that signed it."""
    folder = tmp_path_factory.mktemp("tls")
    authority(folder, "ca")
    signed, key, ca = certificate(folder, "mail", "ca")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(signed, key)
    return context, ca


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_mail_is_sent_encrypted_after_signing_in_and_has_one_id_however_often(
    security: str, tls: tuple[ssl.SSLContext, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, ca = tls
    monkeypatch.setenv("SSL_CERT_FILE", str(ca))
    (tmp_path / "password").write_text("pass-77d0")
    with MailReceiver(context, wrapped=security == "tls", password="pass-77d0") as mail:
        sender = Sender(tmp_path, f"localhost:{mail.port}")
        box = mailbox("localhost", mail.port, security=security, username="belay", password={"secret": "password"})
        mail.refusals["DATA"] = "451 4.3.0 later"
        assert "it answers 451 4.3.0 later" in sender.send(box)
        mail.refusals.clear()
        assert sender.send(box) == sender.send(box) == ""
        (tmp_path / "password").write_text("wrong-9a")
        said = sender.send(box)
        assert "refuses the username or password (code 535)" in said and "wrong-9a" not in said
    first, second = mail.taken
    assert (first.encrypted, first.user, first.to) == (True, "belay", ["ann@example.org", "bo@example.org"])
    made = email.message_from_bytes(first.text, policy=email.policy.default)
    assert made["Subject"] == "Belay: 2 new" and made["Auto-Submitted"] == "auto-generated"
    assert made["Message-ID"] == "<key-1.belay@example.org>"
    assert first.text == second.text, "a mail program shows it once"
    text = made.get_content()
    assert HOSTILE in text and f"console: {LINK}" in text and "on-call/broken" in text


def test_mail_does_not_leave_in_the_clear_nor_to_a_stranger(tls: tuple[ssl.SSLContext, Path], tmp_path: Path) -> None:
    context, _ = tls
    with MailReceiver() as plain, MailReceiver(context) as stranger:
        sender = Sender(tmp_path, f"localhost:{plain.port}", f"localhost:{stranger.port}")
        assert "STARTTLS" in sender.send(mailbox("localhost", plain.port))
        assert "certificate" in sender.send(mailbox("localhost", stranger.port)).lower()
        # where the operator names the host, mail without TLS is a choice
        assert sender.send(mailbox("localhost", plain.port, security="none")) == ""
        plain.refusals["RCPT"] = "550 5.1.1 unknown here"
        assert "refuses 2 of the recipients" in sender.send(mailbox("localhost", plain.port, security="none"))
    assert len(plain.taken) == 1 and stranger.taken == []


# secrets


def chat(**more: Any) -> dict[str, Any]:
    return {"name": "chat", "type": "DingTalk", "url": {"secret": "url"}, **more}


def test_no_secret_reaches_logs_findings_the_ledger_or_metrics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    world = NotifyWorld(policy({"events": ["Fault"]}, receivers=[chat(signingKey={"secret": "key"})]))
    with HttpReceiver(lambda: world.now) as http:
        url = f"http://{http.address}/robot/send?access_token={TOKEN}"
        (tmp_path / "url").write_text(url)
        (tmp_path / "key").write_text(KEY)
        world.delivered_by(NetworkDelivery(tmp_path, http.address, {}))
        world.notice()
        # one that repeats what it got, then one that hangs up, then one that is gone
        http.answers += [Answer(400, f"{url} key={KEY} bad".encode()), Answer(200, b"", {"Content-Length": "x"})]
        world.fault("node-1", 3)
        world.goes_on(60)
    world.goes_on(120)
    shown = [
        caplog.text, *(str(vars(record)) for record in caplog.records), *world.notifiers[0].problems(),
        str(world.kept.body), str([m.samples for m in world.notifiers[0].metrics()]),
    ]  # fmt: skip
    assert "notification not sent" in caplog.text and "400" in str(vars(caplog.records[0])) + "".join(shown)
    for secret in (TOKEN, KEY, urllib.parse.quote(TOKEN)):
        assert not [text for text in shown if secret in text]


def test_a_secret_that_is_missing_is_named_and_a_variable_must_be_one_for_notifications(tmp_path: Path) -> None:
    sender = Sender(tmp_path)
    box = Receiver.model_validate({"name": "chat", "type": "Slack", "url": {"secret": "absent"}})
    assert "Secret belay-notify has no usable key absent (FileNotFoundError)" in sender.send(box)
    box = Receiver.model_validate({"name": "chat", "type": "Slack", "url": {"env": "BELAY_NOTIFY_CHAT"}})
    assert sender.send(box) == "variable BELAY_NOTIFY_CHAT of belay server is empty"
    (tmp_path / "absent").write_bytes(b"x" * 5_000)
    box = Receiver.model_validate({"name": "chat", "type": "Slack", "url": {"secret": "absent"}})
    assert "longer than 4096" in sender.send(box)
    with pytest.raises(ValueError, match="env"):
        Receiver.model_validate({"name": "chat", "type": "Slack", "url": {"env": "AWS_SECRET_ACCESS_KEY"}})
