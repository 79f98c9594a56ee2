//! How the binary starts: where it listens, and what it says when it cannot.

use std::net::{SocketAddr, TcpListener};

use crate::node::{Procfs, get};
use crate::process::{Exporter, HANG};

/// The last line of a process that cannot start, and that it opened no port.
async fn refused(flags: &[&str]) -> String {
    let procfs = Procfs::new();
    let exporter = Exporter::start_with(procfs.host(), flags);
    let (code, lines) = tokio::time::timeout(HANG, exporter.end_with_log()).await.unwrap();
    assert_eq!(code, Some(1), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("serving")), "{lines:?}");
    lines.last().unwrap().clone()
}

#[tokio::test]
async fn a_missing_file_is_named_once_and_no_port_opens() {
    let flags = ["--config.file", "--web.token-file"];
    for flag in flags {
        let line = refused(&[&format!("{flag}=/nowhere/file")]).await;
        let missing = "No such file or directory (os error 2)";
        assert_eq!(line, format!("node-exporter-plus: {flag} /nowhere/file: {missing}"));
    }
}

#[tokio::test]
async fn a_faulty_certificate_is_named_once_and_no_port_opens() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "no certificate").unwrap();
    let file = file.display().to_string();
    let flags = [format!("--web.tls-cert-file={file}"), format!("--web.tls-key-file={file}")];
    let line = refused(&flags.each_ref().map(String::as_str)).await;
    let expected = "it holds no certificate; expected PEM";
    assert_eq!(line, format!("node-exporter-plus: --web.tls-cert-file {file}: {expected}"));
}

#[tokio::test]
async fn a_taken_port_is_named_once() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let procfs = Procfs::new();
    for (flag, other) in
        [("--web.listen-address", "--admin-address"), ("--admin-address", "--web.listen-address")]
    {
        let flags = [format!("{flag}={address}"), format!("{other}=127.0.0.1:0")];
        let flags = flags.each_ref().map(String::as_str);
        let exporter = Exporter::launch(procfs.host(), &flags);
        let (code, line) = tokio::time::timeout(HANG, exporter.end()).await.unwrap();
        assert_eq!(code, Some(1));
        let expected = format!(
            "node-exporter-plus: {flag} {address}: cannot listen there, free the port or give another address: \
             Address already in use (os error 98)"
        );
        assert_eq!(line, expected);
    }
}

#[tokio::test]
async fn both_ports_answer_over_ipv6_and_ipv4() {
    if !std::fs::exists("/proc/net/if_inet6").unwrap() {
        eprintln!("SKIPPED: no IPv6 on this machine, so no scrape over IPv6");
        return;
    }
    let life = async {
        let procfs = Procfs::new();
        let flags = ["--web.listen-address=[::]:0", "--admin-address=[::]:0"];
        let mut exporter = Exporter::launch(procfs.host(), &flags);
        let web = exporter.address("/metrics and /statistics").await;
        let admin = exporter.address("/metrics, /livez").await;
        for host in ["::1", "127.0.0.1"] {
            let at = |port: SocketAddr| SocketAddr::new(host.parse().unwrap(), port.port());
            assert_eq!(get(at(web), "/statistics", "*/*").await.status, 200, "{host}");
            assert_eq!(get(at(admin), "/livez", "*/*").await.status, 200, "{host}");
        }
    };
    tokio::time::timeout(HANG, life).await.unwrap();
}
