use futures::FutureExt as _;
use futures::future::join_all;
use tokio::time::advance;

use super::*;

fn group(name: &str) -> PodGroup {
    PodGroup { namespace: "ml".to_owned(), name: name.to_owned() }
}

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(1_795_165_200_000 + millis).unwrap()
}

fn uids(pods: &[&str]) -> Vec<PodUid> {
    pods.iter().map(|pod| PodUid::from(*pod)).collect()
}

/// Asks about the pod of the group `g`, which gets a place. Returns the pods whose places end.
fn ask(gangs: &Gangs, pod: &str, millis: i64) -> Vec<PodUid> {
    let ended = gangs.ask(&group("g"), &pod.into(), at(millis)).unwrap();
    gangs.answer(&group("g"), &pod.into(), true);
    ended
}

/// Asks about the pod of the group `g`, which gets none.
fn refuse(gangs: &Gangs, pod: &str, millis: i64) -> Vec<PodUid> {
    let ended = gangs.ask(&group("g"), &pod.into(), at(millis)).unwrap();
    gangs.answer(&group("g"), &pod.into(), false);
    ended
}

fn asked(pods: &[&str]) -> Gangs {
    let gangs = Gangs::default();
    for pod in pods {
        assert_eq!(ask(&gangs, pod, 0), []);
    }
    gangs
}

fn id(pod: &str) -> GpuPodId {
    GpuPodId { uid: pod.into(), namespace: "ml".to_owned(), name: pod.to_owned() }
}

/// What a Bind of the pod is told, if that is known.
fn now(gangs: &Gangs, pod: &str) -> Option<GangResult> {
    gangs.wait(&pod.into(), true).now_or_never()
}

async fn wait(gangs: &Gangs, pods: &[&str]) -> Vec<String> {
    let pods = uids(pods);
    let outcomes = join_all(pods.iter().map(|pod| gangs.wait(pod, true))).await;
    let said = |outcome: GangResult| outcome.map_or_else(|why| why.to_string(), |()| String::new());
    outcomes.into_iter().map(said).collect()
}

#[tokio::test(start_paused = true)]
async fn each_waits_for_all_that_have_a_place() {
    let gangs = asked(&["a", "b"]);
    assert_eq!(refuse(&gangs, "c", 0), []);
    let a = "a".into();
    let mut first = Box::pin(gangs.wait(&a, true));
    assert_eq!(first.as_mut().now_or_never(), None);
    assert_eq!(now(&gangs, "b"), Some(Ok(())));
    assert_eq!(first.await, Ok(()));
    // Another request of the same Bind.
    assert_eq!(now(&gangs, "a"), Some(Ok(())));
    // A pod without a group, and one about whose place another replica was asked.
    assert_eq!(gangs.wait(&"other".into(), false).await, Ok(()));
    assert_eq!(wait(&gangs, &["c"]).await, [UNKNOWN]);
}

#[tokio::test(start_paused = true)]
async fn none_is_bound_where_one_cannot_be() {
    let gangs = asked(&["a", "b", "c"]);
    let failing = async { gangs.fail(&id("c"), &BindError::NotReady) };
    let (outcomes, ()) = futures::join!(wait(&gangs, &["a", "b"]), failing);
    let why = format!("pod c has no place ({})", BindError::NotReady);
    assert_eq!(outcomes, [&*why, &*why]);
    // Who comes later is told the same.
    assert_eq!(wait(&gangs, &["c"]).await, [why]);
    // kube-scheduler may not have heard of all of them.
    assert_eq!(gangs.ask(&group("g"), &"c".into(), at(10)), Err(TRIED_AGAIN));
    assert_eq!(gangs.ask(&group("other"), &"d".into(), at(10)), Ok(Vec::new()));
    advance(PAUSE).await;
    for pod in ["a", "b", "c"] {
        ask(&gangs, pod, 1010);
    }
    assert_eq!(wait(&gangs, &["a", "b", "c"]).await, ["", "", ""]);
}

#[tokio::test(start_paused = true)]
async fn none_is_bound_where_one_does_not_come_for_seconds() {
    let gangs = asked(&["a", "b", "c"]);
    let why = "no binding of 1 of its pods came within seconds";
    let start = Instant::now();
    let late = async {
        tokio::time::sleep(WAIT - Duration::from_millis(1)).await;
        wait(&gangs, &["c"]).await
    };
    let (a, c) = futures::join!(wait(&gangs, &["a"]), late);
    assert_eq!((a, c), (vec![why.to_owned()], vec![why.to_owned()]));
    assert_eq!(start.elapsed(), LONGEST_WAIT);
    // In the next try nobody waits for it, unless it comes.
    advance(PAUSE).await;
    for pod in ["a", "b", "c"] {
        ask(&gangs, pod, 5000);
    }
    assert_eq!(now(&gangs, "a"), None);
    assert_eq!(wait(&gangs, &["a", "c"]).await, ["", ""]);
    // One that comes once the others have gone on does not wait for them.
    let gangs = asked(&["a", "b"]);
    assert_eq!(wait(&gangs, &["a"]).await, [why]);
    advance(PAUSE).await;
    ask(&gangs, "a", 5000);
    assert_eq!(wait(&gangs, &["a"]).await, [""]);
    assert_eq!(now(&gangs, "b"), Some(Ok(())));
}

#[tokio::test(start_paused = true)]
async fn a_further_placement_or_try_ends_the_places_of_the_last_one() {
    let gangs = asked(&["a", "b", "c"]);
    // Its nominated node does not do: kube-scheduler goes on with all nodes.
    assert_eq!(ask(&gangs, "c", 10), uids(&["c"]));
    assert_eq!(ask(&gangs, "d", 20), []);
    // The next placements of the same try.
    for _ in 0..2 {
        assert_eq!(ask(&gangs, "a", 30), uids(&["a", "b", "c", "d"]));
        for pod in ["b", "c", "d"] {
            assert_eq!(ask(&gangs, pod, 30), []);
        }
    }
    // After a pause: a new try.
    assert_eq!(ask(&gangs, "b", 1100), uids(&["a", "b", "c", "d"]));
    // Of another group of this name, in another namespace.
    let others = PodGroup { namespace: "web".to_owned(), ..group("g") };
    assert_eq!(gangs.ask(&others, &"w".into(), at(1110)), Ok(Vec::new()));
    gangs.answer(&others, &"w".into(), true);
    assert_eq!(now(&gangs, "w"), Some(Ok(())));
}

#[tokio::test(start_paused = true)]
async fn the_places_of_a_group_with_a_refused_pod_end_soon_unless_it_is_bound() {
    let gangs = asked(&["a", "b"]);
    assert_eq!(gangs.given_up(at(500)), []);
    refuse(&gangs, "c", 10);
    assert_eq!(gangs.given_up(at(109)), []);
    assert_eq!(gangs.given_up(at(110)), uids(&["a", "b"]));
    assert_eq!(gangs.given_up(at(210)), []);
    let gangs = asked(&["a", "b"]);
    refuse(&gangs, "c", 10);
    assert_eq!(now(&gangs, "a"), None);
    assert_eq!(gangs.given_up(at(110)), []);
    // What is left of the group is asked about again at once, and ends no places.
    assert_eq!(refuse(&gangs, "c", 120), []);
    assert_eq!(wait(&gangs, &["a", "b"]).await, ["", ""]);
}

#[tokio::test(start_paused = true)]
async fn all_placements_of_a_try_count() {
    let gangs = asked(&["a", "b"]);
    // In the last placement, b has no place; kube-scheduler may take the first one.
    assert_eq!(ask(&gangs, "a", 10), uids(&["a", "b"]));
    refuse(&gangs, "b", 20);
    assert_eq!(now(&gangs, "a"), None);
    assert_eq!(now(&gangs, "b"), Some(Ok(())));
    assert_eq!(now(&gangs, "a"), Some(Ok(())));
}

#[tokio::test(start_paused = true)]
async fn bindings_go_on_while_later_pods_of_the_group_are_asked_about() {
    let gangs = asked(&["a", "b"]);
    let a = "a".into();
    let mut first = Box::pin(gangs.wait(&a, true));
    assert_eq!(first.as_mut().now_or_never(), None);
    assert_eq!(ask(&gangs, "c", 5), []);
    assert_eq!(now(&gangs, "c"), Some(Ok(())));
    assert_eq!(now(&gangs, "b"), Some(Ok(())));
    assert_eq!(first.await, Ok(()));
    // A pod that is asked about again was not bound: nobody waits for it once more.
    let gangs = asked(&["a", "b"]);
    let mut first = Box::pin(gangs.wait(&a, true));
    assert_eq!(first.as_mut().now_or_never(), None);
    assert_eq!(ask(&gangs, "b", 5), uids(&["b"]));
    assert_eq!(first.await, Err("kube-scheduler tries them anew".into()));
    assert_eq!(gangs.ask(&group("g"), &"a".into(), at(10)), Err(TRIED_AGAIN));
    advance(PAUSE).await;
    for pod in ["a", "b"] {
        ask(&gangs, pod, 2000);
    }
    assert_eq!(now(&gangs, "a"), Some(Ok(())));
}

#[tokio::test(start_paused = true)]
async fn a_limited_number_waits_and_nothing_is_kept_for_ever() {
    let pods: Vec<String> = (0..2000).map(|pod| pod.to_string()).collect();
    let pods: Vec<&str> = pods.iter().map(|pod| &**pod).collect();
    let gangs = asked(&pods);
    assert!(wait(&gangs, &pods[..=MAX_WAITING]).await.iter().all(String::is_empty));
    ask(&gangs, "later", 60_000);
    let tries = gangs.tries();
    assert_eq!((tries.groups.len(), tries.all.len(), tries.of.len()), (1, 1, 1));
}

#[test]
fn at_first_gangs_that_are_bound_by_half_come_before_others() {
    let gangs = Gangs::default();
    let half = || HashSet::from([group("g")]);
    let waits = |group: Option<&PodGroup>, millis, half: &dyn Fn() -> HashSet<PodGroup>| {
        gangs.waits_for_half_bound(group, at(millis), half)
    };
    assert_eq!(waits(None, 0, &half), Some(RECOVERS));
    assert_eq!(waits(Some(&group("other")), 10, &half), Some(RECOVERS));
    assert_eq!(waits(Some(&group("g")), 20, &half), None);
    assert_eq!(waits(None, 300, &HashSet::new), None);
    assert_eq!(waits(None, 600, &half), Some(RECOVERS));
    assert_eq!(waits(None, 10_000, &half), None);
}
