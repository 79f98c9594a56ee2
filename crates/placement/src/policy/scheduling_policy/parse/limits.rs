//! What limits do, and how pods are estimated.

use std::sync::Arc;

use super::super::super::fields::{Checked, duration, fault};
use super::super::document::{Estimates, LimitsFields, Mode};
use super::super::scalar::EnumValue;
use super::super::{MAX_WAIT, SYSTEM_CLASSES};
use super::{MAX_CLASSES, at_most, object_name};
use crate::estimate::EstimateRules;
use crate::policy::{Overload, WhenAllOverloaded};

impl LimitsFields {
    pub(super) fn check(&self) -> Checked<Overload> {
        let mode = EnumValue::or("spec.limits.mode", &self.mode, Mode::Soft)?;
        let max_wait = match &self.max_wait {
            None => Some(MAX_WAIT),
            Some(given) if mode == Mode::Soft => {
                let problem = "only hard limits let pods wait: remove it, or set `mode: hard`";
                return Err(fault(given, "spec.limits.maxWait", problem.to_owned()));
            }
            Some(given) if given.value == "never" => None,
            Some(given) => Some(duration("spec.limits.maxWait", given)?),
        };
        let when_all = match mode {
            Mode::Soft => WhenAllOverloaded::PassLeastLoaded,
            Mode::Hard => WhenAllOverloaded::Wait { max_wait },
        };
        Ok(Overload { when_all, exempt_priority_classes: self.classes()? })
    }

    fn classes(&self) -> Checked<Vec<Arc<str>>> {
        let Some(given) = &self.exempt_priority_classes else {
            return Ok(SYSTEM_CLASSES.map(Arc::from).to_vec());
        };
        let field = "spec.limits.exemptPriorityClasses";
        at_most(field, &given.value, MAX_CLASSES)?;
        let wanted = "the name of a priority class";
        given
            .value
            .iter()
            .enumerate()
            .map(|(at, name)| object_name(&format!("{field}[{at}]"), name, wanted, 253))
            .collect()
    }
}

impl Estimates {
    pub(super) fn rules(&self) -> Option<EstimateRules> {
        let learned = self.learned.as_ref().is_none_or(|given| given.value);
        let enabled = self.enabled.as_ref().is_none_or(|given| given.value);
        enabled.then_some(EstimateRules { learned })
    }
}
