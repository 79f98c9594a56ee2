//! Owns how the tests read Kubernetes quantities of whole things: the API server writes 6000 as `6k`, and 32768 as it
//! is.

/// Suffixes, and what they stand for.
const SUFFIXES: [(&str, u64); 13] = [
    ("", 1),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("Ei", 1 << 60),
];

/// The number that the quantity stands for, as the API server writes it; `None` where it is no whole number.
///
/// # Examples
///
/// ```
/// assert_eq!(e2e::quantity::whole("6k"), Some(6_000));
/// assert_eq!(e2e::quantity::whole("100m"), None);
/// ```
pub fn whole(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (_, factor) = SUFFIXES.iter().find(|(written, _)| *written == suffix)?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_count_and_what_is_no_whole_number_is_none() {
        let read = ["0", "64", "32768", "6k", "8Ki", "2M", "1Gi", "18E"].map(whole);
        let numbers = [0, 64, 32_768, 6_000, 8_192, 2_000_000, 1 << 30, 18_000_000_000_000_000_000];
        assert_eq!(read, numbers.map(Some));
        for text in ["", "k", "1500m", "1.5k", "-1", "6 k", "6ki", "19E", "64Ei"] {
            assert_eq!(whole(text), None, "{text}");
        }
    }
}
