#!/bin/bash
# patch-torchrun.sh [FILE]: torchrun loads the recovery of ranks, where package taskd is installed (belay-training brings it).
# The same line before the same import as MindCluster's guides give; a second call changes nothing.
set -euo pipefail
python3 -c 'import taskd' 2>/dev/null || { echo "patch-torchrun.sh: no package taskd, torchrun stays as it is"; exit 0; }
file=${1:-$(python3 -c 'import importlib.util as u; print(u.find_spec("torch.distributed.run").origin)')}
grep -q '^import taskd.python.adaptor.patch$' "$file" && exit 0
sed -i '0,/^import os$/s//import taskd.python.adaptor.patch\nimport os/' "$file"
grep -q '^import taskd.python.adaptor.patch$' "$file" || { echo "patch-torchrun.sh: $file has no line 'import os'" >&2; exit 1; }
