# shellcheck shell=bash
# Sourced by entry scripts: the libraries of the driver, which the container runtime mounts, and CANN's own settings.
driver=${ROOT:-}/usr/local/Ascend/driver
export LD_LIBRARY_PATH=$driver/lib64:$driver/lib64/common:$driver/lib64/driver:${LD_LIBRARY_PATH:-}
# cann since CANN 8.5, which may keep the older name as a link; ascend-toolkit before it
toolkit=${ROOT:-}/usr/local/Ascend/cann/set_env.sh
[ -f "$toolkit" ] || toolkit=${ROOT:-}/usr/local/Ascend/ascend-toolkit/set_env.sh
for setting in "$toolkit" "${ROOT:-}"/usr/local/Ascend/nnal/atb/set_env.sh \
               "${ROOT:-}"/usr/local/Ascend/mindie/set_env.sh; do
  # shellcheck source=/dev/null
  [ -f "$setting" ] && { set +u; . "$setting"; set -u; }
done
true
