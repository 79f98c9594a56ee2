//! What goes over the wires, from `/proc/net/dev`: `network_device_*` of each, `network_*` of the node (the
//! busiest link's use, the sums of the throughputs).
//!
//! A wire is what has hardware behind it (`/sys/class/net/NAME/device`): bridges, bonds, tunnels and the pods'
//! own ends would count the same bytes again. Its use is that of the busier direction, in percent of the link's
//! speed; links that do not tell theirs (virtio) have none. A wire that serves another wire (its `master` has
//! hardware, as where a virtual function carries what a hypervisor's link shows) is told, and not summed up: its
//! master counts the same bytes. A bond's or a bridge's members have a master without hardware, and are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::file::{exists, lines};
use super::rate::Counter;
use super::{CollectError, Collector, ParseError, ProcFile, Record, Roots};
use crate::series::{Interval, Kind, Moment, Signal};

const fn each(name: &'static str, help: &'static str) -> Kind {
    Kind { name, help, label: Some("device") }
}

const fn whole(name: &'static str, help: &'static str) -> Kind {
    Kind { name, help, label: None }
}

/// A link's use.
pub static DEVICE_USAGE: Kind =
    each("network_device_usage", "the busier direction in percent of the link's speed");
/// What a link received.
pub static DEVICE_RECEIVED: Kind =
    each("network_device_receive_bytes", "received on the link, bytes a second");
/// What a link sent.
pub static DEVICE_SENT: Kind =
    each("network_device_transmit_bytes", "sent on the link, bytes a second");
/// The busiest link's use.
pub static USAGE: Kind =
    whole("network_usage", "the busier direction of the busiest link in percent of its speed");
/// What all links received.
pub static RECEIVED: Kind = whole("network_receive_bytes", "received on all links, bytes a second");
/// What all links sent.
pub static SENT: Kind = whole("network_transmit_bytes", "sent on all links, bytes a second");

/// A line has 120 bytes or so: a node with two thousand pods has as many devices.
const LIMIT: u64 = 512 << 10;

/// Samples `/proc/net/dev`.
#[derive(Debug)]
pub struct Network {
    file: ProcFile,
    devices: PathBuf,
    interval: Interval,
    links: BTreeMap<String, Link>,
}

/// A link as it was seen last. None of it is shown if it has no hardware.
#[derive(Debug)]
struct Link {
    signals: Option<[Signal; 3]>,
    counters: [Counter; 2],
}

impl Network {
    /// A collector over these roots.
    #[must_use]
    pub fn new(roots: &Roots, interval: Interval) -> Self {
        let file = ProcFile::new(&roots.procfs.join("net/dev"), LIMIT);
        Self { file, devices: roots.sysfs.join("class/net"), interval, links: BTreeMap::new() }
    }
}

impl Link {
    fn new(name: &str, hardware: bool) -> Self {
        let signals = [&DEVICE_USAGE, &DEVICE_RECEIVED, &DEVICE_SENT];
        let signals = hardware.then(|| signals.map(|kind| Signal::of(kind, name)));
        Self { signals, counters: Default::default() }
    }
}

impl Collector for Network {
    fn name(&self) -> &'static str {
        "network"
    }

    fn collect(&mut self, now: Moment, record: &mut Record<'_>) -> Result<(), CollectError> {
        let Some(seen) = self.file.parse_if_there(parse)? else { return Ok(()) };
        self.links.retain(|name, _| seen.iter().any(|traffic| traffic.name == *name));
        let mut node: Option<[f64; 2]> = None;
        let mut busiest: Option<f64> = None;
        for Traffic { name, received, sent } in seen {
            let folder = self.devices.join(&name);
            let fresh = || Link::new(&name, exists(&folder.join("device")));
            let link = self.links.entry(name.clone()).or_insert_with(fresh);
            let Some([usage, receive, transmit]) = &link.signals else { continue };
            let [of_received, of_sent] = &mut link.counters;
            let received = of_received.rate(self.interval, now, received);
            let sent = of_sent.rate(self.interval, now, sent);
            let Some((received, sent)) = received.zip(sent) else { continue };
            record(receive, received);
            record(transmit, sent);
            let share = speed(&folder).map(|speed| 100.0 * received.max(sent) / speed);
            share.into_iter().for_each(|share| record(usage, share));
            busiest = share.into_iter().chain(busiest).reduce(f64::max);
            if serves_another(&folder) {
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

/// Whether the link's bytes are counted by another one with hardware. Asked each time: links get a master when they
/// are up.
fn serves_another(folder: &Path) -> bool {
    exists(&folder.join("master/device"))
}

/// The link's speed in bytes a second. Read each time: a link can be renegotiated.
fn speed(folder: &Path) -> Option<f64> {
    parse_speed(&std::fs::read(folder.join("speed")).ok()?)
}

/// Reads a speed in Mbit/s, into bytes a second. None if the link does not know its own (-1).
#[must_use]
pub fn parse_speed(speed: &[u8]) -> Option<f64> {
    let megabits: u32 = str::from_utf8(speed).ok()?.trim().parse().ok()?;
    // A link that is down says 0, or 4294967295 on old kernels.
    (megabits > 0 && megabits < u32::MAX).then(|| f64::from(megabits) * 125_000.0)
}

/// One line, as far as it is of interest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traffic {
    /// The device's name.
    pub name: String,
    /// Bytes.
    pub received: u64,
    /// Bytes.
    pub sent: u64,
}

/// Reads the lines `eth0: 1 2 …` below the two of the head.
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

    /// A machine with these links (name, whether it has hardware, its master), and what is told of it after each link
    /// has received a megabyte and sent two in one second.
    fn told(links: &[(&str, bool, Option<&str>)]) -> BTreeMap<String, f64> {
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
        let mut told = BTreeMap::new();
        for seconds in [1, 2] {
            let (received, sent) = (seconds * 1_000_000, seconds * 2_000_000);
            let line = |(name, ..): &(&str, bool, Option<&str>)| {
                format!("{name}: {received} 0 0 0 0 0 0 0 {sent} 0 0 0 0 0 0 0\n")
            };
            fs::write(path("net/dev"), links.iter().map(line).collect::<String>()).unwrap();
            let mut record = |signal: &Signal, value| {
                told.insert(signal.name().to_owned(), value);
            };
            network.collect(Moment(Duration::from_secs(seconds)), &mut record).unwrap();
        }
        told
    }

    #[test]
    fn a_wire_that_serves_another_is_told_and_not_summed_up() {
        let told = told(&[("eth0", true, None), ("enP1", true, Some("eth0"))]);
        assert_eq!(told["network_enP1_receive_bytes"], 1e6);
        assert_eq!(told["network_eth0_receive_bytes"], 1e6);
        assert_eq!((told["network_receive_bytes"], told["network_transmit_bytes"]), (1e6, 2e6));
        assert_eq!(told["network_usage"], 1.6);
    }

    #[test]
    fn the_members_of_a_bond_are_summed_up() {
        let bond = Some("bond0");
        let told = told(&[("bond0", false, None), ("eth0", true, bond), ("eth1", true, bond)]);
        assert_eq!((told["network_receive_bytes"], told["network_transmit_bytes"]), (2e6, 4e6));
        assert!(!told.contains_key("network_bond0_receive_bytes"));
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
    fn a_link_that_does_not_know_its_speed_has_none() {
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
