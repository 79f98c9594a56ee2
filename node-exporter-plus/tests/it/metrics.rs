//! Every page of metrics, checked by Prometheus's promtool.

use std::fs;
use std::path::Path;

use crate::node::{Procfs, ask, get};
use crate::process::{Exporter, HANG};

#[test]
#[ignore = "needs promtool: make oracle"]
fn promtool_finds_no_fault_in_the_golden_pages() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let pages = fs::read_dir(golden).unwrap().map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|extension| extension == "prom"));
    let checked = pages.map(|path| support::promtool::check(&fs::read_to_string(path).unwrap()));
    assert_eq!(checked.count(), 9);
}

#[tokio::test]
#[ignore = "needs promtool: make oracle"]
async fn promtool_finds_no_fault_in_either_port_with_a_value_in_every_family() {
    let life = async {
        let mut procfs = Procfs::new();
        fs::write(procfs.path().join("loadavg"), "high\n").unwrap();
        let token = procfs.path().join("token");
        fs::write(&token, "first").unwrap();
        let flag = format!("--web.token-file={}", token.display());
        let mut exporter = Exporter::start_with(procfs.host(), &[&flag]);
        let address = exporter.address("/metrics and /statistics").await;
        let admin = exporter.address("/metrics, /livez").await;
        fs::write(&token, "").unwrap();
        let families = ["exporter_samples", "tls_handshake_failures", "file_changes"];
        let own = loop {
            let page = get(admin, "/metrics", "*/*").await.body;
            if families.iter().all(|family| page.contains(&format!("\nplimsoll_{family}_total"))) {
                break page;
            }
        };
        support::promtool::check(&own);
        let node = loop {
            procfs.burn(60, 1);
            let page = ask(address, "GET /metrics", "Authorization: Bearer first\r\n").await.body;
            if page.contains("node_cpu_usage_active 60") {
                break page;
            }
        };
        support::promtool::check(&node);
        assert_eq!(exporter.terminate().await.code(), Some(0));
    };
    tokio::time::timeout(HANG, life).await.unwrap();
}
