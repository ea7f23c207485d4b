"""Manifests of ClearML's documentation that several tests use; the image is one that is here."""

LABELED = """
apiVersion: v1
kind: Pod
metadata:
  name: train-pod
  labels:
    trainer: train
    clearml-injector/fraction: "0.500"
spec:
  securityContext:
    fsGroup: 1000
  containers:
  - name: train-container
    image: localhost/cantle-test:1
    resources:
      limits:
        nvidia.com/gpu: 4
"""
# The indentation is corrected.
MIG = """
apiVersion: v1
kind: Pod
metadata:
  name: tf-benchmarks-mixed
spec:
  restartPolicy: Never
  containers:
    - name: tf-benchmarks-mixed
      image: localhost/cantle-test:1
      resources:
        limits:
          nvidia.com/mig-3g.20gb: 1
  nodeSelector:
    nvidia.com/gpu.product: A100-SXM4-40GB
"""
