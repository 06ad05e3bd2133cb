#!/bin/bash
# verify.sh FOLDER FILE...: each file lies in FOLDER, and is the one that FOLDER/SHA256SUMS names (lines of sha256sum).
set -euo pipefail
folder=$1; shift
sums=$folder/SHA256SUMS
[ -f "$sums" ] || { echo "verify.sh: there is no $sums: make it with (cd packages && sha256sum FILES... > SHA256SUMS)" >&2; exit 1; }
for file in "$@"; do
  [ -f "$folder/$file" ] || { echo "verify.sh: packages/ lacks $file" >&2; exit 1; }
  line=$(grep -E "^[0-9a-f]{64} [ *]$(printf '%s' "$file" | sed 's/[.[\*^$+?(){|]/\\&/g')\$" "$sums") \
    || { echo "verify.sh: packages/SHA256SUMS does not name $file" >&2; exit 1; }
  (cd "$folder" && printf '%s\n' "$line" | sha256sum --check --quiet -) || { echo "verify.sh: $file is not the file of packages/SHA256SUMS" >&2; exit 1; }
done
