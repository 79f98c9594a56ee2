{{- /* The labels of an object: (list $ NAME). NAME is "" for an object of no program. */ -}}
{{- define "plimsoll.labels" -}}
{{- $root := index . 0 }}
{{- with index . 1 }}app.kubernetes.io/name: {{ . }}
{{ end -}}
app.kubernetes.io/part-of: plimsoll
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version | replace "+" "_" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The labels by which the pods of a program are found. They never change: a workload's selector cannot. */ -}}
{{- define "plimsoll.selector" -}}
app.kubernetes.io/name: {{ . }}
app.kubernetes.io/part-of: plimsoll
{{- end }}

{{- /* The metadata of a program's pods: (list NAME its values). */ -}}
{{- define "plimsoll.podMetadata" -}}
{{- $values := index . 1 -}}
labels:
  {{- include "plimsoll.selector" (index . 0) | nindent 2 }}
  {{- with $values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $values.podAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* The image of a program: (list $ NAME). */ -}}
{{- define "plimsoll.image" -}}
{{- $image := (index . 0).Values.image }}
{{- printf "%s/%s:%s" $image.registry (index . 1) ($image.tag | default (index . 0).Chart.AppVersion) }}
{{- end }}

{{- /* Lines of a pod's spec: imagePullSecrets, where there are some. */ -}}
{{- define "plimsoll.pullSecrets" }}
{{- with .Values.image.pullSecrets }}
      imagePullSecrets:
      {{- range . }}
      - name: {{ . }}
      {{- end }}
{{- end }}
{{- end }}

{{- /* Sets the variables of names that are not the programs' own: (list $ VARIABLES). */ -}}
{{- define "plimsoll.setNames" }}
{{- $names := (index . 0).Values.names }}
{{- $env := index . 1 }}
{{- if ne $names.gpuResource "aliyun.com/gpu-mem" }}
{{- $_ := set $env "PLIMSOLL_GPU_RESOURCE" $names.gpuResource }}
{{- end }}
{{- if ne $names.gpuCountResource "aliyun.com/gpu-count" }}
{{- $_ := set $env "PLIMSOLL_GPU_COUNT_RESOURCE" $names.gpuCountResource }}
{{- end }}
{{- if ne $names.annotationPrefix "plimsoll.dev" }}
{{- $_ := set $env "PLIMSOLL_ANNOTATION_PREFIX" $names.annotationPrefix }}
{{- end }}
{{- end }}

{{- /* Lines of a container's env: (list the chart's, the user's), of which the user's win. */ -}}
{{- define "plimsoll.env" }}
{{- $env := deepCopy (index . 0) }}
{{- range $name, $value := index . 1 }}
{{- $_ := set $env $name $value }}
{{- end }}
{{- range $name, $value := $env }}
        - name: {{ $name }}
          value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- /* Items of matchExpressions: neither nodes of EKS Fargate nor virtual ones. */ -}}
{{- define "plimsoll.machines" -}}
- key: eks.amazonaws.com/compute-type
  operator: NotIn
  values: [fargate]
- key: type
  operator: NotIn
  values: [virtual-kubelet]
{{- end }}
