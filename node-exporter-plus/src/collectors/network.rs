//! Network interfaces, from `/proc/net/dev`: `network_device_*` of each, and for the node `network_usage`, that of the busiest
//! interface, and `network_receive_bytes` and `network_transmit_bytes`, the sums.
//!
//! Only interfaces with hardware (`/sys/class/net/NAME/device`) have signals: bridges, bonds, tunnels and pods' veth pairs
//! would count the same bytes again. Usage is that of the busier direction, in percent of the link's speed; interfaces
//! without a known speed (virtio) have none.
//!
//! An interface whose master has hardware too (a virtual function below a hypervisor's synthetic interface, as on Azure)
//! has signals and is not in the sums, since its master counts the same bytes. The members of a bond or bridge, whose
//! master has no hardware, are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::file::{exists, lines};
use super::rate::Counter;
use super::{CollectError, Collector, ParseError, ProcFile, Record, Roots};
use crate::series::{Interval, Kind, Moment, Signal};

/// `network_device_usage`, in percent.
pub static DEVICE_USAGE: Kind = Kind::of_device(
    "network_device_usage",
    "device",
    "the busier direction in percent of the link's speed",
);
/// `network_device_receive_bytes`, in bytes per second.
pub static DEVICE_RECEIVED: Kind = Kind::of_device(
    "network_device_receive_bytes",
    "device",
    "received on the link, bytes a second",
);
/// `network_device_transmit_bytes`, in bytes per second.
pub static DEVICE_SENT: Kind =
    Kind::of_device("network_device_transmit_bytes", "device", "sent on the link, bytes a second");
/// `network_usage`, in percent.
pub static USAGE: Kind = Kind::of_node(
    "network_usage",
    "the busier direction of the busiest link in percent of its speed",
);
/// `network_receive_bytes`, in bytes per second.
pub static RECEIVED: Kind =
    Kind::of_node("network_receive_bytes", "received on all links, bytes a second");
/// `network_transmit_bytes`, in bytes per second.
pub static SENT: Kind =
    Kind::of_node("network_transmit_bytes", "sent on all links, bytes a second");

/// A line has about 120 bytes, so 4,000 interfaces fit.
const LIMIT: u64 = 512 << 10;

/// Samples `/proc/net/dev`.
#[derive(Debug)]
pub struct Network {
    file: ProcFile,
    /// `/sys/class/net`.
    devices: PathBuf,
    interval: Interval,
    interfaces: BTreeMap<String, Interface>,
}

/// An interface and its counters.
#[derive(Debug)]
struct Interface {
    /// `None` for one without hardware.
    signals: Option<[Signal; 3]>,
    counters: [Counter; 2],
}

impl Network {
    /// A collector over these roots.
    #[must_use]
    pub fn new(roots: &Roots, interval: Interval) -> Self {
        let file = ProcFile::new(&roots.procfs.join("net/dev"), LIMIT);
        Self { file, devices: roots.sysfs.join("class/net"), interval, interfaces: BTreeMap::new() }
    }
}

impl Interface {
    fn new(name: &str, hardware: bool) -> Self {
        let signals = [&DEVICE_USAGE, &DEVICE_RECEIVED, &DEVICE_SENT];
        let signals = hardware.then(|| signals.map(|kind| Signal::of_device(kind, name)));
        Self { signals, counters: Default::default() }
    }
}

impl Collector for Network {
    fn name(&self) -> &'static str {
        "network"
    }

    fn collect(&mut self, now: Moment, record: &mut Record<'_>) -> Result<(), CollectError> {
        let Some(traffic) = self.file.parse_if_there(parse)? else { return Ok(()) };
        self.interfaces.retain(|name, _| traffic.iter().any(|traffic| traffic.name == *name));
        let mut node: Option<[f64; 2]> = None;
        let mut busiest: Option<f64> = None;
        for Traffic { name, received, sent } in traffic {
            let folder = self.devices.join(&name);
            let new = || Interface::new(&name, exists(&folder.join("device")));
            let interface = self.interfaces.entry(name.clone()).or_insert_with(new);
            let Some([usage, receive, transmit]) = &interface.signals else { continue };
            let [of_received, of_sent] = &mut interface.counters;
            let received = of_received.rate(self.interval, now, received);
            let sent = of_sent.rate(self.interval, now, sent);
            let Some((received, sent)) = received.zip(sent) else { continue };
            record(receive, received);
            record(transmit, sent);
            let share = speed(&folder).map(|speed| 100.0 * received.max(sent) / speed);
            share.into_iter().for_each(|share| record(usage, share));
            busiest = share.into_iter().chain(busiest).reduce(f64::max);
            if is_counted_by_master(&folder) {
                continue;
            }
            let [all_received, all_sent] = node.unwrap_or_default();
            node = Some([all_received + received, all_sent + sent]);
        }
        for (kind, value) in [&RECEIVED, &SENT].into_iter().zip(node.into_iter().flatten()) {
            record(&Signal::of_node(kind), value);
        }
        busiest.into_iter().for_each(|share| record(&Signal::of_node(&USAGE), share));
        Ok(())
    }
}

/// Whether the interface's master has hardware, and counts its bytes. Looked up each time, since interfaces get a master
/// once they are up.
fn is_counted_by_master(folder: &Path) -> bool {
    exists(&folder.join("master/device"))
}

/// The link's speed in bytes per second. Read each time, since it can be renegotiated.
fn speed(folder: &Path) -> Option<f64> {
    parse_speed(&std::fs::read(folder.join("speed")).ok()?)
}

/// Reads a speed in Mbit/s and returns bytes per second. `None` where the driver does not know it (-1).
#[must_use]
pub fn parse_speed(speed: &[u8]) -> Option<f64> {
    let megabits: u32 = str::from_utf8(speed).ok()?.trim().parse().ok()?;
    // A link that is down has 0, or 4294967295 on old kernels.
    (megabits > 0 && megabits < u32::MAX).then(|| f64::from(megabits) * 125_000.0)
}

/// The columns of a line that are used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traffic {
    /// The interface's name, `eth0`.
    pub name: String,
    /// In bytes.
    pub received: u64,
    /// In bytes.
    pub sent: u64,
}

/// Reads the lines `eth0: 1 2 …`; the first two are a heading.
///
/// # Errors
/// When a counter of bytes is missing or no number.
pub fn parse(dev: &[u8]) -> Result<Vec<Traffic>, ParseError> {
    let devices = lines(dev).filter_map(|(line, text)| Some((line, text.split_once(':')?)));
    let device = |(line, (name, counters)): (usize, (&str, &str))| {
        let problem =
            ParseError::Line { line, problem: "a counter of bytes is not a whole number" };
        traffic(name, counters).ok_or(problem)
    };
    devices.map(device).collect()
}

fn traffic(name: &str, counters: &str) -> Option<Traffic> {
    let mut columns = counters.split_ascii_whitespace();
    let received = columns.next()?.parse().ok()?;
    let sent = columns.nth(7)?.parse().ok()?;
    Some(Traffic { name: name.trim().to_owned(), received, sent })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    /// The signals of a machine with these interfaces (name, whether it has hardware, its master) after each has received
    /// 1 MB and sent 2 MB in one second.
    fn signals(links: &[(&str, bool, Option<&str>)]) -> BTreeMap<String, f64> {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let sysfs = path("sys-root");
        fs::create_dir_all(path("net")).unwrap();
        for (name, hardware, master) in links {
            let link = sysfs.join("class/net").join(name);
            fs::create_dir_all(if *hardware { link.join("device") } else { link.clone() }).unwrap();
            fs::write(link.join("speed"), "1000\n").unwrap();
            if let Some(master) = master {
                symlink(format!("../{master}"), link.join("master")).unwrap();
            }
        }
        let roots =
            Roots { procfs: path(""), sysfs, rootfs: path("root"), kubelet: path("kubelet") };
        let mut network = Network::new(&roots, "1s".parse().unwrap());
        let mut signals = BTreeMap::new();
        for seconds in [1, 2] {
            let (received, sent) = (seconds * 1_000_000, seconds * 2_000_000);
            let line = |(name, ..): &(&str, bool, Option<&str>)| {
                format!("{name}: {received} 0 0 0 0 0 0 0 {sent} 0 0 0 0 0 0 0\n")
            };
            fs::write(path("net/dev"), links.iter().map(line).collect::<String>()).unwrap();
            let mut record = |signal: &Signal, value| {
                signals.insert(signal.name().to_owned(), value);
            };
            network.collect(Moment(Duration::from_secs(seconds)), &mut record).unwrap();
        }
        signals
    }

    #[test]
    fn an_interface_that_its_master_counts_has_signals_and_is_not_in_the_sums() {
        let signals = signals(&[("eth0", true, None), ("enP1", true, Some("eth0"))]);
        assert_eq!(signals["network_enP1_receive_bytes"], 1e6);
        assert_eq!(signals["network_eth0_receive_bytes"], 1e6);
        assert_eq!(
            (signals["network_receive_bytes"], signals["network_transmit_bytes"]),
            (1e6, 2e6)
        );
        assert_eq!(signals["network_usage"], 1.6);
    }

    #[test]
    fn the_members_of_a_bond_are_in_the_sums() {
        let bond = Some("bond0");
        let signals =
            signals(&[("bond0", false, None), ("eth0", true, bond), ("eth1", true, bond)]);
        assert_eq!(
            (signals["network_receive_bytes"], signals["network_transmit_bytes"]),
            (2e6, 4e6)
        );
        assert!(!signals.contains_key("network_bond0_receive_bytes"));
    }

    #[test]
    fn bytes_of_both_directions_are_read() {
        let text = b"Inter-|   Receive\n face |bytes\n  eth0: 100 1 0 0 0 0 0 0 200 2 0 0 0 0 0 0\n    lo:7 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n";
        let traffic =
            |name: &str, received, sent| Traffic { name: name.to_owned(), received, sent };
        assert_eq!(parse(text), Ok(vec![traffic("eth0", 100, 200), traffic("lo", 7, 7)]));
        let error = parse(b"a\nb\neth0: 1 2 3\n").unwrap_err().to_string();
        assert_eq!(error, "line 3: a counter of bytes is not a whole number");
    }

    #[test]
    fn a_link_of_unknown_speed_has_none() {
        assert_eq!(parse_speed(b"1000\n"), Some(125e6));
        for unknown in ["-1\n", "0\n", "4294967295\n", "", "fast"] {
            assert_eq!(parse_speed(unknown.as_bytes()), None, "{unknown}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = (parse(&bytes), parse_speed(&bytes));
        }
    }
}
