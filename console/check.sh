#!/usr/bin/env bash
# Builds the console afresh and fails when it differs from what engine/serve/console/static ships.
# Without Node, or where the package registry cannot be reached, it says that nothing was checked and succeeds.
set -euo pipefail
cd "$(dirname "$0")"
not_checked() { echo "console: not checked, $1"; exit 0; }
command -v npm >/dev/null && command -v node >/dev/null || not_checked "there is no Node"
[ "$(node -p 'Number(process.versions.node.split(".")[0]) >= 20')" = true ] || not_checked "Node is older than 20"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! [ node_modules/.package-lock.json -nt package-lock.json ]; then
  echo "installing the console's locked packages (once)"
  if ! timeout 180 npm ci --fetch-retries=1 --fetch-timeout=20000 >"$work/log" 2>&1; then
    # a lock that does not fit package.json, or a package that is another one, is no trouble of the network
    if grep -Eq 'code (EUSAGE|EINTEGRITY|EJSONPARSE)|ERESOLVE' "$work/log"; then
      cat "$work/log" >&2
      exit 1
    fi
    rm -rf node_modules
    not_checked "its packages cannot be installed: $(grep -m1 -E 'npm (error|ERR!)' "$work/log" || echo 'npm took longer than 180 s')"
  fi
fi
npm run --silent check
npm test --silent
node build.mjs "$work/static"
if ! diff -rq "$work/static" ../engine/serve/console/static; then
  echo "engine/serve/console/static is not what console/ builds: run make console and commit what it writes" >&2
  exit 1
fi
