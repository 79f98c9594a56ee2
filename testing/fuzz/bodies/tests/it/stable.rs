//! Every fuzz target for a short time, without libFuzzer: its seeds, edited seeds, and random bytes.

use std::collections::BTreeSet;
use std::path::Path;

use bodies::{TARGETS, Target};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

/// Inputs for each target beside its seeds: so many edited seeds, and as many of random bytes.
const CASES: u32 = 1_000;

/// One edit of an input. Places are fractions of its length.
#[derive(Debug, Clone)]
enum Edit {
    Flip(Index, u8),
    Cut(Index),
    Insert(Index, Vec<u8>),
    /// Inserts the end of another seed at `at`; with `rest` it replaces what follows.
    Splice {
        seed: Index,
        from: Index,
        at: Index,
        rest: bool,
    },
    Repeat(Index, Index),
}

fn edit() -> impl Strategy<Value = Edit> {
    // Tokens of the formats under test, and any bytes.
    let token = prop::sample::select(vec![
        "-",
        "0",
        "18446744073709551616",
        "1e999",
        "null",
        "\n",
        " ",
        "\"",
        "{",
        "\u{e9}",
        "\0",
    ]);
    let bytes =
        prop_oneof![vec(any::<u8>(), 1..8), token.prop_map(|token| token.as_bytes().to_vec())];
    prop_oneof![
        (any::<Index>(), 1u8..).prop_map(|(at, bits)| Edit::Flip(at, bits)),
        any::<Index>().prop_map(Edit::Cut),
        (any::<Index>(), bytes).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        (any::<Index>(), any::<Index>(), any::<Index>(), any::<bool>())
            .prop_map(|(seed, from, at, rest)| Edit::Splice { seed, from, at, rest }),
        (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Edit::Repeat(from, to)),
    ]
}

/// A place in front of one of the bytes, or behind all.
fn place(index: &Index, bytes: &[u8]) -> usize {
    index.index(bytes.len() + 1)
}

impl Edit {
    fn apply(&self, input: &mut Vec<u8>, seeds: &[Vec<u8>]) {
        match self {
            Self::Flip(at, bits) if !input.is_empty() => {
                let at = at.index(input.len());
                input[at] ^= bits;
            }
            Self::Flip(..) => {}
            Self::Cut(at) => input.truncate(place(at, input)),
            Self::Insert(at, bytes) => {
                let at = place(at, input);
                input.splice(at..at, bytes.iter().copied());
            }
            Self::Splice { seed, from, at, rest } => {
                let other = &seeds[seed.index(seeds.len())];
                let (from, at) = (place(from, other), place(at, input));
                let end = if *rest { input.len() } else { at };
                input.splice(at..end, other[from..].iter().copied());
            }
            Self::Repeat(from, to) => {
                let (one, other) = (place(from, input), place(to, input));
                let part = input[one.min(other)..one.max(other)].to_vec();
                input.extend(part);
            }
        }
    }
}

fn run(target: &Target) {
    let seeds = target.seeds();
    seeds.iter().for_each(|seed| (target.body)(seed));
    let edited = (any::<Index>(), vec(edit(), 1..5));
    let random = vec(any::<u8>(), 0..200);
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&(edited, random), |((seed, edits), random)| {
        let mut input = seeds[seed.index(seeds.len())].clone();
        edits.iter().for_each(|edit| edit.apply(&mut input, &seeds));
        let input = input;
        for bytes in [&input, &random] {
            let holds = std::panic::catch_unwind(|| (target.body)(bytes)).is_ok();
            let shown = String::from_utf8_lossy(bytes);
            prop_assert!(holds, "input {shown:?}, as bytes {bytes:?}");
        }
        Ok::<(), TestCaseError>(())
    });
    if let Err(finding) = outcome {
        panic!("{}: {finding}", target.name);
    }
}

macro_rules! each {
    ($($name:ident),* $(,)?) => {
        const TESTED: &[&str] = &[$(stringify!($name)),*];

        $(#[test]
        fn $name() {
            let target = TARGETS.iter().find(|target| target.name == stringify!($name));
            run(target.unwrap());
        })*
    };
}

each! {
    gpu_wishes, gpus, cgroup_files, claim, device_ids, exporter_config, exporter_statistics, extender_names, extender_requests, gpu_report, nvidia_cdi,
    objects, pod_use, policy, proc_files, process_groups, reading, resource_claim, samples_file, share_config,
}

fn names() -> BTreeSet<String> {
    TARGETS.iter().map(|target| target.name.to_owned()).collect()
}

#[test]
fn every_target_runs_here_and_in_libfuzzer() {
    assert_eq!(names(), TESTED.iter().map(|name| (*name).to_owned()).collect());
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let files = std::fs::read_dir(fuzz.join("fuzz_targets")).unwrap();
    let files: BTreeSet<_> = files.map(|file| file.unwrap().path()).collect();
    let stems = files.iter().map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned());
    assert_eq!(names(), stems.collect());
    let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
    for (name, file) in names().iter().zip(&files) {
        assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name}");
        let text = std::fs::read_to_string(file).unwrap();
        assert!(text.contains(&format!("bodies::run(\"{name}\", ")), "{}", file.display());
    }
}

#[test]
fn every_target_has_a_seed() {
    for target in TARGETS {
        assert!(!target.seeds().is_empty(), "{}", target.name);
    }
}

/// One assertion for each parser of kernel files: without a seed that it accepts, fuzzing would not reach its checks.
#[test]
fn every_parser_of_kernel_files_accepts_a_seed() {
    use node_exporter_plus::collectors::{
        cpu, disk, filesystem, load, memory, network, pressure, uptime,
    };
    let target = TARGETS.iter().find(|target| target.name == "proc_files").unwrap();
    let seeds = target.seeds();
    assert!(accepted(&seeds, |seed| cpu::parse(seed).is_ok_and(|stat| stat.each.len() > 1)));
    assert!(accepted(&seeds, |seed| uptime::parse(seed).is_ok_and(|up| up.0.as_secs() == 350_735)));
    assert!(accepted(&seeds, |seed| memory::parse(seed).is_ok()));
    assert!(accepted(&seeds, |seed| !memory::zram_disks(seed).is_empty()));
    assert!(accepted(&seeds, |seed| {
        memory::parse_node(1, str::from_utf8(seed).unwrap_or_default()).is_some()
    }));
    assert!(accepted(&seeds, |seed| load::parse(seed).is_ok()));
    assert!(accepted(&seeds, |seed| load::parse_online(seed).is_ok()));
    assert!(accepted(&seeds, |seed| pressure::parse(seed).is_ok()));
    assert!(accepted(&seeds, |seed| disk::parse(seed).is_ok_and(|disks| !disks.is_empty())));
    assert!(accepted(&seeds, |seed| network::parse(seed).is_ok_and(|links| !links.is_empty())));
    assert!(accepted(&seeds, |seed| network::parse_speed(seed).is_some()));
    let (root, kubelet) = (Path::new("/"), Path::new("/var/lib/kubelet"));
    assert!(accepted(&seeds, |seed| {
        let mounts = filesystem::parse(seed, root, kubelet, |path| Some(path.to_owned()));
        mounts.is_ok_and(|mounts| mounts.len() > 1)
    }));
}

/// Whether a parser accepts one of the seeds.
fn accepted(seeds: &[Vec<u8>], reads: impl Fn(&[u8]) -> bool) -> bool {
    seeds.iter().any(|seed| reads(seed))
}
