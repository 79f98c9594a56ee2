//! The workload is frozen: figures of two versions of a policy compare only if it is the same.
//!
//! `PLIMSOLL_REGENERATE=1 cargo test -p plimsoll-closed-loop frozen` writes the golden file anew. All figures that were
//! reported before are void then.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

use closed_loop::cell::{Cell, Variant};
use closed_loop::cluster::Scale;
use closed_loop::workload::{Ar1, Pod, Traces, Workload};

/// The first arrivals and sums of one workload, to six digits.
fn describe(workload: &Workload, text: &mut String) {
    let Workload { cell, seed, apps, pods, traits, .. } = workload;
    writeln!(text, "{cell} {:?}, seed {seed}", cell.variant).unwrap();
    writeln!(text, "apps {}, pods {}", apps.len(), pods.len()).unwrap();
    let lives = sum(pods, |pod| f64::from(pod.life));
    writeln!(text, "sum of lives {lives}").unwrap();
    let arrivals = sum(pods, |pod| f64::from(pod.arrival));
    writeln!(text, "sum of arrivals {arrivals}").unwrap();
    let used = sum(pods, |pod| {
        let app = &apps[pod.app];
        app.cores() * app.ratio * f64::from(pod.factor) * workload.rhythm(app, pod.arrival)
    });
    writeln!(text, "sum of use at arrival {used}").unwrap();
    let memory = sum(pods, |pod| f64::from(pod.memory_used));
    writeln!(text, "sum of memory {memory}").unwrap();
    let noise = Ar1::new(traits.pod_noise, 300.0);
    let second = sum(pods, |pod| {
        f64::from(noise.next(noise.first(pod.noise), pod.noise, pod.arrival)).abs()
    });
    writeln!(text, "sum of noise {second}").unwrap();
    for pod in pods.iter().filter(|pod| !pod.settled).take(6) {
        let app = &apps[pod.app];
        writeln!(
            text,
            "app {} {:?} {}m {}Mi ratio {}: step {}, life {}, delay {}, factor {}, memory {}",
            pod.app,
            app.kind,
            app.cpu,
            app.memory,
            digits(app.ratio),
            pod.arrival,
            pod.life,
            pod.start_delay,
            digits(f64::from(pod.factor)),
            pod.memory_used
        )
        .unwrap();
    }
}

fn sum(pods: &[Pod], value: impl Fn(&Pod) -> f64) -> String {
    digits(pods.iter().map(value).sum())
}

fn digits(value: f64) -> String {
    format!("{value:.5e}")
}

#[test]
fn the_workload_is_frozen() {
    let mut text = String::new();
    let variants =
        [Variant::Frozen, Variant::Noisy, Variant::ShortLived, Variant::Memory, Variant::Levels];
    for variant in variants {
        // U25, S40 and H55.
        for cell in Cell::all(variant).into_iter().step_by(4) {
            describe(&Workload::new(cell, 1, Scale::FULL), &mut text);
        }
    }
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests");
    let traces = Arc::new(Traces::read(&tests.join("fixtures/traces")).unwrap());
    for cell in Cell::traced() {
        describe(&Workload::replayed(cell, 1, Scale::QUICK, &traces), &mut text);
    }
    let path = tests.join("golden/workload.txt");
    if std::env::var_os("PLIMSOLL_REGENERATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap());
}
