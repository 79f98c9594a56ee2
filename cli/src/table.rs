//! Tables as kubectl prints them: capitals above, three spaces between columns, no borders.

use std::io::{self, Write};

use crate::format::printable;

/// An empty cell, as kubectl writes it.
pub(crate) const NONE: &str = "<none>";

/// A cell that may be empty.
pub(crate) fn or_none(text: Option<String>) -> String {
    text.unwrap_or_else(|| NONE.to_owned())
}

/// Spaces between columns.
const GAP: usize = 3;

/// Writes a heading and its rows, each column as wide as its widest cell. A row has as many cells as the heading.
/// Control characters, which names from annotations may hold, are written as escapes.
pub(crate) fn write<'a, Row: AsRef<[String]>>(
    output: &mut dyn Write,
    heading: impl AsRef<[&'a str]>,
    rows: impl IntoIterator<Item = Row>,
) -> io::Result<()> {
    let mut widths: Vec<usize> = heading.as_ref().iter().map(|cell| cell.chars().count()).collect();
    let mut lines: Vec<Vec<String>> = Vec::new();
    for row in rows {
        let cells: Vec<_> = row.as_ref().iter().map(|it| printable(it).into_owned()).collect();
        for (width, cell) in widths.iter_mut().zip(&cells) {
            *width = cell.chars().count().max(*width);
        }
        lines.push(cells);
    }
    line(output, heading.as_ref(), &widths)?;
    lines.iter().try_for_each(|cells| line(output, cells, &widths))
}

/// One line; the last cell is not padded.
fn line(output: &mut dyn Write, cells: &[impl AsRef<str>], widths: &[usize]) -> io::Result<()> {
    let Some((last, others)) = cells.split_last() else { return Ok(()) };
    for (cell, width) in others.iter().zip(widths) {
        write!(output, "{:1$}", cell.as_ref(), width + GAP)?;
    }
    writeln!(output, "{}", last.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows =
            [["a".to_owned(), "long cell".to_owned()], ["longer".to_owned(), NONE.to_owned()]];
        let mut output = Vec::new();
        write(&mut output, ["NODE", "X"], &rows).unwrap();
        let text = String::from_utf8(output).unwrap();
        assert_eq!(text, "NODE     X\na        long cell\nlonger   <none>\n");
    }

    #[test]
    fn a_cell_forges_no_row() {
        let mut output = Vec::new();
        write(&mut output, ["MODEL", "X"], &[["A10\nnode-b".to_owned(), "1".to_owned()]]).unwrap();
        let text = String::from_utf8(output).unwrap();
        assert_eq!(text, "MODEL         X\nA10\\nnode-b   1\n");
    }
}
