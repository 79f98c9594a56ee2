//! Tables as kubectl prints them: capitals above, three spaces between columns, no borders.

use std::io::{self, Write};

/// A cell of which there is nothing to say, as kubectl writes it.
pub(crate) const NONE: &str = "<none>";

/// Between columns.
const GAP: usize = 3;

/// Writes a heading and its rows, each column as wide as its widest cell.
pub(crate) fn write<const N: usize>(
    output: &mut dyn Write,
    heading: [&str; N],
    rows: &[[String; N]],
) -> io::Result<()> {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.fold(heading[column].chars().count(), usize::max)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    line(output, &heading, &widths)?;
    rows.iter().try_for_each(|row| line(output, &row.each_ref().map(String::as_str), &widths))
}

/// One line; the last cell is not padded.
fn line(output: &mut dyn Write, cells: &[&str], widths: &[usize]) -> io::Result<()> {
    let (last, others) = cells.split_last().unwrap_or((&"", &[]));
    for (cell, width) in others.iter().zip(widths) {
        write!(output, "{cell:0$}", width + GAP)?;
    }
    writeln!(output, "{last}")
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
}
