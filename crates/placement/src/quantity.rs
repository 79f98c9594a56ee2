//! Kubernetes quantities (`3`, `2k`, `1500m`, `4Gi`, `1e3`) read as whole numbers, or as amounts.

/// Why a quantity is not a count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a whole number from 0 to {max}, found `{0}`", max = u32::MAX)]
pub struct QuantityError(pub String);

/// The count that `text` stands for. Never rounds.
///
/// # Errors
///
/// The text, cut to 64 characters, where it is no whole number from 0 to 4,294,967,295.
pub fn count(text: &str) -> Result<u32, QuantityError> {
    exact(text).ok_or_else(|| QuantityError(text.chars().take(64).collect()))
}

/// Longest text that is read as an amount, in bytes. The API server writes at most some 20.
const MAX_AMOUNT: usize = 64;

/// The amount that `text` stands for, rounded to the nearest `f64`; finite and not negative.
///
/// # Examples
///
/// ```
/// assert_eq!(placement::quantity::amount("250m"), Some(0.25));
/// assert_eq!(placement::quantity::amount("-1"), None);
/// ```
pub fn amount(text: &str) -> Option<f64> {
    if text.len() > MAX_AMOUNT {
        return None;
    }
    let (number, suffix) = parts(text.strip_prefix('+').unwrap_or(text));
    let (factor, power) = scale(suffix)?;
    let amount = format!("{number}e{power}").parse::<f64>().ok()? * factor as f64;
    amount.is_finite().then_some(amount)
}

/// Why a quantity is no number of bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected bytes, as `4Gi` or `4096Mi`, from 0 to {max}, found `{0}`", max = u64::MAX)]
pub struct BytesError(pub String);

/// The bytes that `text` stands for. A part of a byte is rounded up to a whole one, as Kubernetes does; nothing else is
/// rounded.
///
/// # Errors
///
/// The text, cut to 64 characters, where it is no quantity from 0 to 2^64 - 1.
///
/// # Examples
///
/// ```
/// assert_eq!(placement::quantity::bytes("1.5Ki"), Ok(1536));
/// assert_eq!(placement::quantity::bytes("1500m"), Ok(2));
/// assert!(placement::quantity::bytes("-1").is_err());
/// ```
pub fn bytes(text: &str) -> Result<u64, BytesError> {
    rounded_up(text).ok_or_else(|| BytesError(text.chars().take(64).collect()))
}

fn rounded_up(text: &str) -> Option<u64> {
    if text.len() > MAX_AMOUNT {
        return None;
    }
    let (digits, power) = scaled(text.strip_prefix('+').unwrap_or(text))?;
    u64::try_from(shift_up(digits, power)?).ok()
}

fn exact(text: &str) -> Option<u32> {
    let (digits, power) = scaled(text)?;
    u32::try_from(shift(digits, power)?).ok()
}

/// The quantity, as a whole number and the power of ten that it is multiplied by.
fn scaled(text: &str) -> Option<(u128, i32)> {
    let (number, suffix) = parts(text);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // With more digits the count does not fit in 64 bits, unless they are zeros at one end.
    if whole.len() + fraction.len() > 20 {
        return None;
    }
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let (factor, power) = scale(suffix)?;
    let decimals = i32::try_from(fraction.len()).ok()?;
    Some((digits.checked_mul(factor)?, power.checked_sub(decimals)?))
}

/// The number, and the suffix after it.
fn parts(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()))
}

/// A suffix as a factor and a power of ten.
fn scale(suffix: &str) -> Option<(u128, i32)> {
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
        "Ki" => Some((1 << 10, 0)),
        "Mi" => Some((1 << 20, 0)),
        "Gi" => Some((1 << 30, 0)),
        "Ti" => Some((1 << 40, 0)),
        "Pi" => Some((1 << 50, 0)),
        "Ei" => Some((1 << 60, 0)),
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

/// `digits · 10^power`, rounded up, where that fits.
fn shift_up(digits: u128, power: i32) -> Option<u128> {
    if digits == 0 {
        return Some(0);
    }
    let ten = 10_u128.checked_pow(power.unsigned_abs());
    if power >= 0 {
        digits.checked_mul(ten?)
    } else {
        // Where the power of ten does not fit, it is larger than the digits.
        Some(ten.map_or(1, |ten| digits.div_ceil(ten)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
    fn amounts_are_the_nearest_to_what_is_written() {
        for (text, wanted) in [
            ("0", 0.0),
            ("+2", 2.0),
            (".5", 0.5),
            ("5.", 5.0),
            ("100m", 0.1),
            ("1500m", 1.5),
            ("250u", 250e-6),
            ("1n", 1e-9),
            ("2k", 2000.0),
            ("1E", 1e18),
            ("1e3", 1000.0),
            ("1E-3", 0.001),
            ("1.5Gi", 1_610_612_736.0),
            ("128974848", 128_974_848.0),
            ("129e6", 129e6),
            ("129M", 129e6),
            ("123Mi", 128_974_848.0),
        ] {
            assert_eq!(amount(text), Some(wanted), "{text}");
        }
    }

    #[test]
    fn a_text_that_is_no_amount_is_none_and_never_zero() {
        let long = "1".repeat(MAX_AMOUNT + 1);
        for text in [
            "",
            "-1",
            "-0",
            "+",
            ".",
            "m",
            "Gi",
            "NaN",
            "inf",
            "infinity",
            "1e999",
            "1e",
            "1e1.5",
            "1 ",
            " 1",
            "1_000",
            "1.2.3",
            "0x10",
            "1Gi ",
            "1gi",
            "1e99999999999",
            "١",
            &long,
        ] {
            assert_eq!(amount(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_an_amount_that_is_not_finite_or_negative(text in "\\PC{0,80}|[0-9.eEmkKMGi+-]{0,20}") {
            prop_assert!(amount(&text).is_none_or(|amount| amount.is_finite() && amount >= 0.0));
        }

        #[test]
        fn a_count_is_the_same_as_an_amount(text in "[0-9]{1,6}(\\.[0-9]{1,2})?(|m|k|M|Ki|Mi|e1|e2)") {
            if let Ok(count) = count(&text) {
                prop_assert_eq!(amount(&text), Some(f64::from(count)));
            }
        }

        #[test]
        fn thousandths_are_read_as_they_are_written(thousandths in 0_u32..10_000_000) {
            let wanted = f64::from(thousandths) / 1000.0;
            prop_assert_eq!(amount(&format!("{thousandths}m")), Some(wanted));
        }
    }

    #[test]
    fn bytes_are_exact_where_a_float_is_not() {
        for (text, wanted) in [
            ("0", 0),
            ("0e99", 0),
            ("+4Gi", 4 << 30),
            ("9007199254740993", 9_007_199_254_740_993),
            ("18446744073709551615", u64::MAX),
            ("15.9375Ei", 15 * (1 << 60) + 15 * (1 << 56)),
            ("1m", 1),
            ("1n", 1),
            ("1e-40", 1),
            ("1001m", 2),
            ("1.0000000001Gi", (1 << 30) + 1),
        ] {
            assert_eq!(bytes(text), Ok(wanted), "{text}");
        }
        for text in
            ["", "-1", "+", ".", "Gi", "NaN", "1e99", "16Ei", "1 Gi", "1e99999999999", "4GiB"]
        {
            assert_eq!(bytes(text), Err(BytesError(text.to_owned())), "{text}");
        }
    }

    proptest! {
        #[test]
        fn bytes_are_read_as_they_are_written(
            number in any::<u32>(),
            (suffix, factor) in prop::sample::select(vec![
                ("", 1), ("k", 1_000), ("e3", 1_000), ("Ki", 1 << 10), ("M", 1_000_000), ("Mi", 1 << 20),
                ("G", 1_000_000_000), ("Gi", 1 << 30),
            ]),
            zeros in 0_usize..5,
        ) {
            let wanted = u64::from(number) * factor;
            prop_assert_eq!(bytes(&format!("{number}{suffix}")), Ok(wanted));
            prop_assert_eq!(bytes(&format!("{number}.{}{suffix}", "0".repeat(zeros))), Ok(wanted));
        }

        #[test]
        fn bytes_are_the_least_whole_number_that_is_not_less(thousandths in any::<u64>()) {
            prop_assert_eq!(bytes(&format!("{thousandths}m")), Ok(thousandths.div_ceil(1000)));
        }

        #[test]
        fn bytes_agree_with_counts_and_amounts(text in "\\PC{0,80}|[0-9.eEmkKMGi+-]{0,12}") {
            if let Ok(count) = count(&text) {
                prop_assert_eq!(bytes(&text), Ok(u64::from(count)));
            }
            if let Ok(bytes) = bytes(&text) {
                let amount = amount(&text);
                let is_near = |amount: f64| (bytes as f64 - amount.ceil()).abs() <= 1.0 + amount * 1e-15;
                prop_assert!(amount.is_some_and(is_near), "{bytes} {amount:?}");
            }
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
