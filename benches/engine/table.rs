//! Figures beside their limits, and quantiles of samples.

use std::fmt;
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<Row>,
    notes: Vec<String>,
}

/// One line. `met` is `None` where there is no target.
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) figure: String,
    pub(crate) limit: String,
    pub(crate) ratio: Option<f64>,
    pub(crate) target: String,
    pub(crate) met: Option<bool>,
}

impl Table {
    pub(crate) fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Explains the figures below the table; has no target.
    pub(crate) fn note(&mut self, note: String) {
        self.notes.push(note);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = ["what", "figure", "limit", "ratio", "target", ""].map(str::to_owned);
        let mut lines = vec![heads];
        lines.extend(self.rows.iter().map(Row::cells));
        let width = |column: usize| {
            lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0)
        };
        let widths: [usize; 6] = std::array::from_fn(width);
        for line in &lines {
            let cells = line.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
                if (1..=3).contains(&column) {
                    format!("{cell:>width$}")
                } else {
                    format!("{cell:<width$}")
                }
            });
            writeln!(f, "{}", cells.collect::<Vec<_>>().join(" | ").trim_end())?;
        }
        for note in &self.notes {
            writeln!(f, "- {note}")?;
        }
        Ok(())
    }
}

impl Row {
    fn cells(&self) -> [String; 6] {
        [
            self.what.clone(),
            self.figure.clone(),
            self.limit.clone(),
            self.ratio.map_or(String::new(), |ratio| format!("{ratio:.2}")),
            self.target.clone(),
            match self.met {
                Some(true) => "ok".to_owned(),
                Some(false) => "MISS".to_owned(),
                None => String::new(),
            },
        ]
    }
}

/// The sample below which `share` of all samples lie.
pub(crate) fn quantile(samples: &[f64], share: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (share * (sorted.len().max(1) - 1) as f64).round() as usize;
    sorted.get(place).copied().unwrap_or(f64::NAN)
}

pub(crate) fn median(samples: &[f64]) -> f64 {
    quantile(samples, 0.5)
}

pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}
