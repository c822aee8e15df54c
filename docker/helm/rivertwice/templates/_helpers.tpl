{{/* What names an agent's objects: the agent called `agent` has the plain names. */}}
{{- define "rivertwice.suffix" -}}
{{- if ne . "agent" }}-{{ . }}{{ end }}
{{- end }}

{{- define "rivertwice.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "rivertwice.podSecurity" -}}
securityContext: {runAsNonRoot: true, runAsUser: 10001, fsGroup: 10001, seccompProfile: {type: RuntimeDefault}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - {name: {{ . }}}
{{- end }}
{{- end }}
{{- end }}

{{- define "rivertwice.security" -}}
securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end }}

{{/* What each stream and job of one agent tells Spark. Called with a dict of root and agent. */}}
{{- define "rivertwice.sparkConf" -}}
{{- $suffix := include "rivertwice.suffix" .agent }}
{{- with .root.Values.executors -}}
spark.executor.cores {{ .cores }}
spark.executor.memory {{ .heapMiB }}m
{{- if eq .mode "standalone" }}
spark.cores.max {{ mul .instances .cores }}
{{- else }}
spark.executor.instances {{ .instances }}
spark.executor.memoryOverhead {{ .overheadMiB }}m
spark.kubernetes.executor.request.cores {{ .requestCores }}
spark.kubernetes.executor.limit.cores {{ .cores }}

# The drivers of all streams live in the agent's pod; executors that a killed driver left go with that pod at the latest.
spark.driver.host driver{{ $suffix }}
spark.driver.bindAddress 0.0.0.0
spark.kubernetes.driver.pod.name ${env:HOSTNAME}

spark.kubernetes.namespace {{ $.root.Release.Namespace }}
spark.kubernetes.container.image {{ include "rivertwice.image" $.root }}
spark.kubernetes.container.image.pullPolicy {{ $.root.Values.image.pullPolicy }}
spark.kubernetes.executor.podTemplateFile /etc/spark/executor-pod.yaml
spark.kubernetes.executor.podTemplateContainerName executor

# Nothing is made but pods, so a driver needs rights on nothing else.
spark.kubernetes.executor.disableConfigMap true
spark.kubernetes.driver.service.deleteOnTermination false
spark.kubernetes.driver.ownPersistentVolumeClaim false
spark.kubernetes.driver.reusePersistentVolumeClaim false
{{- end }}
{{- end }}
{{- range $name, $value := .root.Values.spark }}
{{ $name }} {{ $value }}
{{- end }}
{{- end }}

{{/* What Spark makes each executor's pod of: it adds name, labels, image, sizes and its own variables. */}}
{{- define "rivertwice.executorPod" -}}
apiVersion: v1
kind: Pod
metadata:
  labels: {app: rivertwice, part: executor} # the NetworkPolicy lets parts of the platform reach each other
spec:
  {{- include "rivertwice.podSecurity" .root | nindent 2 }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  containers:
    - name: executor
      image: {{ include "rivertwice.image" .root }}
      command: [tini, --, python, -m, rivertwice.setup.executor]
      workingDir: /tmp # an executor keeps the jars that its driver gives it where it starts
      envFrom: # executors read and write tables on S3 themselves
        - {configMapRef: {name: rivertwice}}
        - {secretRef: {name: {{ .root.Values.store.secret }}}}
      {{- include "rivertwice.security" .root | nindent 6 }}
      volumeMounts: [{name: state, mountPath: /var/lib/rivertwice}, {name: tmp, mountPath: /tmp}]
  volumes:
    - {name: state, persistentVolumeClaim: {claimName: rivertwice-state{{ include "rivertwice.suffix" .agent }}}}
    - {name: tmp, emptyDir: {}}
{{- end }}
