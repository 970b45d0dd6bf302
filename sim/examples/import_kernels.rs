//! Turns a folder of kernel-time CSVs, named `GPU__ENGINE-VERSION__FAMILY.csv`, into the tables under `sim/data/kernels`:
//! `cargo run -p moetwin-sim --example import_kernels -- CSV_FOLDER OUT_FOLDER PREFIX...` (prefixes of file names to take).
//! Afterwards `import_kernels --left-out OUT_FOLDER`, built with the new tables, writes how well their points predict each other.

#![allow(clippy::disallowed_methods, reason = "a tool takes its folders as arguments; the simulator itself may not")]

use moetwin_sim::cost::import::import_csv;
use moetwin_sim::cost::table::Family;
use moetwin_sim::cost::{family_errors, render_left_out};
use std::error::Error;
use std::fs;
use std::path::Path;

/// Families by their name in the CSV file names.
const NAMES: [(&str, Family); 6] = [
    ("gemm", Family::Gemm),
    ("moe", Family::Moe),
    ("generation-mla", Family::MlaDecode),
    ("mla-generation-module", Family::MlaDecodeModule),
    ("context-mla", Family::MlaPrefill),
    ("decode-attention", Family::GqaDecode),
];

// The ban on reading arguments is for the simulator, not for programs that feed it.
#[allow(clippy::disallowed_methods)]
fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, to] = args.as_slice()
        && flag == "--left-out"
    {
        return Ok(fs::write(Path::new(to).join("left-out.txt"), render_left_out(&family_errors()))?);
    }
    let [from, to, prefixes @ ..] = args.as_slice() else {
        return Err("usage: import_kernels CSV_FOLDER OUT_FOLDER PREFIX...".into());
    };
    let mut paths: Vec<_> = fs::read_dir(from)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
    paths.sort();
    for path in paths {
        let name = path.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
        let parts: Vec<&str> = name.split("__").collect();
        let [gpu, implementation, family] = parts[..] else { continue };
        let Some((_, family)) = NAMES.iter().find(|(n, _)| *n == family) else { continue };
        if !prefixes.iter().any(|p| name.starts_with(p.as_str())) {
            continue;
        }
        let table = import_csv(&fs::read_to_string(&path)?, gpu, implementation, *family).map_err(|e| format!("{name}: {e}"))?;
        let comment = format!("From aiconfigurator-core 0.12.0 (Apache-2.0, see NOTICE), {gpu}, {implementation}; times in microseconds.");
        let out = Path::new(to).join(format!("{gpu}__{implementation}__{}.txt", family.name()));
        fs::write(out, table.render(&comment))?;
    }
    Ok(())
}
