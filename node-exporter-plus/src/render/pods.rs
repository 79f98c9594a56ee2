//! The use of each pod as JSON: `/v1/pods`.

use std::fmt::{self, Write};
use std::time::SystemTime;

use super::json::timestamp;
use crate::pods::{PodUsage, PodUsages};

/// The approximate length of one pod's text, in bytes.
const BYTES_EACH: usize = 128;

/// The pods' counters at `time`, which is when they were read.
///
/// ```json
/// {"time":"2026-11-22T07:00:00.000Z","omitted":0,"pods":[{"uid":"8b1f4a9e-0d4c-4a63-9d6e-2f6a1c0b7e55",
///   "cpu_seconds_total":123.456789,"memory_used_bytes":1048576}]}
/// ```
///
/// `cpu_seconds_total` is the CPU time since the pod started: a reader takes the difference of two answers for the use
/// between them. `memory_used_bytes` is without caches that can be reclaimed. `omitted` is the number of pods beyond
/// those that are read. What is not known is left out.
#[must_use]
pub fn pods(usages: &PodUsages, time: SystemTime) -> String {
    let time = timestamp(time);
    let omitted = usages.omitted;
    let mut text = String::with_capacity(64 + usages.pods.len() * BYTES_EACH);
    // Writing to a String cannot fail; a UID has nothing that JSON escapes.
    let _ = write!(text, "{{\"time\":\"{time}\",\"omitted\":{omitted},\"pods\":[");
    for (index, usage) in usages.pods.iter().enumerate() {
        text.push_str(if index == 0 { "" } else { "," });
        let _ = pod(&mut text, usage);
    }
    text.push_str("]}");
    text
}

fn pod(text: &mut String, usage: &PodUsage) -> fmt::Result {
    write!(text, "{{\"uid\":\"{}\"", usage.uid)?;
    if let Some(cpu) = usage.cpu {
        write!(text, ",\"cpu_seconds_total\":{}.{:06}", cpu.as_secs(), cpu.subsec_micros())?;
    }
    if let Some(bytes) = usage.memory {
        write!(text, ",\"memory_used_bytes\":{bytes}")?;
    }
    text.push('}');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::PodUid;
    use std::time::Duration;

    #[test]
    fn what_is_not_known_is_left_out_and_never_0() {
        let uid = PodUid::of_folder("pod04dbdd5b3b5b2a3a8c3fd1f3ad5f4a4e").unwrap();
        let usage = |cpu: Option<u64>, memory| {
            let cpu = cpu.map(Duration::from_nanos);
            PodUsage { uid: uid.clone(), cpu, memory }
        };
        let all = vec![usage(Some(1_002_003_999), None), usage(None, Some(7))];
        let text = pods(&PodUsages { pods: all, omitted: 3 }, SystemTime::UNIX_EPOCH);
        let expected = concat!(
            r#"{"time":"1970-01-01T00:00:00.000Z","omitted":3,"pods":["#,
            r#"{"uid":"04dbdd5b3b5b2a3a8c3fd1f3ad5f4a4e","cpu_seconds_total":1.002003},"#,
            r#"{"uid":"04dbdd5b3b5b2a3a8c3fd1f3ad5f4a4e","memory_used_bytes":7}]}"#,
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn a_node_without_pods_has_an_empty_list() {
        let text = pods(&PodUsages::default(), SystemTime::UNIX_EPOCH);
        assert_eq!(text, r#"{"time":"1970-01-01T00:00:00.000Z","omitted":0,"pods":[]}"#);
    }
}
