//! Tables of a Markdown page.

use std::collections::HashMap;

use crate::documents::cells;

/// A row's cells by the headings of their columns.
pub(super) struct Row(HashMap<String, String>);

impl Row {
    pub(super) fn cell(&self, heading: &str) -> &str {
        self.0.get(heading).unwrap_or_else(|| panic!("no column `{heading}`"))
    }

    pub(super) fn numbers(&self, heading: &str) -> Vec<f64> {
        numbers(self.cell(heading))
    }
}

/// The rows of the table whose first column has this heading.
pub(super) fn table(page: &str, heading: &str) -> Vec<Row> {
    let mut lines = page.lines();
    let mut rows = lines.by_ref().filter(|line| line.starts_with('|')).map(cells);
    let headings = rows.find(|cells| cells.first() == Some(&heading));
    let headings = headings.unwrap_or_else(|| panic!("no table whose first column is `{heading}`"));
    let rows = lines.skip(1).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let pairs = headings.iter().zip(cells(row));
        Row(pairs.map(|(heading, cell)| ((*heading).to_owned(), cell.to_owned())).collect())
    })
    .collect()
}

/// The numbers in a text, in order. A comma before three digits belongs to its number.
pub(super) fn numbers(text: &str) -> Vec<f64> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        rest = &rest[start..];
        let mut end = digits(rest);
        while rest[end..].starts_with(',') && digits(&rest[end + 1..]) >= 3 {
            end += 4;
        }
        if rest[end..].starts_with('.') && digits(&rest[end + 1..]) > 0 {
            end += 1 + digits(&rest[end + 1..]);
        }
        found.push(rest[..end].replace(',', "").parse().expect("a number"));
        rest = &rest[end..];
    }
    found
}

/// How many digits a text begins with.
fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}
