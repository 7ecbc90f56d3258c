//! A page in one file.

use std::fmt::Write as _;

use crate::{Chart, Table};

const STYLE: &str = "body{font-family:sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#222;line-height:1.45}\
table{border-collapse:collapse;margin:1em 0}caption{text-align:left;font-weight:bold;padding:.3em 0}\
th,td{border:1px solid #ccc;padding:.25em .6em;text-align:left;vertical-align:top}th{background:#f2f2f2}\
svg{max-width:100%;height:auto}.pass{color:#106b21}.fail{color:#a11212;font-weight:bold}.info{color:#555}\
pre{background:#f6f6f6;padding:.6em;overflow-x:auto}";

/// Escapes text for HTML.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A self-contained HTML page: no network, no script.
#[derive(Debug, Clone)]
pub struct Page {
    title: String,
    body: String,
}

impl Page {
    /// An empty page, with its title as the first heading.
    #[must_use]
    pub fn new(title: &str) -> Self {
        Page { title: title.to_owned(), body: format!("<h1>{}</h1>\n", escape(title)) }
    }

    /// A heading; `level` 2 to 6, `id` to link to.
    pub fn heading(&mut self, level: u8, id: &str, text: &str) -> &mut Self {
        let _ = writeln!(self.body, "<h{level} id=\"{}\">{}</h{level}>", escape(id), escape(text));
        self
    }

    /// A paragraph.
    pub fn paragraph(&mut self, text: &str) -> &mut Self {
        let _ = writeln!(self.body, "<p>{}</p>", escape(text));
        self
    }

    /// Preformatted text.
    pub fn listing(&mut self, text: &str) -> &mut Self {
        let _ = writeln!(self.body, "<pre>{}</pre>", escape(text));
        self
    }

    /// A table.
    pub fn table(&mut self, table: &Table) -> &mut Self {
        self.body.push_str(&table.html());
        self
    }

    /// A chart.
    pub fn chart(&mut self, chart: &Chart) -> &mut Self {
        let _ = writeln!(self.body, "<figure>{}</figure>", chart.svg());
        self
    }

    /// The whole page.
    #[must_use]
    pub fn html(&self) -> String {
        let (title, body) = (escape(&self.title), &self.body);
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{title}</title>\n\
             <style>{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_stands_alone() {
        let mut page = Page::new("a & b");
        page.heading(2, "x", "<x>").paragraph("text").chart(&Chart::lines("t", "x", "y", vec![]));
        let html = page.html();
        assert!(html.contains("<title>a &amp; b</title>") && html.contains("<h2 id=\"x\">&lt;x&gt;</h2>"), "{html}");
        assert!(!html.contains("http://") || html.matches("http://").count() == html.matches("www.w3.org").count());
        assert!(!html.contains("<script") && !html.contains("<link"));
    }
}
