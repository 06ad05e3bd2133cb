#!/bin/bash
# install-server.sh FOLDER SERVER VERSION: mindie (its .run package), vllm (wheels vllm and vllm-ascend), or service
# (service.tar.gz with run.sh).
set -euo pipefail
folder=$1 server=$2 version=${3:-} machine=$(uname -m)
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
    verify.sh "$folder" service.tar.gz
    mkdir -p /home/service && tar -xzf "$folder/service.tar.gz" -C /home/service
    [ -x /home/service/run.sh ] || { echo "install-server.sh: service.tar.gz holds no executable run.sh" >&2; exit 1; }
    ;;
  *) echo "install-server.sh: SERVER is mindie, vllm or service, not '$server'" >&2; exit 1 ;;
esac
printf '%s\n' "$server" > /etc/belay-server
