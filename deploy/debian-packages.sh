#!/usr/bin/env bash
# Installs Debian packages that are missing: arguments are PACKAGE or COMMAND:PACKAGE.
# Needs root or sudo; says what to install by hand where it cannot.
set -eu
missing=()
for want in "$@"; do
  command=${want%%:*} package=${want##*:}
  if [ "$want" = "$package" ]; then
    dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
  else
    command -v "$command" >/dev/null 2>&1 || missing+=("$package")
  fi
done
[ ${#missing[@]} -eq 0 ] && exit 0
run=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "please install these packages as root: ${missing[*]}" >&2
    exit 1
  fi
  run=(sudo)
fi
echo "installing Debian packages: ${missing[*]}" >&2
# tests start what they need themselves: a package's own service (sshd, redis, prometheus) must not start beside them
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' | "${run[@]}" tee "$policy" >/dev/null
  "${run[@]}" chmod 0755 "$policy"
  trap '"${run[@]}" rm -f "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
"${run[@]}" apt-get update -qq >/dev/null
"${run[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
