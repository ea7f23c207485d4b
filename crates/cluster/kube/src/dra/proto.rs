//! The kubelet's interfaces for drivers, generated from the files in `proto/`.

/// Claims: `proto/dra.proto`.
#[expect(unreachable_pub, clippy::too_many_lines, reason = "generated")]
pub(super) mod dra {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
}

/// Registration of a driver: `proto/registration.proto`.
#[expect(unreachable_pub, clippy::too_many_lines, reason = "generated")]
pub(super) mod registration {
    tonic::include_proto!("pluginregistration");
}

/// Health of devices: `proto/health.proto`.
#[expect(unreachable_pub, clippy::too_many_lines, reason = "generated")]
pub(super) mod health {
    tonic::include_proto!("v1alpha1");
}
