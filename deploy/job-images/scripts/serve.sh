#!/bin/bash
# serve.sh [ARGUMENT...]: starts the server that the image was built with (/etc/belay-server), in the foreground.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
set -a
. "$here/environment.sh"
set +a
"$here/check.sh" pod inference
server=$(cat "${ROOT:-}/etc/belay-server")
case $server in
  mindie) cd "${ROOT:-}/usr/local/Ascend/mindie/latest/mindie-service" && exec ./bin/mindieservice_daemon "$@" ;;
  vllm) exec vllm serve "$@" ;;
  service) cd "${ROOT:-}/home/service" && exec bash run.sh "$@" ;;
  *) echo "serve.sh: /etc/belay-server names no server: '$server'" >&2; exit 2 ;;
esac
