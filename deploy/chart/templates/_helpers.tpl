{{- define "ebb.name" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{- define "ebb.selector" -}}
app.kubernetes.io/name: ebb
app.kubernetes.io/instance: {{ include "ebb.name" . }}
{{- end }}

{{- define "ebb.labels" -}}
{{ include "ebb.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* Metadata of an object; the argument is (list context suffix). */}}
{{- define "ebb.metadata" -}}
{{- $root := index . 0 -}}
metadata:
  name: {{ include "ebb.name" $root }}{{ index . 1 }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "ebb.labels" $root | nindent 4 }}
{{- end }}

{{/* repository@digest or repository:tag; the argument is (list context image). */}}
{{- define "ebb.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "ebb.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "ebb.name" .) -}}
{{- end }}

{{/* The restricted profile of the Pod Security Standards, and a root file system that is never written to. */}}
{{- define "ebb.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* What must be known of presets (engine/serving/src/kv_spec/preset.rs) beside their names: those that need a profile, those that may have one, and
     those whose blocks come down as memory asks for it. All others are static. */}}
{{- define "ebb.presets" -}}
profile: [kvmix, pmkvq, pmkvq-token4, pmkvq-token2]
profileOrNone: [ebb]
progressive: [pmkvq, ebb]
{{- end }}

{{/* What gives way when the KV memory is full: kv.mode, else the preset's, else progressive, on every device. */}}
{{- define "ebb.kvMode" -}}
{{- $kv := .Values.kv -}}
{{- if $kv.mode -}}
{{ $kv.mode }}
{{- else if and $kv.preset (not (has $kv.preset (include "ebb.presets" . | fromYaml).progressive)) -}}
static
{{- else -}}
progressive
{{- end -}}
{{- end }}

{{/* FILE or FILE@BITS of the profile; empty without one. */}}
{{- define "ebb.profile" -}}
{{- with .Values.kv.profile -}}
{{- if .configMap -}}
/profile/{{ .key }}{{ with .bits }}@{{ . }}{{ end }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Flags of ebb serve. Numbers of a values file are floating-point here: without int a million is written 1e+06. */}}
{{- define "ebb.args" -}}
{{- $v := .Values -}}
- serve
- --host={{ $v.server.host }}
- --port={{ $v.server.grpcPort }}
- --http-port={{ $v.server.httpPort }}
- --metrics-port={{ $v.server.metricsPort }}
- --grace-period={{ $v.drain.graceSeconds }}
- --log={{ $v.server.log }}
- --log-format=json
- --model={{ $v.model.name }}
- --cache-dir=/models
{{- with $v.model.servedName }}
- --served-model-name={{ . }}
{{- end }}
{{- with $v.model.quantization }}
- --quantization={{ . }}
{{- end }}
- --weights={{ $v.model.weights }}
- --max-running={{ int $v.server.maxRunning }}
- --max-waiting={{ int $v.server.maxWaiting }}
- --max-connections={{ int $v.server.maxConnections }}
{{- if ne $v.server.maxConnectionsPerPeer nil }}
- --max-connections-per-peer={{ int $v.server.maxConnectionsPerPeer }}
{{- end }}
- --client-memory={{ $v.server.clientMemory }}
{{- if $v.auth.existingSecret }}
- --api-key-file=/keys/{{ $v.auth.key }}
{{- end }}
{{- if $v.tls.existingSecret }}
- --tls-cert=/tls/tls.crt
- --tls-key=/tls/tls.key
- --metrics-tls={{ $v.tls.metrics }}
{{- if $v.tls.clientCaSecret }}
- --tls-client-ca=/client-ca/ca.crt
{{- end }}
{{- end }}
{{- with $v.server.maxContext }}
- --max-context={{ int . }}
{{- end }}
{{- with $v.server.maxStepTokens }}
- --max-step-tokens={{ int . }}
{{- end }}
{{- if $v.gpu.enabled }}
- --device=cuda
- --gpu-memory-utilization={{ $v.gpu.memoryUtilization }}
{{- else }}
- --device=cpu
{{- end }}
{{- with $v.kv.memory }}
- --kv-memory={{ . }}
{{- end }}
{{- with $v.kv.mode }}
- --kv-mode={{ . }}
{{- end }}
{{- with $v.kv.floor }}
- --kv-floor={{ . }}
{{- end }}
{{- $profile := include "ebb.profile" . }}
{{- if $v.kv.preset }}
- --kv-preset={{ $v.kv.preset }}{{ with $profile }}:{{ . }}{{ end }}
{{- else if $profile }}
- --kv-profile={{ $profile }}
{{- end }}
{{- with $v.kv.staticChunk }}
- --kv-static-chunk={{ int . }}
{{- end }}
- --kv-admission={{ $v.kv.admission }}
{{- with $v.kv.shrinkRate }}
- --kv-shrink-rate={{ . }}
{{- end }}
{{- with $v.kv.liveLimit }}
- --kv-live-limit={{ . }}
{{- end }}
{{- range $v.server.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* What autoscalers ask Prometheus. Each is one number for all pods: the sum, which they divide by the pods there are. */}}
{{- define "ebb.series" -}}
job="{{ include "ebb.name" . }}",namespace="{{ .Release.Namespace }}"
{{- end }}
{{- define "ebb.queueQuery" -}}
sum(vllm:num_requests_waiting{ {{- include "ebb.series" . -}} })
{{- end }}
{{/* Precision is spent under pressure in mode progressive alone. Where a pod has none to spend, memory in use counts: a GPU without kernels for the
     model's pages keeps them at 16 bit, and only its floor tells. */}}
{{- define "ebb.pressureQuery" -}}
{{- $s := include "ebb.series" . -}}
{{- if eq (include "ebb.kvMode" .) "progressive" -}}
sum((16 - ebb:request_kv_bits{stat="mean",{{ $s }}}) / ignoring (stat, of) ((16 - ebb:kv_bits{of="floor",{{ $s }}}) > 0) or vllm:kv_cache_usage_perc{ {{- $s -}} })
{{- else -}}
sum(vllm:kv_cache_usage_perc{ {{- $s -}} })
{{- end -}}
{{- end }}

{{/* Whether the metrics port, which probes ask, speaks TLS; empty if not. */}}
{{- define "ebb.metricsTls" -}}
{{- if and .Values.tls.existingSecret (eq .Values.tls.metrics "server") -}}
yes
{{- end -}}
{{- end }}

{{/* Combinations that the schema cannot refuse. */}}
{{- define "ebb.check" -}}
{{- $v := .Values -}}
{{- if and $v.model.fetch.enabled $v.model.download.enabled -}}
{{- fail "model.fetch and model.download are both enabled; /models is filled by one of them" -}}
{{- end -}}
{{- if and $v.model.fetch.enabled (contains "/" $v.model.name) -}}
{{- fail "model.fetch fetches models known by name, and model.name is a path; set model.fetch.enabled=false" -}}
{{- end -}}
{{- if and $v.model.download.enabled (not $v.model.download.image.repository) -}}
{{- fail "model.download.enabled needs model.download.image.repository" -}}
{{- end -}}
{{- if and $v.kv.floor $v.kv.profile.configMap -}}
{{- fail "kv.floor and kv.profile are both set; a profile says itself how far pages shrink" -}}
{{- end -}}
{{- if and $v.kv.floor $v.kv.preset -}}
{{- fail "kv.floor and kv.preset are both set; a preset says itself how far pages shrink" -}}
{{- end -}}
{{- $presets := include "ebb.presets" . | fromYaml -}}
{{- if and (has $v.kv.preset $presets.profile) (not $v.kv.profile.configMap) -}}
{{- fail (printf "kv.preset %s needs kv.profile.configMap, the ConfigMap with the profile that it starts from" $v.kv.preset) -}}
{{- end -}}
{{- if and $v.kv.preset $v.kv.profile.configMap (not (has $v.kv.preset (concat $presets.profile $presets.profileOrNone))) -}}
{{- fail (printf "kv.preset %s takes no profile; leave kv.profile.configMap empty" $v.kv.preset) -}}
{{- end -}}
{{- if and $v.tls.clientCaSecret (not $v.tls.existingSecret) -}}
{{- fail "tls.clientCaSecret needs tls.existingSecret, the Secret with the certificate of the pods" -}}
{{- end -}}
{{- if and $v.inferencePool.enabled (not $v.inferencePool.endpointPicker.name) -}}
{{- fail "inferencePool.enabled needs inferencePool.endpointPicker.name, the Service of the endpoint picker" -}}
{{- end -}}
{{- if and $v.grpcRoute.enabled (not $v.grpcRoute.parentRefs) -}}
{{- fail "grpcRoute.enabled needs grpcRoute.parentRefs, the Gateways that it belongs to" -}}
{{- end -}}
{{- if eq (int $v.server.grpcPort) (int $v.server.metricsPort) -}}
{{- fail "server.grpcPort and server.metricsPort are the same; choose two ports" -}}
{{- end -}}
{{- if has (int $v.server.httpPort) (list (int $v.server.grpcPort) (int $v.server.metricsPort)) -}}
{{- fail "server.httpPort is server.grpcPort or server.metricsPort, too; choose two ports" -}}
{{- end -}}
{{- if and (ne $v.autoscaling.kind "off") (lt (int $v.autoscaling.maxReplicas) (int $v.autoscaling.minReplicas)) -}}
{{- fail "autoscaling.maxReplicas is below autoscaling.minReplicas" -}}
{{- end -}}
{{- end }}
