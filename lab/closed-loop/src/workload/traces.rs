//! Real use of CPU and real arrivals, read from a folder. `WORKLOAD.md` names the public sources.

use std::fs;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, bail, ensure};

/// Values of a day, one each five minutes.
pub(super) const A_DAY: usize = 288;

/// Pods of a cluster that ran: Alibaba's list openb.
const PODS: &str = "openb_pod_list_default.csv";
/// Days of PlanetLab's machines: the day, then 288 values in percent of a CPU.
const DAYS: &str = "planetlab.csv";
/// A month of Bitbrains' machines: id, CPUs, memory, then values each five minutes in percent of its CPUs.
const MACHINES: &str = "bitbrains-small.csv";
/// A week of jobs of SURF: a header, then when submitted and how long in seconds, CPUs, memory in MB, and mean use in
/// percent of the CPUs, −1 where that is not known.
const JOBS: &str = "surf-week-jobs.csv";

/// What was read.
#[derive(Debug, Clone)]
pub struct Traces {
    pub(super) pods: Vec<TracedPod>,
    /// By their mean.
    pub(super) days: Vec<Vec<u8>>,
    pub(super) machines: Vec<Vec<u8>>,
    pub(super) jobs: Vec<TracedJob>,
}

/// A pod of openb.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TracedPod {
    /// CPU request in thousandths of a core, and memory request in MiB.
    pub(super) cpu: u32,
    pub(super) memory: u32,
    /// What it asks for, as text: pods of equal requests are taken for pods of one app.
    pub(super) requests: String,
    pub(super) serves: bool,
    /// When it was created, and for how long it ran, in seconds.
    pub(super) created_at: f64,
    pub(super) ran_for: f64,
}

/// A job of SURF.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TracedJob {
    /// When it was submitted, and for how long it ran, in seconds.
    pub(super) submitted_at: f64,
    pub(super) ran_for: f64,
    /// Mean use as a fraction of its CPUs.
    pub(super) used: f64,
}

impl Traces {
    /// Reads all files of a folder.
    ///
    /// # Errors
    ///
    /// Names the file and the line that cannot be read.
    pub fn read(folder: &Path) -> anyhow::Result<Self> {
        let mean = |day: &Vec<u8>| day.iter().map(|value| u32::from(*value)).sum::<u32>();
        let mut days = read(folder, DAYS, day)?;
        days.sort_by_key(mean);
        let header = fs::read_to_string(folder.join(PODS)).unwrap_or_default();
        let header: Vec<&str> = header.lines().next().unwrap_or_default().split(',').collect();
        Ok(Self {
            pods: read(folder, PODS, |line| pod(&header, line))?,
            days,
            machines: read(folder, MACHINES, machine)?,
            jobs: read(folder, JOBS, job)?,
        })
    }
}

/// Reads each line of a file but for headers and rows without what is looked for.
fn read<T>(
    folder: &Path,
    file: &str,
    line_of: impl Fn(&str) -> anyhow::Result<Option<T>>,
) -> anyhow::Result<Vec<T>> {
    let path = folder.join(file);
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut rows = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let row =
            line_of(line).with_context(|| format!("{}, line {}", path.display(), number + 1))?;
        rows.extend(row);
    }
    ensure!(!rows.is_empty(), "{} has no rows", path.display());
    Ok(rows)
}

fn number<T: FromStr>(text: &str) -> anyhow::Result<T> {
    text.trim().parse().ok().with_context(|| format!("expected a number, found `{text}`"))
}

/// A time or a length in seconds.
fn seconds(text: &str) -> anyhow::Result<f64> {
    let seconds: f64 = number(text)?;
    ensure!(seconds.is_finite(), "expected seconds, found `{text}`");
    Ok(seconds)
}

fn percents(values: &[&str]) -> anyhow::Result<Vec<u8>> {
    let mut all = Vec::with_capacity(values.len());
    for value in values {
        let percent: u8 = number(value)?;
        ensure!(percent <= 100, "expected percent, 0 to 100, found `{value}`");
        all.push(percent);
    }
    Ok(all)
}

fn day(line: &str) -> anyhow::Result<Option<Vec<u8>>> {
    let fields: Vec<&str> = line.split(',').collect();
    ensure!(
        fields.len() == A_DAY + 1,
        "expected a day and {A_DAY} values, found {} fields",
        fields.len()
    );
    percents(&fields[1..]).map(Some)
}

fn machine(line: &str) -> anyhow::Result<Option<Vec<u8>>> {
    let fields: Vec<&str> = line.split(',').collect();
    ensure!(
        fields.len() >= A_DAY + 3,
        "expected an id, CPUs, memory and {A_DAY} values or more, found {} fields",
        fields.len()
    );
    percents(&fields[3..]).map(Some)
}

fn job(line: &str) -> anyhow::Result<Option<TracedJob>> {
    let fields: Vec<&str> = line.split(',').collect();
    let [submitted, ran_for, _, _, percent] = fields[..] else {
        bail!("expected 5 fields, found {}", fields.len());
    };
    if submitted == "submitted_s" {
        return Ok(None);
    }
    let used = seconds(percent)? / 100.0;
    let job = TracedJob {
        submitted_at: seconds(submitted)?,
        ran_for: seconds(ran_for)?,
        used: used.min(1.0),
    };
    Ok((used >= 0.0 && job.ran_for > 0.0).then_some(job))
}

/// A pod; `None` for the header and for one that was never scheduled.
fn pod(header: &[&str], line: &str) -> anyhow::Result<Option<TracedPod>> {
    let fields: Vec<&str> = line.split(',').collect();
    ensure!(
        fields.len() == header.len(),
        "expected {} fields, found {}",
        header.len(),
        fields.len()
    );
    let field = |name: &str| {
        let place = header.iter().position(|other| *other == name);
        let place = place.with_context(|| format!("there is no column `{name}`"))?;
        anyhow::Ok(fields[place])
    };
    let (scheduled, deleted) = (field("scheduled_time")?, field("deletion_time")?);
    if fields == header || scheduled.is_empty() || deleted.is_empty() {
        return Ok(None);
    }
    let requests = ["cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "qos"];
    let requests: anyhow::Result<Vec<&str>> = requests.into_iter().map(field).collect();
    let pod = TracedPod {
        cpu: number(field("cpu_milli")?)?,
        memory: number(field("memory_mib")?)?,
        requests: requests?.join(","),
        serves: ["LS", "Guaranteed"].contains(&field("qos")?),
        created_at: seconds(field("creation_time")?)?,
        ran_for: seconds(deleted)? - seconds(scheduled)?,
    };
    Ok((pod.ran_for > 0.0 && pod.cpu > 0).then_some(pod))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADER: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,\
                          creation_time,deletion_time,scheduled_time";

    fn header() -> Vec<&'static str> {
        HEADER.split(',').collect()
    }

    #[test]
    fn rows_of_each_file() {
        let line = "p-1,12000,16384,1,460,,LS,Running,60,160,70";
        let pod = pod(&header(), line).unwrap().unwrap();
        assert_eq!((pod.cpu, pod.memory, pod.serves), (12_000, 16_384, true));
        assert_eq!((pod.created_at, pod.ran_for), (60.0, 90.0));
        assert_eq!(pod.requests, "12000,16384,1,460,LS");
        let pending = "p-2,12000,16384,1,460,,LS,Pending,60,160,";
        assert_eq!(super::pod(&header(), pending).unwrap(), None);
        assert_eq!(super::pod(&header(), HEADER).unwrap(), None);

        let job = |line| super::job(line).unwrap();
        let used = TracedJob { submitted_at: 5.0, ran_for: 30.0, used: 0.5 };
        assert_eq!(job("5,30,16,100000,50.0"), Some(used));
        assert_eq!(job("5,30,16,100000,-1"), None);
        assert_eq!(job("submitted_s,duration_s,cpus,memory_mb,mean_percent"), None);

        let values = vec!["7"; A_DAY].join(",");
        assert_eq!(day(&format!("20110303,{values}")).unwrap().unwrap(), [7; A_DAY]);
        assert_eq!(machine(&format!("9,4,1024,{values},8")).unwrap().unwrap()[A_DAY], 8);
    }

    #[test]
    fn a_wrong_line_is_named() {
        let folder = std::env::temp_dir().join(format!("closed-loop-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let values = vec!["7"; A_DAY].join(",");
        fs::write(folder.join(DAYS), format!("1,{values}\n1,{values}01\n")).unwrap();
        let wrong = format!("{:#}", Traces::read(&folder).unwrap_err());
        fs::write(folder.join(DAYS), format!("1,{values}\n2,101,7\n")).unwrap();
        let short = format!("{:#}", Traces::read(&folder).unwrap_err());
        fs::remove_dir_all(&folder).unwrap();
        let missing = format!("{:#}", Traces::read(&folder).unwrap_err());
        assert!(missing.starts_with("cannot read ") && missing.contains(DAYS), "{missing}");
        assert!(short.contains("planetlab.csv, line 2: expected a day and 288 values"), "{short}");
        let number = "planetlab.csv, line 2: expected a number, found `701`";
        assert!(wrong.contains(number), "{wrong}");
    }

    proptest! {
        #[test]
        fn no_line_panics(line in "[-0-9a-zA-Z.,\u{e9} ]{0,200}", number in "-?[0-9]{0,30}") {
            let _ = (day(&line), machine(&line), job(&line), pod(&header(), &line));
            let _ = job(&format!("{number},{number},1,1,{number}"));
            let _ = pod(&header(), &format!("p,{number},1,1,1,,LS,Running,{number},{number},1"));
            let _ = percents(&[&number]);
        }
    }
}
