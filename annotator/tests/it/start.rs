//! What is said when the program cannot start: one line that names the flag, and each cause once.

use std::fs;
use std::path::Path;

use crate::world::World;

const MISSING: &str = "No such file or directory (os error 2)";

#[tokio::test]
async fn a_missing_policy_is_named_once() {
    let world = World::new().await;
    let mut args = world.args(&[]);
    args.load.policy_file = "/nowhere/policy.yaml".into();
    let error = world.refused_with(args).await;
    assert_eq!(error, format!("--policy-file /nowhere/policy.yaml: {MISSING}"));
}

#[tokio::test]
async fn a_kubeconfig_that_cannot_be_used_is_named_once() {
    let world = World::new().await;
    let mut args = world.args(&[]);
    args.api.kubeconfig = Some("/nowhere/config".into());
    let error = world.refused_with(args.clone()).await;
    assert!(error.starts_with("--kubeconfig /nowhere/config: "), "{error}");
    assert!(error.ends_with(MISSING) && error.matches(MISSING).count() == 1, "{error}");
    args.api.kubeconfig = Some(world.policy_file());
    let error = world.refused_with(args).await;
    assert!(error.starts_with("--kubeconfig /"), "{error}");
}

#[tokio::test]
async fn a_missing_ca_or_token_and_a_faulty_ca_are_named_once() {
    let world = World::new().await;
    let error = refused(&world, Path::new("/nowhere/ca"), None).await;
    assert_eq!(error, format!("--exporter-ca-file /nowhere/ca: {MISSING}"));
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca");
    fs::write(&ca, "no certificate").unwrap();
    let error = refused(&world, &ca, None).await;
    assert!(error.starts_with(&format!("--exporter-ca-file {}: ", ca.display())), "{error}");
    fs::write(&ca, support::authority::Authority::new().pem()).unwrap();
    let error = refused(&world, &ca, Some(Path::new("/nowhere/token"))).await;
    assert_eq!(error, format!("--exporter-token-file /nowhere/token: {MISSING}"));
}

/// The error with which the annotator refuses these files.
async fn refused(world: &World, ca: &Path, token: Option<&Path>) -> String {
    let mut args = world.args(&[]);
    args.exporters.exporter_ca_file = Some(ca.to_owned());
    args.exporters.exporter_token_file = token.map(Path::to_owned);
    world.refused_with(args).await
}
