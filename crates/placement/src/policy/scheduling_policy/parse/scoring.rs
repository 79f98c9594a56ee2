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
    }
}

pub(super) fn scoring(fields: &ScoringFields) -> Checked<Scoring> {
    let name = EnumValue::or("spec.scoring.model", &fields.model, ModelName::Learned)?;
    let wanted = |model: ModelName, used: &[(&str, &Option<Spanned<Scalar>>)], word: &str| {
        let given = used.iter().find_map(|(field, given)| Some((field, given.as_ref()?)));
        given.filter(|_| name != model).map_or(Ok(()), |(field, given)| {
            let problem =
                format!("only the model `{word}` has it: remove it, or choose that model");
            Err(fault(given, &format!("spec.scoring.{field}"), problem))
        })
    };
    let of_risk = [("margin", &fields.margin), ("sensitivity", &fields.sensitivity)];
    wanted(ModelName::TargetLoadPacking, &[("target", &fields.target)], "targetLoadPacking")?;
    wanted(ModelName::VariationRisk, &of_risk, "variationRisk")?;
    let direction = EnumValue::or("spec.scoring.direction", &fields.direction, Direction::Spread)?;
    let packs = !matches!(name, ModelName::TargetLoadPacking | ModelName::VariationRisk);
    if let Some(given) =
        fields.direction.as_ref().filter(|_| direction == Direction::Pack && !packs)
    {
        let problem = "only the models `craneLinear`, `dominantResource` and `learned` pack: expected `spread`";
        return Err(fault(given, "spec.scoring.direction", problem.to_owned()));
    }
    let scoring = Scoring {
        model: model(name, fields)?,
        direction,
        scale: scale(&fields.scale)?,
        pairing: 0.0,
    };
    Ok(Scoring { pairing: pairing(&fields.pairing, &scoring)?, ..scoring })
}

/// How much a node's surplus counts, under the rest of the `scoring`.
fn pairing(given: &Option<Spanned<Scalar>>, scoring: &Scoring) -> Checked<f64> {
    let field = "spec.scoring.pairing";
    let Some(given) = given else { return Ok(0.0) };
    let pairing = number(field, given, "a number from 0 to 1", |part| (0.0..=1.0).contains(&part))?;
    if pairing > 0.0 && !scoring.can_pair() {
        let problem = "only the models `dominantResource` and `learned` pair pods, where they spread: remove it, or set `model: learned` \
                       and `direction: spread`";
        return Err(fault(given, field, problem.to_owned()));
    }
    Ok(pairing)
}

fn model(name: ModelName, fields: &ScoringFields) -> Checked<Model> {
    let or =
        |given: &Option<Spanned<Scalar>>, field: &str, default, wanted, fits: fn(f64) -> bool| {
            let check = |given| number(&format!("spec.scoring.{field}"), given, wanted, fits);
            given.as_ref().map_or(Ok(default), check)
        };
    Ok(match name {
        ModelName::CraneLinear => Model::CraneLinear,
        ModelName::TargetLoadPacking => {
            let wanted = "a number above 0 and below 1";
            let fits = |target| target > 0.0 && target < 1.0;
            Model::TargetLoadPacking { target: or(&fields.target, "target", TARGET, wanted, fits)? }
        }
        ModelName::VariationRisk => {
            let at_least_0 = "a number of at least 0";
            let above_0 = "a number above 0";
            Model::VariationRisk {
                margin: or(&fields.margin, "margin", 1.0, at_least_0, |margin| margin >= 0.0)?,
                sensitivity: or(&fields.sensitivity, "sensitivity", 1.0, above_0, |s| s > 0.0)?,
            }
        }
        ModelName::DominantResource => Model::DominantResource,
        ModelName::Learned => Model::Learned,
    })
}

fn scale(given: &Option<Spanned<Scalar>>) -> Checked<Scale> {
    let Some(given) = given else { return Ok(Scale::Hundred) };
    let scales = [Scale::Hundred, Scale::Ten];
    let highest = |scale: &Scale| f64::from(scale.highest());
    let fits = |number| scales.iter().any(|scale| highest(scale) == number);
    let found = number("spec.scoring.scale", given, "100 or 10", fits)?;
    Ok(scales.into_iter().find(|scale| highest(scale) == found).unwrap_or(Scale::Hundred))
}
