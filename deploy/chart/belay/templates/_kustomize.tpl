{{/*
What this chart needs of kustomize, so that both read the same manifests: resources, components, and patches by
JSON Patch (RFC 6902: add, replace, remove) or `$patch: delete`. A "world" is a dict with the list "objects"; the
templates here change it and print nothing.
*/}}

{{/* A kustomization with everything it lists. (root, world, folder) */}}
{{- define "belay.kustomization" -}}
{{- $text := .root.Files.Get (printf "%s/kustomization.yaml" .folder) }}
{{- if not $text }}{{ fail (printf "the chart holds no %s/kustomization.yaml" .folder) }}{{ end }}
{{- $own := fromYaml $text }}
{{- include "belay.resources" (dict "root" .root "world" .world "folder" .folder "own" $own) }}
{{- $here := . }}
{{- range $own.components }}
  {{- include "belay.kustomization" (dict "root" $here.root "world" $here.world "folder" (clean (printf "%s/%s" $here.folder .))) }}
{{- end }}
{{- include "belay.patches" (dict "world" .world "patches" $own.patches) }}
{{- end }}

{{- define "belay.resources" -}}
{{- $here := . }}
{{- range .own.resources }}
  {{- $path := clean (printf "%s/%s" $here.folder .) }}
  {{- if hasSuffix ".yaml" $path }}
    {{- include "belay.file" (dict "root" $here.root "world" $here.world "path" $path) }}
  {{- else }}
    {{- include "belay.kustomization" (dict "root" $here.root "world" $here.world "folder" $path) }}
  {{- end }}
{{- end }}
{{- end }}

{{/* The documents of a file. (root, world, path) */}}
{{- define "belay.file" -}}
{{- include "belay.text.documents" (dict "world" .world "path" .path "text" (.root.Files.Get .path)) }}
{{- end }}

{{/* The documents of a text. (world, path, text) */}}
{{- define "belay.text.documents" -}}
{{- $world := .world }}
{{- range (regexSplit "(?m)^---\\s*$" .text -1) }}
  {{- $object := fromYaml . }}
  {{- if $object.Error }}{{ fail (printf "%s: %s" $.path $object.Error) }}{{ end }}
  {{- if $object }}{{ $_ := set $world "objects" (append $world.objects $object) }}{{ end }}
{{- end }}
{{- end }}

{{/* Patches, each applied to the objects that its target names. (world, patches) */}}
{{- define "belay.patches" -}}
{{- $world := .world }}
{{- range .patches }}
  {{- $patch := . }}
  {{- $left := list }}
  {{- range $object := $world.objects }}
    {{- $hit := and (eq $object.kind $patch.target.kind) (or (not $patch.target.name) (eq $object.metadata.name (default "" $patch.target.name))) }}
    {{- if and $hit (contains "$patch: delete" $patch.patch) }}
    {{- else }}
      {{- if $hit }}
        {{- range (fromYamlArray $patch.patch) }}
          {{- include "belay.operation" (dict "object" $object "operation" .) }}
        {{- end }}
      {{- end }}
      {{- $left = append $left $object }}
    {{- end }}
  {{- end }}
  {{- $_ := set $world "objects" $left }}
{{- end }}
{{- end }}

{{/* One operation of a JSON Patch. (object, operation) */}}
{{- define "belay.operation" -}}
{{- $do := .operation }}
{{- if not (has $do.op (list "add" "replace" "remove")) }}{{ fail (printf "patches of this chart cannot %v" $do) }}{{ end }}
{{- $steps := list }}
{{- range (rest (splitList "/" $do.path)) }}{{ $steps = append $steps (. | replace "~1" "/" | replace "~0" "~") }}{{ end }}
{{- $at := .object }}
{{- $above := dict }}
{{- $name := "" }}
{{- range (initial $steps) }}
  {{- if kindIs "slice" $at }}
    {{- $at = index $at (atoi .) }}
  {{- else }}
    {{- if not (hasKey $at .) }}{{ fail (printf "there is no %s in %s %s" $do.path $.object.kind $.object.metadata.name) }}{{ end }}
    {{- $above = $at }}
    {{- $name = . }}
    {{- $at = get $at . }}
  {{- end }}
{{- end }}
{{- $last := last $steps }}
{{- if kindIs "map" $at }}
  {{- if eq $do.op "remove" }}{{ $_ := unset $at $last }}{{ else }}{{ $_ := set $at $last (deepCopy (dict "v" $do.value)).v }}{{ end }}
{{- else }}
  {{- $new := list }}
  {{- range $i, $one := $at }}
    {{- if eq $last (toString $i) }}
      {{- if ne $do.op "remove" }}{{ $new = append $new (deepCopy (dict "v" $do.value)).v }}{{ end }}
      {{- if eq $do.op "add" }}{{ $new = append $new $one }}{{ end }}
    {{- else }}
      {{- $new = append $new $one }}
    {{- end }}
  {{- end }}
  {{- if eq $last "-" }}{{ $new = append $new (deepCopy (dict "v" $do.value)).v }}{{ end }}
  {{- $_ := set $above $name $new }}
{{- end }}
{{- end }}
