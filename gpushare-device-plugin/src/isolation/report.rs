//! Logs the mode in force, and makes the note for an event on the Node.

use super::{Decision, Isolation, IsolationError};

/// The decision that was reported last.
#[derive(Debug, Default)]
pub(crate) struct ReportedMode(Option<Result<Decision, IsolationError>>);

impl ReportedMode {
    /// Logs a new decision for pods without an annotation. Returns the note of an event if the policy is not enforced.
    pub(crate) fn due(&mut self, decided: Result<Decision, IsolationError>) -> Option<String> {
        if self.0.as_ref() == Some(&decided) {
            return None;
        }
        let note = note(&decided);
        match (&decided, &note) {
            (_, Some(note)) => tracing::warn!("{note}"),
            (Ok(Decision { isolation: Isolation::None, .. }), None) => {
                tracing::warn!(
                    "isolation: none; a container can use more of its GPU than it asked for"
                );
            }
            (Ok(Decision { isolation, .. }), None) => tracing::info!("isolation: {isolation}"),
            (Err(_), None) => {}
        }
        self.0 = Some(decided);
        note
    }
}

fn note(decided: &Result<Decision, IsolationError>) -> Option<String> {
    match decided {
        Ok(Decision { isolation, instead_of: Some((wanted, missing)) }) => Some(format!(
            "GPU memory is held to each pod's share by `{isolation}` in place of `{wanted}`: {missing}"
        )),
        Ok(Decision { instead_of: None, .. }) => None,
        Err(error) => Some(format!("GPU pods are refused: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isolation::support::Missing;

    #[test]
    fn a_mode_in_place_of_another_is_told_once_until_it_changes() {
        let mut reported = ReportedMode::default();
        let missing = Missing::OldDriver("580.95.05".to_owned());
        let weaker = Decision {
            isolation: Isolation::None,
            instead_of: Some((Isolation::Driver, missing.clone())),
        };
        let note = reported.due(Ok(weaker.clone())).unwrap();
        assert_eq!(
            note,
            "GPU memory is held to each pod's share by `none` in place of `driver`: driver 580.95.05 cannot limit \
             memory: \
             install 615 or newer"
        );
        assert_eq!(reported.due(Ok(weaker.clone())), None);
        let enforced = Decision { isolation: Isolation::Driver, instead_of: None };
        assert_eq!(reported.due(Ok(enforced)), None);
        assert_eq!(reported.due(Ok(weaker)), Some(note));
        let refused = IsolationError::Unavailable { wanted: Isolation::Driver, missing };
        assert!(reported.due(Err(refused)).unwrap().starts_with("GPU pods are refused: "));
    }
}
