//! Kernel times of aiconfigurator-core (Apache-2.0), as CSV, to the [`Table`] text that is embedded.

use super::table::{Curve, Family, Table};
use std::collections::BTreeMap;

/// A CSV that cannot be imported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ImportError {
    /// Line, from 1.
    pub line: usize,
    /// What is wrong and what would be right.
    pub message: String,
}

/// Columns that make the key of a family, in key order, then the column of x.
fn columns(family: Family) -> (&'static [&'static str], &'static str) {
    match family {
        Family::Gemm => (&["kernel_source", "gemm_dtype", "n", "k"], "m"),
        Family::Moe => (
            &[
                "kernel_source",
                "moe_dtype",
                "hidden_size",
                "inter_size",
                "topk",
                "num_experts",
                "moe_tp_size",
                "moe_ep_size",
                "distribution",
            ],
            "num_tokens",
        ),
        Family::MlaDecode => (&["kernel_source", "mla_dtype", "kv_cache_dtype", "num_heads", "batch_size"], "step"),
        Family::MlaPrefill => (&["kernel_source", "mla_dtype", "kv_cache_dtype", "num_heads", "batch_size"], "isl"),
        Family::MlaDecodeModule => (&["kernel_source", "mla_dtype", "kv_cache_dtype", "gemm_type", "num_heads", "batch_size"], "step"),
        Family::GqaDecode => (
            &["kernel_source", "attn_dtype", "kv_cache_dtype", "num_heads", "num_key_value_heads", "head_dim", "window_size", "batch_size"],
            "step",
        ),
    }
}

/// Rows of a context: a decode row at `step` reads `step + 1` rows (the new token's own included).
fn abscissa(family: Family, x: u64) -> u64 {
    match family {
        Family::MlaDecode | Family::MlaDecodeModule | Family::GqaDecode => x + 1,
        Family::Gemm | Family::Moe | Family::MlaPrefill => x,
    }
}

/// Reads one CSV of times. Rows with the same key and x are repeats of one measurement and are averaged.
pub fn import_csv(text: &str, gpu: &str, implementation: &str, family: Family) -> Result<Table, ImportError> {
    let mut lines = text.lines().enumerate().map(|(i, l)| (i + 1, l));
    let (_, header) = lines.next().ok_or(ImportError { line: 1, message: "no header".into() })?;
    let names: Vec<&str> = header.trim().split(',').collect();
    let find = |column: &str| names.iter().position(|n| *n == column);
    let (key, x) = columns(family);
    let need = |column: &'static str| match (find(column), column) {
        (Some(i), _) => Ok(Some(i)),
        // Tables without sliding windows leave the column out.
        (None, "window_size") => Ok(None),
        (None, _) => Err(ImportError { line: 1, message: format!("no column `{column}` in `{}`", header.trim()) }),
    };
    let key = key.iter().map(|c| need(c)).collect::<Result<Vec<_>, _>>()?;
    let x = need(x)?;
    // aiconfigurator-core states milliseconds.
    let (latency, scale) = match (find("latency_us"), find("latency")) {
        (None, Some(milliseconds)) => (Some(milliseconds), 1e3),
        _ => (need("latency_us")?, 1.0),
    };
    let mut curves = Rows::new();
    for (line, row) in lines.filter(|(_, l)| !l.trim().is_empty()) {
        let cells: Vec<&str> = row.trim().split(',').collect();
        let cell = |index: Option<usize>| index.map_or(Some("0"), |i| cells.get(i).copied());
        let bad = |what: &str| ImportError { line, message: format!("{what} in `{}`", row.trim()) };
        let key = key.iter().map(|&i| cell(i).map(KeyPart::new).ok_or_else(|| bad("a missing cell"))).collect::<Result<Vec<_>, _>>()?;
        let at: u64 = cell(x).and_then(|c| c.parse().ok()).ok_or_else(|| bad("no whole number for x"))?;
        let time: f64 =
            cell(latency).and_then(|c| c.parse().ok()).filter(|t: &f64| t.is_finite() && *t > 0.0).ok_or_else(|| bad("no time"))?;
        curves.entry(key).or_default().entry(abscissa(family, at)).or_default().push(time * scale);
    }
    let curves = launched_from_the_device(family, one_routing(family, one_kernel(curves)))
        .into_iter()
        .map(|(key, points)| curve(key, points))
        .collect();
    Ok(Table { gpu: gpu.to_owned(), implementation: implementation.to_owned(), family, curves })
}

/// Times of one key by x.
type Points = BTreeMap<u64, Vec<f64>>;

/// Rows by key and x.
type Rows = BTreeMap<Vec<KeyPart>, Points>;

/// Engines take one kernel for few rows and another for many. Curves that differ in the kernel only and have no x in common are one.
fn one_kernel(curves: Rows) -> Rows {
    let mut groups: BTreeMap<Vec<KeyPart>, Vec<(KeyPart, Points)>> = BTreeMap::new();
    for (key, points) in curves {
        if let [kernel, rest @ ..] = &key[..] {
            groups.entry(rest.to_vec()).or_default().push((kernel.clone(), points));
        }
    }
    let mut out = Rows::new();
    for (rest, curves) in groups {
        let mut all = Points::new();
        let apart = curves.iter().all(|(_, points)| points.iter().all(|(x, times)| all.insert(*x, times.clone()).is_none()));
        let with = |kernel: KeyPart| std::iter::once(kernel).chain(rest.iter().cloned()).collect::<Vec<_>>();
        if apart {
            let names: Vec<&str> =
                curves.iter().filter_map(|(k, _)| if let KeyPart::Word(w) = k { Some(w.as_str()) } else { None }).collect();
            out.insert(with(KeyPart::Word(names.join("+"))), all);
        } else {
            out.extend(curves.into_iter().map(|(kernel, points)| (with(kernel), points)));
        }
    }
    out
}

/// No GEMM kernel takes this long to start: rows whose fastest takes longer time the host of an eager call, not the GPU.
const HOST_BOUND_US: f64 = 40.0;

/// The same of an attention core, which is a few kernels: on GPUs whose rows time the GPU the shortest ones take 6 to 16 us.
const HOST_BOUND_CORE_US: f64 = 100.0;

/// Rows of a host-bound table scatter by a third over their least; what takes longer than this times the GPU.
const ABOVE_THE_HOST: f64 = 1.5;

/// Leaves out the rows of an attention table that time the host: those at its least whatever they compute, and what lies below them or above
/// a longer one, which something disturbed.
fn cores_above_the_host(curves: Rows) -> Rows {
    let least = curves.values().flat_map(BTreeMap::values).flatten().copied().fold(f64::INFINITY, f64::min);
    if least < HOST_BOUND_CORE_US {
        return curves;
    }
    let of_the_gpu = |points: Points| {
        let mut longer = f64::INFINITY;
        let mut kept = Points::new();
        for (x, times) in points.into_iter().rev() {
            let time = times.iter().sum::<f64>() / times.len() as f64;
            if time < least * ABOVE_THE_HOST {
                break;
            }
            if time <= longer {
                longer = time;
                kept.insert(x, times);
            }
        }
        kept
    };
    curves.into_iter().map(|(key, points)| (key, of_the_gpu(points))).filter(|(_, points)| !points.is_empty()).collect()
}

/// Leaves out what times the host: rows of attention cores, and the element types of a GEMM table.
fn launched_from_the_device(family: Family, mut curves: Rows) -> Rows {
    if matches!(family, Family::MlaDecode | Family::MlaPrefill | Family::GqaDecode) {
        return cores_above_the_host(curves);
    }
    let fastest = |points: &Points| points.values().flatten().copied().fold(f64::INFINITY, f64::min);
    let mut by_element: BTreeMap<KeyPart, f64> = BTreeMap::new();
    for (key, points) in &curves {
        let least = by_element.entry(key[1].clone()).or_insert(f64::INFINITY);
        *least = least.min(fastest(points));
    }
    if family == Family::Gemm {
        curves.retain(|key, _| by_element.get(&key[1]).is_some_and(|least| *least < HOST_BOUND_US));
    }
    curves
}

/// Of routed experts, the rows of a balanced router where there are any: how many experts they hit is known best.
fn one_routing(family: Family, mut curves: Rows) -> Rows {
    let balanced = |key: &[KeyPart]| key.last() == Some(&KeyPart::Word("balanced".into()));
    if family == Family::Moe && curves.keys().any(|k| balanced(k)) {
        curves.retain(|k, _| balanced(k));
    }
    curves
}

/// Numbers sort as numbers, words as words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum KeyPart {
    Number(u64),
    Word(String),
}

impl KeyPart {
    fn new(cell: &str) -> Self {
        cell.parse().map_or_else(|_| KeyPart::Word(cell.replace([' ', '|'], "_")), KeyPart::Number)
    }
}

fn curve(key: Vec<KeyPart>, points: BTreeMap<u64, Vec<f64>>) -> Curve {
    let (mut words, mut numbers) = (Vec::new(), Vec::new());
    for part in key {
        match part {
            KeyPart::Number(n) => numbers.push(n),
            KeyPart::Word(w) => words.push(w),
        }
    }
    let mean = |times: &[f64]| five_digits(times.iter().sum::<f64>() / times.len() as f64);
    Curve { words, numbers, points: points.iter().map(|(x, times)| (*x, mean(times))).collect() }
}

/// The source states five significant digits; an average keeps as many.
fn five_digits(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_are_averaged_and_decode_rows_count_themselves() {
        let csv = "kernel_source,mla_dtype,kv_cache_dtype,num_heads,batch_size,isl,tp_size,step,latency_us\n\
                   triton,bfloat16,bfloat16,2,1,1,32,127,16.683\ntriton,bfloat16,bfloat16,2,1,1,32,127,16.723\n\
                   triton,bfloat16,bfloat16,2,1,1,32,1,14.71\n";
        let table = import_csv(csv, "g", "e", Family::MlaDecode).unwrap();
        assert_eq!(table.curves.len(), 1);
        assert_eq!(table.curves[0].points, [(2, 14.71), (128, 16.703)]);
        assert_eq!(Table::parse(&table.render("c")).unwrap(), table);
    }

    #[test]
    fn rows_of_cores_that_time_the_host_are_left_out() {
        let table = |rows: &[(u64, f64)]| {
            let mut csv = String::from("kernel_source,mla_dtype,kv_cache_dtype,num_heads,batch_size,step,latency_us\n");
            rows.iter().for_each(|(step, us)| csv.push_str(&format!("triton,bfloat16,bfloat16,16,1,{},{us}\n", step - 1)));
            import_csv(&csv, "g", "e", Family::MlaDecode).unwrap().curves
        };
        // 300 us up to 1024 rows of context whatever they are, one row disturbed, then what the GPU takes.
        let curves = table(&[(2, 311.0), (128, 1300.0), (1024, 336.0), (4096, 900.0), (16384, 477.0), (65536, 1889.0)]);
        assert_eq!(curves[0].points, [(16384, 477.0), (65536, 1889.0)]);
        // Where a core of one row takes what a core takes, every row stays.
        assert_eq!(table(&[(2, 15.0), (128, 300.0), (1024, 20.0)])[0].points.len(), 3);
        assert!(table(&[(2, 311.0), (1024, 336.0)]).is_empty());
    }

    #[test]
    fn wrong_csv_names_line_and_column() {
        let error = import_csv("a,b\n1,2\n", "g", "e", Family::Gemm).unwrap_err();
        assert!(error.line == 1 && error.message.contains("kernel_source"), "{error}");
        let csv = "kernel_source,gemm_dtype,m,n,k,latency_us\nk,bf16,1,2,3,-4\n";
        assert_eq!(import_csv(csv, "g", "e", Family::Gemm).unwrap_err().line, 2);
        assert_eq!(import_csv(&csv.replace("-4", "4").replace("1,2,3", "1,2"), "g", "e", Family::Gemm).unwrap_err().line, 2);
    }
}
