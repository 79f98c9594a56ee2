{{- /* Adds the values that are missing: (list VALUES DEFAULTS). After `helm upgrade --reuse-values` those that the last release did not have
are, since Helm then takes the values of that release for the chart's. What is in these maps may be meant to be missing. Every template begins
with it. */ -}}
{{- define "plimsoll.complete" -}}
{{- $values := index . 0 }}
{{- range $key, $default := index . 1 }}
{{- if not (hasKey $values $key) }}
{{- $_ := set $values $key $default }}
{{- else if and (kindIs "map" $default) (kindIs "map" (get $values $key)) (not (has $key (list "resources" "probeResources" "nodeSelector" "env"))) }}
{{- include "plimsoll.complete" (list (get $values $key) $default) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The namespace of what has to do with the nodes' files and cards. */ -}}
{{- define "plimsoll.nodeAgents" -}}
{{ .Values.nodeAgents.namespace | default .Release.Namespace }}
{{- end }}

{{- /* The labels of an object: (list $ NAME). NAME is "" for an object of no program. */ -}}
{{- define "plimsoll.labels" -}}
{{- $root := index . 0 }}
{{- with index . 1 }}
{{- include "plimsoll.component" . }}app.kubernetes.io/name: {{ . }}
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
  {{- include "plimsoll.component" (index . 0) | trim | nindent 2 }}
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

{{- /* The same, and not while NVIDIA's GPU operator replaces the driver. */ -}}
{{- define "plimsoll.gpuMachines" -}}
{{ include "plimsoll.machines" . }}
- key: nvidia.com/gpu.deploy.client
  operator: NotIn
  values: ["false", paused-for-driver-upgrade, paused-for-mig-change]
- key: nvidia.com/gpu-driver-upgrade-state
  operator: NotIn
  values: [pod-deletion-required, drain-required, pod-restart-required, upgrade-failed]
{{- end }}

{{- /* The labels by which clusters tell that a node has a card of NVIDIA's, each with the value true. */ -}}
{{- define "plimsoll.hardwareLabels" -}}
nvidia.com/gpu.present feature.node.kubernetes.io/pci-10de.present feature.node.kubernetes.io/pci-0302_10de.present feature.node.kubernetes.io/pci-0300_10de.present
{{- end }}

{{- /* Lines of a pod's spec: that it goes to GPU nodes. */ -}}
{{- define "plimsoll.onGpuNodes" }}
{{- $gpu := .Values.gpuNodes }}
      nodeSelector:
        {{- include "plimsoll.nodeSelector" (list $ (dict "kubernetes.io/os" "linux")) | nindent 8 }}
        {{- if eq $gpu.find "label" }}
        {{ $gpu.label }}: {{ $gpu.value | quote }}
        {{- end }}
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
            {{- if eq $gpu.find "label" }}
            - matchExpressions:
              {{- include "plimsoll.gpuMachines" . | nindent 14 }}
            {{- else if eq $gpu.find "look" }}
            - matchExpressions:
              {{- include "plimsoll.gpuMachines" . | nindent 14 }}
              - key: {{ $gpu.label }}
                operator: NotIn
                values: ["false"]
            {{- else }}
            - matchExpressions:
              {{- include "plimsoll.gpuMachines" . | nindent 14 }}
              - key: {{ $gpu.label }}
                operator: In
                values: [{{ $gpu.value | quote }}]
            {{- range include "plimsoll.hardwareLabels" . | splitList " " }}
            - matchExpressions:
              {{- include "plimsoll.gpuMachines" $ | nindent 14 }}
              - key: {{ . }}
                operator: In
                values: ["true"]
              - key: {{ $gpu.label }}
                operator: NotIn
                values: ["false"]
            {{- end }}
            {{- end }}
{{- end }}

{{- /* Lines of a pod's spec: that it goes to every machine, but those that `plimsoll.onGpuNodes` names where an exporter of their own runs
there. */ -}}
{{- define "plimsoll.onOtherNodes" }}
{{- $gpu := .Values.gpuNodes }}
{{- $hasLabels := eq $gpu.find "hardwareLabels" }}
      nodeSelector:
        {{- include "plimsoll.nodeSelector" (list $ (dict "kubernetes.io/os" "linux")) | nindent 8 }}
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
            {{- if and .Values.exporter.gpuSignals $hasLabels }}
            - matchExpressions:
              {{- include "plimsoll.machines" . | nindent 14 }}
              - key: {{ $gpu.label }}
                operator: In
                values: ["false"]
            {{- end }}
            - matchExpressions:
              {{- include "plimsoll.machines" . | nindent 14 }}
              {{- if .Values.exporter.gpuSignals }}
              - key: {{ $gpu.label }}
                operator: NotIn
                values: [{{ $gpu.value | quote }}]
              {{- if $hasLabels }}
              {{- range include "plimsoll.hardwareLabels" . | splitList " " }}
              - key: {{ . }}
                operator: NotIn
                values: ["true"]
              {{- end }}
              {{- end }}
              {{- end }}
{{- end }}

{{- /* A line with the label of a program, whatever its workloads are called; nothing for what is none. */ -}}
{{- define "plimsoll.component" -}}
{{- $components := dict "annotator" "annotator" "scheduler-extender" "extender" "gpushare-device-plugin" "device-plugin" "mps-control-daemon" "mps" }}
{{- $_ := set $components "node-exporter-plus" "exporter" }}
{{- $_ := set $components "node-exporter-plus-gpu" "exporter" }}
{{- with get $components . }}app.kubernetes.io/component: {{ . }}
{{ end -}}
{{- end }}

{{- /* The labels that a pod's node has: (list $ LABELS), and that of the images' architecture. */ -}}
{{- define "plimsoll.nodeSelector" -}}
{{- $labels := merge (dict) (index . 1 | default dict) }}
{{- with (index . 0).Values.image.architecture }}
{{- $_ := set $labels "kubernetes.io/arch" . }}
{{- end }}
{{- with $labels }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{- /* The KubeSchedulerConfiguration of scheduler.mode second. */ -}}
{{- define "plimsoll.schedulerConfiguration" -}}
{{- $ns := .Release.Namespace }}
{{- $text := .Values.scheduler.configuration }}
{{- if not $text }}
{{- /* As for the namespace plimsoll. */ -}}
{{- $text = .Files.Get (printf "kube-scheduler/%s.yaml" (.Values.policy.crane | ternary "crane" "shipped")) }}
{{- $text = $text | replace "scheduler-extender.plimsoll.svc" (printf "scheduler-extender.%s.svc" $ns) }}
{{- $text = $text | replace "resourceNamespace: plimsoll\n" (printf "resourceNamespace: %s\n" $ns) }}
{{- $text = $text | replace "aliyun.com/gpu-mem" .Values.names.gpuResource }}
{{- end }}
{{- $text }}
{{- end }}

{{- /* What pods name in spec.schedulerName to be placed by it, as a list in JSON. Without profiles it has kube-scheduler's default one. */ -}}
{{- define "plimsoll.schedulerNames" -}}
{{- $configuration := include "plimsoll.schedulerConfiguration" . | fromYaml }}
{{- $names := list }}
{{- range $configuration.profiles }}
{{- $names = append $names (.schedulerName | default "default-scheduler") }}
{{- end }}
{{- $names | default (list "default-scheduler") | toJson }}
{{- end }}
