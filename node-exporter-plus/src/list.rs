//! Lists of CPUs and NUMA nodes, as the kernel writes them: `0-3,8`.

use std::collections::BTreeSet;

/// Linux has fewer CPUs and nodes: a bound on the memory that a list takes.
const MOST: u32 = 65_535;

/// The numbers of a list, none for an empty one. `None` where it is no list.
pub(crate) fn parse_list(list: &str) -> Option<BTreeSet<u32>> {
    let mut numbers = BTreeSet::new();
    for part in list.trim().split(',').filter(|_| !list.trim().is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        if first > last || last > MOST {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_and_numbers_are_read_and_an_empty_list_has_none() {
        assert_eq!(parse_list("0-3,8\n"), Some([0, 1, 2, 3, 8].into()));
        assert_eq!(parse_list("\n"), Some([].into()));
        for bad in ["3-0", "0-4294967295", "0-65536", "a", "0,,1", "-1", "0-", "1 2"] {
            assert_eq!(parse_list(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_list_of_numbers_is_read_back(numbers in prop::collection::btree_set(0..MOST, 0..50)) {
            let list: Vec<String> = numbers.iter().map(u32::to_string).collect();
            prop_assert_eq!(parse_list(&list.join(",")), Some(numbers));
        }

        #[test]
        fn no_text_panics(text in "[0-9,\n -]{0,30}") {
            let _ = parse_list(&text);
        }
    }
}
