#!/bin/sh
# A stand-in for hccn_tool: recorded output of a healthy port, for programs that look for the tool at its place
# (/usr/local/Ascend/driver/tools/hccn_tool). The file hccn_tool.down beside it lists the physical ids, one a line, of
# chips whose link is down.
chip="$2"
down() { # without programs of its own: what they take would be counted as the caller's
  [ -f "${0%/*}/hccn_tool.down" ] || return 1
  while read -r number; do [ "$number" = "$chip" ] && return 0; done <"${0%/*}/hccn_tool.down"
  return 1
}
case "$3" in
-link) if down; then echo "link status: DOWN"; else echo "link status: UP"; fi;;
-speed) echo "Speed: 100000 Mb/s";;
-link_stat) echo "[device $chip]link up count : 3";;
-bandwidth) echo "Bandwidth TX: 0.25 MB/sec"; echo "Bandwidth RX: 12.00 MB/sec";;
-stat) echo "mac_rx_mac_pause_num:5";;
-optical)
  echo "present : present"; echo "Vcc : 3271.30 mV"; echo "temperature : 40 C"
  for lane in 0 1 2 3; do echo "Tx Power$lane : 1.5 mW"; echo "Rx Power$lane : 1.5 mW"; done;;
*) echo "hccn_tool: option ${3:-} is not known to the stand-in" >&2; exit 1;;
esac
