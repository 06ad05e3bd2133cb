#!/bin/sh
# progress.sh LABEL COMMAND…: runs the command. On a terminal, standard error shows the label and the seconds so far,
# drawn again in place from the third second on; elsewhere the label once, as a plain line. Exits as the command does.
set -u
label=$1; shift
if ! [ -t 2 ] || [ "${TERM:-dumb}" = dumb ]; then
  echo "$label" >&2
  exec "$@"
fi
"$@" &
work=$!
trap 'kill "$work" 2>/dev/null; wait "$work" 2>/dev/null; printf "\r\033[K" >&2; exit 130' INT TERM
begin=$(date +%s)
while kill -0 "$work" 2>/dev/null; do
  sleep 1
  spent=$(( $(date +%s) - begin ))
  [ "$spent" -lt 2 ] || printf '\r\033[K%s … %d s' "$label" "$spent" >&2
done
printf '\r\033[K' >&2
wait "$work"
