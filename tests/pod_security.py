"""What the Pod Security Standards forbid, for the fields that Belay's manifests could use.

Source: Kubernetes documentation, "Pod Security Standards" (levels baseline and restricted, as of 1.32).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

LEVELS = ("privileged", "baseline", "restricted")
ENFORCE = "pod-security.kubernetes.io/enforce"
_BASELINE_CAPABILITIES = {
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
    "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}  # fmt: skip
_SYSCTLS = {
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
}  # fmt: skip
_PROFILES = ("RuntimeDefault", "Localhost")
_RESTRICTED_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip


def violations(pod: Mapping[str, Any], level: str) -> list[str]:
    """What the API server would refuse in a pod's spec in a namespace of this level; empty when it takes the pod."""
    assert level in LEVELS, level
    if level == "privileged":
        return []
    found = list(_against_baseline(pod))
    return found if level == "baseline" else [*found, *_against_restricted(pod)]


def lowest_level(pod: Mapping[str, Any]) -> str:
    """The most restrictive level that takes the pod."""
    return next(level for level in reversed(LEVELS) if not violations(pod, level))


def containers(pod: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """(name, container, its securityContext) of each container of any sort."""
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for one in pod.get(kind) or ():
            yield one["name"], one, one.get("securityContext") or {}


def _against_baseline(pod: Mapping[str, Any]) -> Iterator[str]:
    shared = pod.get("securityContext") or {}
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(field):
            yield field
    for volume in pod.get("volumes") or ():
        if "hostPath" in volume:
            yield f"volume {volume['name']}: hostPath"
    for sysctl in shared.get("sysctls") or ():
        if sysctl["name"] not in _SYSCTLS:
            yield f"sysctl {sysctl['name']}"
    for name, container, own in [("pod", {}, shared), *containers(pod)]:
        if own.get("privileged"):
            yield f"{name}: privileged"
        if (own.get("seccompProfile") or {}).get("type", "RuntimeDefault") not in _PROFILES:
            yield f"{name}: seccompProfile"
        if (own.get("appArmorProfile") or {}).get("type", "RuntimeDefault") not in _PROFILES:
            yield f"{name}: appArmorProfile"
        if own.get("procMount", "Default") != "Default":
            yield f"{name}: procMount"
        selinux = own.get("seLinuxOptions") or {}
        types = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
        if selinux.get("type", "") not in types or selinux.get("user") or selinux.get("role"):
            yield f"{name}: seLinuxOptions"
        if (own.get("windowsOptions") or {}).get("hostProcess"):
            yield f"{name}: hostProcess"
        if set((own.get("capabilities") or {}).get("add") or ()) - _BASELINE_CAPABILITIES:
            yield f"{name}: capabilities.add"
        if any(port.get("hostPort") for port in container.get("ports") or ()):
            yield f"{name}: hostPort"


def _against_restricted(pod: Mapping[str, Any]) -> Iterator[str]:
    shared = pod.get("securityContext") or {}
    for volume in pod.get("volumes") or ():
        if not set(volume) & _RESTRICTED_VOLUMES:
            yield f"volume {volume['name']}: {sorted(set(volume) - {'name'})}"
    if shared.get("runAsUser") == 0:
        yield "pod: runAsUser 0"
    for name, _, own in containers(pod):
        if own.get("allowPrivilegeEscalation") is not False:
            yield f"{name}: allowPrivilegeEscalation"
        if not own.get("runAsNonRoot", shared.get("runAsNonRoot")):
            yield f"{name}: runAsNonRoot"
        if own.get("runAsUser") == 0:
            yield f"{name}: runAsUser 0"
        if (own.get("seccompProfile") or shared.get("seccompProfile") or {}).get("type") not in _PROFILES:
            yield f"{name}: seccompProfile"
        capabilities = own.get("capabilities") or {}
        if "ALL" not in (capabilities.get("drop") or ()):
            yield f"{name}: capabilities.drop"
        if set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"}:
            yield f"{name}: capabilities.add"
