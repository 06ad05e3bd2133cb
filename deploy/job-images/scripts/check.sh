#!/bin/bash
# check.sh image|pod FRAMEWORK: what an image must hold when it is built, and what a pod must find when it starts. One line for each
# finding: what is wrong, and what to do. The exit status is the number of errors (at most 100). ROOT= looks below another root.
set -uo pipefail
mode=${1:-} framework=${2:-} root=${ROOT:-} errors=0
error() { echo "check.sh: $1. $2" >&2; errors=$((errors + 1)); }
hint() { echo "check.sh: note: $1. $2" >&2; }

image() {
  [ -f "$root/usr/local/Ascend/cann/set_env.sh" ] || [ -f "$root/usr/local/Ascend/ascend-toolkit/set_env.sh" ] || error "CANN's toolkit is missing" "Build the target anew; see install-cann.sh."
  if [ -d "$root/usr/local/Ascend/driver" ] && [ -n "$(ls -A "$root/usr/local/Ascend/driver")" ]; then
    error "files of a driver are in the image" "Remove /usr/local/Ascend/driver: the container runtime mounts the host's, and others break it."
  fi
  grep -q '^HwHiAiUser:' "$root/etc/passwd" || error "there is no user HwHiAiUser" "The driver opens its devices for this user: see DRIVER_UID."
  # while the recipe builds, packages/ is a mount and in no layer
  left=("$root/tmp")
  grep -q " $root/packages " /proc/self/mountinfo || left+=("$root/packages")
  if [ -n "$(find "${left[@]}" -maxdepth 1 -name '*.run' 2>/dev/null)" ]; then
    error "installers are left in the image" "Mount packages/ while building (RUN --mount), instead of copying it."
  fi
  case $framework in
    pytorch) module "torch, importlib.util; assert importlib.util.find_spec('torch_npu')" "PyTorch or torch_npu" ;;
    mindspore) module "importlib.util; assert importlib.util.find_spec('mindspore')" "MindSpore" ;;
    tensorflow) module "importlib.util; assert importlib.util.find_spec('tensorflow') and importlib.util.find_spec('npu_bridge')" "TensorFlow or npu_bridge" ;;
    inference) [ -s "$root/etc/belay-server" ] || error "no server is installed" "See install-server.sh." ;;
    *) error "'$framework' is no framework" "Write pytorch, mindspore, tensorflow or inference." ;;
  esac
}

# the modules themselves load libraries of the driver, which is not there while an image is built: they are only looked for
module() { [ -n "$root" ] || python3 -c "import $1" 2>/dev/null || error "$2 cannot be imported" "See the output of pip above: does the wheel fit Python and machine?"; }

pod() {
  chips=$(find "$root/dev" -maxdepth 1 -name 'davinci[0-9]*' 2>/dev/null | wc -l)
  if [ "$chips" -eq 0 ]; then
    error "no chip is visible (/dev/davinci*)" "Does the pod request huawei.com/..., and does the node have the Ascend container runtime (belay runtime status)?"
  elif [ -n "${LOCAL_WORLD_SIZE:-}" ] && [ "$LOCAL_WORLD_SIZE" -gt "$chips" ] 2>/dev/null; then
    error "$LOCAL_WORLD_SIZE processes on $chips chips" "LOCAL_WORLD_SIZE must not exceed the pod's chips."
  fi
  for file in davinci_manager devmm_svm hisi_hdc; do
    [ -e "$root/dev/$file" ] || error "/dev/$file is missing" "The Ascend container runtime mounts it: belay runtime status on the node."
  done
  [ -f "$root/usr/local/Ascend/driver/version.info" ] || error "the driver is not mounted (/usr/local/Ascend/driver/version.info)" \
    "The Ascend container runtime mounts it: belay runtime status on the node."
  if [ -d "$root/dev/shm" ] && [ "$framework" != inference ]; then
    size=$(df -Pk "$root/dev/shm" 2>/dev/null | awk 'NR == 2 { print $2 }')
    if [ "${size:-0}" -lt "${SHM_KIB:-1048576}" ]; then
      hint "/dev/shm has $((${size:-0} / 1024)) MiB" "Data loaders need more: an emptyDir with medium Memory at /dev/shm."
    fi
  fi
  table=${RANK_TABLE_FILE:-}
  if [ -n "$table" ] && [ "$framework" != inference ]; then
    [ -r "$root$table" ] || error "RANK_TABLE_FILE $table cannot be read" "Mount the volume ranktable, or ConfigMap rings-config-<job>, at its folder."
  fi
  for folder in /job/data /job/code; do
    if [ -d "$root$folder" ] && [ ! -r "$root$folder" ]; then
      error "$folder cannot be read by user $(id -u)" "belay check storage $folder says why: export, root squash or modes."
    fi
  done
  if [ -d "$root/job/output" ] && [ ! -w "$root/job/output" ]; then
    error "/job/output cannot be written by user $(id -u)" "belay check storage /job/output says why: export, root squash or modes."
  fi
}

case $mode in
  image) image ;;
  pod) pod ;;
  *) echo "usage: check.sh image|pod pytorch|mindspore|tensorflow|inference" >&2; exit 2 ;;
esac
[ "$errors" -gt 100 ] && errors=100
exit "$errors"
