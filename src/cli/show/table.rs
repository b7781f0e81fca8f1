//! Tables that fit the terminal: columns that matter less are left out when it is too narrow, and the last one is cut
//! or broken under itself. In a pipe a table has all columns, whatever their width.

use super::line::{BOLD, Line, PLAIN, Side};
use super::put;
use super::screen::Screen;

const GAP: &str = "  ";

/// What the last column gets at least, before others are left out.
const LEAST_OF_LAST: usize = 20;

pub(in crate::cli) struct Column {
    name: &'static str,
    /// Columns with a greater number are left out first; those with 0 never are.
    dispensable: u8,
    align: Side,
}

impl Column {
    pub(in crate::cli) fn new(name: &'static str) -> Column {
        Column { name, dispensable: 0, align: Side::Right }
    }

    pub(in crate::cli) fn dispensable(self, rank: u8) -> Column {
        Column { dispensable: rank, ..self }
    }

    /// For numbers and durations.
    pub(in crate::cli) fn right(self) -> Column {
        Column { align: Side::Left, ..self }
    }
}

/// What happens to a last column that does not fit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LastColumn {
    Cut,
    Broken,
}

pub(in crate::cli) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Line>>,
    last: LastColumn,
}

impl Table {
    /// A table with one line for each row.
    pub(in crate::cli) fn new(columns: impl IntoIterator<Item = Column>) -> Table {
        Table { columns: columns.into_iter().collect(), rows: Vec::new(), last: LastColumn::Cut }
    }

    pub(in crate::cli) fn row(&mut self, cells: Vec<Line>) {
        self.rows.push(cells);
    }

    pub(in crate::cli) fn print(&self) -> anyhow::Result<()> {
        let screen = Screen::stdout();
        self.lines(screen.width).iter().try_for_each(|line| put(line, screen))
    }

    /// The header first.
    pub(in crate::cli) fn lines(&self, width: Option<usize>) -> Vec<Line> {
        let header = self.columns.iter().map(|column| Line::new(BOLD, column.name)).collect();
        let rows: Vec<&Vec<Line>> = [&header].into_iter().chain(&self.rows).collect();
        let widest = |n: usize| {
            let cells = rows.iter().filter_map(|row| row.get(n));
            cells.map(Line::width).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(widest).collect();
        let kept = self.kept(&widths, width);
        rows.iter().flat_map(|row| self.fitted(row, &kept, &widths, width)).collect()
    }

    /// The columns that are shown.
    fn kept(&self, widths: &[usize], width: Option<usize>) -> Vec<usize> {
        let mut kept: Vec<usize> = (0..self.columns.len()).collect();
        let Some(width) = width else { return kept };
        // A column of which nothing is known is no use to a person.
        kept.retain(|n| {
            let is_filled = |row: &Vec<Line>| row.get(*n).is_some_and(|cell| !cell.is_empty());
            self.columns[*n].dispensable == 0 || self.rows.iter().any(is_filled)
        });
        let needs = |kept: &[usize]| {
            let last = kept.last().map_or(0, |last| widths[*last].min(LEAST_OF_LAST));
            let others = kept.iter().rev().skip(1);
            last + others.map(|n| widths[*n] + GAP.len()).sum::<usize>()
        };
        while needs(&kept) > width {
            let rank = |n: &&usize| self.columns[**n].dispensable;
            match kept.iter().filter(|n| rank(n) > 0).max_by_key(rank).copied() {
                Some(least) => kept.retain(|n| *n != least),
                None => break,
            }
        }
        kept
    }

    fn fitted(
        &self,
        row: &[Line],
        kept: &[usize],
        widths: &[usize],
        width: Option<usize>,
    ) -> Vec<Line> {
        let mut line = Line::default();
        let (last, others) = kept.split_last().unwrap_or((&0, &[]));
        for n in others {
            let cell = row.get(*n).cloned().unwrap_or_default();
            line.extend(&cell.padded(widths[*n], self.columns[*n].align));
            line.push(PLAIN, GAP);
        }
        let (last, column) = (row.get(*last).cloned().unwrap_or_default(), *last);
        let last = match self.columns.get(column).map(|column| column.align) {
            Some(Side::Left) => last.padded(widths[column], Side::Left),
            Some(Side::Right) | None => last,
        };
        let Some(width) = width else {
            line.extend(&last);
            return vec![line];
        };
        match self.last {
            LastColumn::Cut => {
                line.extend(&last.cut(width.saturating_sub(line.columns())));
                // Only if the columns that are always shown are too wide already.
                vec![line.cut(width)]
            }
            LastColumn::Broken => {
                // Continuation lines stand under the last column, or at half the width if that begins further right.
                let indent = line.columns().clamp(2, 2.max(width / 2));
                line.extend(&last);
                line.wrapped(width, &Line::default(), &Line::plain(&" ".repeat(indent)))
            }
        }
    }
}

/// Prints a table with all columns. All but the last are aligned; the last is broken under itself on a terminal.
pub(in crate::cli) fn columns(header: &[&'static str], rows: &[Vec<String>]) -> anyhow::Result<()> {
    of_texts(header, rows).print()
}

/// The lines of such a table, the header first, however long.
pub(in crate::cli) fn aligned(header: &[&'static str], rows: &[Vec<String>]) -> Vec<String> {
    of_texts(header, rows).lines(None).iter().map(|line| line.render(false)).collect()
}

fn of_texts(header: &[&'static str], rows: &[Vec<String>]) -> Table {
    let columns = header.iter().map(|name| Column::new(name)).collect();
    let rows = rows.iter().map(|row| row.iter().map(|cell| Line::plain(cell)).collect());
    Table { columns, rows: rows.collect(), last: LastColumn::Broken }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(table: &Table, width: usize) -> Vec<String> {
        table.lines(Some(width)).iter().map(|line| line.render(false)).collect()
    }

    #[test]
    fn columns_line_up_under_characters_of_any_width() {
        let row = |name: &str| vec![name.to_owned(), "x".to_owned()];
        let rows = [row("検索"), row("äbc"), row("e\u{301}")];
        let expected = ["NAME  X", "検索  x", "äbc   x", "e\u{301}     x"];
        assert_eq!(aligned(&["NAME", "X"], &rows), expected);
    }

    #[test]
    fn a_narrow_terminal_gets_fewer_columns_and_a_shorter_last_one() {
        let columns = [
            Column::new("ID"),
            Column::new("TOOLS").dispensable(2).right(),
            Column::new("AGE").dispensable(1).right(),
            Column::new("DESCRIPTION"),
        ];
        let mut table = Table::new(columns);
        let cells = ["ab12c3", "7", "3m", "find where the login is handled"];
        table.row(cells.map(Line::plain).to_vec());
        assert_eq!(
            rendered(&table, 60),
            [
                "ID      TOOLS  AGE  DESCRIPTION",
                "ab12c3      7   3m  find where the login is handled"
            ]
        );
        assert_eq!(
            rendered(&table, 40),
            ["ID      TOOLS  AGE  DESCRIPTION", "ab12c3      7   3m  find where the logi…"]
        );
        assert_eq!(
            rendered(&table, 38),
            ["ID      AGE  DESCRIPTION", "ab12c3   3m  find where the login is …"]
        );
        assert_eq!(rendered(&table, 30), ["ID      DESCRIPTION", "ab12c3  find where the login …"]);
        assert_eq!(rendered(&table, 5), ["ID  …", "ab12…"]);
        let whole: Vec<String> = table.lines(None).iter().map(Line::text).collect();
        assert!(whole[1].ends_with("find where the login is handled"), "{whole:?}");
    }
}
