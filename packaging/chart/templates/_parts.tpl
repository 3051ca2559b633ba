{{- define "image" -}}
{{ .Values.image }}:{{ .Values.tag | default .Chart.Version }}
{{- end }}

{{- define "labels" -}}
app.kubernetes.io/name: skillery
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* No rights. A pod that runs code needs the profile of the sandbox and the whole /proc. */}}
{{- define "restricted" -}}
runAsUser: 1000
runAsNonRoot: true
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
{{- end }}

{{- define "sandbox" -}}
{{ include "restricted" . }}
procMount: Unmasked
seccompProfile: {type: Localhost, localhostProfile: {{ .Values.seccomp | quote }}}
{{- with .Values.apparmor }}
appArmorProfile: {type: Localhost, localhostProfile: {{ . | quote }}}
{{- end }}
{{- end }}
