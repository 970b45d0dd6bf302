//! Kernel times that a user brings, in the layouts that aiconfigurator-core and its exports have.
//!
//! A table is a CSV with a heading. What it is of, it says itself (`framework, version, device, op_name` beside the columns of its family, times
//! as `latency` in milliseconds), or its name does: `GPU__ENGINE-VERSION__FAMILY.csv`, times as `latency_us`. Parquet, which
//! aiconfigurator-core 0.12 ships, is not read.

use super::catalog::{gpu_of_slug, slug_of_gpu};
use super::import::{ImportError, import_csv};
use super::table::{Family, Table};
use crate::topology::gpu_by_words;

/// The longest table that is read.
const MOST_BYTES: usize = 64 << 20;

/// What operations and files are called.
const NAMES: [(&str, Family); 8] = [
    ("gemm", Family::Gemm),
    ("moe", Family::Moe),
    ("generation-mla", Family::MlaDecode),
    ("mla-generation", Family::MlaDecode),
    ("mla-generation-module", Family::MlaDecodeModule),
    ("context-mla", Family::MlaPrefill),
    ("decode-attention", Family::GqaDecode),
    ("generation-attention", Family::GqaDecode),
];

/// Tables of one GPU, engine and version.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportedSet {
    /// The GPU, as machines call it.
    pub gpu: &'static str,
    /// The engine, in lower case.
    pub engine: String,
    /// Engine and version, as `vllm-0.24.0`.
    pub implementation: String,
    /// One a family.
    pub tables: Vec<Table>,
}

/// Tables that a user brought.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImportedTables {
    sets: Vec<ImportedSet>,
    passed_over: Vec<String>,
}

// Times are finite: a table with any other is refused.
impl Eq for ImportedTables {}

/// What a file turned out to be.
#[derive(Clone, Debug, PartialEq)]
enum Contents {
    Table(ImportedSet),
    /// Nothing that is used, and why.
    Nothing(&'static str),
}

impl ImportedTables {
    /// The sets.
    pub fn sets(&self) -> &[ImportedSet] {
        &self.sets
    }
    /// Files that hold nothing that is used, each with the reason.
    pub fn passed_over(&self) -> &[String] {
        &self.passed_over
    }
    /// Adds what a file holds. Of one GPU, engine, version and family there is one table.
    ///
    /// # Errors
    /// If it is a table that cannot be read, or a second one of its kind.
    pub fn add(&mut self, name: &str, text: &str) -> Result<(), ImportError> {
        match contents(name, text)? {
            Contents::Nothing(why) => self.passed_over.push(format!("{name}: {why}")),
            Contents::Table(new) => {
                let same = |s: &&mut ImportedSet| s.gpu == new.gpu && s.implementation == new.implementation;
                match self.sets.iter_mut().find(same) {
                    None => self.sets.push(new),
                    Some(set) => {
                        for table in new.tables {
                            if set.tables.iter().any(|t| t.family == table.family) {
                                let message = format!("a second table of {} on {}: {}", set.implementation, set.gpu, table.family.name());
                                return Err(ImportError { line: 1, message });
                            }
                            set.tables.push(table);
                        }
                    }
                }
            }
        }
        Ok(())
    }
    /// Notes a file that is not text.
    pub fn pass_over(&mut self, name: &str, why: &str) {
        self.passed_over.push(format!("{name}: {why}"));
    }
}

fn contents(name: &str, text: &str) -> Result<Contents, ImportError> {
    let wrong = |line: usize, message: String| Err(ImportError { line, message });
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.len() > MOST_BYTES {
        return wrong(1, format!("{} bytes; at most {MOST_BYTES} are read", text.len()));
    }
    if text.starts_with("version https://git-lfs") {
        return wrong(1, "a pointer of Git LFS in place of the table; `git lfs pull` fetches it".into());
    }
    let heading: Vec<&str> = text.lines().next().unwrap_or("").split(',').map(str::trim).collect();
    let column = |wanted: &str| heading.iter().position(|n| *n == wanted);
    if let Some(twice) = heading.iter().enumerate().find_map(|(i, n)| heading[..i].contains(n).then_some(n)) {
        return wrong(1, format!("two columns are called {twice}"));
    }
    if column("latency").is_none() && column("latency_us").is_none() {
        return Ok(Contents::Nothing("no column `latency` or `latency_us`"));
    }
    let stem = stem(name);
    let parts: Vec<&str> = stem.split("__").collect();
    let named = |words: &str| {
        let words = words.replace('_', "-").to_ascii_lowercase();
        let words = words.strip_suffix("-perf").unwrap_or(&words);
        NAMES.iter().find(|(n, _)| *n == words).map(|(_, family)| *family)
    };
    let (gpu, implementation, family) = match (column("framework"), column("version"), column("device"), &parts[..]) {
        (Some(framework), Some(version), Some(device), _) => {
            let told = one_value(text, [framework, version, device])?;
            let [framework, version, device] = told;
            let Some(gpu) = gpu_by_words(device) else {
                return wrong(2, format!("`{device}` is no GPU of the table of GPUs"));
            };
            let op = column("op_name").and_then(|c| one_value(text, [c]).ok()).and_then(|[op]| named(op));
            (gpu, format!("{}-{version}", framework.to_ascii_lowercase()), op.or_else(|| named(stem)))
        }
        (_, _, _, &[slug, implementation, family]) => {
            let Some(gpu) = gpu_of_slug(slug).or_else(|| gpu_by_words(&slug.replace('_', " "))) else {
                return wrong(1, format!("the name begins with `{slug}`, which is no GPU of the table of GPUs"));
            };
            (gpu, implementation.to_ascii_lowercase(), named(family))
        }
        _ => {
            let message = "the table names no engine: columns framework, version and device, or a name as h200_sxm__vllm-0.24.0__gemm.csv";
            return wrong(1, message.into());
        }
    };
    let Some(family) = family else { return Ok(Contents::Nothing("kernels of no family that is priced from tables")) };
    let engine = implementation.split('-').next().unwrap_or_default().to_owned();
    let table = import_csv(text, slug_of_gpu(gpu), &implementation, family)?;
    if table.curves.is_empty() {
        return Ok(Contents::Nothing("its rows time the host, not the GPU"));
    }
    Ok(Contents::Table(ImportedSet { gpu, engine, implementation, tables: vec![table] }))
}

/// A file's name without folders and ending.
fn stem(name: &str) -> &str {
    let file = name.rsplit(['/', '\\']).next().unwrap_or(name);
    [".csv", ".txt"].iter().find_map(|ending| file.strip_suffix(ending)).unwrap_or(file)
}

/// What some columns say in every row.
fn one_value<const N: usize>(text: &str, columns: [usize; N]) -> Result<[&str; N], ImportError> {
    let mut rows = text.lines().enumerate().skip(1).filter(|(_, l)| !l.trim().is_empty());
    let cells = |line: usize, row: &'_ str| -> Result<[usize; N], ImportError> {
        let count = row.split(',').count();
        if columns.iter().any(|c| *c >= count) {
            return Err(ImportError { line: line + 1, message: format!("{count} cells, the heading has more") });
        }
        Ok(columns)
    };
    let (index, first) = rows.next().ok_or(ImportError { line: 1, message: "no row".into() })?;
    cells(index, first)?;
    let of = |row: &'_ str, c: usize| row.split(',').nth(c).unwrap_or("").trim().to_owned();
    for (index, row) in rows {
        cells(index, row)?;
        if let Some(c) = columns.iter().find(|c| of(row, **c) != of(first, **c)) {
            let message = format!("`{}` after `{}`: a table is of one engine, version and GPU", of(row, *c), of(first, *c));
            return Err(ImportError { line: index + 1, message });
        }
    }
    Ok(columns.map(|c| first.split(',').nth(c).unwrap_or("").trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "framework,version,device,op_name,kernel_source,model,architecture,mla_dtype,kv_cache_dtype,gemm_type,num_heads,\
                       batch_size,isl,tp_size,step,latency\n\
                       VLLM,0.25.0,NVIDIA H200,mla_generation_module,default,a/b,C,bfloat16,bfloat16,bfloat16,16,1,1,1,4,0.0663\n\
                       VLLM,0.25.0,NVIDIA H200,mla_generation_module,default,a/b,C,bfloat16,bfloat16,bfloat16,16,1,1,1,2048,0.0888\n";

    fn error(name: &str, text: &str) -> String {
        ImportedTables::default().add(name, text).unwrap_err().to_string()
    }

    #[test]
    fn both_layouts_are_read_and_say_the_same() {
        let mut all = ImportedTables::default();
        all.add("systems/data/h200_sxm/mla/vllm/0.25.0/mla_generation_module_perf.txt", OWN).unwrap();
        let gemm = "kernel_source,gemm_dtype,m,n,k,latency_us\nx,bfloat16,1,2048,2048,6.5\n";
        all.add("h200_sxm__vllm-0.25.0__gemm.csv", &format!("\u{feff}{gemm}")).unwrap();
        let [set] = all.sets() else { panic!("{:?}", all.sets()) };
        assert_eq!((set.gpu, set.engine.as_str(), set.implementation.as_str()), ("H200 SXM", "vllm", "vllm-0.25.0"));
        // Milliseconds become microseconds, and a decode row counts its own token.
        assert_eq!(set.tables[0].curves[0].points, [(5, 66.3), (2049, 88.8)]);
        assert_eq!((set.tables[1].family, &set.tables[1].curves[0].points[..]), (Family::Gemm, &[(1, 6.5)][..]));
        assert!(all.add("x/mla_generation_module_perf.txt", OWN).unwrap_err().message.contains("a second table of vllm-0.25.0"));
        all.add("notes.txt", "nothing,of,this").unwrap();
        all.add("dsa_context_module_perf.txt", &OWN.replace("mla_generation_module", "dsa_context_module")).unwrap();
        assert_eq!(all.passed_over().len(), 2, "{:?}", all.passed_over());
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        assert!(error("gemm_perf.txt", "version https://git-lfs.github.com/spec/v1\noid x\n").contains("git lfs pull"));
        assert!(error("gemm.csv", "kernel_source,gemm_dtype,m,n,k,latency_us\n").contains("names no engine"));
        assert!(error("abacus__vllm-1__gemm.csv", "kernel_source,gemm_dtype,m,n,k,latency_us\n").contains("`abacus`"));
        assert!(error("x.txt", &OWN.replace("H200", "Abacus")).contains("line 2: `NVIDIA Abacus`"));
        let two = OWN.replacen("VLLM,0.25.0", "VLLM,0.24.0", 1);
        assert!(error("x.txt", &two).contains("line 3: `0.25.0` after `0.24.0`"));
        assert!(error("x.txt", &OWN.replace("0.0888", "-1")).contains("line 3"));
        assert!(error("x.csv", "m,m,latency\n").contains("two columns are called m"));
    }
}
