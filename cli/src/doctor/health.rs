//! What the programs say of themselves, as findings: text and remedy are theirs.
//!
//! A condition belongs to the check of its id, or of the first words of its id: `policy-warnings` to `policy`. Any
//! other belongs to its program's own check.

use std::collections::BTreeMap;

use api::health::{Condition, ConditionState};

use super::CHECKS;
use super::facts::{Healths, PLUGIN, Read};
use super::finding::{Findings, Level, few};
use super::programs::FINISH;
use crate::cluster_access::{EXTENDER, Failure};

/// The name of the check that a condition of a program belongs to.
fn check_of(program: &str, id: &str) -> &'static str {
    for check in &CHECKS {
        if id.strip_prefix(check.name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        {
            return check.name;
        }
    }
    match program {
        EXTENDER => "extender",
        PLUGIN => "gpu-nodes",
        _ => "annotator",
    }
}

/// What the pods of a program say of a check.
pub(crate) struct Told<'a> {
    /// Each with its pod.
    pub(crate) conditions: Vec<(&'a str, &'a Condition)>,
    /// Whether a pod runs, and all that run have told.
    pub(crate) all_known: bool,
}

impl Told<'_> {
    /// What is well, each text once.
    pub(crate) fn well(&self) -> String {
        let mut texts = Vec::new();
        for (_, Condition { state, text, .. }) in &self.conditions {
            if *state == ConditionState::Ok && text != "ready" && !texts.contains(text) {
                texts.push(text.clone());
            }
        }
        few(&texts)
    }
}

impl Findings {
    /// Finds what the pods of a program say of this check, and the pods that say nothing.
    pub(crate) fn told<'a>(&mut self, program: &str, healths: &'a Read<Healths>) -> Told<'a> {
        let told = self.conditions(program, healths);
        self.find_each(program, &told.conditions);
        told
    }

    /// As [`Findings::told`], of what one pod of several is enough for: where one is well, of the others only what has
    /// failed is looked at.
    pub(crate) fn told_by_one<'a>(
        &mut self,
        program: &str,
        healths: &'a Read<Healths>,
    ) -> Told<'a> {
        let told = self.conditions(program, healths);
        let mut looked_at = told.conditions.clone();
        if looked_at.iter().any(|(_, condition)| condition.state == ConditionState::Ok) {
            looked_at.retain(|(_, condition)| condition.state == ConditionState::Failed);
        }
        self.find_each(program, &looked_at);
        told
    }

    /// The conditions of this check. Finds the pods that say nothing.
    fn conditions<'a>(&mut self, program: &str, healths: &'a Read<Healths>) -> Told<'a> {
        let mut told = Told { conditions: Vec::new(), all_known: false };
        let read = self.read(&format!("health of {program}"), healths.as_ref());
        let Some(Healths { pods, not_asked }) = read else { return told };
        if pods.is_empty() {
            self.unknown(
                format!("not checked: health of {program}: no pod of it runs"),
                format!("kubectl get pods --all-namespaces -l app.kubernetes.io/name={program}"),
            );
        }
        if *not_asked > 0 {
            let all = pods.len() + not_asked;
            self.asked_some(format!("{} of {all} pods of {program} asked", pods.len()));
        }
        told.all_known = !pods.is_empty() && *not_asked == 0;
        // They are of a build that has no health.
        let mut older: Vec<String> = Vec::new();
        for (pod, health) in pods {
            if matches!(health, Err(Failure::NotFound(_))) {
                older.push(pod.clone());
                told.all_known = false;
                continue;
            }
            let Some(health) = self.read(&format!("health of {pod}"), health.as_ref()) else {
                told.all_known = false;
                continue;
            };
            for condition in &health.conditions {
                if check_of(program, &condition.id) == self.check() {
                    told.conditions.push((pod.as_str(), condition));
                }
            }
        }
        if !older.is_empty() {
            let own = check_of(program, "");
            let what = if self.check() == own {
                let pods = few(&older);
                format!("{program} is of a build that does not tell its health yet: {pods}")
            } else {
                format!("see the check `{own}`")
            };
            self.unknown(format!("not checked: {what}"), FINISH);
        }
        told
    }

    /// A finding for each thing that is not well, with its pods.
    fn find_each(&mut self, program: &str, conditions: &[(&str, &Condition)]) {
        let mut alike: BTreeMap<(Level, &str, &str, Option<&str>), Vec<String>> = BTreeMap::new();
        for (pod, Condition { id, state, text, remedy, .. }) in conditions {
            let level = match state {
                ConditionState::Ok => continue,
                ConditionState::Unknown => Level::Unknown,
                ConditionState::Warning => Level::Warn,
                ConditionState::Failed => Level::Fail,
            };
            let of = (level, id.as_str(), text.as_str(), remedy.as_deref());
            alike.entry(of).or_default().push((*pod).to_owned());
        }
        for ((level, id, text, remedy), pods) in alike.into_iter().rev() {
            let see = format!("kubectl logs --all-containers -l app.kubernetes.io/name={program}");
            let todo = remedy.map_or(see, str::to_owned);
            self.push(level, format!("{}: {id}: {text}", few(&pods)), Some(todo));
        }
    }
}
