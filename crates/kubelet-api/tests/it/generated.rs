//! The modules of this crate are what the compiler of `proto/` writes.
//!
//! A build uses the checked-in code and needs no protoc. Neither does this test, which compiles the protos in Rust.
//! After a change of a proto: `PLIMSOLL_REGENERATE=1 cargo test -p plimsoll-kubelet-api`.

use std::fs;
use std::path::Path;

/// Each proto, the file that prost names after its package, and the module that holds it here.
const PROTOS: [(&str, &str, &str); 6] = [
    ("deviceplugin_v1beta1.proto", "v1beta1.rs", "src/v1beta1.rs"),
    ("podresources_v1.proto", "v1.rs", "src/podresources.rs"),
    ("dra_v1.proto", "k8s.io.kubelet.pkg.apis.dra.v1.rs", "src/dra_v1.rs"),
    ("dra_v1beta1.proto", "k8s.io.kubelet.pkg.apis.dra.v1beta1.rs", "src/dra_v1beta1.rs"),
    ("dra_health_v1alpha1.proto", "v1alpha1.rs", "src/dra_health.rs"),
    ("pluginregistration_v1.proto", "pluginregistration.rs", "src/plugin_registration.rs"),
];

#[test]
fn generated_code_is_what_the_protos_give() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let fresh = tempfile::tempdir().unwrap();
    for (proto, package, module) in PROTOS {
        let descriptors = protox::compile([proto], [root.join("proto")]).unwrap();
        tonic_prost_build::configure()
            .emit_rerun_if_changed(false)
            .out_dir(fresh.path())
            .compile_fds(descriptors)
            .unwrap();
        let fresh = fs::read_to_string(fresh.path().join(package)).unwrap();
        let kept = root.join(module);
        if std::env::var_os("PLIMSOLL_REGENERATE").is_some() {
            fs::write(&kept, &fresh).unwrap();
        }
        let kept = fs::read_to_string(kept).unwrap();
        assert!(
            kept == fresh,
            "{module} is stale: the first lines of {} say how to regenerate it",
            file!()
        );
    }
}
