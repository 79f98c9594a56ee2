//! The scoring model and its settings.

use serde_saphyr::Spanned;

use super::super::super::fields::{Checked, fault};
use super::super::DEFAULT_SCALE;
use super::super::document::ScoringFields;
use super::super::scalar::{EnumValue, Scalar, number};
use crate::policy::{Direction, Model, Scale, Scoring};

pub(super) fn default_scoring() -> Scoring {
    Scoring { model: Model::AboveTypical, direction: Direction::Spread, scale: DEFAULT_SCALE }
}

pub(super) fn scoring(fields: &ScoringFields) -> Checked<Scoring> {
    let model = EnumValue::or("spec.scoring.model", &fields.model, Model::AboveTypical)?;
    let direction = EnumValue::or("spec.scoring.direction", &fields.direction, Direction::Spread)?;
    if let Some(given) = &fields.direction
        && direction == Direction::Pack
        && model != Model::CraneLinear
    {
        let problem = "only the model `craneLinear` packs: expected `spread`";
        return Err(fault(given, "spec.scoring.direction", problem.to_owned()));
    }
    Ok(Scoring { model, direction, scale: scale(&fields.scale)? })
}

fn scale(given: &Option<Spanned<Scalar>>) -> Checked<Scale> {
    let Some(given) = given else { return Ok(DEFAULT_SCALE) };
    let wanted = "a whole number from 1 to 100";
    let highest =
        number("spec.scoring.scale", given, wanted, |highest| scale_up_to(highest).is_some())?;
    Ok(scale_up_to(highest).unwrap_or(DEFAULT_SCALE))
}

fn scale_up_to(highest: f64) -> Option<Scale> {
    // A cast of a float saturates.
    let whole = highest as u8;
    if f64::from(whole) == highest { Scale::new(whole) } else { None }
}
