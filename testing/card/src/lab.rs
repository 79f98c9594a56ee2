//! Owns what the questions have in hand: the node, the GPU, the table; what the programs' metrics say.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use e2e::command::wait_for;
use e2e::progress::step;
use serde_json::{Value, json};

use crate::args::Run;
use crate::gpu::{Gpu, Pretended};
use crate::http;
use crate::mps::Mps;
use crate::node::{NODE, Node, PLUGIN};
use crate::parts::Parts;
use crate::pods::{ISOLATION, program_of, told_to_take};
use crate::questions::serving::{self, Python, Tokens};
use crate::table::{Answer, Table, not_asked};

/// How soon the programs tell of a change: several of their looks, on a busy machine.
pub(crate) const TOLD: Duration = Duration::from_secs(30);
/// What stands where a question needs a real GPU.
const NO_CUDA: &str = "not asked (FAKE): it needs CUDA on a real GPU";

/// The node and what is asked of it.
pub(crate) struct Lab {
    pub(crate) node: Node,
    pub(crate) gpu: Gpu,
    pub(crate) work: PathBuf,
    pub(crate) parts: Parts,
    pub(crate) mps: Option<Mps>,
    pub(crate) table: Table,
    pub(crate) python: Option<Python>,
    /// What a served model gave alone.
    pub(crate) served_alone: Option<Tokens>,
}

impl Lab {
    /// Starts the node.
    pub(crate) fn start(parts: &Parts, run: &Run) -> Result<Self> {
        let work = run.work.clone();
        let mut node = Node::prepare(parts, &work)?;
        let gpu = Gpu::find(parts, run.fake, &work.join("nvidia"), &work.join("cdi"))?;
        step(&format!("starting a node with {}, driver {}", gpu.model, gpu.driver));
        if run.fake {
            step("FAKE: no GPU, a stand-in of NVIDIA's library; what needs CUDA is NOT ASKED");
        }
        node.start(&gpu)?;
        let python = Python::find();
        let serves = !run.fake && python.as_ref().is_some_and(Python::has_torch);
        let serving = if serves { serving::TIME * serving::QUESTIONS } else { Duration::ZERO };
        let table = Table::new(Duration::from_secs(run.limit) + serving);
        let parts = parts.clone();
        Ok(Self { node, gpu, work, parts, mps: None, table, python, served_alone: None })
    }

    /// Asks a question.
    pub(crate) fn ask(
        &mut self,
        name: &'static str,
        promise: &'static str,
        question: impl FnOnce(&mut Self) -> Result<Answer>,
    ) {
        let begin = Instant::now();
        let answer = if self.table.left().is_zero() {
            Ok(not_asked("out of time: --limit"))
        } else {
            question(self)
        };
        self.table.add(name, promise, begin.elapsed(), answer);
    }

    /// Asks a question that needs CUDA.
    pub(crate) fn ask_cuda(
        &mut self,
        name: &'static str,
        promise: &'static str,
        question: impl FnOnce(&mut Self) -> Result<Answer>,
    ) {
        let fake = self.gpu.fake;
        self.ask(name, promise, |lab| if fake { Ok(not_asked(NO_CUDA)) } else { question(lab) });
    }

    /// What was measured on.
    pub(crate) fn facts(&self) -> Value {
        json!({
            "gpu": self.gpu.model, "driver": self.gpu.driver, "memoryMib": self.gpu.memory_mib,
            "fake": self.gpu.fake, "commit": self.parts.text("commit").unwrap_or_default(),
            "unixTime": unix_time(),
        })
    }

    /// The units that the node offers.
    pub(crate) fn allocatable(&self) -> Result<u64> {
        let node = self.node_object()?;
        let units = node["status"]["allocatable"]["aliyun.com/gpu-mem"].as_str();
        units.context("the node offers no units")?.parse().context("units are a number")
    }

    pub(crate) fn node_object(&self) -> Result<Value> {
        self.node.call("GET", &format!("/api/v1/nodes/{NODE}"), None)
    }

    /// An annotation of the node.
    pub(crate) fn annotation(&self, name: &str) -> Result<String> {
        let value = self.node_object()?["metadata"]["annotations"][name].take();
        Ok(value.as_str().with_context(|| format!("the node has no {name}"))?.to_owned())
    }

    /// The value of the device plugin's metric with these labels; `None` where it has no such row.
    pub(crate) fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Result<Option<f64>> {
        let page = http::page(PLUGIN, "/metrics")?;
        Ok(value_in(&page, name, labels))
    }

    /// Waits until an event of Plimsoll's has this reason, and returns its text.
    pub(crate) fn event(&self, reason: &str) -> Result<String> {
        wait_for(&format!("the event {reason}"), TOLD, || {
            let path = format!("/api/v1/events?fieldSelector=reason%3D{reason}");
            let listed = self.node.call("GET", &path, None)?;
            let text = &listed["items"][0]["message"];
            Ok(text.as_str().map(str::to_owned))
        })
    }

    /// Has the stand-in tell of the pods' processes as a driver would, and of an error. A process has what its program
    /// was told to take: nothing limits it.
    pub(crate) fn tell_driver(&self, xid: Option<u64>) -> Result<()> {
        self.tell_driver_also(&[], xid)
    }

    /// As [`Lab::tell_driver`], with processes outside of pods.
    pub(crate) fn tell_driver_also(&self, others: &[(i32, u64)], xid: Option<u64>) -> Result<()> {
        if !self.gpu.fake {
            return Ok(());
        }
        let mps_runs = self.mps.is_some();
        let outside = others.iter().map(|(pid, mib)| (*pid, *mib, false));
        let mut told: Vec<Pretended> = outside.map(|it| pretended(it, mps_runs)).collect();
        for object in self.pods()? {
            let Ok(pid) = program_of(&object) else { continue };
            let (mib, leaves_mps) = told_to_take(&object);
            let asks = &object["metadata"]["annotations"][ISOLATION];
            let client = asks == "mps" && !leaves_mps;
            told.push(pretended((pid.as_raw_nonzero().get(), mib, client), mps_runs));
        }
        self.gpu.pretend(&told, xid)
    }
}

fn unix_time() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn pretended((pid, allocated_mib, client): (i32, u64, bool), mps_runs: bool) -> Pretended {
    Pretended { pid, allocated_mib, mps: mps_runs.then_some(client) }
}

/// The value of the first row of a page of metrics with this name and these labels.
pub(crate) fn value_in(page: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let row = page.lines().find(|line| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
            && labels.iter().all(|(label, value)| line.contains(&format!("{label}=\"{value}\"")))
    })?;
    row.rsplit_once(' ')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_metrics_is_found_by_its_whole_name_and_its_labels() {
        let page =
            "used_bytes{pod=\"a\",gpu=\"0\"} 5\nused{pod=\"a\"} 7\nused{pod=\"b\"} 8\nplain 9\n";
        assert_eq!(value_in(page, "used", &[("pod", "b")]), Some(8.0));
        assert_eq!(value_in(page, "used", &[("pod", "a")]), Some(7.0));
        assert_eq!(value_in(page, "used_bytes", &[("gpu", "0")]), Some(5.0));
        assert_eq!(value_in(page, "plain", &[]), Some(9.0));
        assert_eq!(value_in(page, "used", &[("pod", "c")]), None);
    }
}
