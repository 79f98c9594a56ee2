//! Samples that the kernel can and cannot give, and what becomes of them.

use super::*;
use proptest::prelude::*;
use std::fs;
use std::path::Path;

fn usage(before: Ticks, after: Ticks) -> Option<f64> {
    shares(before, after, None, true).usage
}

fn ticks(line: &str) -> Ticks {
    parse(line.as_bytes()).unwrap().all
}

#[test]
fn busy_is_all_that_is_not_idle_and_waiting_is_busy() {
    let before = ticks("cpu  0 0 0 0 0 0 0 0 0 0\n");
    assert_eq!(usage(before, ticks("cpu  10 5 5 60 10 2 3 5 0 0\n")), Some(40.0));
    assert_eq!(usage(before, ticks("cpu  0 0 0 75 25 0 0 0 0 0\n")), Some(25.0));
}

#[test]
fn waiting_and_stolen_time_are_separate() {
    let before = ticks("cpu  0 0 0 0 0 0 0 0 0 0\n");
    let Shares { usage, busy, iowait, steal } =
        shares(before, ticks("cpu  20 5 5 50 10 2 3 5 0 0\n"), None, true);
    let rounded = [usage, busy, iowait, steal].map(|share| share.unwrap().round());
    assert_eq!(rounded, [50.0, 40.0, 10.0, 5.0]);
}

/// The shares after ten seconds of four CPUs.
fn after_ten_seconds(before: &str, after: &str) -> Shares {
    let elapsed = Elapsed::new(Duration::from_secs(10), 4);
    shares(ticks(before), ticks(after), Some(elapsed), true)
}

#[test]
fn a_program_that_only_waits_in_io_uring_is_no_work() {
    let shares = after_ten_seconds("cpu 9 9 9 1000 1000 9 9 9", "cpu 9 9 9 1800 4200 9 9 9");
    assert_eq!((shares.busy, shares.iowait), (Some(0.0), Some(80.0)));
    assert!((shares.usage.unwrap() - 80.0).abs() < 1e-9, "{shares:?}");
}

#[test]
fn time_that_the_hypervisor_takes_is_use() {
    let shares = after_ten_seconds("cpu 0 0 0 0 0 0 0 0", "cpu 2000 0 0 0 0 0 0 2000");
    let full = Some(100.0);
    let half = Some(50.0);
    assert_eq!((shares.usage, shares.busy, shares.steal), (full, full, half));
}

/// A CPU that is idle for long counts as waiting at one reading and as idle at the next.
#[test]
fn time_that_moves_between_waiting_and_idle_changes_no_work() {
    let before = "cpu 0 0 0 9000 9000 0 0 0";
    let to_idle = after_ten_seconds(before, "cpu 400 0 0 18600 3000 0 0 0");
    assert_eq!((to_idle.busy, to_idle.usage), (Some(10.0), Some(10.0)));
    assert_eq!(to_idle.iowait, None);
    let to_waiting = after_ten_seconds(before, "cpu 400 0 0 8900 12700 0 0 0");
    assert_eq!(to_waiting.busy, Some(10.0));
    assert_eq!((to_waiting.usage, to_waiting.iowait), (None, None));
}

#[test]
fn idle_time_that_runs_backwards_or_ahead_or_stands_still_costs_work_nothing() {
    let before = "cpu 0 0 0 90000 0 0 0 0";
    for idle in [0, 80_000, 90_000, 200_000] {
        let shares = after_ten_seconds(before, &format!("cpu 900 0 0 {idle} 0 0 0 100"));
        assert_eq!((shares.busy, shares.steal), (Some(25.0), Some(2.5)), "{idle}");
        assert_eq!((shares.usage, shares.iowait), (None, None), "{idle}");
    }
}

/// A node in a container, whose idle time is no time at all.
#[test]
fn idle_time_that_never_grew_is_not_believed_beside_the_clock() {
    let proc = tempfile::tempdir().unwrap();
    let lines =
        [0, 2_400, 5_800, 9_800, 9_900].map(|work| format!("{work} 0 0 8317131874320235395"));
    let samples = [0, 1, 2, 3, 4].map(|at| (10 * at + 10, 4, &*lines[at as usize]));
    let busy = values(proc.path(), "cpu_busy", "10s", samples);
    assert_eq!(busy, [None, Some(60.0), Some(85.0), Some(100.0), Some(2.5)]);
    assert_eq!(usages(proc.path(), "10s", samples)[1], None);
}

#[test]
fn a_full_node_that_misses_ticks_is_full_once_its_idle_time_has_moved() {
    let proc = tempfile::tempdir().unwrap();
    let samples = [(10, 4, "0 0 0 0"), (20, 4, "2000 0 0 2000"), (30, 4, "4800 0 0 2000")];
    assert_eq!(values(proc.path(), "cpu_busy", "10s", samples), [None, Some(50.0), Some(100.0)]);
}

#[test]
fn time_of_which_the_kernel_counts_a_part_gives_nothing() {
    // Of 4000 ticks, 2400 are work, or 3700 idle time and the rest lost: nobody knows.
    let shares = after_ten_seconds("cpu 0 0 0 9000 0 0 0 0", "cpu 2400 0 0 9300 0 0 0 0");
    assert_eq!(shares, Shares::default());
    // A fifth may be missing.
    let shares = after_ten_seconds("cpu 0 0 0 9000 0 0 0 0", "cpu 2400 0 0 9900 0 0 0 0");
    assert!((shares.busy.unwrap() - 100.0 * 24.0 / 33.0).abs() < 1e-9, "{shares:?}");
}

#[test]
fn stolen_time_that_jumps_or_runs_backwards_costs_itself_alone() {
    let before = "cpu 0 0 0 0 0 0 0 5000";
    for stolen in [0, 4_000, 200_000, u64::MAX] {
        let after = format!("cpu 600 0 0 3000 200 0 0 {stolen}");
        let shares = after_ten_seconds(before, &after);
        let Shares { usage, busy, iowait, steal } = shares;
        let rounded = [usage, busy, iowait].map(|share| share.unwrap().round());
        assert_eq!((rounded, steal), ([25.0, 20.0, 5.0], None), "{stolen}");
    }
}

#[test]
fn no_part_of_the_time_is_more_than_all_of_it() {
    // Ticks are counted a little ahead of the clock, and a column has gone back.
    let shares = after_ten_seconds("cpu 0 0 9 0 0 0 0 0", "cpu 0 0 0 1 0 0 0 4400");
    assert_eq!((shares.steal, shares.busy.map(f64::round)), (Some(100.0), Some(100.0)));
}

#[test]
fn a_column_that_a_kernel_does_not_move_costs_nothing() {
    let shares = after_ten_seconds("cpu 5 5 5 5 5 5 5 5", "cpu 1005 5 5 3005 5 5 5 5");
    let quarter = Some(25.0);
    assert_eq!((shares.usage, shares.busy, shares.iowait), (quarter, quarter, Some(0.0)));
}

#[test]
fn guest_time_is_not_counted_twice() {
    let before = ticks("cpu  0 0 0 0 0 0 0 0 0 0\n");
    assert_eq!(usage(before, ticks("cpu  50 0 0 50 0 0 0 0 50 0\n")), Some(50.0));
}

#[test]
fn a_saturated_node_has_a_hundred_percent() {
    assert_eq!(
        usage(ticks("cpu  1 1 1 9 0 0 0 0\n"), ticks("cpu  301 1 1 9 0 0 0 0\n")),
        Some(100.0)
    );
}

#[test]
fn counters_that_were_reset_give_nothing() {
    assert_eq!(usage(ticks("cpu 100 0 0 900\n"), ticks("cpu 1 0 0 9\n")), None);
}

#[test]
fn no_time_passed_is_no_value() {
    assert_eq!(usage(ticks("cpu 1 0 0 9\n"), ticks("cpu 1 0 0 9\n")), None);
}

#[test]
fn a_cpu_that_is_unplugged_does_not_make_the_others_look_busy() {
    // Four CPUs, 10 s, a quarter busy.
    let before = ticks("cpu 2000 0 0 90000\ncpu0 500 0 0 22500\ncpu1 500 0 0 22500\n");
    // The idle time that one of them had counted is gone, though less of it than all CPUs did since.
    assert_eq!(usage(before, ticks("cpu 3000 0 0 89500\ncpu0 750 0 0 22375\n")), None);
    // Only its line is gone: Linux goes on counting its time in the sum.
    assert_eq!(usage(before, ticks("cpu 3000 0 0 93000\ncpu0 750 0 0 23250\n")), Some(25.0));
}

#[test]
fn errors_name_the_line() {
    assert_eq!(parse(b"").unwrap_err().to_string(), "has no line \"cpu\"");
    assert_eq!(parse(b"cpu0 1 2 3 4\n").unwrap_err().to_string(), "has no line \"cpu\"");
    let error = parse(b"btime 7\ncpu  1 2 x 4\n").unwrap_err().to_string();
    assert_eq!(error, "line 2: a CPU time is not a whole number");
    assert_eq!(parse(b"cpu  1 2 3\n").unwrap_err().to_string(), "line 1: the idle time is missing");
}

fn value_at(cpu: &mut Cpu, signal_name: &str, seconds: u64) -> Option<f64> {
    let mut value = None;
    let now = Moment(Duration::from_secs(seconds));
    cpu.collect(now, &mut |signal: &Signal, sample| {
        if signal.name() == signal_name {
            value = Some(sample);
        }
    })
    .unwrap();
    value
}

/// A node whose `/proc` is that folder, and `/sys` the folder `sys` there.
fn roots(procfs: &Path) -> Roots {
    let [sysfs, cgroupfs, rootfs] = ["sys-root", "cgroup", "root"].map(|name| procfs.join(name));
    let kubelet = "/var/lib/kubelet".into();
    Roots { procfs: procfs.to_owned(), sysfs, cgroupfs, rootfs, kubelet }
}

fn usages<const N: usize>(
    procfs: &Path,
    interval: &str,
    samples: [(u64, u32, &str); N],
) -> [Option<f64>; N] {
    values(procfs, "cpu_usage", interval, samples)
}

/// The signal's value at each of these samples: seconds, CPUs online, the line of all CPUs.
fn values<const N: usize>(
    procfs: &Path,
    signal: &str,
    interval: &str,
    samples: [(u64, u32, &str); N],
) -> [Option<f64>; N] {
    let mut cpu = Cpu::new(&roots(procfs), interval.parse().unwrap());
    samples.map(|(seconds, cpus, all)| {
        let each: String = (0..cpus).map(|cpu| format!("cpu{cpu} 1 2 3 4\n")).collect();
        fs::write(procfs.join("stat"), format!("cpu {all}\n{each}intr 1 2\n")).unwrap();
        value_at(&mut cpu, signal, seconds)
    })
}

#[test]
fn two_samples_make_a_value_and_a_long_pause_breaks_the_pair() {
    let proc = tempfile::tempdir().unwrap();
    let samples = [(10, 0, "0 0 0 0"), (20, 0, "25 0 0 75"), (51, 0, "125 0 0 75")];
    assert_eq!(usages(proc.path(), "10s", samples), [None, Some(25.0), None]);
}

#[test]
fn idle_time_that_jumps_ahead_does_not_make_a_busy_node_look_idle() {
    let proc = tempfile::tempdir().unwrap();
    let samples = [
        (10, 1, "1000 0 0 5000"),
        (11, 1, "1100 0 0 5000"),
        (12, 1, "1200 0 0 85000"),
        (13, 1, "1300 0 0 85000"),
        (14, 1, "1400 0 0 5000"),
        (15, 1, "1500 0 0 5000"),
    ];
    let full = Some(100.0);
    assert_eq!(usages(proc.path(), "1s", samples), [None, full, None, full, None, full]);
    let busy = values(proc.path(), "cpu_busy", "1s", samples);
    assert_eq!(busy, [None, full, full, full, full, full]);
}

#[test]
fn a_late_sample_counts_for_all_the_time_that_has_passed() {
    let proc = tempfile::tempdir().unwrap();
    let samples = [(10, 4, "0 0 0 0"), (30, 4, "2000 0 0 6000")];
    assert_eq!(usages(proc.path(), "10s", samples), [None, Some(25.0)]);
    // Preempted for a second and a half between the clock and the counters, then not any more.
    fs::write(proc.path().join("uptime"), "12.50 40.00\n").unwrap();
    let samples = [
        (10, 4, "0 0 0 0"),
        (11, 4, "250 0 0 750"),
        (12, 4, "250 0 0 750"),
        (13, 4, "250 0 0 950"),
    ];
    assert_eq!(usages(proc.path(), "1s", samples), [None, Some(25.0), None, Some(0.0)]);
}

#[test]
fn cpus_that_come_and_go_count_for_the_whole_interval() {
    let proc = tempfile::tempdir().unwrap();
    let samples = [(10, 4, "0 0 0 0"), (20, 1, "1000 0 0 3000"), (30, 4, "2000 0 0 6000")];
    assert_eq!(usages(proc.path(), "10s", samples), [None, Some(25.0), Some(25.0)]);
}

/// The shared and the foreground CPU of a node with these lines of CPUs at each of two samples, ten seconds apart.
/// Each has used so much of the time; best-effort pods so many seconds. `between` may change the node.
fn competed_for(
    node: &Path,
    used: &[(u32, u64)],
    best_effort: Option<u64>,
    between: impl Fn(),
) -> [Option<f64>; 2] {
    let mut cpu = Cpu::new(&roots(node), "10s".parse().unwrap());
    let mut found = [None; 2];
    let file = node.join("cgroup/kubepods/besteffort/cpu.stat");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    for (at, seconds) in [(0, 10), (1, 20)] {
        let lines = used.iter().map(|(number, percent)| {
            format!("cpu{number} {} 0 0 {} 0 0 0 0\n", at * percent * 10, at * (100 - percent) * 10)
        });
        let sum: u64 = used.iter().map(|(_, percent)| at * percent * 10).sum();
        let idle = at * 1_000 * used.len() as u64 - sum;
        let text = format!("cpu  {sum} 0 0 {idle} 0 0 0 0\n{}", lines.collect::<String>());
        fs::write(node.join("stat"), text).unwrap();
        let text = best_effort.map_or("nothing\n".to_owned(), |used| {
            format!("usage_usec {}\n", at * used * 1_000_000)
        });
        fs::write(&file, text).unwrap();
        cpu.collect(
            Moment(Duration::from_secs(seconds)),
            &mut |signal: &Signal, value| match signal.name() {
                "cpu_shared_busy" => found[0] = Some(value),
                "cpu_foreground_busy" => found[1] = Some(value),
                _ => {}
            },
        )
        .unwrap();
        between();
    }
    found
}

/// A node whose pods may run on these CPUs.
fn node(allowed: &str) -> tempfile::TempDir {
    let node = tempfile::tempdir().unwrap();
    for (file, text) in [
        ("cgroup/cgroup.controllers", "cpuset cpu"),
        ("cgroup/kubepods/cpuset.cpus.effective", allowed),
        ("sys-root/devices/system/cpu/isolated", ""),
    ] {
        fs::create_dir_all(node.path().join(file).parent().unwrap()).unwrap();
        fs::write(node.path().join(file), format!("{text}\n")).unwrap();
    }
    node
}

#[test]
fn cpus_that_nobody_competes_for_do_not_count() {
    let used = [(0, 20), (1, 40), (2, 100), (3, 100)];
    let found = |node: &tempfile::TempDir, best_effort| {
        competed_for(node.path(), &used, best_effort, || ())
    };
    assert_eq!(found(&node("0-3"), Some(0)), [Some(65.0); 2]);
    // Two CPUs have another program's poll loop.
    assert_eq!(found(&node("0-1"), Some(4)), [Some(30.0), Some(10.0)]);
    let isolated = node("0-3");
    fs::write(isolated.path().join("sys-root/devices/system/cpu/isolated"), "2-7\n").unwrap();
    assert_eq!(found(&isolated, Some(4)), [Some(30.0), Some(10.0)]);
    // No CPU is left, or the use of best-effort pods is not known or more than all.
    assert_eq!(found(&node("4-7"), Some(0)), [None; 2]);
    assert_eq!(found(&node("0-1"), None), [Some(30.0), None]);
    assert_eq!(found(&node("0-1"), Some(9)), [Some(30.0), Some(0.0)]);
    // Without control groups all are shared.
    let bare = tempfile::tempdir().unwrap();
    assert_eq!(found(&bare, Some(0)), [Some(65.0); 2]);
}

#[test]
fn cpus_count_that_were_shared_and_online_all_the_time() {
    let used = [(0, 20), (1, 40), (3, 100)];
    let changes = node("0-3");
    let list = changes.path().join("cgroup/kubepods/cpuset.cpus.effective");
    let found = competed_for(changes.path(), &used, Some(0), || fs::write(&list, "1-3\n").unwrap());
    assert_eq!(found, [Some(70.0); 2]);
    // CPU 2 was online before, and CPU 3 was not.
    let offline = node("0-2");
    let found = competed_for(offline.path(), &used, Some(0), || {
        let stat = offline.path().join("stat");
        let text = fs::read_to_string(&stat).unwrap().replace("cpu3", "cpu2");
        fs::write(stat, text).unwrap();
    });
    assert_eq!(found, [Some(30.0); 2]);
}

#[test]
fn a_missing_file_is_named() {
    let mut cpu = Cpu::new(&roots(Path::new("/nonexistent")), "10s".parse().unwrap());
    let error = cpu.collect(Moment(Duration::ZERO), &mut |_, _| {}).unwrap_err().to_string();
    assert!(error.starts_with("/nonexistent/stat: "), "{error}");
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&bytes);
    }

    #[test]
    fn counters_that_grow_as_time_passes_give_a_value(
        cpus in 1_u32..4_096,
        millis in 900_u64..180_000,
        before in prop::array::uniform8(0_u64..1 << 40),
        weights in prop::array::uniform8(1_u64..1_000),
    ) {
        // All of the time that has passed, in kinds rounded up.
        let all: u64 = weights.iter().sum();
        let ticks = u64::from(cpus) * millis / 10;
        let after = std::array::from_fn(|kind| before[kind] + (ticks * weights[kind]).div_ceil(all));
        let before = Ticks(before);
        let after = Ticks(after);
        let passed = Duration::from_millis(millis);
        let elapsed = Some(Elapsed::new(passed, cpus));
        let idle = 100.0 * weights[IDLE] as f64 / all as f64;
        // Eight kinds are rounded, of 90 ticks at least.
        prop_assert!((shares(before, after, elapsed, true).usage.unwrap() - (100.0 - idle)).abs() < 9.0);
    }

    #[test]
    fn a_column_that_jumps_far_ahead_costs_the_share_of_work_nothing(
        cpus in 1_u32..4_096,
        millis in 900_u64..180_000,
        kind in 0..COLUMNS,
        jump in 1.5_f64..1e6,
    ) {
        let ticks = u64::from(cpus) * millis / 10;
        let mut after = [ticks / 8; COLUMNS];
        after[kind] += 60 + (ticks as f64 * jump) as u64;
        let passed = Duration::from_millis(millis);
        let elapsed = Some(Elapsed::new(passed, cpus));
        let shares = shares(Ticks([0; COLUMNS]), Ticks(after), elapsed, true);
        // Six of eight columns are work; each is rounded, of 90 ticks at least.
        prop_assert!((shares.busy.unwrap() - 75.0).abs() < 9.0, "{shares:?}");
        let is_work = kind != IDLE && kind != IOWAIT_TICKS;
        prop_assert_eq!(shares.usage.is_some(), is_work);
    }

    #[test]
    fn any_two_samples_give_a_percentage_or_nothing(
        before in prop::array::uniform8(any::<u64>()),
        after in prop::array::uniform8(any::<u64>()),
    ) {
        let passed = Duration::from_secs(10);
        for elapsed in [None, Some(Elapsed::new(passed, 8))] {
            for moved in [false, true] {
                let Shares { usage, busy, iowait, steal } =
                    shares(Ticks(before), Ticks(after), elapsed, moved);
                let mut all = [usage, busy, iowait, steal].into_iter().flatten();
                prop_assert!(all.all(|share| (0.0..=100.0).contains(&share)));
            }
        }
    }
}
