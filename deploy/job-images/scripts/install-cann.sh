#!/bin/bash
# install-cann.sh FOLDER VERSION CHIP: CANN's toolkit and the operators (or kernels) of CHIP. Its installers look for a driver:
# the host's ascend_install.info and version.info lie in FOLDER and stand in for it; the runtime mounts the real driver later,
# so nothing of it stays. CHIP none: the toolkit alone, as for TensorFlow.
set -euo pipefail
folder=$1 version=${2:-} chip=$3 root=${ROOT:-}
[ -n "$version" ] || { echo "install-cann.sh: say which CANN: --build-arg CANN_VERSION=8.2.RC1" >&2; exit 1; }
machine=$(uname -m)
toolkit=Ascend-cann-toolkit_${version}_linux-${machine}.run
operators=
[ "$chip" = none ] || for name in "Ascend-cann-${chip}-ops_${version}_linux-${machine}.run" "Ascend-cann-kernels-${chip}_${version}_linux-${machine}.run" \
            "Ascend-cann-kernels-${chip}_${version}_linux.run"; do
  [ -f "$folder/$name" ] && operators=$name
done
[ -n "$operators" ] || [ "$chip" = none ] || { echo "install-cann.sh: packages/ lacks the operators: Ascend-cann-${chip}-ops_${version}_linux-${machine}.run" >&2; exit 1; }
verify.sh "$folder" "$toolkit" ${operators:+"$operators"} ascend_install.info version.info
driver=$root/usr/local/Ascend/driver
# it is removed below
[ ! -e "$driver" ] || { echo "install-cann.sh: $driver is there already: this script builds images on a base without a driver" >&2; exit 1; }
mkdir -p "$driver" "$root/etc"
cp "$folder/ascend_install.info" "$root/etc/ascend_install.info"
cp "$folder/version.info" "$driver/version.info"
umask 022
# only the toolkit takes a folder: since CANN 8.5 the operators refuse the option, and go where the toolkit is
bash "$folder/$toolkit" --install --install-for-all --install-path="$root/usr/local/Ascend" --quiet
[ -z "$operators" ] || bash "$folder/$operators" --install --install-for-all --quiet
rm -rf "$driver" "$root/etc/ascend_install.info"
# cann since 8.5, ascend-toolkit before it
for layout in cann ascend-toolkit; do
  [ -f "$root/usr/local/Ascend/$layout/set_env.sh" ] && exit 0
done
echo "install-cann.sh: the toolkit left neither cann/set_env.sh nor ascend-toolkit/set_env.sh in $root/usr/local/Ascend:" \
  "see /var/log/ascend_seclog" >&2
exit 1
