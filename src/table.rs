//! Columns, bars and numbers for people.

/// A text table: the first column flush left, the others flush right, two spaces between.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    left: Vec<usize>,
}

impl Table {
    /// A table with a header; `left` lists further columns that are flush left.
    pub(crate) fn new<S: Into<String>>(header: impl IntoIterator<Item = S>, left: &[usize]) -> Self {
        Self { rows: vec![header.into_iter().map(Into::into).collect()], left: left.to_vec() }
    }
    /// Adds a row.
    pub(crate) fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }
    /// The lines, each indented by two spaces, without trailing blanks.
    pub(crate) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c: usize| self.rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (c, cell) in row.iter().enumerate() {
                line.push_str("  ");
                let pad = " ".repeat(widths[c] - cell.chars().count());
                if c == 0 || self.left.contains(&c) {
                    line.push_str(cell);
                    line.push_str(&pad);
                } else {
                    line.push_str(&pad);
                    line.push_str(cell);
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// A bar of `share` (0 to 1) of `width` cells, in eighths.
pub(crate) fn bar(share: f64, width: usize) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize;
    let mut text = "█".repeat(eighths / 8);
    text.push_str(PARTS[eighths % 8]);
    text
}

/// Bytes with a binary unit and three digits or so.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// Columns of running text.
const WIDTH: usize = 110;

/// Running text on lines of at most [`WIDTH`] columns, each but the first indented by `indent`, for a first line that starts there too.
pub(crate) fn wrap(text: &str, indent: usize) -> String {
    let mut out = String::new();
    let mut column = indent;
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if column > indent && column + 1 + width > WIDTH {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            column = indent;
        } else if column > indent {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += width;
    }
    out
}

/// A whole number with thousands apart.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(c);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!(
            ["0 B", "1023 B", "1.00 KiB", "71.9 GiB", "1.00 PiB"],
            [bytes(0), bytes(1023), bytes(1024), bytes(77_202_036_326), bytes(1 << 50)]
        );
        assert_eq!(["0", "999", "1,000", "70,272", "1,234,567"], [count(0), count(999), count(1000), count(70_272), count(1_234_567)]);
        assert_eq!([bar(0.0, 4), bar(1.0, 4), bar(0.5, 4), bar(0.53125, 4), bar(f64::NAN, 4)], ["", "████", "██", "██▏", ""]);
    }

    #[test]
    fn running_text_is_wrapped_between_words() {
        let text = "word ".repeat(60);
        let wrapped = wrap(&text, 4);
        assert!(wrapped.lines().enumerate().all(|(i, l)| l.len() + if i == 0 { 4 } else { 0 } <= WIDTH), "{wrapped}");
        assert!(wrapped.lines().skip(1).all(|l| l.starts_with("    word")));
        assert_eq!(wrapped.split_whitespace().count(), 60);
        let long = "x".repeat(200);
        assert_eq!(wrap(&format!("a {long} b"), 0), format!("a\n{long}\nb"));
    }

    #[test]
    fn columns_line_up() {
        let mut t = Table::new(["class", "ms"], &[]);
        t.row(["experts", "1.5"]);
        t.row(["a", "10.25"]);
        assert_eq!(t.render(), "  class       ms\n  experts    1.5\n  a        10.25\n");
    }
}
