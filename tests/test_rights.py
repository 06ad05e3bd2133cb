"""Accounts have the rights that their processes ask for, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from tests.rights import ADMISSION, AGENT, AGENT_DRA, ENGINE, NEVER, SERVER, Right, audited, granted, needed
from tests.test_deploy_nodes import COMPONENTS, built

ROOT = Path(__file__).resolve().parents[1]


def test_every_right_that_deploy_gives_is_needed_and_every_need_is_met(tmp_path: Path) -> None:
    given = granted(built(tmp_path, "super-pod", "dra"))
    wanted = needed()
    assert given.keys() == wanted.keys()
    for account in wanted:
        surplus = given[account] - wanted[account]
        assert surplus == set(), f"{account}: nothing asks for so much: cut it, or name who does in tests/rights.py"
        missing = {need for need in wanted[account] if not any(right.covers(need) for right in given[account])}
        assert missing == set(), f"{account}: deploy/ does not give these"


def test_rights_go_to_accounts_that_exist(tmp_path: Path) -> None:
    """A binding of an account that is elsewhere gives nothing, and a policy about it guards nothing."""
    documents = built(tmp_path, *COMPONENTS)
    accounts = {(d["metadata"]["namespace"], d["metadata"]["name"]) for d in documents if d["kind"] == "ServiceAccount"}
    for binding in (d for d in documents if d["kind"].endswith("RoleBinding")):
        for subject in binding["subjects"]:
            if subject["kind"] == "ServiceAccount":
                assert (subject["namespace"], subject["name"]) in accounts, binding["metadata"]["name"]
    for policy in (d for d in documents if d["kind"] == "ValidatingAdmissionPolicy"):
        for namespace, name in re.findall(r"system:serviceaccount:([\w-]+):([\w-]+)", str(policy["spec"])):
            assert (namespace, name) in accounts, policy["metadata"]["name"]


def test_agents_of_hosts_have_the_rights_of_agents_in_pods(tmp_path: Path) -> None:
    given = granted(built(tmp_path, "host-agents"))
    assert given["belay:agents"] == given["belay-agent"]


def test_rights_are_explained_by_files_that_exist_and_use_them() -> None:
    for row in (*ENGINE, *SERVER, *AGENT, *AGENT_DRA, *ADMISSION):
        assert (ROOT / row.file).is_file(), row
    assert all(reason for reason in NEVER.values())


def test_no_account_has_everything_or_reads_secrets(tmp_path: Path) -> None:
    for account, rights in granted(built(tmp_path, "super-pod")).items():
        for right in rights:
            assert "*" not in (right.verb, right.group, right.resource), f"{account}: {right}"
            assert right.group != "rbac.authorization.k8s.io", f"{account}: {right}"
            assert right.resource != "secrets" or right.verb == "create", f"{account}: {right}"
            assert right.resource not in ("pods/exec", "pods/attach", "serviceaccounts/token"), f"{account}: {right}"


def test_an_audit_log_is_read_as_rights(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.write_text(
        '{"verb": "create", "user": {"username": "system:serviceaccount:belay-system:belay-engine"}, "objectRef": '
        '{"resource": "pods", "subresource": "binding", "namespace": "d", "name": "p"}, '
        '"responseStatus": {"code": 403}}\n'
        '{"verb": "get", "user": {"username": "system:serviceaccount:belay-system:belay-engine"}}\n'
    )
    asked = Right("create", "", "pods/binding", "d", "p")
    assert audited(log) == {"belay-engine": {asked: 403}}
    assert Right("create", "", "pods/binding").covers(asked)
    assert not Right("create", "", "pods/binding", "e").covers(asked)
    assert not Right("create", "", "pods").covers(asked)
