#!/bin/bash
# pip-install.sh FOLDER [--optional] REQUIREMENT...: wheels of FOLDER first, each named in its SHA256SUMS, then the package index.
# With --optional only what lies in FOLDER is installed.
set -euo pipefail
folder=$1; shift
optional=
[ "${1:-}" = --optional ] && { optional=yes; shift; }
# pip takes any of them, for what the named ones need too
(cd "$folder" && for file in *.whl; do [ -f "$file" ] && echo "$file"; done || true) | while read -r file; do verify.sh "$folder" "$file"; done
wanted=()
for requirement in "$@"; do
  name=$(printf '%s' "${requirement%%[=<>]*}" | tr '.-' '__' | tr '[:upper:]' '[:lower:]')
  found=$(cd "$folder" && for file in *.whl; do
    [ -f "$file" ] && [ "$(printf '%s' "${file%%-*}" | tr '.-' '__' | tr '[:upper:]' '[:lower:]')" = "$name" ] && echo "$file"; done || true)
  # the file itself beside what is asked of it: for the same version pip would as well take the index's, which no sum names
  case $found in ''|*$'\n'*) ;; *) wanted+=("$folder/$found") ;; esac
  if [ -n "$found" ] || [ -z "$optional" ]; then wanted+=("$requirement"); fi
done
[ ${#wanted[@]} -eq 0 ] && exit 0
exec python3 -m pip install --no-cache-dir --only-binary :all: --find-links "$folder" "${wanted[@]}"
