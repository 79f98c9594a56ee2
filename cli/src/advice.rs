//! Comments above a converted policy of crane: suggested changes.

use jiff::SignedDuration;
use placement::policy::{LoadPolicy, MetricMeaning};

/// Readings with periods above this are old when they are read.
const LONG_PERIOD: SignedDuration = SignedDuration::from_mins(1);
/// Windows above this predict little about the next minutes.
const LONG_WINDOW: SignedDuration = SignedDuration::from_hours(6);

/// Comments for a policy that was crane's, each line with `#`.
pub(crate) fn of(policy: &LoadPolicy) -> String {
    let mut text = String::from(HEAD);
    let old = policy.sync.iter().any(|rule| rule.period > LONG_PERIOD);
    let long = policy.weights.iter().any(|weight| {
        MetricMeaning::of(&weight.metric).window.is_some_and(|window| window > LONG_WINDOW)
    });
    let all = [
        (!policy.limits.is_empty(), LIMITS),
        (!policy.weights.is_empty(), MODEL),
        (long, WINDOWS),
        (old, PERIODS),
        (!policy.hot.is_empty(), HOT_VALUE),
    ];
    all.into_iter().filter(|(applies, _)| *applies).for_each(|(_, advice)| text += advice);
    text
}

const HEAD: &str = "\
# Converted from a DynamicSchedulerPolicy of crane-scheduler, and decides as that does.
# To consider, one by one; `plimsoll policy diff` shows what each but `period` would change:
";

const LIMITS: &str = "\
# - limits.mode: soft. Where every node is over a limit, pods then go to the least loaded ones and do not wait. To let
#   them wait for some time: `mode: hard` with `maxWait: 5m`. Without exemptPriorityClasses, critical pods pass.
";

const MODEL: &str = "\
# - scoring.model: aboveTypical, with `estimates` enabled: a node loses points for what it would be above the load that
#   is typical of the candidates, so that replicas spread, and pods that no reading shows yet count by what their
#   workload uses. With scoring.scale: 30 and the weight of `plimsoll scheduler-config`.
";

const WINDOWS: &str = "\
# - Windows of a day keep nodes that were loaded once from taking pods: weigh `avg_5m`.
";

const PERIODS: &str = "\
# - period: 1m. Readings that are written every 3 minutes or less often are old when they are read.
";

const HOT_VALUE: &str = "\
# - hotValue: []. With `estimates` enabled recent bindings count by what they use.
";
