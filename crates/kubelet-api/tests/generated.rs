//! The code under `src/gen/` is what the protos under `proto/` give.
//!
//! Ordinary builds use the checked-in code and need no protoc; neither does this test, which
//! compiles the protos in Rust. After a change of a proto: `PLIMSOLL_REGENERATE=1 cargo test -p
//! plimsoll-kubelet-api --test generated`.

use std::fs;
use std::path::Path;

const PROTOS: [(&str, &str); 2] =
    [("deviceplugin_v1beta1.proto", "v1beta1.rs"), ("podresources_v1.proto", "v1.rs")];

#[test]
fn generated_code_is_what_the_protos_give() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let fresh = tempfile::tempdir().unwrap();
    for (proto, code) in PROTOS {
        let descriptors = protox::compile([proto], [root.join("proto")]).unwrap();
        tonic_prost_build::configure()
            .emit_rerun_if_changed(false)
            .out_dir(fresh.path())
            .compile_fds(descriptors)
            .unwrap();
        let fresh = fs::read_to_string(fresh.path().join(code)).unwrap();
        let kept = root.join("src/gen").join(code);
        if std::env::var_os("PLIMSOLL_REGENERATE").is_some() {
            fs::write(&kept, &fresh).unwrap();
        }
        let kept = fs::read_to_string(kept).unwrap();
        assert!(
            kept == fresh,
            "src/gen/{code} is stale: the test's first lines say how to regenerate it"
        );
    }
}
