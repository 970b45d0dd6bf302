//! Tables of collective times: nccl-tests' own output, and the two compact layouts in which such times are passed on.
//!
//! - nccl-tests: `size count type redop root time algbw busbw ...`, one row a size;
//! - `gpus [graph|eager] size ... time`: rows with the rank count in front;
//! - a `# size_B a_us b_us` header over named columns (`gpus` may be one of them).

use super::{ImportError, bounded};
use crate::collective::Launch;
use crate::time::Duration;

/// One measured time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measurement {
    /// Ranks, where the row says so.
    pub ranks: Option<usize>,
    /// Launch mode, where the row says so.
    pub launch: Option<Launch>,
    /// Size column, bytes.
    pub bytes: u64,
    /// Out-of-place time.
    pub time: Duration,
}

/// Reads a table; `column` names a time column of a table with a `size_B` header.
///
/// Lines that are not rows (comments, banners, device lists) are skipped, as the tools mix them in.
///
/// # Errors
/// If a row's figure is not a number, the column is missing, or no row is found.
pub fn read(text: &str, column: Option<&str>) -> Result<Vec<Measurement>, ImportError> {
    bounded(text)?;
    let header = text.lines().enumerate().find(|(_, line)| line.starts_with('#') && line.contains("size_B"));
    let rows = match (header, column) {
        (Some((at, header)), Some(column)) => named_columns(text, at, header, column)?,
        (None, Some(column)) => return Err(ImportError::new(1, 1, format!("there is no `# ... size_B ...` header to find {column} in"))),
        (Some((at, header)), None) => {
            let names: Vec<&str> = header.trim_start_matches(['#', ' ']).split_whitespace().collect();
            return Err(ImportError::new(at + 1, 1, format!("which column? this table has {}", names.join(", "))));
        }
        (None, None) => plain_rows(text)?,
    };
    if rows.is_empty() {
        return Err(ImportError::new(1, 1, "no row of times is in it"));
    }
    Ok(rows)
}

/// Position (from 1) of a word inside its line.
fn column_of(line: &str, word: &str) -> usize {
    line.find(word).map_or(1, |at| line[..at].chars().count() + 1)
}

fn number<T: std::str::FromStr>(at: usize, line: &str, word: &str, what: &str) -> Result<T, ImportError> {
    word.parse().map_err(|_| ImportError::new(at + 1, column_of(line, word), format!("{what} `{word}` is not a number")))
}

fn time(at: usize, line: &str, word: &str) -> Result<Duration, ImportError> {
    let us: f64 = number(at, line, word, "time")?;
    if !us.is_finite() || us < 0.0 {
        return Err(ImportError::new(at + 1, column_of(line, word), format!("time `{word}` is not a time")));
    }
    Ok(Duration::from_seconds(us * 1e-6))
}

fn named_columns(text: &str, header_at: usize, header: &str, column: &str) -> Result<Vec<Measurement>, ImportError> {
    let names: Vec<&str> = header.trim_start_matches(['#', ' ']).split_whitespace().collect();
    let place = |name: &str| names.iter().position(|other| *other == name);
    let wanted = place(column)
        .ok_or_else(|| ImportError::new(header_at + 1, 1, format!("no column {column}; this table has {}", names.join(", "))))?;
    let size = place("size_B").ok_or_else(|| ImportError::new(header_at + 1, 1, "no column size_B"))?;
    let mut rows = Vec::new();
    for (at, line) in text.lines().enumerate().skip(header_at + 1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.len() != names.len() || line.starts_with('#') || words[wanted] == "NA" {
            continue;
        }
        let ranks = match place("gpus") {
            Some(gpus) => Some(number(at, line, words[gpus], "rank count")?),
            None => None,
        };
        rows.push(Measurement {
            ranks,
            launch: Some(Launch::Graph),
            bytes: number(at, line, words[size], "size")?,
            time: time(at, line, words[wanted])?,
        });
    }
    Ok(rows)
}

fn plain_rows(text: &str) -> Result<Vec<Measurement>, ImportError> {
    let mut rows = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let numeric = |index: usize| words.get(index).is_some_and(|word| word.parse::<u64>().is_ok());
        if words.is_empty() || line.starts_with('#') || !numeric(0) {
            continue;
        }
        let mode = words.get(1).and_then(|word| word.parse::<Launch>().ok());
        let nccl_tests = words.len() >= 8 && numeric(1) && words[2].chars().all(char::is_alphabetic);
        let row = match (nccl_tests, mode) {
            (true, _) => Measurement {
                ranks: None,
                launch: Some(Launch::Eager),
                bytes: number(at, line, words[0], "size")?,
                time: time(at, line, words[5])?,
            },
            (false, Some(launch)) if words.len() >= 5 => Measurement {
                ranks: Some(number(at, line, words[0], "rank count")?),
                launch: Some(launch),
                bytes: number(at, line, words[2], "size")?,
                time: time(at, line, words[3])?,
            },
            (false, None) if words.len() >= 5 && numeric(1) => Measurement {
                ranks: Some(number(at, line, words[0], "rank count")?),
                launch: Some(Launch::Graph),
                bytes: number(at, line, words[1], "size")?,
                time: time(at, line, words[3])?,
            },
            _ => continue,
        };
        rows.push(row);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_three_layouts() {
        let tests = "# nThread 1\n  1024  256  float  sum  -1  18.46  0.06  0.08  0  18.56  0.06  0.08  0\n";
        let row = &read(tests, None).expect("a table")[0];
        assert_eq!((row.ranks, row.bytes, row.time), (None, 1024, Duration::from_ns(18_460)));
        let compact = "#   gpus size count time\n 8 16384 8192 27.04 0.61 1.06\n 2 eager 256 30.83 0.01 0.01\n";
        let rows = read(compact, None).expect("a table");
        assert_eq!((rows[0].ranks, rows[0].launch, rows[0].bytes), (Some(8), Some(Launch::Graph), 16384));
        assert_eq!((rows[1].ranks, rows[1].launch, rows[1].bytes), (Some(2), Some(Launch::Eager), 256));
        let named = "# size_B custom_us nccl_us\n1024 7.5 32.3\n4096 NA 32.0\n";
        assert_eq!(read(named, Some("custom_us")).expect("a table").len(), 1);
        assert_eq!(read(named, Some("nccl_us")).expect("a table")[1].time, Duration::from_us(32));
    }

    #[test]
    fn says_what_is_wrong_and_where() {
        let error = read("8 16384 8192 fast 0.61 1.06\n", None).unwrap_err();
        assert_eq!(error.to_string(), "line 1, column 14: time `fast` is not a number");
        let error = read("# size_B a_us\n1 2\n", Some("b_us")).unwrap_err();
        assert_eq!(error.to_string(), "line 1, column 1: no column b_us; this table has size_B, a_us");
        assert!(read("nothing here\n", None).is_err());
    }
}
