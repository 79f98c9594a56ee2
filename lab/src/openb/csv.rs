//! Comma-separated text with a head line. Errors name file, line and column.

use std::fmt::Display;
use std::str::FromStr;

/// What is wrong in a file, where, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}, line {line}{}: {problem}", column.as_ref().map_or(String::new(), |name| format!(", column `{name}`")))]
pub struct CsvError {
    /// The file's name.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The column, where one is at fault.
    pub column: Option<String>,
    /// What is wrong, and the fix.
    pub problem: String,
}

/// A text as a table.
#[derive(Debug)]
pub struct Table<'a> {
    file: &'a str,
    columns: Vec<&'a str>,
    rows: Vec<(usize, Vec<&'a str>)>,
}

/// One line of a table.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    table: &'a Table<'a>,
    line: usize,
    fields: &'a [&'a str],
}

impl<'a> Table<'a> {
    /// Splits `text`, which came from `file`. Empty lines are skipped. Quotes have no meaning.
    ///
    /// # Errors
    ///
    /// There is no head line, or a line has another number of fields.
    pub fn parse(file: &'a str, text: &'a str) -> Result<Self, CsvError> {
        let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let Some((_, head)) = lines.next() else {
            let problem = "no head line; expected the names of columns".to_owned();
            return Err(CsvError { file: file.to_owned(), line: 1, column: None, problem });
        };
        let columns = split(head);
        let mut rows = Vec::new();
        for (at, line) in lines {
            let fields = split(line);
            if fields.len() != columns.len() {
                let has = fields.len();
                let needs = columns.len();
                let problem =
                    format!("{has} fields, the head line names {needs}; add or remove fields");
                return Err(CsvError {
                    file: file.to_owned(),
                    line: at + 1,
                    column: None,
                    problem,
                });
            }
            rows.push((at + 1, fields));
        }
        Ok(Self { file, columns, rows })
    }

    /// The lines below the head line.
    pub fn rows(&'a self) -> impl Iterator<Item = Row<'a>> {
        self.rows.iter().map(|(line, fields)| Row { table: self, line: *line, fields })
    }

    /// Whether the table has the column.
    pub fn has(&self, column: &str) -> bool {
        self.columns.contains(&column)
    }

    /// Checks that all these columns are there.
    ///
    /// # Errors
    ///
    /// The first that is not.
    pub fn require(&self, columns: &[&str]) -> Result<(), CsvError> {
        match columns.iter().find(|column| !self.has(column)) {
            None => Ok(()),
            Some(missing) => Err(CsvError {
                file: self.file.to_owned(),
                line: 1,
                column: Some((*missing).to_owned()),
                problem: format!("missing; the columns needed are {}", columns.join(", ")),
            }),
        }
    }
}

fn split(line: &str) -> Vec<&str> {
    line.split(',').map(str::trim).collect()
}

impl<'a> Row<'a> {
    /// The text of a column; empty where the table lacks the column.
    pub fn text(&self, column: &str) -> &'a str {
        let at = self.table.columns.iter().position(|name| *name == column);
        at.and_then(|at| self.fields.get(at)).copied().unwrap_or("")
    }

    /// The number in a column, which is from `least` to `most`.
    ///
    /// # Errors
    ///
    /// The text is no such number.
    pub fn number<T>(&self, column: &str, least: T, most: T) -> Result<T, CsvError>
    where
        T: Copy + FromStr + PartialOrd + Display,
    {
        let text = self.text(column);
        match text.parse::<T>() {
            Ok(number) if number >= least && number <= most => Ok(number),
            _ => Err(self.error(
                column,
                format!("expected a number from {least} to {most}, found `{text}`"),
            )),
        }
    }

    /// An error at this line and `column`.
    pub fn error(&self, column: &str, problem: String) -> CsvError {
        CsvError {
            file: self.table.file.to_owned(),
            line: self.line,
            column: Some(column.to_owned()),
            problem,
        }
    }
}
