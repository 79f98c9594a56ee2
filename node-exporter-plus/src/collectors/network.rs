//! Network interfaces, from `/proc/net/dev`: `network_device_*` of each, and for the node `network_usage`, that of the
//! busiest interface, `network_receive_bytes` and `network_transmit_bytes`, the sums, and `network_speed_bytes`, what
//! all links of known speed carry together.
//!
//! Only interfaces with hardware (`/sys/class/net/NAME/device`) have signals: bridges, bonds, tunnels and pods' veth
//! pairs would count the same bytes again. Usage is that of the busier direction, in percent of the link's speed;
//! interfaces without a known speed (virtio) have none.
//!
//! An interface whose master has hardware too (a virtual function below a hypervisor's synthetic interface, as on
//! Azure) has signals and is not in the sums, since its master counts the same bytes. The members of a bond or bridge,
//! whose master has no hardware, are. A representor, with which a NIC shows the other side of a virtual function, has
//! signals and is in no sum: its bytes come from and go to the same NIC.
//!
//! A NIC's port has one speed, however many virtual functions (SR-IOV) or subfunctions there are of it: these add bytes
//! and no speed. The members of a bond that sends over one of them at a time (active-backup), or the same over all
//! (broadcast), are as fast as the fastest of them, and those of another bond or a team at most as fast as it says
//! itself.
//!
//! A counter that is reset, as by a driver that is loaded anew, costs the values that need it in this sample: its own,
//! and the node's of the same kind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::file::{exists, lines, text};
use super::rate::{Counter, all_known, sum_of_all};
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

/// `network_speed_bytes`, in bytes per second.
pub static SPEED: Kind = Kind::of_node(
    "network_speed_bytes",
    "what all links of known speed carry together in one direction, bytes a second",
);

/// How long a link's speed counts after it was read. Reading it waits for a lock of the kernel that is busy while pods
/// come and go.
const SPEED_LASTS: Duration = Duration::from_secs(120);

/// A line has about 120 bytes, so 16,000 interfaces fit. Older kernels sort them by a hash of the name: those that pods
/// left behind may stand before the hardware.
const LIMIT: u64 = 2 << 20;

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
    /// The link's speed in bytes per second, if it has one, and when it was read.
    speed: Option<(Moment, Option<f64>)>,
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
        let kinds = [&DEVICE_USAGE, &DEVICE_RECEIVED, &DEVICE_SENT];
        let signals = hardware.then(|| kinds.map(|kind| Signal::of_device(kind, name)));
        Self { signals, counters: Default::default(), speed: None }
    }

    /// The link's speed in bytes per second. It can be renegotiated, so it is read again after a while.
    fn speed(&mut self, folder: &Path, now: Moment) -> Option<f64> {
        let known = self.speed.filter(|(read_at, _)| now.since(*read_at) < SPEED_LASTS);
        let (_, speed) = *self.speed.insert(known.unwrap_or_else(|| (now, read_speed(folder))));
        speed
    }
}

impl Collector for Network {
    fn name(&self) -> &'static str {
        "network"
    }

    fn collect(&mut self, now: Moment, record: &mut Record<'_>) -> Result<(), CollectError> {
        let Some(traffic) = self.file.parse_if_there(parse)? else { return Ok(()) };
        self.interfaces.retain(|name, _| traffic.iter().any(|traffic| traffic.name == *name));
        let mut all: Vec<[Option<f64>; 2]> = Vec::new();
        let mut shares: Vec<Option<f64>> = Vec::new();
        let mut links: Vec<Link> = Vec::new();
        for Traffic { name, received, sent } in traffic {
            let folder = self.devices.join(&name);
            let interface = self
                .interfaces
                .entry(name.clone())
                .or_insert_with(|| Interface::new(&name, exists(&folder.join("device"))));
            let Some([usage, receive, transmit]) = interface.signals.clone() else { continue };
            let [of_received, of_sent] = &mut interface.counters;
            let received = of_received.rate(self.interval, now, received);
            let sent = of_sent.rate(self.interval, now, sent);
            received.into_iter().for_each(|received| record(&receive, received));
            sent.into_iter().for_each(|sent| record(&transmit, sent));
            // A link of unknown speed has no usage, and does not keep the node from having one.
            let speed = interface.speed(&folder, now);
            if let Some(speed) = speed {
                let share = received.zip(sent).map(|(one, other)| 100.0 * one.max(other) / speed);
                share.into_iter().for_each(|share| record(&usage, share));
                shares.push(share);
            }
            if !is_counted_by_master(&folder) && !is_representor(&folder) {
                all.push([received, sent]);
                links.extend(speed.and_then(|speed| Link::of(&folder, speed)));
            }
        }
        let received = sum_of_all(all.iter().map(|[received, _]| *received));
        let sent = sum_of_all(all.iter().map(|[_, sent]| *sent));
        let busiest = all_known(shares.into_iter()).into_iter().flatten().reduce(f64::max);
        let speed = together(&self.devices, links);
        let of_node = [(&RECEIVED, received), (&SENT, sent), (&USAGE, busiest), (&SPEED, speed)];
        for (kind, value) in of_node {
            value.into_iter().for_each(|value| record(&Signal::of_node(kind), value));
        }
        Ok(())
    }
}

/// Whether the interface's master has hardware, and counts its bytes. Looked up each time, since interfaces get a
/// master once they are up.
fn is_counted_by_master(folder: &Path) -> bool {
    exists(&folder.join("master/device"))
}

/// Whether the interface is a NIC's end of a virtual function or subfunction: `pf0vf3`, `c1pf0sf88`.
fn is_representor(folder: &Path) -> bool {
    text(&folder.join("phys_port_name")).is_some_and(|name| {
        name.split_once("pf").is_some_and(|(_, rest)| rest.contains("vf") || rest.contains("sf"))
    })
}

/// A link whose speed adds to the node's.
#[derive(Debug)]
struct Link {
    speed: f64,
    /// The name of its bond, team or bridge.
    master: Option<String>,
    /// Of a virtual function or subfunction: the PCI device that it shares with others.
    port: Option<PathBuf>,
}

impl Link {
    /// The link with this folder in `/sys/class/net`. `None` for a function of a port that is here itself, and for one
    /// that sends over another link, as a partition of InfiniBand does.
    fn of(folder: &Path, speed: f64) -> Option<Self> {
        if text(&folder.join("iflink")) != text(&folder.join("ifindex")) {
            return None;
        }
        let device = folder.join("device");
        let virtual_of = device.join("physfn").canonicalize();
        let port = virtual_of.ok().or_else(|| port_of_subfunction(&device.canonicalize().ok()?));
        let has_link = |port: &PathBuf| {
            port.join("net").read_dir().is_ok_and(|mut links| links.next().is_some())
        };
        if port.as_ref().is_some_and(has_link) {
            return None;
        }
        let link = folder.join("master").read_link().ok();
        let master = link.and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
        Some(Self { speed, master, port })
    }
}

/// The PCI device of a subfunction, whose device is named like `mlx5_core.sf.4`.
fn port_of_subfunction(device: &Path) -> Option<PathBuf> {
    device.file_name()?.to_str()?.contains(".sf.").then(|| device.parent().map(Path::to_owned))?
}

/// What these links carry together, in bytes per second. `None` without a link.
fn together(devices: &Path, links: Vec<Link>) -> Option<f64> {
    let mut ports: BTreeMap<PathBuf, f64> = BTreeMap::new();
    let mut masters: BTreeMap<Option<String>, Vec<f64>> = BTreeMap::new();
    for Link { speed, master, port } in links {
        match port {
            Some(port) => {
                let fastest = ports.entry(port).or_default();
                *fastest = fastest.max(speed);
            }
            None => masters.entry(master).or_default().push(speed),
        }
    }
    let of_masters = masters.into_iter().map(|(master, speeds)| {
        let sum: f64 = speeds.iter().sum();
        let Some(folder) = master.map(|master| devices.join(master)) else { return sum };
        let mode = text(&folder.join("bonding/mode")).unwrap_or_default();
        if ["active-backup", "broadcast"].iter().any(|one| mode.starts_with(one)) {
            return speeds.into_iter().fold(0.0, f64::max);
        }
        // A bridge has the speed of its fastest port, which may be a pod's.
        let own = read_speed(&folder).filter(|_| !exists(&folder.join("bridge")));
        own.map_or(sum, |own| own.min(sum))
    });
    ports.into_values().chain(of_masters).reduce(|sum, speed| sum + speed)
}

/// Reads the link's speed in bytes per second. Some drivers have one also where no cable is plugged in.
fn read_speed(folder: &Path) -> Option<f64> {
    let is_down = text(&folder.join("carrier")).is_some_and(|carrier| carrier.trim() == "0");
    if is_down { None } else { parse_speed(text(&folder.join("speed"))?.as_bytes()) }
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
    let problem = "a counter of bytes is not a whole number";
    let mut devices = Vec::new();
    for (line, text) in lines(dev) {
        if let Some((name, counters)) = text.split_once(':') {
            devices.push(traffic(name, counters).ok_or(ParseError::Line { line, problem })?);
        }
    }
    Ok(devices)
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

    /// The signals of a machine with these interfaces (name, whether it has hardware, its master) after each has
    /// received 1 MB and sent 2 MB in one second.
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
        let roots = Roots { sysfs, ..Roots::in_folder(folder.path(), "") };
        let mut network = Network::new(&roots, "1s".parse().unwrap());
        let mut signals = BTreeMap::new();
        for seconds in [1, 2] {
            let received = seconds * 1_000_000;
            let sent = seconds * 2_000_000;
            let mut dev = String::new();
            for (name, ..) in links {
                dev += &format!("{name}: {received} 0 0 0 0 0 0 0 {sent} 0 0 0 0 0 0 0\n");
            }
            fs::write(path("net/dev"), dev).unwrap();
            network
                .collect(Moment(Duration::from_secs(seconds)), &mut |signal: &Signal, value| {
                    signals.insert(signal.name().to_owned(), value);
                })
                .unwrap();
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
        assert_eq!(signals["network_speed_bytes"], 125e6);
    }

    /// The sum of speeds, in links of 1,000 Mbit/s, of a machine whose `/sys/class/net` has these folders, links and
    /// files: the path, and its target or content.
    fn speed(links: &[&str], entries: &[(&str, &str)]) -> f64 {
        let folder = tempfile::tempdir().unwrap();
        let net = folder.path().join("sys/class/net");
        let dev: String =
            links.iter().map(|name| format!("{name}: 0 0 0 0 0 0 0 0 0 0\n")).collect();
        fs::create_dir_all(folder.path().join("net")).unwrap();
        fs::write(folder.path().join("net/dev"), dev).unwrap();
        for link in links {
            fs::create_dir_all(net.join(link)).unwrap();
            fs::write(net.join(link).join("speed"), "1000\n").unwrap();
        }
        for (path, content) in entries {
            let path = net.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            if content.starts_with("..") {
                fs::create_dir_all(path.parent().unwrap().join(content)).unwrap();
                symlink(content, path).unwrap();
            } else {
                fs::write(path, content).unwrap();
            }
        }
        let (rootfs, kubelet) = (folder.path().join("root"), "/var/lib/kubelet".into());
        let (procfs, sysfs) = (folder.path().to_owned(), folder.path().join("sys"));
        let mut network = Network::new(
            &Roots { procfs, sysfs, cgroupfs: PathBuf::new(), rootfs, kubelet },
            "1s".parse().unwrap(),
        );
        let mut sum = 0.0;
        let now = Moment(Duration::from_secs(1));
        network
            .collect(now, &mut |signal: &Signal, value| {
                assert_eq!(signal.name(), "network_speed_bytes");
                sum = value / 125e6;
            })
            .unwrap();
        sum
    }

    #[test]
    fn a_port_has_one_speed_however_many_functions_it_has() {
        let mut entries = vec![
            ("p0/device", "../../pci0/03:00.0"),
            ("v0/device", "../../pci0/03:01.0"),
            ("v0/device/physfn", "../03:00.0"),
            ("v1/device", "../../pci0/03:01.1"),
            ("v1/device/physfn", "../03:00.0"),
            ("s0/device", "../../pci0/03:00.0/mlx5_core.sf.4"),
        ];
        // The port is in another network namespace.
        assert_eq!(speed(&["v0", "v1", "s0"], &entries), 1.0);
        entries.push(("p0/device/net/p0/flags", ""));
        assert_eq!(speed(&["p0", "v0", "v1", "s0"], &entries), 1.0);
        // Two ports of one PCI device are no functions.
        let ports = [("p0/device", "../../pci0/03:00.0"), ("p1/device", "../../pci0/03:00.0")];
        assert_eq!(speed(&["p0", "p1"], &ports), 2.0);
        for other in
            [("p1/phys_port_name", "c1pf0vf1\n"), ("p1/iflink", "2\n"), ("p1/carrier", "0\n")]
        {
            let port = [("p0/phys_port_name", "p0\n"), ("p1/ifindex", "3\n"), ("p1/iflink", "3\n")];
            assert_eq!(speed(&["p0", "p1"], &[&ports[..], &port].concat()), 2.0);
            assert_eq!(
                speed(&["p0", "p1"], &[&ports[..], &port, &[other]].concat()),
                1.0,
                "{other:?}"
            );
        }
    }

    #[test]
    fn members_of_a_bond_are_as_fast_as_it_lets_them_be() {
        let links = ["eth0", "eth1", "eth2", "m"];
        let members: Vec<(&str, &str)> = vec![
            ("eth0/device", "../../pci0/0"),
            ("eth1/device", "../../pci0/1"),
            ("eth2/device", "../../pci0/2"),
            ("eth0/master", "../m"),
            ("eth1/master", "../m"),
        ];
        for (kind, expected) in [
            (&[("m/bonding/mode", "active-backup 1\n")][..], 2.0),
            (&[("m/bonding/mode", "broadcast 3\n")], 2.0),
            (&[("m/bonding/mode", "802.3ad 4\n"), ("m/speed", "2000\n")], 3.0),
            (&[("m/bonding/mode", "802.3ad 4\n"), ("m/speed", "-1\n")], 3.0),
            // A team with one active port, and a bridge, whose speed is that of its fastest port.
            (&[("m/speed", "1000\n")], 2.0),
            (&[("m/speed", "1000\n"), ("m/bridge/stp_state", "0\n")], 3.0),
        ] {
            let entries = [&members[..], kind].concat();
            assert_eq!(speed(&links, &entries), expected, "{kind:?}");
        }
    }

    #[test]
    fn the_speed_of_a_node_is_that_of_its_links_of_known_speed() {
        let mut machine = Machine::new();
        let links = [("eth0", 0, 0), ("eth1", 0, 0)];
        assert_eq!(machine.sample(10, &links)["network_speed_bytes"], 125e6);
        assert!(!machine.sample(20, &links[1..]).contains_key("network_speed_bytes"));
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

    /// A machine with the link `eth0` of 1,000 Mbit/s and `eth1` of unknown speed.
    struct Machine {
        folder: tempfile::TempDir,
        network: Network,
    }

    impl Machine {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = |name: &str| folder.path().join(name);
            fs::create_dir_all(path("net")).unwrap();
            for name in ["eth0", "eth1"] {
                fs::create_dir_all(path("sys/class/net").join(name).join("device")).unwrap();
            }
            let roots = Roots::in_folder(folder.path(), "");
            let network = Network::new(&roots, "10s".parse().unwrap());
            let machine = Self { folder, network };
            machine.set_speed("1000\n");
            machine
        }

        fn set_speed(&self, speed: &str) {
            fs::write(self.folder.path().join("sys/class/net/eth0/speed"), speed).unwrap();
        }

        /// The signals of a sample with these counts of bytes received and sent.
        fn sample(&mut self, seconds: u64, links: &[(&str, u64, u64)]) -> BTreeMap<String, f64> {
            let dev: String = links
                .iter()
                .map(|(name, received, sent)| {
                    format!("{name}: {received} 0 0 0 0 0 0 0 {sent} 0 0 0 0 0 0 0\n")
                })
                .collect();
            fs::write(self.folder.path().join("net/dev"), dev).unwrap();
            let mut signals = BTreeMap::new();
            let now = Moment(Duration::from_secs(seconds));
            self.network
                .collect(now, &mut |signal: &Signal, value| {
                    signals.insert(signal.name().to_owned(), value);
                })
                .unwrap();
            signals
        }
    }

    #[test]
    fn a_counter_that_is_reset_costs_the_values_that_need_it_alone() {
        let mut machine = Machine::new();
        machine.sample(10, &[("eth0", 1_000, 5_000), ("eth1", 1_000, 1_000)]);
        let signals = machine.sample(20, &[("eth0", 2_000, 10), ("eth1", 2_000, 2_000)]);
        assert_eq!(signals["network_eth0_receive_bytes"], 100.0);
        assert_eq!(signals["network_receive_bytes"], 200.0);
        assert_eq!(signals["network_eth1_transmit_bytes"], 100.0);
        for lost in ["network_eth0_transmit_bytes", "network_transmit_bytes", "network_usage"] {
            assert!(!signals.contains_key(lost), "{lost}: {signals:?}");
        }
    }

    fn usage(machine: &mut Machine, sample: u64) -> Option<f64> {
        let links = [("eth0", sample * 12_500_000, 0), ("eth1", 0, 0)];
        machine.sample(sample * 10, &links).get("network_usage").copied()
    }

    #[test]
    fn a_links_speed_is_not_read_at_each_sample() {
        let mut machine = Machine::new();
        assert_eq!(usage(&mut machine, 1), None);
        assert_eq!(usage(&mut machine, 2), Some(1.0));
        machine.set_speed("100\n");
        assert_eq!(usage(&mut machine, 3), Some(1.0));
        let later: Vec<_> = (4..=14).map(|sample| usage(&mut machine, sample)).collect();
        assert_eq!((later.first(), later.last()), (Some(&Some(1.0)), Some(&Some(10.0))));
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
