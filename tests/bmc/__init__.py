"""A board's controller to test against: OpenIPMI's ipmi_sim with the vendor's commands, on a port of the loopback."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
PACKAGES = "openipmi, libopenipmi-dev, ipmitool, freeipmi-tools and gcc"
USER, PASSWORD = "admin", "sec-ret.1"
_LAN = """
name "belay"
set_working_mc 0x20
  loadlib "{module}" "{state}"
  startlan 1
    addr 127.0.0.1 {port}
    priv_limit admin
    allowed_auths_callback md5
    allowed_auths_user md5
    allowed_auths_operator md5
    allowed_auths_admin md5
    guid a123456789abcdefa123456789abcdef
  endlan
  user 2 true "{user}" "{password}" admin 10 md5
"""
_EMULATOR = "mc_setbmc 0x20\nmc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02\nmc_enable 0x20\n"


def missing() -> str:
    """What is missing to simulate a controller; empty when nothing is."""
    absent = [tool for tool in ("ipmi_sim", "ipmitool", "ipmi-raw", "gcc") if shutil.which(tool) is None]
    absent += [] if Path("/usr/include/OpenIPMI/mcserv.h").is_file() else ["OpenIPMI/mcserv.h"]
    return f"{', '.join(absent)} not found; on Debian install {PACKAGES} (make test-packages)" if absent else ""


def compiled(folder: Path) -> Path:
    """Compile the module. Raises RuntimeError saying what is missing."""
    if why := missing():
        raise RuntimeError(why)
    module = folder / "huawei_oem.so"
    command = ["gcc", "-O2", "-shared", "-fPIC", "-Wall", "-o", str(module), str(HERE / "huawei_oem.c")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise RuntimeError(f"gcc: {done.stderr[:2000]}")
    return module


class Bmc:
    """A running simulator. `says` sets what it answers from the next request on."""

    def __init__(self, module: Path, folder: Path) -> None:
        self.state, self.port = folder / "bmc.txt", _free_port()
        self.password_file = folder / "password"
        self.password_file.write_text(PASSWORD + "\n")
        self.password_file.chmod(0o600)
        self.says()
        (folder / "lan.conf").write_text(
            _LAN.format(module=module, state=self.state, port=self.port, user=USER, password=PASSWORD)
        )
        (folder / "emu").write_text(_EMULATOR)
        (folder / "state").mkdir()
        self._log = (folder / "ipmi_sim.log").open("w")
        self._process = subprocess.Popen(
            ["ipmi_sim", "-n", "-c", str(folder / "lan.conf"), "-f", str(folder / "emu"), "-s", str(folder / "state")],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
        )  # fmt: skip
        self._wait()

    def says(self, events: Sequence[tuple[int, int, int, int]] = (), **rest: object) -> None:
        """Events are (code, severity, device type, device id); for the rest see huawei_oem.c."""
        lines = [f"event {code:x} {severity:x} {kind:x} {number:x}" for code, severity, kind, number in events]
        lines += [f"{key} {value}" for key, value in rest.items()]
        fresh = self.state.with_suffix(".new")
        fresh.write_text("\n".join(lines) + "\n")
        fresh.replace(self.state)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _wait(self) -> None:
        deadline = time.monotonic() + 20
        ping = bytes.fromhex("06 00 ff 06 00 00 11 be 80 00 00 00")  # RMCP presence ping
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.settimeout(0.1)
            while time.monotonic() < deadline:
                if self._process.poll() is not None:
                    raise RuntimeError(f"ipmi_sim ended: {Path(self._log.name).read_text()[:2000]}")
                probe.sendto(ping, ("127.0.0.1", self.port))
                try:
                    probe.recv(64)
                    return
                except OSError:
                    time.sleep(0.05)
        raise RuntimeError("ipmi_sim did not answer in 20 s")


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
