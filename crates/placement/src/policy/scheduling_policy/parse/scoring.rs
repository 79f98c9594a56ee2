//! The scoring model and its settings.

use serde_saphyr::Spanned;

use super::super::super::fields::{Checked, fault};
use super::super::DEFAULT_SCALE;
use super::super::document::Scoring as ScoringFields;
use super::super::scalar::{EnumValue, Scalar, number};
use crate::policy::{Direction, Model, Scale, Scoring};

pub(super) fn default_scoring() -> Scoring {
    Scoring { model: Model::AboveTypical, scale: DEFAULT_SCALE, ..Scoring::crane() }
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
    let new_node_cost = new_node_cost(&fields.new_node_cost)?;
    Ok(Scoring { model, direction, scale: scale(&fields.scale)?, new_node_cost })
}

fn new_node_cost(given: &Option<Spanned<Scalar>>) -> Checked<u8> {
    let Some(given) = given else { return Ok(0) };
    let is_one = |points: f64| points.fract() == 0.0 && (0.0..=100.0).contains(&points);
    let wanted = "a whole number from 0 to 100";
    // A cast of a float saturates.
    Ok(number("spec.scoring.newNodeCost", given, wanted, is_one)? as u8)
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
