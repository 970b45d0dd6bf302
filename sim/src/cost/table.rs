//! Measured kernel times as plain text: one file a GPU, engine version and kernel family, one line a curve.
//!
//! ```text
//! # comment
//! moetwin-kernel-times 1
//! gpu rtx_pro_6000_server
//! implementation sglang-0.5.14
//! family gemm
//! sglang_torch_linear bfloat16 7168 2048 | 1:21.741 2:22.1 4:22.3
//! ```
//!
//! The words before `|` are the curve's key (their meaning is the family's, see [`Family`]), the points after it
//! `x:microseconds` with strictly rising `x`.

use std::fmt::Write as _;

/// First line of every table.
const MAGIC: &str = "moetwin-kernel-times 1";

/// Points that one line may hold; more is a damaged file.
const MAX_POINTS: usize = 4096;

/// A kernel family; the doc of each variant is the meaning of the key and of `x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// Dense GEMM: `kernel dtype n k`, x = rows `m`.
    Gemm,
    /// Fused routed experts of one rank: `kernel dtype hidden intermediate topk experts moe_tp ep distribution`, x = tokens.
    Moe,
    /// MLA decode core: `kernel dtype kv_dtype heads batch`, x = rows of context a sequence.
    MlaDecode,
    /// A whole MLA block while decoding, projections and all: `kernel dtype kv_dtype gemm_dtype heads batch`, x = rows of context a
    /// sequence.
    MlaDecodeModule,
    /// MLA prefill core: `kernel dtype kv_dtype heads batch`, x = tokens a sequence.
    MlaPrefill,
    /// GQA decode: `kernel dtype kv_dtype heads kv_heads head_dim window batch`, x = rows of context a sequence.
    GqaDecode,
}

impl Family {
    /// Every family.
    pub const ALL: [Family; 6] =
        [Family::Gemm, Family::Moe, Family::MlaDecode, Family::MlaDecodeModule, Family::MlaPrefill, Family::GqaDecode];

    /// Name in table files.
    pub fn name(self) -> &'static str {
        match self {
            Family::Gemm => "gemm",
            Family::Moe => "moe",
            Family::MlaDecode => "mla-decode",
            Family::MlaDecodeModule => "mla-decode-module",
            Family::MlaPrefill => "mla-prefill",
            Family::GqaDecode => "gqa-decode",
        }
    }
    /// Words and numbers of a key: `(leading words, numbers, trailing words)`.
    fn key_form(self) -> (usize, usize, usize) {
        match self {
            Family::Gemm => (2, 2, 0),
            Family::Moe => (2, 6, 1),
            Family::MlaDecode | Family::MlaPrefill => (3, 2, 0),
            Family::MlaDecodeModule => (4, 2, 0),
            Family::GqaDecode => (3, 5, 0),
        }
    }
}

/// One measured curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Words of the key: kernel, element types, distribution.
    pub words: Vec<String>,
    /// Numbers of the key.
    pub numbers: Vec<u64>,
    /// `(x, microseconds)`, x strictly rising, times positive and finite. Never empty.
    pub points: Vec<(u64, f64)>,
}

/// A table of one family.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// GPU the times were taken on.
    pub gpu: String,
    /// Engine and version, for example `sglang-0.5.14`.
    pub implementation: String,
    /// What the curves are of.
    pub family: Family,
    /// The curves, in file order.
    pub curves: Vec<Curve>,
}

/// A table that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("kernel table line {line}: {message}")]
pub struct TableError {
    /// Line, from 1.
    pub line: usize,
    /// What is wrong and what would be right.
    pub message: String,
}

impl Table {
    /// Reads a table.
    pub fn parse(text: &str) -> Result<Self, TableError> {
        let mut lines = text.lines().enumerate().map(|(i, l)| (i + 1, l.trim())).filter(|(_, l)| !l.is_empty() && !l.starts_with('#'));
        let mut header = |what: &str| {
            let (line, text) = lines.next().ok_or_else(|| error(1, format!("ends before `{what}`")))?;
            Ok((line, text))
        };
        let (line, magic) = header(MAGIC)?;
        if magic != MAGIC {
            return Err(error(line, format!("starts with `{magic}`, expected `{MAGIC}`")));
        }
        let mut field = |name: &str| {
            let (line, text) = header(name)?;
            let value = text.strip_prefix(name).and_then(|v| v.strip_prefix(' '));
            Ok((line, value.ok_or_else(|| error(line, format!("`{text}`, expected `{name} ...`")))?.trim().to_owned()))
        };
        let (_, gpu) = field("gpu")?;
        let (_, implementation) = field("implementation")?;
        let (line, family) = field("family")?;
        let family = Family::ALL.into_iter().find(|f| f.name() == family).ok_or_else(|| {
            let names: Vec<_> = Family::ALL.iter().map(|f| f.name()).collect();
            error(line, format!("family `{family}`, expected one of {}", names.join(", ")))
        })?;
        let curves = lines.map(|(line, text)| parse_curve(family, line, text)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { gpu, implementation, family, curves })
    }
    /// The text that [`Table::parse`] reads; `comment` becomes leading `#` lines.
    pub fn render(&self, comment: &str) -> String {
        let mut out = String::new();
        for line in comment.lines() {
            let _ = writeln!(out, "# {line}");
        }
        let _ = writeln!(out, "{MAGIC}\ngpu {}\nimplementation {}\nfamily {}", self.gpu, self.implementation, self.family.name());
        let (leading, ..) = self.family.key_form();
        for curve in &self.curves {
            let numbers = curve.numbers.iter().map(u64::to_string);
            let (before, after) = curve.words.split_at(leading.min(curve.words.len()));
            let words: Vec<String> = before.iter().cloned().chain(numbers).chain(after.iter().cloned()).collect();
            let _ = write!(out, "{} |", words.join(" "));
            for (x, microseconds) in &curve.points {
                let _ = write!(out, " {x}:{microseconds}");
            }
            out.push('\n');
        }
        out
    }
}

fn error(line: usize, message: String) -> TableError {
    TableError { line, message }
}

fn parse_curve(family: Family, line: usize, text: &str) -> Result<Curve, TableError> {
    let (key, points) = text.split_once('|').ok_or_else(|| error(line, "no `|` between key and points".into()))?;
    let key: Vec<&str> = key.split_whitespace().collect();
    let (leading, count, trailing) = family.key_form();
    if key.len() != leading + count + trailing {
        return Err(error(line, format!("key has {} words, a {} curve has {}", key.len(), family.name(), leading + count + trailing)));
    }
    let number = |word: &&str| word.parse::<u64>().map_err(|_| error(line, format!("`{word}` in the key, expected a whole number")));
    let numbers = key[leading..leading + count].iter().map(number).collect::<Result<Vec<_>, _>>()?;
    let words = key[..leading].iter().chain(&key[leading + count..]).map(|w| (*w).to_owned()).collect();
    let mut out: Vec<(u64, f64)> = Vec::new();
    for point in points.split_whitespace() {
        let parsed = point.split_once(':').and_then(|(x, t)| Some((x.parse::<u64>().ok()?, t.parse::<f64>().ok()?)));
        let (x, time) = parsed.ok_or_else(|| error(line, format!("point `{point}`, expected x:microseconds")))?;
        if !(time.is_finite() && time > 0.0) || x == 0 || out.last().is_some_and(|(last, _)| *last >= x) {
            return Err(error(line, format!("point `{point}`: x must rise from 1 and the time be positive")));
        }
        out.push((x, time));
    }
    if out.is_empty() || out.len() > MAX_POINTS {
        return Err(error(line, format!("{} points, expected 1 to {MAX_POINTS}", out.len())));
    }
    Ok(Curve { words, numbers, points: out })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "moetwin-kernel-times 1\ngpu g\nimplementation e-1\nfamily moe\nk int4_wo 7168 2048 8 384 8 1 balanced | 1:23.067 2:30.445\n";

    #[test]
    fn reads_what_it_renders() {
        let table = Table::parse(TEXT).unwrap();
        assert_eq!(table.curves[0].words, ["k", "int4_wo", "balanced"]);
        assert_eq!(table.curves[0].numbers, [7168, 2048, 8, 384, 8, 1]);
        assert_eq!(table.curves[0].points, [(1, 23.067), (2, 30.445)]);
        assert_eq!(table.render(""), TEXT);
        assert_eq!(Table::parse(&table.render("two\nlines")).unwrap(), table);
    }

    #[test]
    fn damaged_text_is_refused_with_its_line() {
        let damage = |from: &str, to: &str| Table::parse(&TEXT.replace(from, to)).unwrap_err();
        assert_eq!(damage("times 1", "times 2").line, 1);
        assert_eq!(damage("family moe", "family mo").line, 4);
        assert!(damage("family moe", "family mo").message.contains("mla-decode"));
        for (from, to) in
            [("2:30.445", "1:30"), ("2:30.445", "2:-1"), ("2:30.445", "2:inf"), ("2:30.445", "2"), (" | ", " "), ("384 ", ""), ("384", "x")]
        {
            assert_eq!(damage(from, to).line, 5, "{from} -> {to}");
        }
        assert_eq!(Table::parse("").unwrap_err().line, 1);
    }
}
