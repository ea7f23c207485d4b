{{- define "cantle.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "cantle.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "cantle.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "cantle.labels" -}}
{{ include "cantle.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "cantle.webhook" -}}
{{ include "cantle.fullname" . }}-webhook
{{- end }}

{{- define "cantle.queues" -}}
{{ include "cantle.fullname" . }}-queues
{{- end }}

{{- /* The namespaces that the injector leaves out, as JSON. */}}
{{- define "cantle.excluded" -}}
{{- concat (list "kube-system" .Release.Namespace) .Values.webhook.excludedNamespaces | uniq | toJson }}
{{- end }}

{{- /* Where the queues' pods are made: where the injector sees them. */}}
{{- define "cantle.queues.namespace" -}}
{{- $namespace := .Values.queueController.namespace }}
{{- if not $namespace }}{{ fail "queueController.namespace is needed: a namespace for the pods of queues, such as cantle-tasks" }}{{ end }}
{{- if has $namespace (include "cantle.excluded" . | fromJsonArray) }}{{ fail (printf "queueController.namespace is %s, which the injector leaves out: pods there would get whole GPUs in place of slices. Use another one, such as cantle-tasks" $namespace) }}{{ end }}
{{- $namespace }}
{{- end }}

{{- define "cantle.node" -}}
{{ include "cantle.fullname" . }}-node
{{- end }}

{{- /* The Secret that the webhook's pods mount a certificate from. */}}
{{- define "cantle.webhook.tlsSecret" -}}
{{- if eq .Values.webhook.certificates.mode "secret" }}{{ required "webhook.certificates.secret.name is needed with mode: secret" .Values.webhook.certificates.secret.name }}{{ else }}{{ include "cantle.webhook" . }}-tls{{ end }}
{{- end }}

{{- define "cantle.server" -}}
{{ include "cantle.fullname" . }}-server
{{- end }}

{{- define "cantle.scheduler" -}}
{{ include "cantle.fullname" . }}-scheduler
{{- end }}

{{- /* "true" on the classic path. */}}
{{- define "cantle.classic" -}}
{{- if eq .Values.path "classic" }}true{{ else if semverCompare "<1.35.0-0" .Capabilities.KubeVersion.Version }}{{ fail (printf "Kubernetes %s cannot share all GPUs of a node by claims: set path=classic, or use 1.35 or newer" .Capabilities.KubeVersion.Version) }}{{ end }}
{{- end }}

{{- /* "true" where GPUs are taken from NVIDIA's device plugin. */}}
{{- define "cantle.reservation" -}}
{{- if .Values.reservation.enabled }}{{ if include "cantle.classic" . }}true{{ else }}{{ fail "reservation.enabled needs path=classic: with claims on devices no other plugin may give out the same GPUs" }}{{ end }}{{ end }}
{{- end }}

{{- /* Labels of nodes as text: a shell's `--set` makes true of "true". */}}
{{- define "cantle.nodeSelector" -}}
{{- range $key, $value := . }}
{{ $key }}: {{ $value | toString | quote }}
{{- end }}
{{- end }}

{{- /* What a file of ClearML's agent chart has that changes nothing here: a list, as JSON. */}}
{{- define "cantle.withoutEffect" -}}
{{- $known := list "queue" "createQueueIfNotExists" "createQueues" "defaultContainerImage" "apiServerUrlReference" "fileServerUrlReference" "webServerUrlReference" "basePodTemplate" "queues" }}
{{- $found := list }}
{{- range list "clearml" "imageCredentials" "sessions" }}
{{- if hasKey $.Values . }}{{ $found = append $found . }}{{ end }}
{{- end }}
{{- range $key := keys .Values.agentk8sglue | sortAlpha }}
{{- if not (has $key $known) }}{{ $found = append $found (printf "agentk8sglue.%s" $key) }}{{ end }}
{{- end }}
{{- toJson $found }}
{{- end }}

{{- /* CEL: is this the name of a claim or template of the injector? */}}
{{- define "cantle.reserved" -}}
{{ . }}.matches('^cantle-(fraction|memory|whole|mig)-')
{{- end }}

{{- /* CEL: may this user do what cantle's own parts do? */}}
{{- define "cantle.trusted" -}}
{{- $account := printf "system:serviceaccount:%s:%%s" .Release.Namespace }}
{{- $own := list (printf $account (include "cantle.webhook" .)) (printf $account (include "cantle.queues" .)) "system:kube-scheduler" }}
{{- $users := concat $own .Values.webhook.trusted.users | uniq }}
{{- $groups := concat (list "system:masters") .Values.webhook.trusted.groups | uniq -}}
(request.userInfo.username in ['{{ join "', '" $users }}'] || request.userInfo.groups.exists(g, g in ['{{ join "', '" $groups }}']))
{{- end }}
