//! What fits, what is dropped, and the names that signals get.

use super::entry::GONE_AFTER;
use super::*;
use crate::series::Kind;

static DISK: Kind = Kind { name: "disk_device_usage", help: "", label: Some("device") };

fn at(seconds: u64) -> Moment {
    Moment(Duration::from_secs(seconds))
}

fn store(interval: &str, aggregates: &str) -> Store {
    let interval = interval.parse().unwrap();
    Store::new(interval, Config::parse(aggregates, interval).unwrap())
}

#[test]
fn a_node_with_thousands_of_devices_shows_the_first_ones() {
    let mut store = store("10s", "");
    for disk in 0..2 * MAX_SIGNALS {
        store.record(&Signal::of_device(&DISK, &disk.to_string()), at(10), 1.0);
    }
    assert_eq!(store.readings(at(10)).count(), MAX_SIGNALS);
}

const DAY_OF_ALL: &str = "rules: [{signals: ['*'], values: [p95_1d, max_1d, min_1d]}]";

fn disk(number: usize) -> Signal {
    Signal::of_device(&DISK, &format!("{number:04}"))
}

/// A round with samples of these disks.
fn round(store: &mut Store, disks: std::ops::Range<usize>) {
    let now = at(10 * (store.round() + 1));
    disks.for_each(|number| store.record(&disk(number), now, 1.0));
    store.finish(now);
}

fn with_windows(store: &Store) -> usize {
    store.entries().iter().filter(|entry| !entry.is_newest_only()).count()
}

fn fit(interval: &str, aggregates: &str) -> (usize, usize) {
    let mut store = store(interval, aggregates);
    round(&mut store, 0..200);
    assert!(store.entries.bytes <= store.entries.budget);
    (with_windows(&store), store.entries().len())
}

#[test]
fn what_fits_the_shipped_limit_is_what_the_documentation_says() {
    assert_eq!(fit("10s", DAY_OF_ALL), (76, 200));
    assert_eq!(fit("1s", DAY_OF_ALL), (7, 200));
    assert_eq!(fit("10s", &format!("{DAY_OF_ALL}\nmemoryLimit: 24Mi")), (192, 200));
}

#[test]
fn samples_and_both_files_of_them_fit_beside_the_program() {
    for interval in ["1s", "10s", "60s"] {
        let mut store = store(interval, DAY_OF_ALL);
        round(&mut store, 0..MAX_SIGNALS);
        let bytes = store.entries().iter().map(|entry| entry.sample_bytes(store.interval));
        let bytes: usize = bytes.sum();
        assert!(bytes <= 8 << 20, "{interval}: {bytes}");
        assert_eq!(store.entries().len(), MAX_SIGNALS);
    }
}

#[test]
fn devices_that_are_gone_make_room_for_those_that_are_there() {
    let mut store = store("10s", DAY_OF_ALL);
    round(&mut store, 0..100);
    let fit = with_windows(&store);
    assert!(fit < 100);
    (0..=GONE_AFTER).for_each(|_| round(&mut store, 50..100));
    // The fifty that are there have their windows, also those that had none at first.
    assert_eq!(
        store.entries().iter().filter(|entry| entry.reduced && entry.last_seen > 0).count(),
        0
    );
    assert_eq!(store.readings(at(50)).count(), 50 * 4);
    round(&mut store, 100..110);
    assert!(
        store.entries().iter().filter(|entry| entry.last_seen == 5).all(|entry| !entry.reduced)
    );
    assert!(
        store.entries.bytes <= store.entries.budget,
        "{} {}",
        store.entries.bytes,
        store.entries.budget
    );
}

#[test]
fn signals_of_the_node_go_before_those_of_devices() {
    static NODE: Kind = Kind { name: "network_usage", help: "", label: None };
    let mut store = store("10s", DAY_OF_ALL);
    let now = at(10);
    (0..MAX_SIGNALS).for_each(|number| store.record(&disk(number), now, 1.0));
    let fit = with_windows(&store);
    store.record(&Signal::of_node(&NODE), now, 2.0);
    store.finish(now);
    let of_node = store.entries().iter().find(|entry| entry.signal.device().is_none());
    assert!(of_node.is_some_and(|entry| !entry.reduced));
    assert_eq!(with_windows(&store), fit, "one device has lost its windows");
    assert!(store.entries.bytes <= store.entries.budget);
    // No signal loses its newest sample.
    let active = store.readings(now).filter(|reading| reading.aggregate == ACTIVE).count();
    assert_eq!(active, MAX_SIGNALS + 1);
    let summed: usize = store.entries().iter().map(|entry| entry.bytes).sum();
    assert_eq!(store.entries.bytes, summed);
}

#[test]
fn a_signal_that_gets_its_windows_late_keeps_its_newest_sample() {
    let mut store = store("10s", DAY_OF_ALL);
    round(&mut store, 0..100);
    (0..=GONE_AFTER).for_each(|_| round(&mut store, 99..100));
    let readings: Vec<Reading> = store.readings(at(50)).collect();
    assert_eq!(readings.iter().map(|reading| reading.value).collect::<Vec<_>>(), [1.0; 4]);
}

#[test]
fn a_node_that_changes_all_its_devices_shows_the_new_ones() {
    let mut store = store("10s", "");
    round(&mut store, 0..MAX_SIGNALS);
    (0..=GONE_AFTER).for_each(|_| round(&mut store, 0..0));
    round(&mut store, MAX_SIGNALS..MAX_SIGNALS + 100);
    assert_eq!(store.readings(at(60)).count(), 100);
    assert_eq!(store.entries().len(), MAX_SIGNALS);
}

static MOUNT: Kind = Kind { name: "fs_mountpoint_usage", help: "", label: Some("mountpoint") };

/// The names of the signals that are served, with their devices.
fn served(store: &mut Store, now: Moment) -> Vec<(String, String)> {
    store
        .readings(now)
        .map(|reading| {
            let Reading { signal, .. } = reading;
            (signal.name().to_owned(), signal.device().unwrap_or_default().to_owned())
        })
        .collect()
}

fn pair(name: &str, instance: &str) -> (String, String) {
    (name.to_owned(), instance.to_owned())
}

#[test]
fn mounts_of_one_plain_name_get_the_same_names_in_whatever_order_they_come() {
    let mounts = ["/", "/root", "/a/b", "/a-b", "/a_b", "/c-d"];
    let expected = [
        pair("fs_a_b_CRC_usage", "/a-b"),
        pair("fs_a_b_usage", "/a/b"),
        pair("fs_a_b_CRC_usage", "/a_b"),
        pair("fs_c_d_usage", "/c-d"),
        pair("fs_root_usage", "/"),
        pair("fs_root_CRC_usage", "/root"),
    ];
    let expected = expected.map(|(name, mount)| {
        let sum = format!("{:08x}", crc32fast::hash(mount.as_bytes()));
        (name.replace("CRC", &sum), mount)
    });
    for turn in 0..mounts.len() {
        let mut store = store("10s", "");
        let mut turned = mounts;
        turned.rotate_left(turn);
        for (value, mount) in turned.iter().enumerate() {
            store.record(&Signal::of_device(&MOUNT, mount), at(10), value as f64);
        }
        assert_eq!(served(&mut store, at(10)), expected);
        let value = |mount: &str| turned.iter().position(|other| *other == mount).unwrap();
        assert!(
            store
                .readings(at(10))
                .all(|reading| { reading.value == value(reading.signal.device().unwrap()) as f64 })
        );
    }
}

#[test]
fn a_plain_name_is_free_again_once_the_others_are_gone() {
    let mut store = store("10s", "");
    store.record(&Signal::of_device(&MOUNT, "/a-b"), at(10), 1.0);
    assert_eq!(served(&mut store, at(10)), [pair("fs_a_b_usage", "/a-b")]);
    store.record(&Signal::of_device(&MOUNT, "/a_b"), at(20), 2.0);
    let names = served(&mut store, at(20));
    assert!(names.len() == 2 && names.iter().all(|(name, _)| name != "fs_a_b_usage"));
    assert_eq!(served(&mut store, at(41)), [pair("fs_a_b_usage", "/a_b")]);
}

#[test]
fn aggregates_can_be_asked_for_under_either_name() {
    let apart = format!("fs_a_b_{:08x}_usage", crc32fast::hash(b"/a-b"));
    let mut store = store("10s", &format!("metrics: [{{name: {apart}_avg_5m}}]"));
    store.record(&Signal::of_device(&MOUNT, "/a-b"), at(10), 1.0);
    store.record(&Signal::of_device(&MOUNT, "/a_b"), at(10), 2.0);
    let served: Vec<String> = store
        .readings(at(10))
        .map(|reading| format!("{}_{}", reading.signal.name(), reading.aggregate))
        .collect();
    assert!(served.contains(&format!("{apart}_avg_5m")), "{served:?}");
}

fn of_two_gpus(values: [f64; 2]) -> [(String, f64); 4] {
    let [one, other] = values;
    [
        ("gpu_0_usage_active".to_owned(), one),
        ("gpu_0_usage_avg_5m".to_owned(), one),
        ("gpu_1_usage_active".to_owned(), other),
        ("gpu_1_usage_avg_5m".to_owned(), other),
    ]
}

#[test]
fn gpus_that_swap_their_numbers_keep_their_own_samples() {
    static GPU: Kind = Kind { name: "gpu_card_usage", help: "", label: Some("card") };
    let mut store = store("10s", "rules: [{signals: ['*'], values: [avg_5m]}]");
    let mut served = |seconds, numbers: [&str; 2]| -> Vec<(String, f64)> {
        store.record(&Signal::of_named_device(&GPU, "GPU-a", numbers[0]), at(seconds), 10.0);
        store.record(&Signal::of_named_device(&GPU, "GPU-b", numbers[1]), at(seconds), 90.0);
        store
            .readings(at(seconds))
            .map(|reading| {
                (format!("{}_{}", reading.signal.name(), reading.aggregate), reading.value)
            })
            .collect()
    };
    assert_eq!(served(10, ["0", "1"]), of_two_gpus([10.0, 90.0]));
    assert_eq!(served(20, ["1", "0"]), of_two_gpus([90.0, 10.0]));
}

#[test]
fn a_gpu_that_gets_another_number_is_counted_once() {
    static GPU: Kind = Kind { name: "gpu_card_usage", help: "", label: Some("card") };
    let mut store = store("10s", DAY_OF_ALL);
    round(&mut store, 0..75);
    let mut served = |number| {
        let now = at(10 * (store.round() + 1));
        store.record(&Signal::of_named_device(&GPU, "GPU-a", number), now, 1.0);
        let summed: usize = store.entries().iter().map(|entry| entry.bytes).sum();
        let with_windows = with_windows(&store);
        let bytes = store.entries.bytes;
        store.finish(now);
        (bytes == summed, with_windows)
    };
    assert_eq!(["0", "1", "2"].map(&mut served), [(true, 76); 3]);
}

#[test]
fn a_full_store_looks_for_gone_devices_once_a_round() {
    let mut store = store("10s", "");
    round(&mut store, 0..MAX_SIGNALS);
    (0..=GONE_AFTER).for_each(|_| round(&mut store, 1..MAX_SIGNALS));
    let mut shown = |number| {
        store.record(&disk(number), at(10 * (store.round() + 1)), 1.0);
        let before = store.entries.none_gone_in;
        (store.entries.find(&disk(number)).is_ok(), before == Some(store.round()))
    };
    assert_eq!(shown(MAX_SIGNALS), (true, false), "disk 0 made room");
    assert_eq!(shown(MAX_SIGNALS + 1), (false, true));
    assert_eq!(shown(MAX_SIGNALS + 2), (false, true));
}

#[test]
fn a_device_without_a_sample_for_a_day_is_forgotten() {
    let mut store = store("10s", "");
    store.record(&Signal::of_device(&DISK, "sda"), at(10), 1.0);
    store.finish(at(86_410));
    assert_eq!(store.entries().len(), 1);
    store.finish(at(86_420));
    assert_eq!(store.entries().len(), 0);
}
