{{/* What values change on the manifests. Each changes the world and prints nothing. */}}

{{/* The text of a setting: whole numbers without exponent, true and false as 1 and 0. */}}
{{- define "belay.text" -}}
{{- if kindIs "bool" . }}{{ ternary "1" "0" . }}
{{- else if kindIs "float64" . }}{{ if eq . (floor .) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- else }}{{ . }}{{ end }}
{{- end }}

{{/* The image of a role: its own values before those of all. (root, own) */}}
{{- define "belay.image" -}}
{{- $image := merge (dict) (default dict .own.image) .root.Values.image }}
{{- $image.repository }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ default .root.Chart.AppVersion $image.tag }}{{ end }}
{{- end }}

{{/*
The component by which names and nodes of Belay's own writes are checked, or not: policies of the API server where it has
them (Kubernetes 1.30), else the webhook of deploy/base. Empty where deploy/base or the overlay is right as it is. (root)
*/}}
{{- define "belay.admissionComponent" -}}
{{- $values := .root.Values }}
{{- $has := .root.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy" }}
{{- if eq $values.admissionControl "none" }}without-admission
{{- else if eq $values.admissionControl "policy" }}admission-policy
{{- else if and (eq $values.admissionControl "auto") $has }}admission-policy
{{- end }}
{{- end }}

{{/* The components that values list, in their order, and the one that admission asks for. (root, world) */}}
{{- define "belay.components" -}}
{{- $here := . }}
{{- $listed := .root.Values.components }}
{{- $admission := trim (include "belay.admissionComponent" (dict "root" .root)) }}
{{- if and $admission (not (has $admission $listed)) }}{{ $listed = append $listed $admission }}{{ end }}
{{- range $listed }}
  {{- $folder := printf "manifests/components/%s" . }}
  {{- $text := $here.root.Files.Get (printf "%s/kustomization.yaml" $folder) }}
  {{- if not $text }}{{ fail (printf "components: there is no %s in deploy/components" .) }}{{ end }}
  {{- $own := fromYaml $text }}
  {{- include "belay.resources" (dict "root" $here.root "world" $here.world "folder" $folder "own" $own) }}
  {{- include "belay.patches" (dict "world" $here.world "patches" $own.patches) }}
{{- end }}
{{- if eq $admission "without-admission" }}{{ include "belay.rights" . }}{{ end }}
{{- end }}

{{/*
Where nobody checks names, rights by name: the manifests that `belay rights` prints, for the nodes, namespaces, shards and
super pods of values; and kubelet's files, by which agents act as their node. (root, world)
*/}}
{{- define "belay.rights" -}}
{{- $own := .root.Values.withoutAdmission }}
{{- $agents := ne .root.Values.agents.mode "none" }}
{{- $nodes := $own.nodes }}
{{- if not $nodes }}
  {{- range (default (list) (lookup "v1" "Node" "" "").items) }}
    {{- if eq (dig "metadata" "labels" "workerselector" "" .) "dls-worker-node" }}{{ $nodes = append $nodes .metadata.name }}{{ end }}
  {{- end }}
{{- end }}
{{- if and $agents (not $nodes) }}
  {{- fail "admissionControl: none grants writes by name, and no node has the label workerselector=dls-worker-node: list withoutAdmission.nodes" }}
{{- end }}
{{- if and (ne .root.Values.agents.mode "npu-alone") (not $own.namespaces) }}
  {{- fail "admissionControl: none grants writes by name: list the namespaces of jobs in withoutAdmission.namespaces" }}
{{- end }}
{{- $guarded := list "kube-system" "kube-public" "kube-node-lease" "belay-system" "belay-nodes" "belay-recovery" "mindx-dl" "cluster-system" "volcano-system" }}
{{- range $own.namespaces }}
  {{- if has . $guarded }}{{ fail (printf "withoutAdmission.namespaces: %s belongs to Kubernetes, Belay, MindCluster or Volcano" .) }}{{ end }}
{{- end }}
{{- include "belay.each" (dict "here" . "kind" "shard" "names" $own.shards) }}
{{- include "belay.each" (dict "here" . "kind" "namespace" "names" $own.namespaces) }}
{{- include "belay.each" (dict "here" . "kind" "node" "names" $nodes) }}
{{- if $agents }}{{ include "belay.each" (dict "here" . "kind" "node" "file" "agent" "names" $nodes) }}{{ end }}
{{- include "belay.each" (dict "here" . "kind" "super-pod" "names" $own.superPods) }}
{{- range $object := .world.objects }}
  {{- if eq $object.kind "DaemonSet" }}
    {{- range $object.spec.template.spec.volumes }}
      {{- if eq .name "kubelet-config" }}{{ $_ := set .hostPath "path" $own.kubeletConfig }}{{ end }}
      {{- if eq .name "kubelet-certificates" }}{{ $_ := set .hostPath "path" $own.kubeletCertificates }}{{ end }}
    {{- end }}
    {{- $container := first $object.spec.template.spec.containers }}
    {{- range $container.volumeMounts }}
      {{- if eq .name "kubelet-config" }}{{ $_ := set . "mountPath" $own.kubeletConfig }}{{ end }}
      {{- if eq .name "kubelet-certificates" }}{{ $_ := set . "mountPath" $own.kubeletCertificates }}{{ end }}
    {{- end }}
    {{- range $container.env }}{{ if eq .name "KUBECONFIG" }}{{ $_ := set . "value" $own.kubeletConfig }}{{ end }}{{ end }}
  {{- end }}
{{- end }}
{{- end }}

{{/* The documents of one file, once for each name. (here: root and world, kind: of the names, file, names) */}}
{{- define "belay.each" -}}
{{- $here := .here }}
{{- $kind := .kind }}
{{- $path := printf "manifests/components/without-admission/per-%s.yaml" (default .kind .file) }}
{{- range (sortAlpha (uniq .names)) }}
  {{- $text := replace (printf "<%s>" $kind) . ($here.root.Files.Get $path) }}
  {{- include "belay.text.documents" (dict "world" $here.world "path" $path "text" $text) }}
{{- end }}
{{- end }}

{{/* One workload as its values say. (root, object, own) */}}
{{- define "belay.workload" -}}
{{- $root := .root }}
{{- $own := default dict .own }}
{{- $template := .object.spec.template }}
{{- $pod := $template.spec }}
{{- $container := first $pod.containers }}
{{- if and (hasKey $own "replicas") (ne .object.kind "DaemonSet") }}{{ $_ := set .object.spec "replicas" $own.replicas }}{{ end }}
{{- if eq $container.image "belay" }}
  {{- $_ := set $container "image" (include "belay.image" (dict "root" $root "own" $own)) }}
  {{- $policy := default $root.Values.image.pullPolicy (dig "image" "pullPolicy" "" $own) }}
  {{- if $policy }}{{ $_ := set $container "imagePullPolicy" $policy }}{{ end }}
{{- else if (dig "image" "repository" "" $own) }}
  {{- $_ := set $container "image" (printf "%s:%s" $own.image.repository (toString $own.image.tag)) }}
{{- end }}
{{- if $root.Values.imagePullSecrets }}{{ $_ := set $pod "imagePullSecrets" $root.Values.imagePullSecrets }}{{ end }}
{{- range (list "nodeSelector" "affinity" "priorityClassName" "tolerations" "topologySpreadConstraints") }}
  {{- if (get $own .) }}{{ $_ := set $pod . (get $own .) }}{{ end }}
{{- end }}
{{- if $own.resources }}{{ $_ := set $container "resources" $own.resources }}{{ end }}
{{- if $own.args }}{{ $_ := set $container "args" (concat $container.args $own.args) }}{{ end }}
{{- if $own.env }}{{ $_ := set $container "env" (concat (default list $container.env) $own.env) }}{{ end }}
{{- range $field := (list "volumes" "volumeMounts") }}
  {{- if (get $own $field) }}
    {{- $holder := ternary $pod $container (eq $field "volumes") }}
    {{- $_ := set $holder $field (concat (default list (get $holder $field)) (get $own $field)) }}
  {{- end }}
{{- end }}
{{- if $own.podAnnotations }}
  {{- $_ := set $template.metadata "annotations" (merge (dict) $own.podAnnotations (default dict $template.metadata.annotations)) }}
{{- end }}
{{- if $own.podLabels }}{{ $_ := set $template.metadata "labels" (merge (dict) $template.metadata.labels $own.podLabels) }}{{ end }}
{{- end }}

{{/* One DaemonSet of agents for each of agents.sets, with the components of that set. (root, world) */}}
{{- define "belay.agents" -}}
{{- $root := .root }}
{{- $left := list }}
{{- $more := list }}
{{- range $object := .world.objects }}
  {{- if and (eq $object.kind "DaemonSet") (eq $object.metadata.name "belay-agent") $root.Values.agents.sets }}
    {{- range $set := $root.Values.agents.sets }}
      {{- $world := dict "objects" (list (deepCopy $object)) }}
      {{- range $set.components }}
        {{- $folder := printf "manifests/components/%s" . }}
        {{- $text := $root.Files.Get (printf "%s/kustomization.yaml" $folder) }}
        {{- if not $text }}{{ fail (printf "agents.sets: there is no %s in deploy/components" .) }}{{ end }}
        {{- $own := fromYaml $text }}
        {{- $others := dict "objects" list }}
        {{- include "belay.resources" (dict "root" $root "world" $others "folder" $folder "own" $own) }}
        {{- $more = concat $more $others.objects }}
        {{- include "belay.patches" (dict "world" $world "patches" $own.patches) }}
      {{- end }}
      {{- $copy := first $world.objects }}
      {{- $_ := set $copy.metadata "name" (printf "belay-agent-%s" $set.name) }}
      {{- range $labels := (list $copy.metadata.labels $copy.spec.selector.matchLabels $copy.spec.template.metadata.labels) }}
        {{- $_ := set $labels "belay.dev/agents" $set.name }}
      {{- end }}
      {{- include "belay.workload" (dict "root" $root "object" $copy "own" (omit $set "name" "components" "nodeSelector")) }}
      {{- if $set.nodeSelector }}
        {{- $_ := set $copy.spec.template.spec "nodeSelector" (merge (dict) $set.nodeSelector (default dict $copy.spec.template.spec.nodeSelector)) }}
      {{- end }}
      {{- $left = append $left $copy }}
    {{- end }}
  {{- else }}
    {{- $left = append $left $object }}
  {{- end }}
{{- end }}
{{- range $one := $more }}
  {{- $known := false }}
  {{- range $left }}{{ if and (eq .kind $one.kind) (eq .metadata.name $one.metadata.name) }}{{ $known = true }}{{ end }}{{ end }}
  {{- if not $known }}{{ $left = append $left $one }}{{ end }}
{{- end }}
{{- $_ := set .world "objects" $left }}
{{- end }}

{{/* A Redis that is there already. (root, world) */}}
{{- define "belay.redis" -}}
{{- $redis := .root.Values.redis }}
{{- range $object := .world.objects }}
  {{- if and (eq $object.kind "ConfigMap") (eq $object.metadata.name "belay-settings") $redis.url }}
    {{- $_ := set $object.data "BELAY_REDIS_URL" $redis.url }}
  {{- end }}
  {{- if (has $object.kind (list "Deployment" "StatefulSet")) }}
    {{- range (default list $object.spec.template.spec.volumes) }}
      {{- if and (eq .name "redis") $redis.passwordSecret.name }}
        {{- $_ := set .secret "secretName" $redis.passwordSecret.name }}
        {{- if ne $redis.passwordSecret.key "password" }}
          {{- $_ := set .secret "items" (list (dict "key" $redis.passwordSecret.key "path" "password")) }}
        {{- end }}
      {{- end }}
      {{- if and (eq .name "redis-tls") $redis.tlsSecret }}{{ $_ := set .secret "secretName" $redis.tlsSecret }}{{ end }}
    {{- end }}
  {{- end }}
  {{- if and (eq $object.kind "NetworkPolicy") (has "redis-existing" $.root.Values.components) $redis.ports }}
    {{- range $rule := (default list $object.spec.egress) }}
      {{- $old := list }}
      {{- range $rule.ports }}{{ $old = append $old (toString .port) }}{{ end }}
      {{- if has "26379" $old }}
        {{- $ports := list }}
        {{- range $redis.ports }}{{ $ports = append $ports (dict "port" .) }}{{ end }}
        {{- $_ := set $rule "ports" $ports }}
      {{- end }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{- /*
"true" for a live object that this release does not own: Helm refuses to touch it. What was kept by a release of the same
name in another namespace is that release's, until its annotations name this one.
*/}}
{{- define "belay.foreign" -}}
{{- if .live -}}
{{- $notes := dig "metadata" "annotations" (dict) (.live | default dict) | default dict -}}
{{- $name := index $notes "meta.helm.sh/release-name" | default "" -}}
{{- $namespace := index $notes "meta.helm.sh/release-namespace" | default "" -}}
{{- if or (ne $name .root.Release.Name) (ne $namespace .root.Release.Namespace) }}true{{ end -}}
{{- end -}}
{{- end -}}
