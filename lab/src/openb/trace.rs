//! A trace: the nodes, and the pods that are drawn from. Read from the lists as published, or from tables of counts.

use std::collections::BTreeMap;

use super::csv::{CsvError, Row, Table};

/// A whole GPU, in thousandths.
pub const WHOLE: u32 = 1000;
/// Most GPUs of a node.
pub const MOST_GPUS: usize = 16;

/// A GPU's model, by number.
pub type Model = u8;

/// The models that a pod accepts, a bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Models(pub u64);

impl Models {
    /// Every model.
    pub const ANY: Self = Self(u64::MAX);

    /// Whether `model` is among them.
    pub fn contain(self, model: Model) -> bool {
        self.0 >> u32::from(model).min(63) & 1 == 1
    }
}

/// A node of the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeKind {
    /// Its GPUs' model.
    pub model: Model,
    /// GPUs.
    pub gpus: usize,
    /// CPU in thousandths of a core.
    pub cpu: u32,
    /// Memory in MiB.
    pub memory: u32,
}

/// What a pod asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodKind {
    /// CPU in thousandths of a core.
    pub cpu: u32,
    /// Memory in MiB.
    pub memory: u32,
    /// GPUs; 0 for a pod without GPU.
    pub gpus: usize,
    /// Of each GPU, in thousandths; 0 for a pod without GPU.
    pub milli: u32,
    /// The models that it accepts.
    pub models: Models,
}

impl PodKind {
    /// Thousandths of GPUs in all.
    pub fn demand(&self) -> u64 {
        self.gpus as u64 * u64::from(self.milli)
    }
}

/// When a pod came and went, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// Creation.
    pub from: u64,
    /// Deletion; not before creation.
    pub to: u64,
}

/// Nodes and pods.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// The nodes.
    pub nodes: Vec<NodeKind>,
    /// Kinds of pods; none is there twice.
    pub kinds: Vec<PodKind>,
    /// The pods, in the order of the list: a position in [`Trace::kinds`] each.
    pub pods: Vec<usize>,
    /// The life of each pod; empty where the list has no times.
    pub lives: Vec<Life>,
    /// Names of models, by number.
    pub models: Vec<String>,
}

impl Trace {
    /// Reads a list of nodes and one of pods, each with the file that it came from.
    ///
    /// # Errors
    ///
    /// What is wrong in either.
    pub fn read(nodes: (&str, &str), pods: (&str, &str)) -> Result<Self, CsvError> {
        let mut reader = Reader::default();
        reader.nodes(&Table::parse(nodes.0, nodes.1)?)?;
        reader.pods(&Table::parse(pods.0, pods.1)?)?;
        Ok(reader.trace)
    }

    /// The GPUs of all nodes, in thousandths of a GPU.
    pub fn capacity(&self) -> u64 {
        self.nodes.iter().map(|node| node.gpus as u64 * u64::from(WHOLE)).sum()
    }
}

/// Columns of a list of nodes. `count` may stand beside them: so many such nodes.
const NODES: [&str; 4] = ["cpu_milli", "memory_mib", "gpu", "model"];
/// Columns of a list of pods. `count`, `gpu_spec` and the times may stand beside them.
const PODS: [&str; 4] = ["cpu_milli", "memory_mib", "num_gpu", "gpu_milli"];
/// More nodes or pods than this are a mistake.
const MOST_ROWS: usize = 10_000_000;

#[derive(Default)]
struct Reader {
    trace: Trace,
    known: BTreeMap<PodKind, usize>,
}

impl Reader {
    fn nodes(&mut self, table: &Table<'_>) -> Result<(), CsvError> {
        table.require(&NODES)?;
        for row in table.rows() {
            let kind = NodeKind {
                model: self.model(&row, "model", row.text("model"))?,
                gpus: row.number("gpu", 0, MOST_GPUS)?,
                cpu: row.number("cpu_milli", 0, u32::MAX)?,
                memory: row.number("memory_mib", 0, u32::MAX)?,
            };
            let count = count(table, &row)?;
            self.trace.nodes.extend(std::iter::repeat_n(kind, count));
        }
        Ok(())
    }

    fn pods(&mut self, table: &Table<'_>) -> Result<(), CsvError> {
        table.require(&PODS)?;
        let timed = table.has("creation_time") && table.has("deletion_time");
        for row in table.rows() {
            let kind = self.pod(&row)?;
            let at = self.kind(kind);
            let count = count(table, &row)?;
            self.trace.pods.extend(std::iter::repeat_n(at, count));
            if timed {
                let from = row.number("creation_time", 0, u64::MAX)?;
                let to = row.number("deletion_time", from, u64::MAX)?;
                self.trace.lives.extend(std::iter::repeat_n(Life { from, to }, count));
            }
        }
        Ok(())
    }

    fn pod(&mut self, row: &Row<'_>) -> Result<PodKind, CsvError> {
        let gpus = row.number("num_gpu", 0, MOST_GPUS)?;
        let milli = row.number("gpu_milli", 0, WHOLE)?;
        if (gpus == 0) != (milli == 0) {
            let problem =
                format!("{gpus} GPUs of {milli} thousandths; expected both to be 0 or neither");
            return Err(row.error("gpu_milli", problem));
        }
        let spec = row.text("gpu_spec");
        let mut models = if spec.is_empty() { Models::ANY } else { Models(0) };
        for name in spec.split('|').filter(|name| !name.is_empty()) {
            models.0 |= 1 << self.model(row, "gpu_spec", name)?;
        }
        let cpu = row.number("cpu_milli", 0, u32::MAX)?;
        let memory = row.number("memory_mib", 0, u32::MAX)?;
        Ok(PodKind { cpu, memory, gpus, milli, models })
    }

    fn kind(&mut self, kind: PodKind) -> usize {
        let next = self.trace.kinds.len();
        *self.known.entry(kind).or_insert_with(|| {
            self.trace.kinds.push(kind);
            next
        })
    }

    fn model(&mut self, row: &Row<'_>, column: &str, name: &str) -> Result<Model, CsvError> {
        if let Some(known) = self.trace.models.iter().position(|model| model == name) {
            return Ok(known as Model);
        }
        if self.trace.models.len() == 64 {
            return Err(
                row.error(column, format!("`{name}` is the 65th model; at most 64 are supported"))
            );
        }
        self.trace.models.push(name.to_owned());
        Ok((self.trace.models.len() - 1) as Model)
    }
}

fn count(table: &Table<'_>, row: &Row<'_>) -> Result<usize, CsvError> {
    if table.has("count") { row.number("count", 0, MOST_ROWS) } else { Ok(1) }
}
