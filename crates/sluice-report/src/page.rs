//! A page in one file.

use std::fmt::Write as _;

use crate::{Chart, Table};

/// Light and dark, by the reader's setting. Text has lines of readable length; tables and charts use the whole width.
const STYLE: &str = ":root{color-scheme:light dark;--line:#8886;--head:#8882;--pass:#106b21;--fail:#a11212;--info:#555}\
@media(prefers-color-scheme:dark){:root{--pass:#7bd88f;--fail:#ff8f8f;--info:#aaa}}\
body{font-family:sans-serif;margin:2em;color:CanvasText;background:Canvas;line-height:1.45}\
p,li,dl,nav{max-width:75em}table{border-collapse:collapse;margin:1em 0}\
caption{text-align:left;font-weight:bold;padding:.3em 0}.wide{overflow-x:auto}\
th,td{border:1px solid var(--line);padding:.25em .6em;text-align:left;vertical-align:top}th{background:var(--head)}\
figure{margin:.5em 0}svg{width:100%;max-width:1100px;height:auto}summary{cursor:pointer}\
nav ul{list-style:none;padding-left:1em;margin:.2em 0;columns:28em}nav>ul{columns:auto;padding-left:0}\
dt{font-weight:bold;margin-top:.4em}dd{margin-left:2em}\
.pass{color:var(--pass)}.fail{color:var(--fail);font-weight:bold}.info{color:var(--info)}\
pre{background:var(--head);padding:.6em;overflow-x:auto}";

/// Escapes text for HTML.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Parts between pairs of asterisks as bold text; a pair without another one stays as it is.
fn bold(text: &str) -> String {
    let mut parts = text.split("**").collect::<Vec<_>>();
    let rest = if parts.len().is_multiple_of(2) { parts.pop() } else { None };
    let marked = parts
        .iter()
        .enumerate()
        .map(|(number, part)| if number % 2 == 1 { format!("<strong>{part}</strong>") } else { (*part).to_owned() });
    marked.chain(rest.map(|rest| format!("**{rest}"))).collect()
}

/// A self-contained HTML page: no network, no script.
#[derive(Debug, Clone)]
pub struct Page {
    title: String,
    /// Its headings: level, id and text.
    contents: Vec<(u8, String, String)>,
    body: String,
}

impl Page {
    /// An empty page, with its title as the first heading.
    #[must_use]
    pub fn new(title: &str) -> Self {
        Page { title: title.to_owned(), contents: Vec::new(), body: String::new() }
    }

    /// A heading; `level` 2 to 6, `id` to link to. Those of levels 2 and 3 are in the contents.
    pub fn heading(&mut self, level: u8, id: &str, text: &str) -> &mut Self {
        self.contents.push((level, id.to_owned(), text.to_owned()));
        let _ = writeln!(self.body, "<h{level} id=\"{}\">{}</h{level}>", escape(id), escape(text));
        self
    }

    /// A paragraph. Text between two pairs of asterisks is bold, as in Markdown.
    pub fn paragraph(&mut self, text: &str) -> &mut Self {
        let _ = writeln!(self.body, "<p>{}</p>", bold(&escape(text)));
        self
    }

    /// What `inner` adds, closed until the reader opens it.
    pub fn fold(&mut self, summary: &str, inner: impl FnOnce(&mut Page)) -> &mut Self {
        let _ = writeln!(self.body, "<details>\n<summary>{}</summary>", escape(summary));
        inner(self);
        self.body.push_str("</details>\n");
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

    /// A table in which the first cell of each row links to the heading with this id.
    pub fn table_linked(&mut self, table: &Table, ids: &[&str]) -> &mut Self {
        self.body.push_str(&table.html_linked(ids));
        self
    }

    /// Notes with what each is about; none are left out.
    pub fn notes<'a>(&mut self, notes: impl IntoIterator<Item = (&'a str, &'a str)>) -> &mut Self {
        let items: String = notes
            .into_iter()
            .map(|(about, note)| format!("<dt>{}</dt><dd>{}</dd>\n", escape(about), escape(note)))
            .collect();
        if !items.is_empty() {
            let _ = writeln!(self.body, "<dl>\n{items}</dl>");
        }
        self
    }

    /// A chart.
    pub fn chart(&mut self, chart: &Chart) -> &mut Self {
        let _ = writeln!(self.body, "<figure>{}</figure>", chart.inline_svg());
        self
    }

    /// Links to the headings: those of level 3 in a list below that of level 2 before them.
    fn contents(&self) -> String {
        let mut parts: Vec<(String, String)> = Vec::new();
        for (level, id, heading) in self.contents.iter().filter(|(level, ..)| *level <= 3) {
            let link = format!("<a href=\"#{}\">{}</a>", escape(id), escape(heading));
            match parts.last_mut() {
                Some((_, inner)) if *level == 3 => *inner += &format!("<li>{link}</li>\n"),
                _ => parts.push((link, String::new())),
            }
        }
        let part = |(link, inner): &(String, String)| match inner.as_str() {
            "" => format!("<li>{link}</li>\n"),
            inner => format!("<li>{link}\n<ul>\n{inner}</ul></li>\n"),
        };
        let text: String = parts.iter().map(part).collect();
        if text.is_empty() {
            return text;
        }
        format!("<details>\n<summary>Contents</summary>\n<nav>\n<ul>\n{text}</ul>\n</nav>\n</details>\n")
    }

    /// The whole page.
    #[must_use]
    pub fn html(&self) -> String {
        let (title, contents, body) = (escape(&self.title), self.contents(), &self.body);
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{title}</title>\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n<style>{STYLE}</style>\n</head>\n<body>\n\
             <h1>{title}</h1>\n{contents}{body}</body>\n</html>\n"
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
        assert!(html.contains("<li><a href=\"#x\">&lt;x&gt;</a></li>"), "{html}");
        assert!(!html.contains("<script") && !html.contains("<link"));
    }

    #[test]
    fn paragraphs_have_bold_text_and_folds_are_closed() {
        let mut page = Page::new("t");
        page.paragraph("**Claims.** 2 < 3 ** 4").fold("All & more", |page| {
            page.paragraph("inside");
        });
        let html = page.html();
        assert!(html.contains("<p><strong>Claims.</strong> 2 &lt; 3 ** 4</p>"), "{html}");
        assert!(html.contains("<details>\n<summary>All &amp; more</summary>\n<p>inside</p>\n</details>"), "{html}");
    }

    #[test]
    fn contents_have_a_list_of_subheadings_for_each_heading() {
        let mut page = Page::new("t");
        page.heading(2, "a", "A").heading(3, "b", "B").heading(4, "c", "C").heading(2, "d", "D").notes([("M1", "why")]);
        let html = page.html();
        let nav = "<nav>\n<ul>\n<li><a href=\"#a\">A</a>\n<ul>\n<li><a href=\"#b\">B</a></li>\n</ul></li>\n\
                   <li><a href=\"#d\">D</a></li>\n</ul>\n</nav>";
        assert!(html.contains(nav), "{html}");
        assert!(html.contains("<dt>M1</dt><dd>why</dd>"), "{html}");
        assert!(!Page::new("t").html().contains("<nav"), "none without headings");
    }
}
