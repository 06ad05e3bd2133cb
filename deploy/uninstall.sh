#!/usr/bin/env bash
# uninstall.sh [--yes] [--keep-reports]: takes Belay out of the cluster that kubectl speaks to (docs/guides/uninstall.md).
# Jobs, their pods and the kinds that they are made of stay. Without --yes it prints what it does and changes nothing.
# --keep-reports leaves the ConfigMaps in MindCluster's formats, for a cluster where MindCluster takes over.
set -euo pipefail

yes= keep=
for word in "$@"; do
  case $word in
    --yes) yes=1 ;;
    --keep-reports) keep=1 ;;
    *) echo "uninstall.sh: $word is no option: --yes, --keep-reports" >&2; exit 2 ;;
  esac
done

run() {
  echo "kubectl $*"
  [ -z "$yes" ] || kubectl "$@" </dev/null
}

# deletes the objects that standard input names
remove() {
  local objects
  mapfile -t objects
  [ "${#objects[@]}" -eq 0 ] || run delete "$@" "${objects[@]}"
}

kubectl get namespace kube-system -o name >/dev/null  # says why where nothing answers
served=$(kubectl api-resources --verbs=list,patch -o name)

# the objects of these kinds whose name begins with belay, of the kinds that the API server serves
ours() {
  local kinds
  kinds=$(grep -E "^($1)\." <<<"$served" | paste -sd, -) || return 0
  [ -z "$kinds" ] || kubectl get "$kinds" -o name | grep "/belay" || true
}

# First who answers for every write: without its pods the API server refuses changes in kube-system.
ours 'validatingwebhookconfigurations|validatingadmissionpolic(ie|ybinding)s' | remove

# Then who writes, so that nothing is written again.
for space in belay-system belay-nodes; do
  [ -n "$(kubectl get namespace "$space" -o name --ignore-not-found)" ] || continue
  run -n "$space" delete deployments,statefulsets,daemonsets --all
  [ -z "$yes" ] || [ -z "$(kubectl -n "$space" get pods -o name)" ] ||
    kubectl -n "$space" wait --for=delete pods --all --timeout=120s
done

# Every label and annotation belay.dev/..., but those of Belay's own documents and of what goes whole.
kinds=$(grep -v -e '^events' -e '^leases' -e '\.belay\.dev$' <<<"$served" | sort -u | paste -sd, -)
template='{{range .items}}{{$one := .}}
{{range $field, $keys := .metadata}}{{if or (eq $field "annotations") (eq $field "labels")}}{{range $key, $_ := $keys}}
{{or $one.metadata.namespace "-"}} {{$one.apiVersion}} {{$one.kind}} {{$one.metadata.name}} {{$field}} {{$key}}{{end}}{{end}}{{end}}{{end}}
'
marks() {
  kubectl get "$kinds" --all-namespaces -o go-template="$template" |
    awk '$6 ~ /^belay\.dev\// && $1 !~ /^belay-(system|nodes)$/ {
      split($2, at, "/"); kind = at[2] == "" ? $3 : $3 "." at[2] "." at[1]
      object = ($5 == "labels" ? "label" : "annotate") " " $1 " " kind " " $4
      keys[object] = keys[object] " " $6 "-"
    } END { for (object in keys) print object keys[object] }' | sort
}
# who else wrote the cordon of a node since: they want it for reasons of their own
cordoned_by_others() {
  kubectl get node "$1" -o jsonpath='{range .metadata.managedFields[*]}{.manager} {.fieldsV1}{"\n"}{end}' |
    awk '/f:unschedulable/ && $1 != "belay" && $1 != "ancient-changes" {print $1; exit}'
}
marks | while read -r verb space kind name keys; do
  where="--namespace=$space"
  [ "$space" != - ] || where=
  # nodes that Belay cordoned, and no others
  case " $keys " in *" belay.dev/cordoned- "*)
    writer=$(cordoned_by_others "$name")
    if [ -z "$writer" ]; then run uncordon "$name"; else echo "node $name stays cordoned: $writer cordoned it, too"; fi ;;
  esac
  # shellcheck disable=SC2086 # several words each
  run "$verb" "$kind" "$name" $where $keys
done

# What Belay reports in MindCluster's formats.
reports() {
  kubectl get configmaps --all-namespaces --no-headers -o custom-columns=A:.metadata.namespace,B:.metadata.name |
    grep -E -e '^kube-system +mindx-dl-(deviceinfo|switchinfo)-' \
      -e '^mindx-dl +(mindx-dl-nodeinfo-|dpuinfo-|pingmesh-fault-|cluster-info-)' \
      -e '^mindx-dl +(current-job-statistic|statistic-fault-info|scheduling-exception-report|fault-job-info)$' \
      -e '^volcano-system +(vcjob-fault-npu-cm|job-reschedule-reason|tor-share-cm)$' -e ' job-summary-' || true
}
if [ -z "$keep" ]; then
  reports | awk '{names[$1] = names[$1] " " $2} END {for (space in names) print space names[space]}' | sort |
    while read -r space names; do
      # shellcheck disable=SC2086 # several words
      run --namespace="$space" delete configmaps $names
    done
fi

# Rights, the Service that jobs reach, the priority, Belay's kinds with the copies of its documents, and its namespaces.
ours 'clusterroles|clusterrolebindings|priorityclasses' | remove
kubectl get roles,rolebindings --all-namespaces --no-headers -o custom-columns=A:.metadata.namespace,B:.kind,C:.metadata.name |
  awk '$3 ~ /^belay-/ {names[$1] = names[$1] " " $2 "/" $3} END {for (space in names) print space names[space]}' | sort |
  while read -r space names; do
    # shellcheck disable=SC2086 # several words
    run --namespace="$space" delete $names
  done
run --namespace=mindx-dl delete service --selector=app.kubernetes.io/part-of=belay --ignore-not-found
kubectl get customresourcedefinitions -o name | { grep '\.belay\.dev$' || true; } | remove
run delete namespace belay-system belay-nodes belay-recovery --ignore-not-found

[ -n "$yes" ] || echo "nothing was changed: add --yes"
