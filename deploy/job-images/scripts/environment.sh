# shellcheck shell=bash
# Sourced by entry scripts: the libraries of the driver, which the container runtime mounts, and CANN's own settings.
driver=${ROOT:-}/usr/local/Ascend/driver
export LD_LIBRARY_PATH=$driver/lib64:$driver/lib64/common:$driver/lib64/driver:${LD_LIBRARY_PATH:-}
for setting in "${ROOT:-}"/usr/local/Ascend/ascend-toolkit/set_env.sh "${ROOT:-}"/usr/local/Ascend/nnal/atb/set_env.sh \
               "${ROOT:-}"/usr/local/Ascend/mindie/set_env.sh; do
  # shellcheck source=/dev/null
  [ -f "$setting" ] && { set +u; . "$setting"; set -u; }
done
true
