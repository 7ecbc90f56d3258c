//! A text table, as HTML, Markdown, and for a terminal.

use serde::{Deserialize, Serialize};

use crate::page::escape;

/// Columns and rows. Units are in the column's name or in the cell.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Table {
    pub title: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Rows with one cell per column.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    #[must_use]
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        let columns = columns.iter().map(ToString::to_string).collect();
        Table { title: title.into(), columns, rows: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If the number of cells differs from that of columns.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) -> &mut Self {
        let cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        assert_eq!(cells.len(), self.columns.len(), "a cell for each column of \"{}\"", self.title);
        self.rows.push(cells);
        self
    }

    /// A `<table>`.
    #[must_use]
    pub fn html(&self) -> String {
        self.html_linked(&[])
    }

    /// A `<table>` in which the first cell of each row links to the heading with this id.
    #[must_use]
    pub fn html_linked(&self, ids: &[&str]) -> String {
        let line = |cells: &[String], tag: &str, id: Option<&&str>| {
            let cell = |(number, cell): (usize, &String)| {
                let text = escape(cell);
                let link = id.filter(|_| number == 0).map(|id| format!("<a href=\"#{}\">{text}</a>", escape(id)));
                format!("<{tag}{}>{}</{tag}>", verdict(cell), link.unwrap_or(text))
            };
            let cells: String = cells.iter().enumerate().map(cell).collect();
            format!("<tr>{cells}</tr>\n")
        };
        let rows: String = self.rows.iter().enumerate().map(|(number, row)| line(row, "td", ids.get(number))).collect();
        let (caption, head) = (escape(&self.title), line(&self.columns, "th", None));
        format!(
            "<div class=\"wide\"><table>\n<caption>{caption}</caption>\n<thead>{head}</thead>\n<tbody>\n{rows}</tbody>\n\
             </table></div>\n"
        )
    }

    /// As Markdown, with its title on a separate line.
    #[must_use]
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<_> = cells.iter().map(|cell| cell.replace('|', "\\|").replace('\n', " ")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule = format!("|{}\n", "---|".repeat(self.columns.len()));
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        format!("{}\n\n{}{rule}{rows}", self.title, line(&self.columns))
    }
}

/// CSS class of a cell with a result.
fn verdict(cell: &str) -> String {
    let class = match cell {
        _ if cell.starts_with("reproduced") || cell.starts_with("claim holds") => "pass",
        _ if cell.starts_with("not reproduced") || cell.starts_with("shown, differs") => "fail",
        _ if ["holds if", "not determinable", "shown"].iter().any(|word| cell.starts_with(word)) => "info",
        _ => return String::new(),
    };
    format!(" class=\"{class}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_escaped() {
        let mut table = Table::new("a < b", &["x|y"]);
        table.row(["1 | 2 & 3"]).row(["not reproduced (0 % of the band)"]);
        assert!(table.html().contains("<td class=\"fail\">not reproduced (0 %"), "{}", table.html());
        assert!(table.html().contains("<td>1 | 2 &amp; 3</td>"), "{}", table.html());
        assert_eq!(verdict("shown, differs: 4.2 for 30.0 (x 0.14)"), " class=\"fail\"");
        assert_eq!(verdict("shown, near: 294 for 300 (x 0.98)"), " class=\"info\"");
        let linked = table.html_linked(&["one", "two"]);
        assert!(linked.contains("<td><a href=\"#one\">1 | 2 &amp; 3</a></td>"), "{linked}");
        assert!(table.html().contains("<caption>a &lt; b</caption>"), "{}", table.html());
        assert_eq!(
            table.markdown(),
            "a < b\n\n| x\\|y |\n|---|\n| 1 \\| 2 & 3 |\n| not reproduced (0 % of the band) |\n"
        );
    }
}
