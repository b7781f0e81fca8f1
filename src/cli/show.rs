//! Printing: whole lines, columns, JSON. A reader that goes away ends the program quietly.

use std::io::{ErrorKind, Write};

use serde::Serialize;

pub(super) fn line(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        other => Ok(other?),
    }
}

pub(super) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(&serde_json::to_string_pretty(value)?)
}

/// The last column is as wide as it is; the others line up.
pub(super) fn columns(header: &[&str], rows: &[Vec<String>]) -> anyhow::Result<()> {
    aligned(header, rows).iter().try_for_each(|row| line(row))
}

/// The lines of such a table, the header first.
pub(super) fn aligned(header: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let header: Vec<String> = header.iter().map(|&name| name.to_owned()).collect();
    let width = |column: usize| {
        let cells = rows.iter().chain([&header]).filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let aligned = |row: &Vec<String>| {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    };
    [&header].into_iter().chain(rows).map(aligned).collect()
}
