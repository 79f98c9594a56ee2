//! Kubernetes quantities (`3`, `2k`, `1500m`, `4Gi`, `1e3`) read as whole numbers.

/// Why a quantity is not a count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a whole number from 0 to {max}, found `{0}`", max = u32::MAX)]
pub struct QuantityError(pub String);

/// The count that `text` stands for. Never rounds.
pub(crate) fn count(text: &str) -> Result<u32, QuantityError> {
    exact(text).ok_or_else(|| QuantityError(text.chars().take(64).collect()))
}

fn exact(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // With more digits the count does not fit in 32 bits, unless they are trailing zeros.
    if whole.len() + fraction.len() > 20 {
        return None;
    }
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let (factor, power) = scale(suffix)?;
    let power = power.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    shift(digits.checked_mul(factor)?, power).and_then(|n| u32::try_from(n).ok())
}

/// A suffix as a factor and a power of ten.
fn scale(suffix: &str) -> Option<(u128, i32)> {
    let binary = |power: u32| Some((1024_u128.pow(power), 0));
    match suffix {
        "" => Some((1, 0)),
        "n" => Some((1, -9)),
        "u" => Some((1, -6)),
        "m" => Some((1, -3)),
        "k" => Some((1, 3)),
        "M" => Some((1, 6)),
        "G" => Some((1, 9)),
        "T" => Some((1, 12)),
        "P" => Some((1, 15)),
        "E" => Some((1, 18)),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => Some((1, suffix.strip_prefix(['e', 'E'])?.parse().ok()?)),
    }
}

/// `digits · 10^power`, where that is whole and fits.
fn shift(digits: u128, power: i32) -> Option<u128> {
    let ten = 10_u128.checked_pow(power.unsigned_abs())?;
    if power >= 0 {
        digits.checked_mul(ten)
    } else {
        digits.is_multiple_of(ten).then_some(digits / ten)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_whole_number_is_read() {
        for (text, wanted) in [
            ("0", 0),
            ("3", 3),
            ("3000m", 3),
            ("2k", 2000),
            ("1.5k", 1500),
            ("1Ki", 1024),
            ("1.5Ki", 1536),
            ("1e3", 1000),
            ("1E2", 100),
            ("2.0", 2),
            ("4294967295", u32::MAX),
        ] {
            assert_eq!(count(text), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn what_is_no_count_is_an_error_and_never_zero() {
        for text in [
            "",
            "-1",
            "1.5",
            "1500m",
            "4294967296",
            "1E",
            "many",
            "1 ",
            "Ki",
            ".",
            "1e99",
            "99999999999999999999999",
            "1e-3",
            "1.2.3",
        ] {
            assert_eq!(count(text), Err(QuantityError(text.to_owned())), "{text}");
        }
    }
}
