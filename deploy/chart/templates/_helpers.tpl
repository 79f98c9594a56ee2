{{- /* Adds the values that are missing. After `helm upgrade --reuse-values` those that the last release did not have are, since Helm then takes
the values of that release for the chart's. Every template begins with it. Templates cannot read values.yaml, so `make reference` writes it as
defaults.json. */ -}}
{{- define "plimsoll.complete" -}}
{{- range $path, $moved := .Files.Get "moved.json" | fromJson }}
{{- include "plimsoll.moved" (list $.Values (splitList "." $path) $path $moved) }}
{{- end }}
{{- include "plimsoll.add" (list .Values (.Files.Get "defaults.json" | fromJson)) }}
{{- end }}

{{- /* Takes out a value that is gone, at its old default: the last release has it. With another one it is refused, with what is in its place:
(list VALUES, the parts of its path from there, PATH, what moved.json has of it). */ -}}
{{- define "plimsoll.moved" -}}
{{- $values := index . 0 }}
{{- $key := index . 1 | first }}
{{- $rest := index . 1 | rest }}
{{- $moved := index . 3 }}
{{- if and (kindIs "map" $values) (hasKey $values $key) }}
{{- $value := get $values $key }}
{{- if $rest }}
{{- include "plimsoll.moved" (list $value $rest (index . 2) $moved) }}
{{- else if ne (toJson $value) (toJson $moved.was) }}
{{- fail (printf "the value %s is gone: in its place is %s" (index . 2) $moved.now) }}
{{- end }}
{{- if or (not $rest) (and (kindIs "map" $value) (not $value)) }}
{{- $_ := unset $values $key }}
{{- end }}
{{- end }}
{{- end }}

{{- /* What is in the maps that are named here may be meant to be missing, and a null of resources means that: (list VALUES DEFAULTS). */ -}}
{{- define "plimsoll.add" -}}
{{- $values := index . 0 }}
{{- range $key, $default := index . 1 }}
{{- if not (hasKey $values $key) }}
{{- $_ := set $values $key $default }}
{{- else if and (kindIs "map" $default) (kindIs "map" (get $values $key)) (not (has $key (list "resources" "env"))) }}
{{- include "plimsoll.add" (list (get $values $key) $default) }}
{{- else if eq $key "resources" }}
{{- include "plimsoll.patch" (list (get $values $key) (get $values $key)) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The namespace of what has to do with the nodes' files and GPUs. */ -}}
{{- define "plimsoll.nodeAgents" -}}
{{ .Values.nodeAgents.namespace | default .Release.Namespace }}
{{- end }}

{{- /* The namespace of a program: (list $ PROGRAM). */ -}}
{{- define "plimsoll.namespace" -}}
{{- $isAgent := has (index . 1) (list "gpushare-device-plugin" "mps-control-daemon" "node-exporter-plus" "node-exporter-plus-gpu") }}
{{- if $isAgent }}{{ include "plimsoll.nodeAgents" (index . 0) }}{{ else }}{{ (index . 0).Release.Namespace }}{{ end }}
{{- end }}

{{- /* The name of a program's service account: (list $ PROGRAM). */ -}}
{{- define "plimsoll.user" -}}
system:serviceaccount:{{ include "plimsoll.namespace" . }}:{{ index . 1 }}
{{- end }}

{{- /* The labels of an object: (list $ NAME). */ -}}
{{- define "plimsoll.labels" -}}
{{- $root := index . 0 }}
{{- include "plimsoll.component" (index . 1) }}app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/part-of: plimsoll
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version | replace "+" "_" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* An object up to its labels: (list $ APIVERSION KIND NAME NAMESPACE LABEL). NAMESPACE is "" for objects that have none. */ -}}
{{- define "plimsoll.object" -}}
apiVersion: {{ index . 1 }}
kind: {{ index . 2 }}
metadata:
  name: {{ index . 3 }}
  {{- with index . 4 }}
  namespace: {{ . }}
  {{- end }}
  labels: {{- include "plimsoll.labels" (list (index . 0) (index . 5)) | nindent 4 }}
{{- end }}

{{- /* An object that is named as its program, in the program's namespace: (list $ APIVERSION KIND PROGRAM). */ -}}
{{- define "plimsoll.own" -}}
{{- $namespace := include "plimsoll.namespace" (list (index . 0) (index . 3)) }}
{{- include "plimsoll.object" (list (index . 0) (index . 1) (index . 2) (index . 3) $namespace (index . 3)) }}
{{- end }}

{{- /* A program's service account: (list $ PROGRAM). Only pods that say so get its token. */ -}}
{{- define "plimsoll.account" -}}
{{ include "plimsoll.own" (list (index . 0) "v1" "ServiceAccount" (index . 1)) }}
automountServiceAccountToken: false
{{- end }}

{{- /* Gives a program's account a role in a namespace, or with "" everywhere: (list $ PROGRAM NAME NAMESPACE KIND ROLE), the last two being the
role's. Begins a document, and so do the next ones. */ -}}
{{- define "plimsoll.binding" }}
---
{{ include "plimsoll.object" (list (index . 0) "rbac.authorization.k8s.io/v1" (empty (index . 3) | ternary "ClusterRoleBinding" "RoleBinding") (index . 2) (index . 3) (index . 1)) }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ index . 4 }}
  name: {{ index . 5 }}
subjects:
- kind: ServiceAccount
  name: {{ index . 1 }}
  namespace: {{ include "plimsoll.namespace" . }}
{{- end }}

{{- /* A Role up to its rules, bound to the program: (list $ PROGRAM NAME NAMESPACE); with "" a ClusterRole. */ -}}
{{- define "plimsoll.role" }}
{{- $kind := empty (index . 3) | ternary "ClusterRole" "Role" }}
{{- include "plimsoll.binding" (list (index . 0) (index . 1) (index . 2) (index . 3) $kind (index . 2)) }}
---
{{ include "plimsoll.object" (list (index . 0) "rbac.authorization.k8s.io/v1" $kind (index . 2) (index . 3) (index . 1)) }}
rules:
{{- end }}

{{- /* Rules of a Role: the Lease of a program's replicas. A right to create cannot be limited to a name. */ -}}
{{- define "plimsoll.lease" }}
# The Lease of its replicas. A right to create cannot be limited to a name.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [plimsoll-{{ . }}]
  verbs: [get, update]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
{{- end }}

{{- /* A Deployment: (list $ PROGRAM REPLICAS SURGE UNAVAILABLE, the text of its pod template). */ -}}
{{- define "plimsoll.deployment" -}}
{{ include "plimsoll.own" (list (index . 0) "apps/v1" "Deployment" (index . 1)) }}
spec:
  replicas: {{ index . 2 }}
  strategy:
    type: RollingUpdate
    rollingUpdate: {maxSurge: {{ index . 3 }}, maxUnavailable: {{ index . 4 }}}
  selector:
    matchLabels: {{- include "plimsoll.selector" (index . 1) | nindent 6 }}
{{- include "plimsoll.template" (list (index . 0) (index . 1) (index . 5)) }}
{{- end }}

{{- /* In CEL: that a write changes nothing else in an object's metadata than annotations. */ -}}
{{- define "plimsoll.sameMetadata" -}}
object.metadata.?labels == oldObject.metadata.?labels && {{ include "plimsoll.sameOwners" . }}
{{- end }}

{{- /* In CEL: that a write leaves an object's finalizers and owners as they are. */ -}}
{{- define "plimsoll.sameOwners" -}}
object.metadata.?finalizers == oldObject.metadata.?finalizers && object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences
{{- end }}

{{- /* A drain of several nodes takes one replica at a time: (list $ PROGRAM). */ -}}
{{- define "plimsoll.budget" }}
---
{{ include "plimsoll.own" (list (index . 0) "policy/v1" "PodDisruptionBudget" (index . 1)) }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{- include "plimsoll.selector" (index . 1) | nindent 6 }}
{{- end }}

{{- /* An admission policy up to its first resourceRules, and its binding: (list $ NAME LABEL GROUP OPERATIONS RESOURCES ACTIONS). */ -}}
{{- define "plimsoll.policy" }}
---
{{ include "plimsoll.object" (list (index . 0) "admissionregistration.k8s.io/v1" "ValidatingAdmissionPolicyBinding" (index . 1) "" (index . 2)) }}
spec:
  policyName: {{ index . 1 }}
  validationActions: {{ index . 6 | toJson }}
---
{{ include "plimsoll.object" (list (index . 0) "admissionregistration.k8s.io/v1" "ValidatingAdmissionPolicy" (index . 1) "" (index . 2)) }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups: [{{ index . 3 | quote }}]
      apiVersions: [v1]
      operations: [{{ index . 4 }}]
      resources: [{{ index . 5 }}]
{{- end }}

{{- /* The same for what a program's token may do, up to its variables and validations: (list $ NAME LABEL GROUP OPERATIONS RESOURCES PROGRAM). */ -}}
{{- define "plimsoll.tokenPolicy" }}
{{- include "plimsoll.policy" (list (index . 0) (index . 1) (index . 2) (index . 3) (index . 4) (index . 5) (list "Deny")) }}
  matchConditions:
  - name: by-the-{{ include "plimsoll.componentOf" (index . 6) }}
    expression: "request.userInfo.username == '{{ include "plimsoll.user" (list (index . 0) (index . 6)) }}'"
{{- end }}

{{- /* A token writes and changes events of its program alone, about what CEL says: (list $ PROGRAM CEL WORDS). */ -}}
{{- define "plimsoll.eventsPolicy" }}
{{- $program := index . 1 }}
{{- $component := include "plimsoll.componentOf" $program }}
{{- $name := printf "plimsoll-%s-events" $component }}
{{- include "plimsoll.tokenPolicy" (list (index . 0) $name "admission" "events.k8s.io" "CREATE, UPDATE, DELETE" "events" $program) }}
  {{- if contains "variables.ownNode" (index . 2) }}
  variables:
  {{- include "plimsoll.ownNode" . }}
  {{- end }}
  validations:
  - expression: >-
      request.operation != 'DELETE' && object.?reportingController.orValue('') == 'plimsoll-{{ $program }}' &&
      {{ index . 2 }}
    message: the {{ replace "-" " " $component }}'s token writes events of plimsoll-{{ $program }} about {{ index . 3 }} alone
    reason: Forbidden
  - expression: >-
      request.operation != 'UPDATE' || (
      oldObject.?reportingController.orValue('') == 'plimsoll-{{ $program }}' &&
      object.?regarding == oldObject.?regarding)
    message: the {{ replace "-" " " $component }}'s token changes the events of plimsoll-{{ $program }} alone
    reason: Forbidden
{{- end }}

{{- /* In CEL: the keys of a pod's claim, and of Aliyun's annotations that tell the same. */ -}}
{{- define "plimsoll.claimKeys" -}}
['{{ .Values.names.annotationPrefix }}/gpu-claim', 'scheduler.framework.gpushare.allocation', 'ALIYUN_COM_GPU_MEM_IDX', 'ALIYUN_COM_GPU_MEM_DEV', 'ALIYUN_COM_GPU_MEM_POD', 'ALIYUN_COM_GPU_MEM_ASSIGNED', 'ALIYUN_COM_GPU_MEM_ASSUME_TIME']
{{- end }}

{{- /* In CEL: whether `container` asks for GPU memory. */ -}}
{{- define "plimsoll.asks" -}}
has(container.resources) && ( (has(container.resources.limits) && '{{ .Values.names.gpuResource }}' in container.resources.limits) || (has(container.resources.requests) && '{{ .Values.names.gpuResource }}' in container.resources.requests))
{{- end }}

{{- /* In CEL: whether a pod of 256 containers and 256 init containers at most asks for GPU memory. */ -}}
{{- define "plimsoll.podAsks" -}}
(has(object.spec.containers) && object.spec.containers.size() <= 256 && object.spec.containers.exists(container, {{ include "plimsoll.asks" . }})) || (has(object.spec.initContainers) && object.spec.initContainers.size() <= 256 && object.spec.initContainers.exists(container, {{ include "plimsoll.asks" . }}))
{{- end }}

{{- /* In CEL: that no DaemonSet is among a pod's first 100 owners. */ -}}
{{- define "plimsoll.isOfNoDaemonSet" -}}
!has(object.metadata.ownerReferences) || object.metadata.ownerReferences.size() > 100 || !object.metadata.ownerReferences.exists(owner, owner.kind == 'DaemonSet')
{{- end }}

{{- /* The API version of MutatingAdmissionPolicy, or the error where there is none: (list $ ERROR). From 1.36 on every API server has it; before,
as v1beta1, one where it was switched on. `helm template` asks no server. */ -}}
{{- define "plimsoll.mutates" -}}
{{- $api := "admissionregistration.k8s.io/v1" }}
{{- $capabilities := (index . 0).Capabilities }}
{{- if semverCompare "<1.36.0-0" $capabilities.KubeVersion.Version }}
{{- $api = "admissionregistration.k8s.io/v1beta1" }}
{{- if not ($capabilities.APIVersions.Has (printf "%s/MutatingAdmissionPolicy" $api)) }}
{{- fail (index . 1) }}
{{- end }}
{{- end }}
{{- $api }}
{{- end }}

{{- /* Variables of an admission policy: which annotations a write changes. The time for a loop grows with the square of its turns. */ -}}
{{- define "plimsoll.changed" }}
  - name: new
    expression: "has(object.metadata.annotations) ? object.metadata.annotations : {}"
  - name: old
    expression: "has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {}"
  - name: few
    expression: variables.new.size() <= 1000 && variables.old.size() <= 1000
  - name: changed
    expression: >-
      !(variables.new.size() <= 1000 && variables.old.size() <= 1000) ? [] :
      variables.new.filter(key, !(key in variables.old && variables.old[key] == variables.new[key])) +
      variables.old.filter(key, !(key in variables.new))
{{- end }}

{{- /* A variable of an admission policy: the node of the pod that the device plugin's token is bound to. Empty where it is bound to none. */ -}}
{{- define "plimsoll.ownNode" }}
  - name: ownNode
    expression: "request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][?0].orValue('')"
{{- end }}

{{- /* The labels by which the pods of a program are found. They never change: a workload's selector cannot. */ -}}
{{- define "plimsoll.selector" -}}
app.kubernetes.io/name: {{ . }}
app.kubernetes.io/part-of: plimsoll
{{- end }}

{{- /* A workload's pod template, with podTemplates.NAME merged into it: (list $ NAME TEXT). */ -}}
{{- define "plimsoll.template" }}
  template:
{{- $patch := get (index . 0).Values.podTemplates (index . 1) }}
{{- if $patch }}
{{- $template := index . 2 | fromYaml }}
{{- include "plimsoll.patch" (list $template $patch) }}
{{- toYaml $template | nindent 4 }}
{{- else }}
{{- index . 2 }}
{{- end }}
{{- end }}

{{- /* Merges maps: (list MAP PATCH). Of two containers with one name, the patch is merged into the other; a volume, a variable or a mount takes
the place of the one with its name or path. Other lists replace. What is null goes. */ -}}
{{- define "plimsoll.patch" -}}
{{- $map := index . 0 }}
{{- range $key, $value := index . 1 }}
{{- $former := get $map $key }}
{{- $isContainers := has $key (list "containers" "initContainers") }}
{{- if kindIs "invalid" $value }}
{{- $_ := unset $map $key }}
{{- else if kindIs "map" $value }}
{{- $_ := set $map $key (kindIs "map" $former | ternary $former dict) }}
{{- include "plimsoll.patch" (list (get $map $key) $value) }}
{{- else if and (kindIs "slice" $former) (or $isContainers (has $key (list "volumes" "env" "volumeMounts"))) }}
{{- $by := eq $key "volumeMounts" | ternary "mountPath" "name" }}
{{- $items := dict }}
{{- range $item := $value }}
{{- $_ := set $items (get $item $by) $item }}
{{- end }}
{{- $merged := list }}
{{- range $item := concat $former $value }}
{{- $name := get $item $by }}
{{- $patch := get $items $name }}
{{- if not (hasKey $items $name) }}
{{- $merged = append $merged $item }}
{{- else if $patch }}
{{- if $isContainers }}
{{- include "plimsoll.patch" (list $item $patch) }}
{{- end }}
{{- $merged = append $merged ($isContainers | ternary $item $patch) }}
{{- $_ := set $items $name false }}
{{- end }}
{{- end }}
{{- $_ := set $map $key $merged }}
{{- else }}
{{- $_ := set $map $key $value }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The metadata of a workload's pods: (list $ NAME). */ -}}
{{- define "plimsoll.podMetadata" }}
    metadata:
      labels: {{- print (include "plimsoll.component" .) (include "plimsoll.selector" .) | nindent 8 }}
{{- end }}

{{- /* Lines of every pod's spec: (list $ PRIORITYCLASS). */ -}}
{{- define "plimsoll.pod" }}
      enableServiceLinks: false
      {{- with (index . 0).Values.image.pullSecrets }}
      imagePullSecrets:
      {{- range . }}
      - name: {{ . }}
      {{- end }}
      {{- end }}
      priorityClassName: {{ index . 1 }}
{{- end }}

{{- /* Lines of the spec of a node agent's pods, which go to every node that takes pods, whatever its taints. */ -}}
{{- define "plimsoll.agent" }}
      {{- include "plimsoll.pod" (list . "system-node-critical") }}
      tolerations:
      - {operator: Exists}
{{- end }}

{{- /* Lines of the spec of pods that run twice, on two nodes where there are two: (list $ PROGRAM USER SECONDS). After SECONDS, and not after the
usual 5 minutes, a lost node's replica is replaced. */ -}}
{{- define "plimsoll.replicas" }}
      serviceAccountName: {{ index . 1 }}
      automountServiceAccountToken: true
      {{- include "plimsoll.pod" (list (index . 0) "system-cluster-critical") }}
      tolerations:
      - {key: node-role.kubernetes.io/control-plane, operator: Exists, effect: NoSchedule}
      - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: {{ index . 3 }}}
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: {{ index . 3 }}}
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: kubernetes.io/hostname
        whenUnsatisfiable: ScheduleAnyway
        labelSelector:
          matchLabels: {{- include "plimsoll.selector" (index . 1) | nindent 12 }}
      nodeSelector: {{- include "plimsoll.nodeSelector" (index . 0) | nindent 8 }}
      {{- include "plimsoll.noRoot" (index . 2) }}
{{- end }}

{{- /* Lines of a pod's spec: the user that it runs as. */ -}}
{{- define "plimsoll.noRoot" }}
      securityContext:
        runAsNonRoot: true
        runAsUser: {{ . }}
        runAsGroup: {{ . }}
        seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- /* Lines of a container: its image, of one of the programs: (list $ NAME). */ -}}
{{- define "plimsoll.image" }}
{{- $image := (index . 0).Values.image }}
        image: {{ $image.registry }}/{{ index . 1 }}:{{ $image.tag | default (index . 0).Chart.AppVersion }}
        imagePullPolicy: {{ $image.pullPolicy }}
{{- end }}

{{- /* Lines of a container that needs no rights. */ -}}
{{- define "plimsoll.confined" }}
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities: {drop: [ALL]}
{{- end }}

{{- /* Lines of a container: its probes at the admin port: (list PERIOD DELAY PERIOD), the last two being those of readiness. More of liveness
may follow. */ -}}
{{- define "plimsoll.probes" }}
        readinessProbe:
          httpGet: {path: /readyz, port: admin}
          initialDelaySeconds: {{ index . 1 }}
          periodSeconds: {{ index . 2 }}
          timeoutSeconds: 2
          failureThreshold: 2
        livenessProbe:
          httpGet: {path: /livez, port: admin}
          periodSeconds: {{ index . 0 }}
          timeoutSeconds: 3
          failureThreshold: 3
{{- end }}

{{- /* A volume: files of Secrets for the pod's user. They follow changes. (list VOLUME (list SECRET KEY...)...) */ -}}
{{- define "plimsoll.secrets" }}
      - name: {{ first . }}
        projected:
          sources:
          {{- range rest . }}
          - secret:
              name: {{ first . }}
              items:
              {{- range rest . }}
              - {key: {{ . }}, path: {{ . }}}
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
{{- define "plimsoll.machines" }}
              - {key: eks.amazonaws.com/compute-type, operator: NotIn, values: [fargate]}
              - {key: type, operator: NotIn, values: [virtual-kubelet]}
{{- end }}

{{- /* The same, and not while NVIDIA's GPU operator replaces the driver. */ -}}
{{- define "plimsoll.gpuMachines" }}
              {{- include "plimsoll.machines" . }}
              - key: nvidia.com/gpu.deploy.client
                operator: NotIn
                values: ["false", paused-for-driver-upgrade, paused-for-mig-change]
              - key: nvidia.com/gpu-driver-upgrade-state
                operator: NotIn
                values: [pod-deletion-required, drain-required, pod-restart-required, upgrade-failed]
{{- end }}

{{- /* The labels by which clusters tell that a node has a GPU of NVIDIA's, each with the value true. */ -}}
{{- define "plimsoll.hardwareLabels" -}}
nvidia.com/gpu.present feature.node.kubernetes.io/pci-10de.present feature.node.kubernetes.io/pci-0302_10de.present feature.node.kubernetes.io/pci-0300_10de.present
{{- end }}

{{- /* The key and the value of gpuNodes.label, as a list in JSON. Without a value it is true. */ -}}
{{- define "plimsoll.gpuLabel" -}}
{{- printf "%s=true" .Values.gpuNodes.label | splitList "=" | toJson }}
{{- end }}

{{- /* Lines of a pod's spec: the nodes that it goes to, up to its terms. */ -}}
{{- define "plimsoll.nodes" }}
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
{{- end }}

{{- /* A term: of these machines those with labels as these: (list MACHINES (list KEY OPERATOR VALUE)...). */ -}}
{{- define "plimsoll.term" }}
            - matchExpressions:
              {{- include (first .) . }}
              {{- range rest . }}
              - {key: {{ index . 0 }}, operator: {{ index . 1 }}, values: [{{ index . 2 | quote }}]}
              {{- end }}
{{- end }}

{{- /* Lines of a pod's spec: that it goes to GPU nodes, and the runtime class that it has there. */ -}}
{{- define "plimsoll.onGpuNodes" }}
{{- $find := .Values.gpuNodes.find }}
{{- $label := include "plimsoll.gpuLabel" . | fromJsonArray }}
{{- $key := index $label 0 }}
{{- $value := index $label 1 }}
{{- $machines := "plimsoll.gpuMachines" }}
      {{- with .Values.gpuNodes.runtimeClassName }}
      runtimeClassName: {{ . }}
      {{- end }}
      nodeSelector:
        {{- include "plimsoll.nodeSelector" . | nindent 8 }}
        {{- if eq $find "label" }}
        {{ $key }}: {{ $value | quote }}
        {{- end }}
      {{- include "plimsoll.nodes" . }}
      {{- if eq $find "label" }}
      {{- include "plimsoll.term" (list $machines) }}
      {{- else if eq $find "look" }}
      {{- include "plimsoll.term" (list $machines (list $key "NotIn" "false")) }}
      {{- else }}
      {{- include "plimsoll.term" (list $machines (list $key "In" $value)) }}
      {{- range include "plimsoll.hardwareLabels" . | splitList " " }}
      {{- include "plimsoll.term" (list $machines (list . "In" "true") (list $key "NotIn" "false")) }}
      {{- end }}
      {{- end }}
{{- end }}

{{- /* Lines of a pod's spec: that it goes to every machine, but those that `plimsoll.onGpuNodes` names where an exporter of their own runs
there. */ -}}
{{- define "plimsoll.onOtherNodes" }}
{{- $label := include "plimsoll.gpuLabel" . | fromJsonArray }}
{{- $key := first $label }}
{{- $others := list "plimsoll.machines" }}
{{- if .Values.exporter.gpuSignals }}
{{- $others = append $others (list $key "NotIn" (index $label 1)) }}
{{- end }}
      nodeSelector: {{- include "plimsoll.nodeSelector" . | nindent 8 }}
      {{- include "plimsoll.nodes" . }}
      {{- if and .Values.exporter.gpuSignals (eq .Values.gpuNodes.find "hardwareLabels") }}
      {{- include "plimsoll.term" (list "plimsoll.machines" (list $key "In" "false")) }}
      {{- range include "plimsoll.hardwareLabels" . | splitList " " }}
      {{- $others = append $others (list . "NotIn" "true") }}
      {{- end }}
      {{- end }}
      {{- include "plimsoll.term" $others }}
{{- end }}

{{- /* A line with the label of what a program is; nothing for what is none. */ -}}
{{- define "plimsoll.component" -}}
{{- with include "plimsoll.componentOf" . }}app.kubernetes.io/component: {{ . }}
{{ end -}}
{{- end }}

{{- /* What a program is, whatever its workloads are called; nothing for what is none. */ -}}
{{- define "plimsoll.componentOf" -}}
{{- $components := dict "annotator" "annotator" "scheduler-extender" "extender" "gpushare-device-plugin" "device-plugin" "mps-control-daemon" "mps" "node-exporter-plus" "exporter" "node-exporter-plus-gpu" "exporter" }}
{{- get $components . }}
{{- end }}

{{- /* The labels that a pod's node has. */ -}}
{{- define "plimsoll.nodeSelector" -}}
kubernetes.io/os: linux
{{- with .Values.image.architecture }}
kubernetes.io/arch: {{ . }}
{{- end }}
{{- end }}

{{- /* The KubeSchedulerConfiguration of scheduler.mode second: that of a control plane, with another Lease and name, and over TLS. */ -}}
{{- define "plimsoll.schedulerConfiguration" -}}
{{- $text := .Values.scheduler.configuration }}
{{- if not $text }}
{{- $text = .Files.Get (printf "kube-scheduler/%s.yaml" (.Values.policy.crane | ternary "crane" "shipped")) }}
{{- $head := "# What the kube-scheduler that runs in the cluster beside the provider's needs to know of Plimsoll (docs/schedulers.md).\n# After a change of the policy's limits, weights, namespaces or scale: plimsoll scheduler-config --in-cluster --policy FILE\n" }}
{{- $text = regexReplaceAll "(?s)^.*?apiVersion: " $text (print $head "apiVersion: ") }}
{{- $text = regexReplaceAll "(?s)(# [^\n]*\n)?clientConnection:.*?leaderElection:\n" $text "leaderElection:\n" }}
{{- $lease := printf "leaderElect: true\n  # Its own. The provider's is kube-system/kube-scheduler, the default: who holds that one keeps the provider's from scheduling.\n  resourceName: plimsoll-scheduler\n  resourceNamespace: %s\n" .Release.Namespace }}
{{- $profiles := "profiles:\n# The pods that name it in spec.schedulerName, and no others.\n- schedulerName: plimsoll-scheduler\n" }}
{{- $text = regexReplaceAll "(?s)profiles:.*?- schedulerName: default-scheduler\n" $text "" | replace "leaderElect: true\n" (print $lease $profiles) }}
{{- $host := printf "scheduler-extender.%s.svc" .Release.Namespace }}
{{- $folder := "/etc/kubernetes/plimsoll" }}
{{- $tls := printf "\n  enableHTTPS: true\n  tlsConfig:\n    serverName: %s\n    caFile: %s/ca.crt\n    certFile: %s/tls.crt\n    keyFile: %s/tls.key" $host $folder $folder $folder }}
{{- $text = regexReplaceAll "http://scheduler-extender[.]plimsoll[.]svc(:[0-9]+/[a-z-]+)" $text (printf "https://%s${1}%s" $host $tls) }}
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
