//! A day of samples through the file and back, and files that are damaged, of another kind or of another boot.

use std::io::Cursor;

use proptest::prelude::*;

use super::*;
use crate::collectors::{cpu, disk, network};
use crate::config::Config;
use crate::series::{Interval, Signal};

const DAY: u32 = 8_640;

fn boot() -> BootId {
    BootId("7c0b6c4e-5a53-4e9f-8ef0-1e3a2f0f8a11".to_owned())
}

fn interval() -> Interval {
    "10s".parse().unwrap()
}

fn at(slot: u32) -> Moment {
    Moment(Duration::from_secs(u64::from(slot) * 10) + Duration::from_millis(17))
}

fn empty() -> Store {
    Store::new(interval(), Config::default())
}

/// A day with a gap, up to `DAY`.
fn a_day() -> Store {
    let mut store = empty();
    for slot in (1..=DAY).filter(|slot| !(500..900).contains(slot)) {
        store.record(&Signal::of_node(&cpu::USAGE), at(slot), f64::from(slot % 97));
    }
    store.finish(at(DAY));
    store
}

fn saved(store: &Store) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes, &boot(), store).unwrap();
    bytes
}

fn restored(bytes: &[u8], now: u32) -> Result<Store, FormatError> {
    let mut store = empty();
    read(&mut Cursor::new(bytes), &boot(), &mut store, at(now)).map(|_| store)
}

fn values(store: &mut Store, now: u32) -> Vec<(String, f64, f32, Moment)> {
    store
        .readings(at(now))
        .map(|reading| {
            (reading.aggregate.to_string(), reading.value, reading.coverage, reading.time)
        })
        .collect()
}

#[test]
fn every_value_survives_with_its_coverage_and_time() {
    let mut before = a_day();
    let mut after = restored(&saved(&before), DAY + 2).unwrap();
    assert_eq!(values(&mut after, DAY + 2), values(&mut before, DAY + 2));
    assert_eq!(values(&mut after, DAY + 2).len(), 6);
}

#[test]
fn a_long_stop_is_a_gap() {
    let mut after = restored(&saved(&a_day()), DAY + 1_000).unwrap();
    assert!(values(&mut after, DAY + 1_000).is_empty());
    after.record(&Signal::of_node(&cpu::USAGE), at(DAY + 1_000), 1.0);
    let values = values(&mut after, DAY + 1_000);
    let day = values.iter().find(|(aggregate, ..)| aggregate == "max_avg_1d").unwrap();
    // Of the slots 1,001 to 9,640 those up to 8,640 hold a sample, and the last.
    assert_eq!(day.2, 7_641.0 / 8_640.0);
}

#[test]
fn a_day_of_a_signal_takes_34_kib() {
    assert_eq!(saved(&a_day()).len() >> 10, 33);
}

#[test]
fn samples_of_another_boot_or_interval_are_not_taken() {
    let bytes = saved(&a_day());
    let mut store = empty();
    let other = BootId("another".to_owned());
    let outcome = read(&mut Cursor::new(&bytes), &other, &mut store, at(DAY)).unwrap();
    assert_eq!(outcome, Content::OtherBoot);
    let mut store = Store::new("5s".parse().unwrap(), Config::default());
    let outcome = read(&mut Cursor::new(&bytes), &boot(), &mut store, at(DAY)).unwrap();
    assert_eq!(outcome, Content::OtherInterval(10));
    assert!(store.entries().is_empty());
}

#[test]
fn every_altered_byte_is_found() {
    let mut store = empty();
    (1..9).for_each(|slot| store.record(&Signal::of_node(&cpu::USAGE), at(slot), 5.0));
    let bytes = saved(&store);
    for place in 0..bytes.len() {
        let mut altered = bytes.clone();
        altered[place] ^= 1;
        assert!(restored(&altered, 9).is_err(), "byte {place}");
        assert!(restored(&bytes[..place], 9).is_err(), "cut at {place}");
    }
    assert!(restored(&bytes, 9).is_ok());
}

#[test]
fn samples_of_the_future_are_impossible() {
    let error = restored(&saved(&a_day()), DAY - 1).unwrap_err();
    assert_eq!(error.to_string(), "it holds samples of the future");
}

const DAY_OF_ALL: &str = "rules: [{signals: ['*'], values: [p95_1d, max_1d, min_1d]}]";

/// The signals that have windows after a round with samples of `signals`.
fn with_windows(store: &mut Store, signals: &[Signal], slot: u32) -> Vec<String> {
    signals.iter().for_each(|signal| store.record(signal, at(slot), 1.0));
    store.finish(at(slot));
    let names = store
        .readings(at(slot))
        .filter(|reading| reading.aggregate != crate::series::ACTIVE)
        .map(|r| r.signal.name().to_owned());
    names.collect::<std::collections::BTreeSet<_>>().into_iter().collect()
}

fn disk_of_number(number: u32) -> Signal {
    Signal::of_device(&disk::DEVICE_USAGE, &format!("{number:04}"))
}

#[test]
fn after_a_restart_the_signals_that_had_windows_have_them() {
    let plan = Config::parse(DAY_OF_ALL, interval()).unwrap();
    let mut signals: Vec<Signal> = (1..100).map(disk_of_number).collect();
    let mut before = Store::new(interval(), plan.clone());
    let early = with_windows(&mut before, &signals, 100);
    // Two more that go before the others: one by its name, one since it is of the node.
    signals.push(disk_of_number(0));
    signals.push(Signal::of_node(&network::USAGE));
    let expected = with_windows(&mut before, &signals, 101);
    assert!(!expected.contains(&"disk_0000_usage".to_owned()));
    assert!(expected.contains(&"network_usage".to_owned()) && expected.len() == early.len());
    let mut after = Store::new(interval(), plan);
    read(&mut Cursor::new(saved(&before)), &boot(), &mut after, at(102)).unwrap();
    let loaded = after.readings(at(102)).find(|reading| reading.signal == signals[50]);
    assert_eq!(loaded.unwrap().time, at(101));
    assert_eq!(with_windows(&mut after, &signals, 102), expected);
}

#[test]
fn signals_that_are_new_in_the_configuration_take_no_others_windows() {
    let of =
        |aggregates: &str| Store::new(interval(), Config::parse(aggregates, interval()).unwrap());
    let signals: Vec<Signal> = (0..200).map(disk_of_number).collect();
    let last = "rules: [{signals: ['disk_01*_usage'], values: [p95_1d, max_1d, min_1d]}]";
    let mut before = of(last);
    let had = with_windows(&mut before, &signals, 100);
    assert!(!had.is_empty());
    let mut after = of(DAY_OF_ALL);
    read(&mut Cursor::new(saved(&before)), &boot(), &mut after, at(101)).unwrap();
    assert_eq!(with_windows(&mut after, &signals, 101), had);
    // One of the whole node goes before them, though it had no windows either.
    let node = Signal::of_node(&cpu::BUSY);
    before.record(&node, at(100), 1.0);
    let mut after = of(DAY_OF_ALL);
    read(&mut Cursor::new(saved(&before)), &boot(), &mut after, at(101)).unwrap();
    let all: Vec<Signal> = signals.iter().chain([&node]).cloned().collect();
    let expected = [&[node.name().to_owned()], &had[..had.len() - 1]].concat();
    assert_eq!(with_windows(&mut after, &all, 101), expected);
}

#[test]
fn the_file_is_replaced_in_one_step_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let storage = Storage::new(folder.path().join("samples"), boot());
    let mut store = empty();
    assert_eq!(storage.load(&mut store, at(DAY)), Loaded::Absent);
    storage.save(&empty()).unwrap();
    storage.save(&a_day()).unwrap();
    assert_eq!(storage.load(&mut store, at(DAY)), Loaded::Signals(1));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_damaged_file_is_renamed_and_the_next_one_takes_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("samples");
    let storage = Storage::new(file.clone(), boot());
    for content in [saved(&a_day())[..1_000].to_vec(), b"something else".to_vec(), Vec::new()] {
        fs::write(&file, &content).unwrap();
        let loaded = storage.load(&mut empty(), at(DAY));
        let Loaded::SetAside(aside) = loaded else { panic!("{loaded:?}") };
        assert_eq!(fs::read(aside).unwrap(), content);
        assert!(!file.exists());
    }
    storage.save(&a_day()).unwrap();
    assert_eq!(storage.load(&mut empty(), at(DAY)), Loaded::Signals(1));
}

#[test]
fn a_draft_left_by_a_killed_process_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let storage = Storage::new(folder.path().join("samples"), boot());
    let draft = folder.path().join("samples.new");
    fs::write(&draft, vec![0; 1_000]).unwrap();
    assert_eq!(storage.load(&mut empty(), at(DAY)), Loaded::Absent);
    assert!(!draft.exists());
}

/// Makes something that is no regular file.
type Put = fn(&Path);

fn make_pipe(path: &Path) {
    let kind = rustix::fs::FileType::Fifo;
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
}

fn no_files() -> [Put; 4] {
    [
        make_pipe,
        |path| fs::create_dir(path).unwrap(),
        |path| std::os::unix::fs::symlink(path, path).unwrap(),
        |path| std::os::unix::fs::symlink("/dev/full", path).unwrap(),
    ]
}

#[test]
fn what_is_no_regular_file_is_neither_read_nor_replaced() {
    for put in no_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("samples");
        put(&file);
        let kind = fs::symlink_metadata(&file).unwrap().file_type();
        let storage = Storage::new(file.clone(), boot());
        assert_eq!(storage.load(&mut empty(), at(DAY)), Loaded::Unusable, "{kind:?}");
        assert!(storage.save(&a_day()).unwrap_err().to_string().contains("no regular file"));
        assert_eq!(fs::symlink_metadata(&file).unwrap().file_type(), kind);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

#[test]
fn nor_is_it_where_a_draft_or_a_damaged_file_would_go() {
    for put in no_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("samples");
        let storage = Storage::new(file.clone(), boot());
        put(&folder.path().join("samples.new"));
        put(&folder.path().join("samples.unreadable"));
        fs::write(&file, "something else").unwrap();
        let loaded = storage.load(&mut empty(), at(DAY));
        assert!(matches!(loaded, Loaded::SetAside(_)), "{loaded:?}");
        assert!(storage.save(&a_day()).is_err());
        assert_eq!(fs::read(&file).unwrap(), b"something else");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }
}

#[test]
fn an_unreadable_file_is_renamed() {
    // Root may read everything, so the first part is for other users; a path below a file is an error for root, too.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("samples");
    fs::write(&file, saved(&a_day())).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o0);
    fs::set_permissions(&file, mode).unwrap();
    let storage = Storage::new(file.clone(), boot());
    if File::open(&file).is_err() {
        let loaded = storage.load(&mut empty(), at(DAY));
        assert_eq!(loaded, Loaded::SetAside(folder.path().join("samples.unreadable")));
    }
    let below = Storage::new(file.join("samples"), boot());
    assert_eq!(below.load(&mut empty(), at(DAY)), Loaded::Unusable);
    assert!(below.save(&a_day()).is_err());
}

#[test]
fn a_folder_that_does_not_exist_is_an_error_and_stops_nothing() {
    let storage = Storage::new("/nonexistent/samples".into(), boot());
    assert_eq!(storage.load(&mut empty(), at(1)), Loaded::Absent);
    assert!(storage.save(&empty()).is_err());
}

#[test]
fn a_folder_is_made_for_the_user_that_will_write_there() {
    let folder = tempfile::tempdir().unwrap();
    let own = std::os::unix::fs::MetadataExt::uid(&fs::metadata(folder.path()).unwrap());
    let file = folder.path().join("plimsoll/samples");
    // Giving it to another user takes root; to the own user it is allowed.
    let group = std::os::unix::fs::MetadataExt::gid(&fs::metadata(folder.path()).unwrap());
    if own == group {
        prepare(&file, own).unwrap();
        Storage::new(file, boot()).save(&empty()).unwrap();
    }
    assert!(prepare(Path::new("/proc/plimsoll/samples"), own).is_err());
}

/// Bytes with a checksum that fits, so that the checks after it are reached.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = crc32fast::hash(&bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

#[test]
fn a_name_that_its_kind_cannot_have_is_skipped() {
    let mut store = empty();
    (1..9).for_each(|slot| store.record(&Signal::of_node(&cpu::USAGE), at(slot), 5.0));
    let mut bytes = saved(&store);
    bytes.truncate(bytes.len() - 4);
    let name = bytes.windows(9).position(|part| part == b"cpu_usage").unwrap();
    bytes[name + 3] = b'"';
    let mut restored = restored(&sealed(bytes), 9).unwrap();
    assert!(values(&mut restored, 9).is_empty());
}

proptest! {
    #[test]
    fn no_content_panics(place in 20usize..160, flip in 1u8.., cut in 0usize..200) {
        let mut store = empty();
        (1..60).for_each(|slot| store.record(&Signal::of_node(&cpu::USAGE), at(slot), 5.0));
        let mut bytes = saved(&store);
        bytes.truncate(bytes.len() - 4 - cut);
        if let Some(byte) = bytes.get_mut(place) {
            *byte ^= flip;
        }
        let _ = restored(&sealed(bytes), DAY);
    }
}
