use placement::gpu::ContainerKind;
use placement::units::PodUid;

use super::*;
use crate::fixtures::{A, B, ids, listed, simple, with_init};
use crate::pods::PodCache;
use crate::records::pod_resources::ListedPod;

fn facts<const N: usize>(pods: [&Arc<PodFacts>; N]) -> FactsOf {
    pods.iter().map(|facts| (PodRef::of(facts), Arc::clone(facts))).collect()
}

fn records(list: Vec<ListedPod>) -> Records {
    let mut records = Records::default();
    records.relist(list, None, &PodCache::default());
    records
}

fn id_request(size: usize) -> IdRequest {
    IdRequest { size, must_include: Ids::new() }
}

/// The pod and container that is chosen if the API server shows what the watch shows.
fn chosen(
    records: &Records,
    cached: &FactsOf,
    id_request: &IdRequest,
) -> Result<(String, String), Refusal> {
    let mut answers = Answers::new();
    loop {
        let evidence = Evidence {
            records,
            cached,
            answers: &answers,
            refused: &RefusedPods::default(),
            id_request,
            places_unclaimed: false,
        };
        match decide(&evidence, !answers.is_empty()) {
            Step::One(facts, ask) => return Ok((facts.name.clone(), ask.name)),
            Step::Refuse(refusal) => return Err(refusal),
            Step::Read(pods) => {
                answers.extend(pods.into_iter().map(|pod| {
                    let found = Answer::Found(cached[&pod].clone());
                    (pod, found)
                }));
            }
        }
    }
}

fn is(pod: &str, container: &str) -> Result<(String, String), Refusal> {
    Ok((pod.to_owned(), container.to_owned()))
}

#[test]
fn the_pod_without_ids_is_being_admitted() {
    let old = simple("old", A, 2);
    let new = simple("new", B, 2);
    let records = records(vec![listed("old", ["aaaaaaaa-0", "aaaaaaaa-1"]), listed("new", [])]);
    assert_eq!(chosen(&records, &facts([&old, &new]), &id_request(2)), is("new", "main"));
}

#[test]
fn a_pod_of_another_size_or_admitted_or_finished_is_not_being_admitted() {
    let records = records(vec![listed("p", [])]);
    let waiting = simple("p", A, 2);
    let found = chosen(&records, &facts([&waiting]), &id_request(3));
    assert_eq!(found, Err(Refusal::NoPodAsks { size: 3 }));
    let edits: [fn(&mut PodFacts); 2] = [|pod| pod.admitted = true, |pod| pod.finished = true];
    for edit in edits {
        let mut pod = PodFacts::clone(&waiting);
        edit(&mut pod);
        let found = chosen(&records, &facts([&Arc::new(pod)]), &id_request(2));
        assert_eq!(found, Err(Refusal::NoPodAsks { size: 2 }));
    }
}

#[test]
fn of_two_pods_that_fit_none_is_chosen() {
    let one = simple("one", A, 2);
    let two = simple("two", B, 2);
    let records = records(vec![listed("one", []), listed("two", [])]);
    let refusal = chosen(&records, &facts([&one, &two]), &id_request(2)).unwrap_err();
    assert!(matches!(&refusal, Refusal::Ambiguous { pods, .. } if pods.len() == 2), "{refusal}");
}

#[test]
fn an_init_container_comes_before_the_app_container() {
    let pod = with_init("p", A, 2, 2);
    let mut records = records(vec![listed("p", [])]);
    let known = facts([&pod]);
    assert_eq!(chosen(&records, &known, &id_request(2)), is("p", "init"));
    records.grant(&pod, "init", ids(["aaaaaaaa-0", "aaaaaaaa-1"]));
    assert_eq!(chosen(&records, &known, &id_request(2)), is("p", "main"));
}

#[test]
fn an_init_container_whose_grant_the_kubelet_forgot_is_asked_for_again() {
    let pod = with_init("p", A, 4, 2);
    let mut records = records(vec![listed("p", [])]);
    records.grant(&pod, "init", ids(["aaaaaaaa-0"]));
    assert_eq!(chosen(&records, &facts([&pod]), &id_request(4)), is("p", "init"));
}

#[test]
fn a_pod_with_a_grant_for_each_container_is_not_being_admitted() {
    let init_only = Arc::new(crate::fixtures::pod("p", A, &[("init", ContainerKind::Init, 2)]));
    let mut records = records(vec![listed("p", [])]);
    records.grant(&init_only, "init", ids(["aaaaaaaa-0", "aaaaaaaa-1"]));
    let found = chosen(&records, &facts([&init_only]), &id_request(2));
    assert_eq!(found, Err(Refusal::NoPodAsks { size: 2 }));
}

#[test]
fn ids_that_must_be_included_name_the_pod() {
    let one = with_init("one", A, 1, 2);
    let two = with_init("two", A, 1, 2);
    let mut records = records(vec![listed("one", []), listed("two", [])]);
    records.grant(&one, "init", ids(["aaaaaaaa-0"]));
    records.grant(&two, "init", ids(["aaaaaaaa-1"]));
    let id_request = IdRequest { size: 2, must_include: ids(["aaaaaaaa-1"]) };
    assert_eq!(chosen(&records, &facts([&one, &two]), &id_request), is("two", "main"));
}

/// What the kubelet knows of a listed pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Truth {
    /// It is being admitted.
    Admitting,
    /// It is being admitted, and is being deleted.
    AdmittingDeleting,
    /// It is being admitted, and something other than the extender bound it.
    AdmittingUnclaimed,
    /// It is being admitted, and was deleted by force.
    AdmittingGone,
    /// It is being admitted, and was deleted by force. A later pod of its name is bound.
    AdmittingReplaced,
    /// It requests no units.
    Plain,
    /// It started before the resource was registered.
    Started,
    /// As `Started`, and its status does not say so yet.
    StartedUnreported,
    /// This plugin refused it, and it is being deleted.
    RefusedHere,
    /// The kubelet refused it before it asked this plugin, and it is being deleted.
    RefusedByKubelet,
    /// As `RefusedByKubelet`, and it was deleted by force.
    RefusedGone,
    /// The kubelet refused it, lists it still although it is not being deleted, and has not reported the refusal.
    /// Kubelets from v1.34 do not do that.
    RefusedUnreported,
    /// As `RefusedByKubelet`, with units of another number.
    RefusedOtherSize,
    /// It has ended, and is being deleted.
    Ended,
}

impl Truth {
    const ADMITTING: [Self; 5] = [
        Self::Admitting,
        Self::AdmittingDeleting,
        Self::AdmittingUnclaimed,
        Self::AdmittingGone,
        Self::AdmittingReplaced,
    ];
    const OTHERS: [Self; 9] = [
        Self::Plain,
        Self::Started,
        Self::StartedUnreported,
        Self::RefusedHere,
        Self::RefusedByKubelet,
        Self::RefusedGone,
        Self::RefusedUnreported,
        Self::RefusedOtherSize,
        Self::Ended,
    ];

    /// The pod as it was bound.
    fn bound(self, name: &str) -> PodFacts {
        let units = if self == Self::RefusedOtherSize { 3 } else { 2 };
        let mut pod = PodFacts::clone(&simple(name, A, units));
        let no_claim = [Self::AdmittingUnclaimed, Self::Started, Self::StartedUnreported];
        match &mut pod.gpu {
            gpu if self == Self::Plain => *gpu = Ok(None),
            Ok(Some(gpu)) if no_claim.contains(&self) => gpu.claim = Ok(None),
            _ => {}
        }
        pod
    }

    /// The pod of that name that the API server shows.
    fn in_api(self, name: &str) -> Option<PodFacts> {
        let mut pod = self.bound(name);
        match self {
            Self::AdmittingGone | Self::RefusedGone => return None,
            Self::AdmittingReplaced => pod.uid = format!("{name}-later").as_str().into(),
            Self::Started => pod.admitted = true,
            Self::AdmittingDeleting
            | Self::RefusedHere
            | Self::RefusedByKubelet
            | Self::RefusedOtherSize => pod.deleting = true,
            Self::Ended => (pod.finished, pod.deleting) = (true, true),
            Self::Admitting
            | Self::AdmittingUnclaimed
            | Self::Plain
            | Self::StartedUnreported
            | Self::RefusedUnreported => {}
        }
        Some(pod)
    }
}

/// What the watch shows under a pod's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watch {
    /// Nothing yet, or no longer.
    Nothing,
    /// The pod as it was bound.
    Bound,
    /// What the API server has.
    Current,
    /// An earlier pod of that name, which runs.
    EarlierRunning,
    /// An earlier pod of that name, which this plugin refused.
    EarlierRefused,
    /// An earlier pod of that name, which no kubelet has admitted.
    EarlierWaiting,
}

impl Watch {
    const ALL: [Self; 6] = [
        Self::Nothing,
        Self::Bound,
        Self::Current,
        Self::EarlierRunning,
        Self::EarlierRefused,
        Self::EarlierWaiting,
    ];

    fn shows(self, name: &str, truth: Truth) -> Option<PodFacts> {
        match self {
            Self::Nothing => None,
            Self::Bound => Some(truth.bound(name)),
            Self::Current => truth.in_api(name),
            Self::EarlierRunning => Some(PodFacts { admitted: true, ..Self::earlier(name, truth) }),
            Self::EarlierRefused | Self::EarlierWaiting => Some(Self::earlier(name, truth)),
        }
    }

    /// The earlier pod of the name.
    fn earlier(name: &str, truth: Truth) -> PodFacts {
        let mut pod = truth.bound(name);
        pod.uid = format!("{name}-earlier").as_str().into();
        // A name of pods without units is not taken over by one with units while the watch is late.
        if truth != Truth::Plain {
            pod.gpu = simple(name, B, 2).gpu.clone();
        }
        pod
    }
}

/// A listed pod in the exhaustive test.
#[derive(Debug, Clone, Copy)]
struct Case {
    name: &'static str,
    truth: Truth,
    watch: Watch,
    is_readable: bool,
    is_listed: bool,
}

impl Case {
    fn all(name: &'static str, truths: &[Truth]) -> Vec<Self> {
        let mut cases = Vec::new();
        for truth in truths.iter().copied() {
            for watch in Watch::ALL {
                for is_readable in [true, false] {
                    cases.push(Self { name, truth, watch, is_readable, is_listed: true });
                }
            }
        }
        // The watch shows the only version of it, and the API server does not answer. PreStartContainer compares UIDs.
        cases.retain(|case| case.is_readable || case.watch != Watch::EarlierWaiting);
        cases
    }

    /// Whether what is read and watched shows that it is not the pod in admission.
    fn is_no_candidate(&self) -> bool {
        match self.truth {
            // A pod without a claim is not read if the watch shows it.
            Truth::Started => self.watch != Watch::Bound,
            Truth::Plain | Truth::RefusedHere | Truth::RefusedOtherSize | Truth::Ended => true,
            _ => false,
        }
    }

    fn bystander(is_readable: bool) -> Self {
        Self {
            name: "bystander",
            truth: Truth::Plain,
            watch: Watch::Nothing,
            is_readable,
            is_listed: true,
        }
    }
}

#[derive(Debug)]
struct Identification {
    result: Result<Arc<PodFacts>, Refusal>,
    /// Whether pods were read again, with a pause before.
    waited: bool,
    reads: usize,
}

/// What the API server answers about a pod.
fn read(cases: &[Case], pod: &PodRef) -> Answer {
    let case = cases.iter().find(|case| case.name == pod.name).unwrap();
    if !case.is_readable {
        return Answer::Failed("broken".to_owned());
    }
    match case.truth.in_api(case.name) {
        Some(facts) => Answer::Found(Arc::new(facts)),
        None => Answer::Gone,
    }
}

/// Runs an identification to its end.
fn outcome(cases: &[Case]) -> Identification {
    let refused = RefusedPods::default();
    let mut cached = FactsOf::new();
    for case in cases {
        let why = Refusal::NoPodAsks { size: 0 };
        if case.truth == Truth::RefusedHere {
            refused.add(&PodUid::from(case.name), &why);
        }
        if case.watch == Watch::EarlierRefused {
            refused.add(&format!("{}-earlier", case.name).as_str().into(), &why);
        }
        let shown = case.watch.shows(case.name, case.truth).map(Arc::new);
        cached.extend(shown.map(|facts| (PodRef::of(&facts), facts)));
    }
    let list = cases.iter().filter(|case| case.is_listed).map(|case| listed(case.name, []));
    let records = records(list.collect());
    let mut answers = Answers::new();
    let mut reads = 0;
    let mut waits = 0;
    loop {
        let evidence = Evidence {
            records: &records,
            cached: &cached,
            answers: &answers,
            refused: &refused,
            id_request: &id_request(2),
            places_unclaimed: false,
        };
        let result = match decide(&evidence, waits == 2) {
            Step::One(facts, _) => Ok(facts),
            Step::Refuse(refusal) => Err(refusal),
            Step::Read(pods) => {
                assert!(waits < 2 && !pods.is_empty(), "{cases:?}: reads {pods:?}");
                waits += usize::from(pods.iter().any(|pod| answers.contains_key(pod)));
                reads += pods.len();
                answers.extend(pods.into_iter().map(|pod| (pod.clone(), read(cases, &pod))));
                continue;
            }
        };
        return Identification { result, waited: waits > 0, reads };
    }
}

/// Checks one world: `cases[0]` is the pod in admission.
fn check(cases: &[Case]) {
    let outcome = outcome(cases);
    let admitting = cases[0];
    let listed: Vec<&Case> = cases[1..].iter().filter(|case| case.is_listed).collect();
    let all_readable = cases.iter().all(|case| case.is_readable);
    let is_late = listed.iter().any(|case| case.truth == Truth::RefusedUnreported);
    // PreStartContainer holds back what is left: a pod that is being deleted or has no claim, and one that could not be
    // read.
    if is_late && !(all_readable && admitting.truth == Truth::Admitting) {
        return;
    }
    let gets_gpu = outcome.result.as_ref().ok().filter(|facts| facts.claim().is_some());
    if let Some(facts) = gets_gpu {
        // A pod that is gone is never started: PreStartContainer compares UIDs.
        let is_gone = matches!(admitting.truth, Truth::AdmittingGone | Truth::AdmittingReplaced);
        let is_it = facts.uid.as_str() == admitting.name;
        assert!(is_it || is_gone, "another pod's GPU: {cases:?}: {outcome:?}");
        assert!(is_it || facts.name == admitting.name || is_gone, "{cases:?}: {outcome:?}");
    }
    if is_late || !all_readable {
        return;
    }
    assert!(!outcome.waited, "the kubelet waits: {cases:?}: {outcome:?}");
    let is_chosen = outcome.result.is_ok();
    match admitting.truth {
        Truth::Admitting => assert!(is_chosen, "{cases:?}: {outcome:?}"),
        Truth::AdmittingDeleting if listed.iter().all(|case| case.is_no_candidate()) => {
            assert!(is_chosen, "{cases:?}: {outcome:?}");
        }
        Truth::AdmittingUnclaimed => assert!(gets_gpu.is_none(), "{cases:?}: {outcome:?}"),
        _ => {}
    }
}

#[test]
fn of_two_pods_of_one_size_only_the_one_in_admission_is_chosen() {
    let admitting = Case::all("p", &Truth::ADMITTING);
    let others = Case::all("other", &Truth::OTHERS);
    let bystanders = [vec![], vec![Case::bystander(true)], vec![Case::bystander(false)]];
    let mut worlds = 0;
    for first in &admitting {
        for second in &others {
            for is_listed in [true, false] {
                for bystander in &bystanders {
                    let pair = [*first, Case { is_listed, ..*second }];
                    check(&[&pair[..], bystander].concat());
                    worlds += 1;
                }
            }
        }
    }
    assert!(worlds > 20_000, "{worlds}");
}

#[test]
fn plain_pods_that_the_watch_shows_are_never_read() {
    for truth in Truth::ADMITTING {
        for watch in [Watch::Nothing, Watch::Current] {
            let admitting = Case { name: "p", truth, watch, is_readable: true, is_listed: true };
            let mut cases = vec![admitting];
            for name in ["a", "b", "c"] {
                let truth = Truth::Plain;
                cases.push(Case { name, truth, watch: Watch::Current, ..admitting });
            }
            assert!(outcome(&cases).reads <= 1, "{truth:?}, {watch:?}");
        }
    }
}

#[test]
fn pods_that_the_watch_shows_without_a_claim_are_refused_unread() {
    let admitting = Case {
        name: "a",
        truth: Truth::AdmittingUnclaimed,
        watch: Watch::Current,
        is_readable: false,
        is_listed: true,
    };
    let mut cases = vec![admitting];
    for name in ["b", "c", "d"] {
        cases.push(Case { name, truth: Truth::StartedUnreported, ..admitting });
    }
    let outcome = outcome(&cases);
    assert_eq!((outcome.waited, outcome.reads), (false, 0));
    let refusal = outcome.result.unwrap_err();
    assert!(matches!(&refusal, Refusal::NoneClaimed { pods, .. } if pods.len() == 4), "{refusal}");
}
