#!/bin/bash
# install-tfplugin.sh FOLDER: CANN's adapter for TensorFlow (npu_bridge), and its imports in freeze_graph.py, which restores
# graphs with NPU operators only when they are known.
set -euo pipefail
folder=$1
plugin=$(cd "$folder" && find . -maxdepth 1 -name "Ascend-cann-tfplugin_*_linux-$(uname -m).run" -printf "%f\n" | sort | tail -n 1)
[ -n "$plugin" ] || { echo "install-tfplugin.sh: packages/ lacks Ascend-cann-tfplugin_…_linux-$(uname -m).run" >&2; exit 1; }
verify.sh "$folder" "$plugin"
bash "$folder/$plugin" --install --install-for-all --quiet
graph=$(python3 -c 'import importlib.util as u; print(u.find_spec("tensorflow_core.python.tools.freeze_graph").origin)')
grep -q npu_bridge "$graph" || sed -i '0,/^from tensorflow\./s//from npu_bridge.estimator import npu_ops\n&/' "$graph"
grep -q npu_bridge "$graph" || { echo "install-tfplugin.sh: $graph has no place for the import" >&2; exit 1; }
