//! Pieces of HTML: what is escaped, tables, bars.

use std::fmt::Write as _;

/// Text as HTML, in elements and in attributes.
pub(super) fn esc(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Not allowed in HTML even as a reference.
            '\0' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// JSON that cannot end the `script` element it stands in, whatever its strings say.
pub(super) fn json_in_script(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            // These occur in strings only, where the escape means the same.
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

/// A bar of `share` (0 to 1) of its cell in one of the palette's colours.
pub(super) fn bar(share: f64, colour: &str) -> String {
    let width = share.clamp(0.0, 1.0) * 100.0;
    format!("<svg aria-hidden=\"true\"><rect width=\"{width:.2}%\" height=\"100%\" rx=\"2\" fill=\"var(--{colour})\"/></svg>")
}

/// Parts of a whole side by side; `label` says in words what it shows.
pub(super) fn strip(label: &str, parts: &[(&str, f64)]) -> String {
    let mut out = format!("<svg class=\"strip\" role=\"img\" aria-label=\"{}\">", esc(label));
    let mut x = 0.0;
    for (colour, share) in parts {
        let width = share * 100.0;
        let _ = write!(out, "<rect x=\"{x:.2}%\" width=\"{width:.2}%\" height=\"100%\" fill=\"var(--{colour})\"/>");
        x += width;
    }
    out.push_str("</svg>");
    out
}

/// A small square in a colour, before its name.
pub(super) fn swatch(colour: &str) -> String {
    format!("<span class=\"swatch\" style=\"background:var(--{colour})\"></span>")
}

/// Names of colours.
pub(super) fn legend<'a>(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let items: String = entries.into_iter().map(|(colour, name)| format!("<li>{}{}</li>", swatch(colour), esc(name))).collect();
    format!("<ul class=\"legend\">{items}</ul>\n")
}

/// What a column holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    /// Words.
    Words,
    /// Numbers, flush right.
    Number,
    /// Bars, which say nothing that a number beside them does not.
    Bar,
}

/// A table; cells are HTML.
pub(super) struct Table {
    caption: String,
    columns: Vec<(&'static str, Column)>,
    body: String,
}

impl Table {
    /// An empty one.
    pub(super) fn new(caption: &str, columns: &[(&'static str, Column)]) -> Self {
        Self { caption: caption.to_owned(), columns: columns.to_vec(), body: String::new() }
    }
    /// Adds a row; its first cell names it.
    pub(super) fn row(&mut self, cells: &[String]) {
        self.add(cells, "");
    }
    /// Adds a row of sums.
    pub(super) fn sum(&mut self, cells: &[String]) {
        self.add(cells, " class=\"sum\"");
    }
    fn add(&mut self, cells: &[String], attributes: &str) {
        let _ = write!(self.body, "<tr{attributes}>");
        for (i, cell) in cells.iter().enumerate() {
            let class = self.class(i);
            if i == 0 {
                let _ = write!(self.body, "<th scope=\"row\"{class}>{cell}</th>");
            } else {
                let _ = write!(self.body, "<td{class}>{cell}</td>");
            }
        }
        self.body.push_str("</tr>\n");
    }
    fn class(&self, column: usize) -> &'static str {
        match self.columns.get(column).map(|c| c.1) {
            Some(Column::Number) => " class=\"n\"",
            Some(Column::Bar) => " class=\"bar\"",
            _ => "",
        }
    }
    /// The table in a frame that scrolls where it is too wide, by keyboard too.
    pub(super) fn html(&self) -> String {
        let head: String = self
            .columns
            .iter()
            .enumerate()
            .map(|(i, (name, column))| match column {
                Column::Bar => "<td class=\"bar\"></td>".to_owned(),
                _ => format!("<th scope=\"col\"{}>{}</th>", self.class(i), esc(name)),
            })
            .collect();
        format!(
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{0}\"><table><caption>{0}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{1}</tbody></table></div>\n",
            esc(&self.caption),
            self.body
        )
    }
}

/// A list of sentences.
pub(super) fn list(items: &[String]) -> String {
    let items: String = items.iter().map(|i| format!("<li>{}</li>\n", esc(i))).collect();
    format!("<ul>\n{items}</ul>\n")
}

/// A section with its heading.
pub(super) fn section(id: &str, title: &str, body: &str) -> String {
    format!("<section id=\"{id}\" aria-labelledby=\"{id}-title\">\n<h2 id=\"{id}-title\">{}</h2>\n{body}</section>\n", esc(title))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_becomes_markup() {
        let evil = "</script><img src=x onerror=alert(1)>'\"&\u{2028}\0";
        let html = esc(evil);
        assert!(!html.contains(['<', '>', '"', '\'', '\0']), "{html}");
        let json = json_in_script(&serde_json::to_string(evil).unwrap());
        assert!(!json.contains(['<', '>', '&', '\u{2028}']), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), evil);
    }

    #[test]
    fn parts_of_a_strip_lie_side_by_side() {
        let svg = strip("a <half> each", &[("b-link", 0.5), ("b-launch", 0.5)]);
        assert!(svg.contains("x=\"0.00%\" width=\"50.00%\"") && svg.contains("x=\"50.00%\" width=\"50.00%\""), "{svg}");
        assert!(svg.contains("aria-label=\"a &lt;half&gt; each\""));
    }
}
