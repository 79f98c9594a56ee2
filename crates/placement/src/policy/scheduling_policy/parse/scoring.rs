//! The scoring model and its settings.

use serde_saphyr::Spanned;

use super::super::super::fields::{Checked, fault};
use super::super::TARGET;
use super::super::document::{ModelName, Scoring as ScoringFields};
use super::super::scalar::{EnumValue, Scalar, number};
use crate::policy::{Direction, Model, Scale, Scoring};

pub(super) fn default_scoring() -> Scoring {
    Scoring {
        model: Model::Learned,
        direction: Direction::Spread,
        scale: Scale::Hundred,
        pairing: 0.0,
        keep_for_large: 0.0,
    }
}

pub(super) fn scoring(fields: &ScoringFields) -> Checked<Scoring> {
    let name = EnumValue::or("spec.scoring.model", &fields.model, ModelName::Learned)?;
    if name != ModelName::TargetLoadPacking {
        check_absent("target", &fields.target, "targetLoadPacking")?;
    }
    if name != ModelName::VariationRisk {
        check_absent("margin", &fields.margin, "variationRisk")?;
        check_absent("sensitivity", &fields.sensitivity, "variationRisk")?;
    }
    let direction = EnumValue::or("spec.scoring.direction", &fields.direction, Direction::Spread)?;
    let packs = !matches!(name, ModelName::TargetLoadPacking | ModelName::VariationRisk);
    if let Some(given) = &fields.direction
        && direction == Direction::Pack
        && !packs
    {
        let problem = "only the models `craneLinear`, `dominantResource` and `learned` pack: expected `spread`";
        return Err(fault(given, "spec.scoring.direction", problem.to_owned()));
    }
    let scoring = Scoring {
        model: model(name, fields)?,
        direction,
        scale: scale(&fields.scale)?,
        pairing: 0.0,
        keep_for_large: 0.0,
    };
    let pairing = part("pairing", &fields.pairing, &scoring)?;
    let keep_for_large = part("keepForLarge", &fields.keep_for_large, &scoring)?;
    Ok(Scoring { pairing, keep_for_large, ..scoring })
}

/// Refuses a field that only the model `model` has.
fn check_absent(field: &str, given: &Option<Spanned<Scalar>>, model: &str) -> Checked<()> {
    let Some(given) = given else { return Ok(()) };
    let problem = format!("only the model `{model}` has it: remove it, or choose that model");
    Err(fault(given, &format!("spec.scoring.{field}"), problem))
}

/// A part from 0 to 1 that compares nodes, under the rest of the `scoring`.
fn part(name: &str, given: &Option<Spanned<Scalar>>, scoring: &Scoring) -> Checked<f64> {
    let field = format!("spec.scoring.{name}");
    let Some(given) = given else { return Ok(0.0) };
    let part = number(&field, given, "a number from 0 to 1", |part| (0.0..=1.0).contains(&part))?;
    if part > 0.0 && !scoring.compares() {
        let problem = "only the models `dominantResource` and `learned` have it, where they spread: remove it, or set `model: learned` and \
                       `direction: spread`";
        return Err(fault(given, &field, problem.to_owned()));
    }
    Ok(part)
}

fn model(name: ModelName, fields: &ScoringFields) -> Checked<Model> {
    Ok(match name {
        ModelName::CraneLinear => Model::CraneLinear,
        ModelName::TargetLoadPacking => Model::TargetLoadPacking { target: target(fields)? },
        ModelName::VariationRisk => {
            Model::VariationRisk { margin: margin(fields)?, sensitivity: sensitivity(fields)? }
        }
        ModelName::DominantResource => Model::DominantResource,
        ModelName::Learned => Model::Learned,
    })
}

fn target(fields: &ScoringFields) -> Checked<f64> {
    let Some(given) = &fields.target else { return Ok(TARGET) };
    let wanted = "a number above 0 and below 1";
    number("spec.scoring.target", given, wanted, |target| target > 0.0 && target < 1.0)
}

fn margin(fields: &ScoringFields) -> Checked<f64> {
    let Some(given) = &fields.margin else { return Ok(1.0) };
    number("spec.scoring.margin", given, "a number of at least 0", |margin| margin >= 0.0)
}

fn sensitivity(fields: &ScoringFields) -> Checked<f64> {
    let Some(given) = &fields.sensitivity else { return Ok(1.0) };
    let wanted = "a number above 0";
    number("spec.scoring.sensitivity", given, wanted, |sensitivity| sensitivity > 0.0)
}

fn scale(given: &Option<Spanned<Scalar>>) -> Checked<Scale> {
    let Some(given) = given else { return Ok(Scale::Hundred) };
    let highest =
        number("spec.scoring.scale", given, "100 or 10", |highest| scale_up_to(highest).is_some())?;
    Ok(scale_up_to(highest).unwrap_or(Scale::Hundred))
}

fn scale_up_to(highest: f64) -> Option<Scale> {
    [Scale::Hundred, Scale::Ten].into_iter().find(|scale| f64::from(scale.highest()) == highest)
}
