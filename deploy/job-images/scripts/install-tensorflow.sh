#!/bin/bash
# install-tensorflow.sh FOLDER VERSION REQUIREMENT...: TensorFlow, CANN's adapter for it (npu_bridge: a wheel, or within a tfplugin
# package), and the adapter's imports in freeze_graph.py, which restores graphs with NPU operators only when they are known.
set -euo pipefail
folder=$1 version=$2; shift 2
machine=$(uname -m)
there() { (cd "$folder" && find . -maxdepth 1 -name "$1" -printf "%f\n" | sort | tail -n 1); }

# on x86-64 the index has the build without CUDA under a name of its own
name=tensorflow
if [ -n "$(there 'tensorflow_cpu-*.whl')" ] || { [ -z "$(there 'tensorflow-*.whl')" ] && [ "$machine" = x86_64 ]; }; then
  name=tensorflow-cpu
fi
adapter=$(there 'npu_bridge-*.whl') plugin=$(there "Ascend-cann-tfplugin_*_linux-$machine.run")
[ -n "$adapter$plugin" ] || { echo "install-tensorflow.sh: packages/ lacks npu_bridge-….whl or Ascend-cann-tfplugin_…_linux-$machine.run" >&2; exit 1; }

pip-install.sh "$folder" "$name==$version" ${adapter:+npu_bridge} "$@"
if [ -z "$adapter" ]; then
  verify.sh "$folder" "$plugin"
  bash "$folder/$plugin" --install --install-for-all --quiet
fi

graph=$(python3 -c 'import importlib.util as u; print(u.find_spec("tensorflow_core.python.tools.freeze_graph").origin)')
imports='from npu_bridge.estimator import npu_ops\
from npu_bridge.estimator.npu.npu_config import NPURunConfig\
from npu_bridge.estimator.npu.npu_estimator import NPUEstimator\
from npu_bridge.estimator.npu.npu_optimizer import allreduce\
from npu_bridge.estimator.npu.npu_optimizer import NPUDistributedOptimizer\
from npu_bridge.hccl import hccl_ops'
grep -q npu_bridge "$graph" || sed -i "0,/^from tensorflow\./s//$imports\n&/" "$graph"
grep -q npu_bridge "$graph" || { echo "install-tensorflow.sh: $graph has no place for the imports" >&2; exit 1; }
