//! Predicted beside measured: `cargo run --release --example validate -- [--rows] [--engine] [--served] [--filter TEXT] [FILE.csv...]`.
//!
//! Reads measured decode speeds (without files, those of `tests/data`), turns each row into the flags of `moetwin sim`, and runs the
//! `moetwin` beside this program as anybody would. Prints the mean error of every group, and beside it that of a plain curve fitted to
//! the very rows it is judged by: `time = a + b x sequences + c x sequences x context`, least squares of the relative error. Nothing of
//! these rows is in the simulator. `--rows` prints every row, `--engine` names the engine of a row to the simulator where it has it.
//!
//! What `sim` predicts is a step without prompts. Where the measurement was of requests that come and go, each token also waits for the
//! prompts of the others: `--served` asks for so many users with such prompts and answers (`--requests closed:N`) where a row states them,
//! as many requests and of such lengths as the benchmark sent, and says the error of the time to the first token as well.
//!
//! `unseen` in a group's name: rows that were gathered after the simulator was written, and written down before it was asked about them.

use serde_json::Value;
use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

type Failure = Box<dyn Error>;
/// A row by column name.
type Record = BTreeMap<String, String>;

/// A measured step and the flags that ask for it.
struct Case {
    group: String,
    what: String,
    flags: Vec<String>,
    sequences: f64,
    context: f64,
    /// Flags that ask for it with its prompts, where the row states lengths.
    served: Option<Vec<String>>,
    measured_ms: f64,
    /// Time of a token of served requests, and to their first one, where they differ from the above or were measured.
    served_ms: f64,
    first_ms: Option<f64>,
}

/// What was asked on the command line.
#[derive(Default)]
struct Options {
    rows: bool,
    engine: bool,
    served: bool,
    filter: Option<String>,
    files: Vec<PathBuf>,
}

fn main() -> Result<(), Failure> {
    let options = options()?;
    let mut cases = Vec::new();
    for file in &options.files {
        let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let records = records(&text).map_err(|e| format!("{}: {e}", file.display()))?;
        let case = |r| match r {
            r if Record::contains_key(r, "silicon_tpot_ms") => silicon(r, options.engine),
            r if r.contains_key("median_itl_ms") => unseen(r, options.engine),
            r => pcie(r, options.engine),
        };
        cases.extend(records.iter().filter_map(case));
    }
    if let Some(filter) = &options.filter {
        cases.retain(|c| c.group.contains(filter.as_str()));
    }
    let mut groups: BTreeMap<&str, Vec<&Case>> = BTreeMap::new();
    cases.iter().for_each(|c| groups.entry(&c.group).or_default().push(c));
    let mut out = std::io::stdout().lock();
    let first_head = if options.served { "first token, bias" } else { "" };
    writeln!(out, "{:58} {:>4} {:>8} {:>8} {:>8}  {first_head}", "group", "rows", "error", "bias", "curve")?;
    let (mut all, mut all_curve, mut all_first, mut without) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for (group, cases) in groups {
        let mut errors = Vec::new();
        let (mut answered, mut first) = (Vec::new(), Vec::new());
        for case in cases {
            match times_of(case, options.served)? {
                Some((ms, measured, first_ms)) => {
                    let error = ms / measured - 1.0;
                    let first_error = first_ms.zip(case.first_ms).map(|(ms, measured)| ms / measured - 1.0);
                    if options.rows {
                        let percent = error * 100.0;
                        let to_first = first_error.map_or_else(String::new, |e| format!(", first token {:+6.1} %", e * 100.0));
                        writeln!(out, "  {:56} measured {measured:8.2} ms, predicted {ms:8.2} ms, {percent:+6.1} %{to_first}", case.what)?;
                    }
                    first.extend(first_error);
                    errors.push(error);
                    answered.push(case);
                }
                None => {
                    without += 1;
                    if options.rows {
                        writeln!(out, "  {:56} no answer: moetwin sim {}", case.what, case.flags.join(" "))?;
                    }
                }
            }
        }
        if errors.is_empty() {
            continue;
        }
        let curve = curve_errors(&answered);
        let (error, bias) = (mean(errors.iter().map(|e| e.abs())), mean(errors.iter().copied()));
        let curve_error = percent(mean(curve.iter().copied()));
        writeln!(
            out,
            "{group:58} {:4} {:>7} {:>7} {curve_error:>7}  {}",
            errors.len(),
            percent(error),
            percent(bias),
            error_and_bias(&first)
        )?;
        all_first.extend(first);
        all.extend(errors);
        all_curve.extend(curve);
    }
    let (error, bias) = (mean(all.iter().map(|e| e.abs())), mean(all.iter().copied()));
    let (curve, first) = (percent(mean(all_curve.into_iter())), error_and_bias(&all_first));
    writeln!(out, "{:58} {:4} {:>7} {:>7} {curve:>7}  {first}", "all", all.len(), percent(error), percent(bias))?;
    if without > 0 {
        writeln!(out, "{without} rows without an answer (no such split, or it does not fit)")?;
    }
    Ok(())
}

fn options() -> Result<Options, Failure> {
    let mut options = Options::default();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--rows" => options.rows = true,
            "--engine" => options.engine = true,
            "--served" => options.served = true,
            "--filter" => options.filter = Some(words.next().ok_or("--filter takes a part of a group's name")?),
            other if other.starts_with("--") => {
                return Err(format!("{other}: accepted are --rows, --engine, --served, --filter TEXT and files").into());
            }
            file => options.files.push(PathBuf::from(file)),
        }
    }
    if options.files.is_empty() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        let names = ["measured-inference.csv", "measured-inference-silicon.csv", "measured-unseen.csv"];
        options.files = names.map(|name| data.join(name)).to_vec();
    }
    Ok(options)
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0u32), |(s, n), v| (s + v, n + 1));
    if count == 0 { f64::NAN } else { sum / f64::from(count) }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Error and bias of times to the first token; nothing where none was compared.
fn error_and_bias(errors: &[f64]) -> String {
    if errors.is_empty() {
        return String::new();
    }
    format!("{:>7} {:>7}", percent(mean(errors.iter().map(|e| e.abs()))), percent(mean(errors.iter().copied())))
}

/// Predicted milliseconds of a token, those measured, and those predicted to the first token: of a step, or of what users see if that is asked for.
fn times_of(case: &Case, served: bool) -> Result<Option<(f64, f64, Option<f64>)>, Failure> {
    let Some(flags) = case.served.as_ref().filter(|_| served) else {
        return Ok(predict(&case.flags)?.map(|ms| (ms, case.measured_ms, None)));
    };
    let mean = |answer: &Value, of: &str| answer["loads"][0][of]["mean"].as_f64();
    Ok(ask(flags)?.and_then(|answer| Some((mean(&answer, "tpot_ms")?, case.served_ms, mean(&answer, "ttft_ms")))))
}

/// Milliseconds of a step as `moetwin sim` says; where not all sequences fit, the time in which as many tokens leave. `None` where it has
/// no answer.
fn predict(flags: &[String]) -> Result<Option<f64>, Failure> {
    let batch = flags.iter().position(|f| f == "--batch").and_then(|i| flags.get(i + 1)?.parse::<f64>().ok()).unwrap_or(1.0);
    Ok(ask(flags)?.and_then(|answer| Some(batch * 1e3 / answer["tokens_per_s"].as_f64()?)))
}

/// What `moetwin sim` answers; `None` where the question cannot be.
fn ask(flags: &[String]) -> Result<Option<Value>, Failure> {
    let beside = std::env::current_exe()?;
    let program = beside.parent().and_then(Path::parent).ok_or("not in a build folder")?.join("moetwin");
    let run = Command::new(&program).arg("sim").arg("--json").args(flags).output();
    let run = run.map_err(|e| format!("{}: {e}; build it first: cargo build --release", program.display()))?;
    Ok(serde_json::from_slice(&run.stdout).ok())
}

/// Rows of RTX PRO 6000 boxes: Kimi without speculation, up to 64 sequences.
fn pcie(row: &Record, name_engine: bool) -> Option<Case> {
    let get = |column: &str| row.get(column).map_or("", String::as_str);
    let kimi = get("model").starts_with("Kimi") && get("quant").starts_with("INT4");
    let decode = get("metric").starts_with("decode") && get("unit") == "tok/s" && get("spec_decode") == "none";
    let forced = get("note").contains("forced on PCIe");
    let sequences: u32 = get("concurrency").parse().ok()?;
    let speed: f64 = get("value").parse().ok()?;
    if !kimi || !decode || forced || get("n_gpus") != "8" || sequences > 64 {
        return None;
    }
    let context: u32 = get("context").parse().unwrap_or(0);
    let mut flags = words(&["--model", "kimi-k2.5", "--tp", "8", "--machine", pcie_machine(get("gpu"), get("host"))]);
    flags.extend([["--batch".into(), sequences.to_string()], ["--context".into(), context.to_string()]].concat());
    for part in get("parallelism").split_whitespace() {
        let ways = |name: &str| part.strip_prefix(name).filter(|n| *n != "1" && n.parse::<u32>().is_ok());
        for (name, flag) in [("DCP", "--dcp"), ("EP", "--ep")] {
            flags.extend(ways(name).map(|n| [flag.to_owned(), n.to_owned()]).into_iter().flatten());
        }
    }
    if !get("kv_dtype").is_empty() {
        flags.extend(words(&["--kv-dtype", get("kv_dtype")]));
    }
    if get("interconnect").contains("P2P off") {
        flags.extend(words(&["--p2p", "off"]));
    }
    if get("interconnect").contains("custom PCIe") {
        flags.extend(words(&["--allreduce", "one-shot"]));
    }
    if get("launch").contains("NCCL_GRAPH_FILE") {
        flags.extend(words(&["--nccl-graph", "tuned"]));
    }
    if name_engine {
        flags.extend(words(&["--engine", if get("engine") == "SGLang" { "sglang" } else { "vllm" }]));
    }
    Some(Case {
        group: format!("kimi int4 rtx-pro-6000 {}", get("group")),
        what: format!("context {context}, {sequences} at once"),
        flags,
        sequences: f64::from(sequences),
        context: f64::from(context),
        served: None,
        measured_ms: f64::from(sequences) * 1e3 / speed,
        served_ms: f64::from(sequences) * 1e3 / speed,
        first_ms: None,
    })
}

fn pcie_machine(gpu: &str, host: &str) -> &'static str {
    match (gpu.contains("Max-Q"), host) {
        (true, h) if h.contains("3 PCIe switches") => "8x-rtx-pro-6000-3switch",
        (true, _) => "8x-rtx-pro-6000-max-q",
        (false, h) if h.contains("Turin") || h.contains("9575F") => "8x-rtx-pro-6000-dual-turin",
        (false, _) => "8x-rtx-pro-6000-server",
    }
}

/// Rows of NVLink machines: one node, no attention data parallelism, up to 64 sequences.
fn silicon(row: &Record, name_engine: bool) -> Option<Case> {
    let get = |column: &str| row.get(column).map_or("", String::as_str);
    let number = |column: &str| get(column).parse::<u32>().ok();
    let machine = ["h100", "h200", "b200", "b300"].into_iter().find(|m| get("system") == format!("{m}_sxm"))?;
    let model = silicon_model(get("model_path"), get("precision"))?;
    let (gpus, ep, sequences) = (number("n_gpus")?, number("moe_ep_size")?, number("concurrency")?);
    // Rows whose attention and experts lie on different numbers of GPUs do not say on how many they ran.
    let contradictory = number("tp_size")? != number("moe_tp_size")? * ep;
    if gpus > 8 || ep > gpus || contradictory || sequences == 0 || sequences > 64 || number("attention_dp_size")? != 1 {
        return None;
    }
    let (input, output) = (number("isl")?, number("osl")?);
    let context = input + output / 2;
    let mut flags = words(&["--model", model, "--machine", &format!("8x-{machine}-sxm"), "--tp", &gpus.to_string()]);
    if ep > 1 {
        flags.extend(words(&["--ep", &ep.to_string()]));
    }
    let engine = get("backend");
    if name_engine && matches!(engine, "sglang" | "vllm") {
        flags.extend(words(&["--engine", engine]));
        flags.extend(version_flags(get("backend_version")));
    }
    // InferenceX sends ten requests a user, of lengths between four fifths and all of those named (benchmarks/README.md there:
    // RANDOM_RANGE_RATIO 0.8, `--num-prompts $(( $CONC * 10 ))`).
    let (users, count) = (format!("closed:{sequences}"), (10 * sequences).to_string());
    let range = |tokens: u32| format!("{}-{tokens}", (tokens * 4 / 5).max(1));
    let lengths = ["--prompt-tokens".to_owned(), range(input), "--output-tokens".to_owned(), range(output)];
    let served = [&flags[..], &words(&["--requests", &users, "--request-count", &count]), &lengths].concat();
    flags.extend(words(&["--batch", &sequences.to_string(), "--context", &context.to_string()]));
    let split = if ep > 1 { format!("tp{gpus} ep{ep}") } else { format!("tp{gpus}") };
    Some(Case {
        group: format!("{model} {machine} {engine} {split}"),
        what: format!("{input} in, {output} out, {sequences} at once, {}", get("backend_version")),
        flags,
        sequences: f64::from(sequences),
        context: f64::from(context),
        served: Some(served),
        measured_ms: get("silicon_tpot_ms").parse().ok()?,
        served_ms: get("silicon_tpot_ms").parse().ok()?,
        first_ms: get("silicon_ttft_ms").parse().ok(),
    })
}

/// Which version, where it is a release that the engines know.
fn version_flags(version: &str) -> Vec<String> {
    if version.starts_with(|c: char| c.is_ascii_digit()) { words(&["--engine-version", version]) } else { Vec::new() }
}

/// Rows gathered afterwards: outputs of the engines' own serving benchmarks. A step is compared with the median time between tokens, which
/// hardly any prompt interrupts, a served token with the mean.
fn unseen(row: &Record, name_engine: bool) -> Option<Case> {
    let get = |column: &str| row.get(column).map_or("", String::as_str);
    let number = |column: &str| get(column).parse::<u32>().ok();
    let (tp, ep, dp, users) = (number("tp")?, number("ep")?, number("dp_attention")?, number("concurrency")?);
    let (input, output, requests) = (number("isl")?, number("osl")?, number("requests")?);
    let (machine, engine, model) = (get("machine"), get("engine"), get("model"));
    let own_config = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(format!("{model}.json"));
    let named = if own_config.exists() { own_config.to_string_lossy().into_owned() } else { model.to_owned() };
    let mut flags = words(&["--model", &named, "--machine", machine, "--tp", &tp.to_string()]);
    for (flag, ways) in [("--ep", ep), ("--dp-attention", dp)] {
        if ways > 1 {
            flags.extend(words(&[flag, &ways.to_string()]));
        }
    }
    if name_engine {
        flags.extend(words(&["--engine", engine]));
        flags.extend(version_flags(get("version")));
    }
    // Uniform lengths lie between 1 and the one named (`--random-range-ratio 0`).
    let uniform = get("lengths") == "uniform";
    let range = |tokens: u32| if uniform { format!("1-{tokens}") } else { tokens.to_string() };
    let middle = |tokens: u32| if uniform { tokens.div_ceil(2) } else { tokens };
    let load = ["--requests", &format!("closed:{users}"), "--request-count", &requests.to_string()].map(str::to_owned);
    let lengths = ["--prompt-tokens".to_owned(), range(input), "--output-tokens".to_owned(), range(output)];
    let served = [&flags[..], &load, &lengths].concat();
    let context = middle(input) + middle(output) / 2;
    flags.extend(words(&["--batch", &users.to_string(), "--context", &context.to_string()]));
    let gpu = machine.trim_start_matches("8x-").trim_end_matches("-sxm");
    let split: String = [("tp", tp), ("ep", ep), ("dp", dp)].iter().filter(|(_, n)| *n > 1).map(|(w, n)| format!(" {w}{n}")).collect();
    Some(Case {
        group: format!("unseen {model} {gpu} {engine}{split}"),
        what: format!("{input} in, {output} out, {users} at once, {}", get("version")),
        flags,
        sequences: f64::from(users),
        context: f64::from(context),
        served: Some(served),
        measured_ms: get("median_itl_ms").parse().or_else(|_| get("mean_tpot_ms").parse()).ok()?,
        served_ms: get("mean_tpot_ms").parse().ok()?,
        first_ms: get("mean_ttft_ms").parse().ok(),
    })
}

/// Built-in models whose format is the row's.
fn silicon_model(path: &str, precision: &str) -> Option<&'static str> {
    Some(match (path, precision) {
        ("MiniMaxAI/MiniMax-M2.5", "fp8") => "minimax-m2.5",
        ("MiniMaxAI/MiniMax-M2.5", "fp4") => "minimax-m2.5-nvfp4",
        ("Qwen/Qwen3-235B-A22B-FP8", "fp8") => "qwen3-235b-a22b-fp8",
        ("Qwen/Qwen3.5-397B-A17B", "bf16") => "qwen3.5-397b-a17b",
        ("deepseek-ai/DeepSeek-R1", "fp8") => "deepseek-r1",
        ("deepseek-ai/DeepSeek-V3", "fp8") => "deepseek-v3",
        ("moonshotai/Kimi-K2.5", "int4") => "kimi-k2.5",
        ("moonshotai/Kimi-K2.5", "fp4") => "kimi-k2.5-nvfp4",
        ("openai/gpt-oss-120b", "fp4") => "gpt-oss-120b",
        ("zhipuai/GLM-5", "fp4") => "glm-5-nvfp4",
        _ => return None,
    })
}

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|w| (*w).to_owned()).collect()
}

/// Relative errors of `a + b x sequences + c x sequences x context`, fitted to the same rows.
fn curve_errors(cases: &[&Case]) -> Vec<f64> {
    let most = cases.iter().map(|c| c.context).fold(1.0, f64::max);
    // Each row divided by its measurement, so that the squares are of relative errors.
    let terms = |c: &Case| [1.0, c.sequences, c.sequences * c.context / most].map(|t| t / c.measured_ms);
    let mut normal = [[0.0; 4]; 3];
    for case in cases {
        let row = terms(case);
        for (line, left) in normal.iter_mut().zip(row) {
            for (cell, right) in line.iter_mut().zip(row.into_iter().chain([1.0])) {
                *cell += left * right;
            }
        }
    }
    // Groups of fewer contexts or sequences than terms are met by many curves: the pull picks one.
    (0..3).for_each(|i| normal[i][i] *= 1.0 + 1e-9);
    let fitted = solve(normal);
    cases.iter().map(|c| (terms(c).iter().zip(fitted).map(|(t, f)| t * f).sum::<f64>() - 1.0).abs()).collect()
}

/// Gauss-Jordan elimination of three equations.
fn solve(mut m: [[f64; 4]; 3]) -> [f64; 3] {
    for i in 0..3 {
        let pivot = (i..3).max_by(|&a, &b| m[a][i].abs().total_cmp(&m[b][i].abs())).unwrap_or(i);
        m.swap(i, pivot);
        if m[i][i].abs() < 1e-15 {
            continue;
        }
        for other in (0..3).filter(|r| *r != i) {
            let factor = m[other][i] / m[i][i];
            let from = m[i];
            m[other].iter_mut().zip(from).for_each(|(cell, value)| *cell -= factor * value);
        }
    }
    [0, 1, 2].map(|i| if m[i][i].abs() < 1e-15 { 0.0 } else { m[i][3] / m[i][i] })
}

/// Rows of a CSV with a header; cells may be quoted.
fn records(text: &str) -> Result<Vec<Record>, Failure> {
    let mut lines = text.lines();
    let header = cells(lines.next().ok_or("it is empty")?);
    let mut out = Vec::new();
    for (index, line) in lines.enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let row = cells(line);
        if row.len() != header.len() {
            return Err(format!("line {}: {} cells, the header has {}", index + 2, row.len(), header.len()).into());
        }
        out.push(header.iter().cloned().zip(row).collect());
    }
    Ok(out)
}

fn cells(line: &str) -> Vec<String> {
    let (mut out, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                cell.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => out.push(std::mem::take(&mut cell)),
            other => cell.push(other),
        }
    }
    out.push(cell);
    out
}
