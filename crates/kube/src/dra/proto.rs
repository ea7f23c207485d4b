//! What the kubelet's interfaces for drivers are generated into, from the files in `proto/`.

/// Claims: `proto/dra.proto`.
#[expect(unreachable_pub, reason = "generated")]
pub(super) mod dra {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
}

/// How a driver makes itself known: `proto/registration.proto`.
#[expect(unreachable_pub, reason = "generated")]
pub(super) mod registration {
    tonic::include_proto!("pluginregistration");
}

/// Which devices work: `proto/health.proto`.
#[expect(unreachable_pub, reason = "generated")]
pub(super) mod health {
    tonic::include_proto!("v1alpha1");
}
