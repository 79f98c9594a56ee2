//! `plimsoll events`: what Plimsoll's programs told by events.

use std::io::{BufReader, Write};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use serde_json::Value;

use crate::args::access::{Format, Output};
use crate::args::pods::Events;
use crate::cluster_access::objects::{Event, List};
use crate::cluster_access::{Cluster, scope_flag};
use crate::format::{printable, short_duration};
use crate::output::{json_line, write_form, yaml};
use crate::pipe;
use crate::table::{self, or_none};

/// The beginning of the names by which Plimsoll's programs write events.
const WRITERS: &str = "plimsoll-";

/// Shows the events.
///
/// # Errors
///
/// If they cannot be listed.
pub(crate) fn events(flags: &Events, output: &mut dyn Write) -> Result<()> {
    let cluster = Cluster::new(&flags.query.access);
    let scope = scope_flag(flags.namespace.as_deref());
    let list: List<Value> = cluster.kubectl().get(&["events", &scope])?;
    let mut ours: Vec<(Event, Value)> = list.items.into_iter().filter_map(of_ours).collect();
    ours.sort_by_key(|(event, _)| event.time());
    if flags.watch {
        return watch(&cluster, &scope, &ours, flags.query.format, output);
    }
    let values: Vec<&Value> = ours.iter().map(|(_, value)| value).collect();
    let name = |(event, _): &(Event, Value)| format!("event/{}", event.metadata.name);
    if write_form(&values, ours.iter().map(name), flags.query.format, output)? {
        return Ok(());
    }
    if ours.is_empty() {
        writeln!(
            output,
            "Plimsoll's programs wrote no event that the API server still has (an hour by default)."
        )?;
        return Ok(());
    }
    let now = Timestamp::now();
    let heading = ["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"];
    Ok(table::write(output, heading, ours.iter().map(|(event, _)| row(event, now)))?)
}

/// An event of Plimsoll's programs, as it was read and as it is shown.
fn of_ours(value: Value) -> Option<(Event, Value)> {
    let event: Event = serde_json::from_value(value.clone()).ok()?;
    event.writer().starts_with(WRITERS).then_some((event, value))
}

fn row(event: &Event, now: Timestamp) -> [String; 5] {
    let age = or_none(event.time().map(|time| short_duration((now - time).get_seconds())));
    let times = event.times();
    let [kind, reason, object, message] = cells(event);
    [if times > 1 { format!("{age} (x{times})") } else { age }, kind, reason, object, message]
}

fn cells(event: &Event) -> [String; 4] {
    let about = &event.involved_object;
    let object = match about.namespace.as_str() {
        _ if about.kind == "Node" => format!("node/{}", about.name),
        "" => format!("{}/{}", about.kind.to_lowercase(), about.name),
        namespace => format!("{}/{namespace}/{}", about.kind.to_lowercase(), about.name),
    };
    [event.kind.clone(), event.reason.clone(), object, event.message.clone()]
}

/// Writes those that are there and those that come, one a line with its time, until its reader has gone.
fn watch(
    cluster: &Cluster,
    scope: &str,
    known: &[(Event, Value)],
    format: Format,
    output: &mut dyn Write,
) -> Result<()> {
    for (event, value) in known {
        write_one(event, value, format, output)?;
    }
    output.flush()?;
    let words = ["get", "events", scope, "--watch-only", "--output=json"];
    let running = cluster.kubectl().start(&words)?;
    let stdout = running.stdout().context("kubectl has no output")?;
    let reader = serde_json::Deserializer::from_reader(BufReader::new(stdout));
    for value in reader.into_iter::<Value>().map_while(Result::ok) {
        if let Some((event, value)) = of_ours(value) {
            write_one(&event, &value, format, output)?;
            output.flush()?;
        }
        if pipe::is_closed() {
            return Ok(());
        }
    }
    if !running.wait()?.success() {
        bail!("kubectl has ended the watch; run this again");
    }
    Ok(())
}

/// Writes an event as a line, as YAML as a document.
fn write_one(event: &Event, value: &Value, format: Format, output: &mut dyn Write) -> Result<()> {
    match format.chosen() {
        Some(Output::Json) => writeln!(output, "{}", json_line(value))?,
        Some(Output::Yaml) => write!(output, "---\n{}", yaml(value))?,
        Some(Output::Name) => writeln!(output, "event/{}", printable(&event.metadata.name))?,
        Some(Output::Wide) | None => {
            let time = or_none(event.time().map(|time| format!("{time:.0}")));
            let [kind, reason, object, message] = cells(event);
            let text = format!("{time}  {kind}  {reason}  {object}  {message}");
            writeln!(output, "{}", printable(&text))?;
        }
    }
    Ok(())
}
