#!/bin/bash
# install-server.sh FOLDER SERVER VERSION ARCHIVE: mindie (its .run package), vllm (wheels vllm and vllm-ascend), or service: one
# of one's own, as service.tar.gz with run.sh in it, or as ARCHIVE with install.sh and run.sh beside it.
set -euo pipefail
folder=$1 server=$2 version=${3:-} archive=${4:-} machine=$(uname -m) root=${ROOT:-}
case $server in
  mindie)
    name=$(cd "$folder" && find . -maxdepth 1 -name "Ascend-mindie_${version:-*}_linux-$machine*.run" -printf "%f\n" | sort | tail -n 1)
    [ -n "$name" ] || { echo "install-server.sh: packages/ lacks Ascend-mindie_${version:-VERSION}_linux-$machine.run" >&2; exit 1; }
    verify.sh "$folder" "$name"
    bash "$folder/$name" --install --install-path=/usr/local/Ascend --quiet
    ;;
  vllm)
    [ -n "$version" ] || { echo "install-server.sh: say which vLLM: --build-arg SERVER_VERSION=0.9.1" >&2; exit 1; }
    pip-install.sh "$folder" "vllm==$version" "vllm-ascend==$version"
    ;;
  service)
    home=$root/home/service
    # where the driver's library and services log
    mkdir -p "$home" "$root/usr/slog" "$root/var/log/npu/slog/slogd"
    if [ -n "$archive" ]; then
      case $archive in */* | install.sh | run.sh) echo "install-server.sh: DIST_PKG is the name of an archive in packages/, not '$archive'" >&2; exit 1 ;; esac
      verify.sh "$folder" "$archive" install.sh run.sh
      # install.sh unpacks the archive, and does what else the service needs; it runs where both lie
      cp "$folder/$archive" "$folder/install.sh" "$folder/run.sh" "$home/"
      (cd "$home" && bash ./install.sh) || { echo "install-server.sh: install.sh failed ($?)" >&2; exit 1; }
      rm -f "$home/$archive" "$home/install.sh"
    else
      verify.sh "$folder" service.tar.gz
      tar -xzf "$folder/service.tar.gz" -C "$home"
      [ -x "$home/run.sh" ] || { echo "install-server.sh: service.tar.gz holds no executable run.sh" >&2; exit 1; }
    fi
    ;;
  *) echo "install-server.sh: SERVER is mindie, vllm or service, not '$server'" >&2; exit 1 ;;
esac
mkdir -p "$root/etc"
printf '%s\n' "$server" > "$root/etc/belay-server"
