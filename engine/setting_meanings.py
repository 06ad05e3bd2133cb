"""What each setting means, for the reference that is written from it (docs/reference/settings.md).

Links lead from the folder docs/. Default and range stand in ``belay.engine.settings``; ``FORMS`` says what a
text has to be if its type does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MEANINGS: Final[Mapping[str, str]] = {
    "redis_url": (
        "`redis://[:password@]host:port/db`, `rediss://` (TLS), `unix://`, or with Sentinels "
        "`redis+sentinel://host:26379,host:26379/name/db` and `rediss+sentinel://` "
        "([Installing](installing.md#a-redis-of-yours))"
    ),
    "redis_password_file": "file with the password of Redis, which takes the place of one in `BELAY_REDIS_URL`",
    "redis_ca_file": "file of the authority that signed Redis' certificate; needs `rediss://`",
    "batch_key_file": (
        "file of the keys that seal what goes through Redis ([Redis](connecting.md#redis)), for controllers and "
        "workers; empty: unsealed"
    ),
    "kubeconfig": "kubeconfig; without it `$KUBECONFIG`, then the pod's own account",
    "context": "context of that kubeconfig; without it the current one",
    "identity": "this process in Leases; the same after its restart",
    "shard": "which shard a controller serves (`NodePool.spec.shard`)",
    "data": "folder of Git mirrors and recorded passes; may be lost",
    "source_file": "a `Source` document, followed while it changes; it takes the place of the other `BELAY_SOURCE_*`",
    "source_url": (
        "the repository, for the controller; without one nothing is applied from Git, and `belay-sync` says so"
    ),
    "source_branch": "branch of the repository",
    "source_path": "folder of the repository that holds `desired/` and `policies/`",
    "source_interval": "how often the repository is fetched; a webhook to `belay server` fetches at once",
    "source_verify": "which signature a commit needs",
    "source_signers": "accepted signers: an allowed-signers file; for gpg a keyring folder or public keys",
    "source_anchor": "a commit of this repository that every accepted one descends from (`spec.verify.anchor`)",
    "source_repository": "the name that commits give this repository in their trailer (`spec.verify.repository`)",
    "source_trailer": "every accepted commit must carry that trailer (`spec.verify.requireTrailer`)",
    "source_rewrite": (
        "the one commit that may follow although it does not descend from the last (`spec.verify.allowRewriteTo`)"
    ),
    "source_suspend": "stop following; what is in force stays",
    "resync": "longest time between passes, whatever was missed",
    "debounce": "how long changes are gathered before a pass",
    "claim": "how long a worker that lives but hangs keeps its lock on a shard; with `BELAY_EXPIRY` at most an hour",
    "lease": "how long an unrenewed Lease lasts: the time of a failover while Redis does not answer",
    "silence": (
        "how long a controller or worker must show no life in Redis until another takes over its work: the time "
        "of a failover"
    ),
    "expiry": "how long the actions of a pass may wait for a worker",
    "patience": "how long a pass waits to see the writes of the one before",
    "order_life": "how long a destructive order may wait for its agent",
    "order_keys": (
        "folder of the keys that sign orders, policies and the log of revisions ([Signed orders](signed.md)), for"
        " controllers and workers; empty: unsigned"
    ),
    "batch": "actions in one message",
    "batch_bytes": "size of one message",
    "in_flight": "a worker's requests to the API server at one time",
    "recordings": "keep the last passes for `belay replay` and `belay policy test`",
    "foreign_consumers": "components of MindCluster read `cluster-info-*`: publish it every 5 s",
    "visibility": "how long until a message that a killed worker held is delivered again",
    "stall": "how long a worker may take no message while work waits; then it restarts",
    "health_port": "where a worker answers `/healthz` and `/readyz`; 0: nowhere",
    "grpc_listen": "HOST:PORT of ClusterD's gRPC services, `off`, or `auto`: `$POD_IP:8899`, else 127.0.0.1:8899",
    "grpc_health_port": "port of the probe of these services; 0: nowhere",
    "grpc_plaintext": "serve gRPC beyond loopback without TLS, as MindCluster's clients expect",
    "grpc_tls_cert": "for mutual TLS: file of the server's certificate",
    "grpc_tls_key": "for mutual TLS: file of the key of that certificate",
    "grpc_tls_ca": "for mutual TLS: file of the authorities that sign clients' certificates",
    "grpc_callers": "how callers prove who they are: [who may call](access.md#who-may-call)",
    "grpc_operators": "ServiceAccounts that may speak for every job, `namespace/name` by commas",
    "grpc_fault_senders": "ServiceAccounts that may send public faults of every node",
    "recovery_namespace": (
        "where servers keep their conversations with jobs; [without admission](access.md#without-admission) a "
        "namespace of its own"
    ),
    "console_hosts": "names by which the console is reached; others are refused ([console.md](console.md))",
    "console_proxy_header": "the header in which an OIDC proxy names its user",
    "console_proxies": "addresses from which that header is believed",
    "console_url": (
        "where browsers reach the server, for [sign-in](console.md#sign-in) and links in "
        "[notifications](notifications.md)"
    ),
    "oidc_issuer": "the OpenID Connect issuer by which people sign in",
    "oidc_client": "the name under which the issuer knows this server",
    "oidc_secret_file": "holds the client's secret; empty for a public client",
    "oidc_user_claim": "the claim that names a person",
    "oidc_groups_claim": "the claim that lists a person's groups",
    "oidc_viewers": "who may look",
    "oidc_changers": "who may also have changes played forward",
    "session_key_file": "the keys that seal sessions, one a line, the newest first; empty: made at the start",
    "history_url": (
        "the database of the history ([history.md](history.md)): a file in `BELAY_DATA`, or "
        "`postgresql://USER@HOST/NAME`"
    ),
    "history_password_file": "holds the password of that database",
    "history_days": "how long the history is kept",
    "history_megabytes": "how large it may become; beyond it the oldest is removed",
    "notify_hosts": "hosts that notifications may reach without TLS, or at an address that is not public",
    "notify_secrets": "the keys of Secret `belay-notify`, one file each",
    "log_level": "least severe level that is logged",
}
#: What a text has to be.
FORMS: Final[Mapping[str, str]] = {
    "console_hosts": "names, by commas",
    "console_proxy_header": "a header",
    "console_proxies": "addresses or networks",
    "console_url": "an https address",
    "oidc_issuer": "an https address",
    "oidc_secret_file": "a file",
    "oidc_viewers": "groups, `user:NAME`, `*`",
    "oidc_changers": "groups, `user:NAME`, `*`",
    "session_key_file": "a file",
    "history_url": "a URL, `off`",
    "history_password_file": "a file",
    "notify_hosts": "hosts, by commas",
    "notify_secrets": "a folder",
}
#: What is read besides, and by what.
OTHERS: Final[Mapping[str, str]] = {
    "WEBHOOK_SECRET": "the secret of webhooks, for `belay server`; keep it in a Secret",
    "PROGRESS": "off: commands do not say that long work goes on",
    "METRICS": "`--metrics` of `belay top`",
    "SERVER": "the server that `belay history` asks",
    "DEBUG": "1: commands that fail show a traceback",
    "TIME_SCALE": "how fast the sandbox's clock runs",
    "WORKER_RESTARTS": "set by a worker for its own use",
}
