#!/bin/bash
# train.sh FRAMEWORK SCRIPT [ARGUMENT...]: starts a pod's processes of a training job from what the job's controller put into the
# environment (docs/images.md names the variables), and ends as they end. Logs go where CANN's logs go, $ASCEND_PROCESS_LOG_PATH.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
usage() { echo "usage: train.sh pytorch|mindspore|tensorflow SCRIPT [ARGUMENT...]" >&2; exit 2; }
[ $# -ge 2 ] || usage
framework=$1 script=$2; shift 2
[ -f "$script" ] || { echo "train.sh: there is no $script: is the volume with the code mounted (/job/code)?" >&2; exit 2; }
need() {
  for name in "$@"; do
    [ -n "${!name:-}" ] || { echo "train.sh: $name is not set: the job needs label framework=$framework, or set it in the pod" >&2; exit 2; }
  done
}
set -a
. "$here/environment.sh"
set +a
"$here/check.sh" pod "$framework"
case $framework in
  pytorch)
    need MASTER_ADDR MASTER_PORT WORLD_SIZE RANK LOCAL_WORLD_SIZE
    nodes=$((WORLD_SIZE / LOCAL_WORLD_SIZE))
    if command -v belay-train >/dev/null && [ "${PROCESS_RECOVER:-off}" = on ]; then
      exec belay-train --nproc "$LOCAL_WORLD_SIZE" --nnodes "$nodes" --node-rank "$RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
        "$script" "$@"
    fi
    exec torchrun --nproc_per_node "$LOCAL_WORLD_SIZE" --nnodes "$nodes" --node_rank "$RANK" --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
      --max_restarts "${MAX_RESTARTS:-32767}" --monitor_interval 1 "$script" "$@"
    ;;
  mindspore)
    need MS_SCHED_HOST MS_SCHED_PORT MS_WORKER_NUM MS_LOCAL_WORKER MS_NODE_RANK
    exec msrun --worker_num "$MS_WORKER_NUM" --local_worker_num "$MS_LOCAL_WORKER" --master_addr "$MS_SCHED_HOST" --master_port "$MS_SCHED_PORT" \
      --node_rank "$MS_NODE_RANK" --join True "$script" "$@"
    ;;
  tensorflow)
    need CM_CHIEF_IP CM_CHIEF_PORT CM_CHIEF_DEVICE CM_WORKER_SIZE CM_LOCAL_WORKER CM_WORKER_IP
    children=()
    end() { kill "${children[@]}" 2>/dev/null || true; }
    trap end TERM INT
    for ((device = 0; device < CM_LOCAL_WORKER; device++)); do
      ASCEND_DEVICE_ID=$device python3 "$script" "$@" &
      children+=($!)
    done
    status=0
    for _ in "${children[@]}"; do
      # one that fails leaves the others waiting in a collective: they are ended too
      wait -n || { failed=$?; [ "$status" -ne 0 ] || status=$failed; end; }
    done
    # a signal interrupts one of the waits above
    wait || true
    exit "$status"
    ;;
  *) usage ;;
esac
