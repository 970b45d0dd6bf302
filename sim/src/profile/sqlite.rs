//! Just enough of SQLite's file format to read whole tables: <https://www.sqlite.org/fileformat2.html>. No index, no SQL, no journal.
//!
//! A reader of our own because the alternative compiles nine megabytes of C to answer two questions, and hands untrusted files to it.

use super::{ProfileError, wrong};
use std::collections::BTreeSet;

/// First bytes of every database.
pub(super) const MAGIC: &[u8] = b"SQLite format 3\0";

/// A value of a row. Blobs are of no use here.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Null,
    Integer(i64),
    Real(f64),
    Text(String),
    Blob,
}

impl Cell {
    pub(super) fn integer(&self) -> Option<i64> {
        if let Cell::Integer(n) = self { Some(*n) } else { None }
    }
    pub(super) fn text(&self) -> Option<&str> {
        if let Cell::Text(text) = self { Some(text) } else { None }
    }
}

/// A table and where its columns are.
#[derive(Clone, Debug)]
pub(super) struct Table {
    name: String,
    root: u32,
    columns: Vec<String>,
    /// The column that the row's number stands for.
    alias: Option<usize>,
}

impl Table {
    /// Position of a column.
    pub(super) fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|c| c.eq_ignore_ascii_case(name))
    }
}

/// A database in memory.
pub(super) struct Database<'a> {
    bytes: &'a [u8],
    page_bytes: usize,
    usable: usize,
    tables: Vec<Table>,
}

fn truncated(page: u32, pages: usize) -> ProfileError {
    ProfileError::Truncated(format!("page {page} is asked for, and the database has {pages}"))
}

/// Big-endian number of up to eight bytes.
fn big_endian(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// A number of seven bits a byte, and its length.
fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for (i, b) in bytes.iter().take(9).enumerate() {
        if i == 8 {
            return Some((value << 8 | u64::from(*b), 9));
        }
        value = value << 7 | u64::from(b & 0x7f);
        if b & 0x80 == 0 {
            return Some((value, i + 1));
        }
    }
    None
}

impl<'a> Database<'a> {
    /// Reads the header and the list of tables.
    pub(super) fn open(bytes: &'a [u8]) -> Result<Self, ProfileError> {
        let header = bytes.get(..100).ok_or_else(|| ProfileError::Truncated("the header is shorter than 100 bytes".into()))?;
        let page_bytes = match big_endian(&header[16..18]) {
            1 => 65536,
            n => n as usize,
        };
        if !page_bytes.is_power_of_two() || page_bytes < 512 {
            return Err(wrong("SQLite header", format!("pages of {page_bytes} bytes; a power of two from 512 to 65536 is expected")));
        }
        let usable = page_bytes - usize::from(header[20]);
        if usable < 480 {
            return Err(wrong("SQLite header", format!("{} of a page's bytes are reserved; at least 480 have to be left", header[20])));
        }
        if !matches!(big_endian(&header[56..60]), 0 | 1) {
            return Err(wrong("SQLite header", "text is not UTF-8"));
        }
        let mut out = Self { bytes, page_bytes, usable, tables: Vec::new() };
        let schema = Table {
            name: "sqlite_schema".into(),
            root: 1,
            columns: ["type", "name", "tbl_name", "rootpage", "sql"].map(str::to_owned).into(),
            alias: None,
        };
        let mut tables = Vec::new();
        out.scan(&schema, |row| {
            let [kind, name, _, root, sql] = row else { return Ok(()) };
            if let (Some("table"), Some(name), Some(root), Some(sql)) = (kind.text(), name.text(), root.integer(), sql.text()) {
                let (columns, alias) = columns(sql);
                tables.push(Table { name: name.to_owned(), root: u32::try_from(root).unwrap_or(0), columns, alias });
            }
            Ok(())
        })?;
        out.tables = tables;
        Ok(out)
    }
    /// A table by its name.
    pub(super) fn table(&self, name: &str) -> Option<&Table> {
        self.tables.iter().find(|t| t.name.eq_ignore_ascii_case(name))
    }
    fn pages(&self) -> usize {
        self.bytes.len() / self.page_bytes
    }
    fn page(&self, number: u32) -> Result<&'a [u8], ProfileError> {
        let from = (number as usize).checked_sub(1).and_then(|n| n.checked_mul(self.page_bytes));
        let page = from.and_then(|from| self.bytes.get(from..from.checked_add(self.page_bytes)?));
        page.ok_or_else(|| truncated(number, self.pages()))
    }
    /// Calls `each` with every row of a table, in order of the rows' numbers.
    pub(super) fn scan(&self, table: &Table, mut each: impl FnMut(&[Cell]) -> Result<(), ProfileError>) -> Result<(), ProfileError> {
        // Every page belongs to one place of one tree: one that comes twice is a circle.
        let mut seen: BTreeSet<u32> = BTreeSet::new();
        let mut stack = vec![table.root];
        let mut row = Vec::new();
        while let Some(number) = stack.pop() {
            if !seen.insert(number) {
                return Err(wrong(format!("page {number}"), "stands twice in one table"));
            }
            let page = self.page(number)?;
            let base = if number == 1 { 100 } else { 0 };
            let broken = |what: &str| wrong(format!("page {number} of {}", table.name), what);
            let kind = page[base];
            let cells = big_endian(&page[base + 3..base + 5]) as usize;
            let first = base + if kind == 0x05 { 12 } else { 8 };
            let pointers = page.get(first..first + 2 * cells).ok_or_else(|| broken("more cells than a page holds"))?;
            let offsets = pointers.chunks_exact(2).map(|p| big_endian(p) as usize);
            match kind {
                0x0d => {
                    for at in offsets {
                        self.row(page.get(at..self.usable).ok_or_else(|| broken("a cell outside of it"))?, &mut row, number)?;
                        row.resize(row.len().max(table.columns.len() + 1), Cell::Null);
                        // The row's number came first.
                        let rowid = row.remove(0);
                        if let Some(alias) = table.alias.and_then(|a| row.get_mut(a)) {
                            *alias = rowid;
                        }
                        each(&row)?;
                    }
                }
                0x05 => {
                    let below = stack.len();
                    for at in offsets {
                        let child = page.get(at..at + 4).ok_or_else(|| broken("a cell outside of it"))?;
                        stack.push(big_endian(child) as u32);
                    }
                    stack.push(big_endian(&page[base + 8..base + 12]) as u32);
                    stack[below..].reverse();
                }
                other => return Err(broken(&format!("is of kind {other}, expected 5 or 13: a table with row numbers"))),
            }
        }
        Ok(())
    }
    /// Cells of a row behind its number.
    fn row(&self, cell: &[u8], row: &mut Vec<Cell>, page: u32) -> Result<(), ProfileError> {
        let broken = || wrong(format!("page {page}"), "a row that cannot be read");
        let (payload, n) = varint(cell).ok_or_else(broken)?;
        let (rowid, m) = varint(&cell[n..]).ok_or_else(broken)?;
        let payload = usize::try_from(payload).ok().filter(|p| *p <= self.bytes.len()).ok_or_else(broken)?;
        row.clear();
        row.push(Cell::Integer(rowid as i64));
        let body = &cell[n + m..];
        let local = self.local(payload);
        if payload == local {
            return record(body.get(..payload).ok_or_else(broken)?, row).ok_or_else(broken);
        }
        let mut whole = body.get(..local).ok_or_else(broken)?.to_vec();
        let mut next = big_endian(body.get(local..local + 4).ok_or_else(broken)?) as u32;
        while whole.len() < payload {
            let page = self.page(next)?;
            let part = (payload - whole.len()).min(self.usable - 4);
            whole.extend(&page[4..4 + part]);
            next = big_endian(&page[..4]) as u32;
        }
        record(&whole, row).ok_or_else(broken)
    }
    /// Bytes of a payload that stand in the page itself; the rest is on pages of its own.
    fn local(&self, payload: usize) -> usize {
        let usable = self.usable;
        let most = usable - 35;
        if payload <= most {
            return payload;
        }
        let least = (usable - 12) * 32 / 255 - 23;
        let wanted = least + (payload - least) % (usable - 4);
        if wanted <= most { wanted } else { least }
    }
}

/// Values of a record.
fn record(bytes: &[u8], row: &mut Vec<Cell>) -> Option<()> {
    let (header, n) = varint(bytes)?;
    let header = usize::try_from(header).ok()?;
    let (mut types, mut body) = (bytes.get(n..header)?, bytes.get(header..)?);
    while !types.is_empty() {
        let (kind, n) = varint(types)?;
        types = &types[n..];
        let bytes = match kind {
            0 | 8 | 9 => 0,
            1..=4 => kind as usize,
            5 => 6,
            6 | 7 => 8,
            10 | 11 => return None,
            n => usize::try_from((n - 12) / 2).ok()?,
        };
        let value = body.get(..bytes)?;
        body = &body[bytes..];
        row.push(match kind {
            0 => Cell::Null,
            8 => Cell::Integer(0),
            9 => Cell::Integer(1),
            7 => Cell::Real(f64::from_bits(big_endian(value))),
            1..=6 => {
                // Signed: the highest bit of its own width counts.
                let unused = 64 - 8 * bytes as u32;
                Cell::Integer((big_endian(value) << unused) as i64 >> unused)
            }
            n if n % 2 == 1 => Cell::Text(String::from_utf8_lossy(value).into_owned()),
            _ => Cell::Blob,
        });
    }
    Some(())
}

/// Names of a table's columns from the statement that made it, and the one that is the row's number.
fn columns(sql: &str) -> (Vec<String>, Option<usize>) {
    let Some(inside) = sql.find('(').and_then(|from| sql.rfind(')').and_then(|to| sql.get(from + 1..to))) else {
        return (Vec::new(), None);
    };
    let (mut depth, mut parts, mut from) = (0i32, Vec::new(), 0);
    for (i, c) in inside.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inside[from..i]);
                from = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&inside[from..]);
    let (mut names, mut alias) = (Vec::new(), None);
    for part in parts {
        let mut words = part.split_whitespace();
        let Some(first) = words.next() else { continue };
        let constraint = ["PRIMARY", "UNIQUE", "CHECK", "FOREIGN", "CONSTRAINT"].iter().any(|w| first.eq_ignore_ascii_case(w));
        if constraint {
            continue;
        }
        let rest = words.collect::<Vec<_>>().join(" ").to_ascii_uppercase();
        if rest.starts_with("INTEGER PRIMARY KEY") && !rest.contains("DESC") {
            alias = Some(names.len());
        }
        names.push(first.trim_matches(|c| "\"`[]'".contains(c)).to_owned());
    }
    (names, alias)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_statements() {
        let sql = "CREATE TABLE \"T\" (id INTEGER PRIMARY KEY, value TEXT NOT NULL, \"end\" DECIMAL(10, 2), PRIMARY KEY (id, value))";
        assert_eq!(columns(sql), (vec!["id".to_owned(), "value".into(), "end".into()], Some(0)));
        assert_eq!(columns("CREATE TABLE t (a INT, b)"), (vec!["a".to_owned(), "b".into()], None));
        assert_eq!(columns("nonsense"), (vec![], None));
    }

    #[test]
    fn numbers_of_seven_bits() {
        assert_eq!(varint(&[0x7f]), Some((127, 1)));
        assert_eq!(varint(&[0x81, 0x00]), Some((128, 2)));
        assert_eq!(varint(&[0xff; 9]), Some((u64::MAX, 9)));
        assert_eq!(varint(&[0x80]), None);
    }

    #[test]
    fn records_hold_every_kind_of_value() {
        let mut row = Vec::new();
        // One byte of -1, the constants 0 and 1, a float, a text of two, a blob of one.
        let mut bytes = vec![8, 1, 8, 9, 7, 17, 14, 0, 0xff];
        bytes.extend(1.5f64.to_be_bytes());
        bytes.extend(b"hi!");
        record(&bytes, &mut row).unwrap();
        let text = Cell::Text("hi".into());
        assert_eq!(row, [Cell::Integer(-1), Cell::Integer(0), Cell::Integer(1), Cell::Real(1.5), text, Cell::Blob, Cell::Null]);
        assert_eq!(record(&[3, 10, 0], &mut row), None);
    }
}
