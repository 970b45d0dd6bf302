//! Runs the fixtures of a folder on GPUs and prints how far they are from the reference: `gpu_check FOLDER TP EP GRAPHS [NAMES]`.
#![allow(clippy::print_stdout)]

use moetwin_cuda::exec::{CudaExecutor, CudaOptions};
use moetwin_kernels::reference::Data;
use moetwin_models::{AllToAll, Deployment, config};
use moetwin_runtime::session::{Session, SessionOptions};
use moetwin_runtime::weights::{Checkpoint, CheckpointWeights, Layers};
use std::path::Path;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let folder = Path::new(&args[1]);
    let (tp, ep, graphs): (u32, u32, bool) = (args[2].parse()?, args[3].parse()?, args[4] == "on");
    let a2a = if args.get(6).is_some_and(|a| a == "a2a") { AllToAll::Nccl } else { AllToAll::None };
    for name in args[5].split(',') {
        let deployment = Deployment { tp, ep, a2a, ..Deployment::default() };
        match check(&folder.join(name), name, deployment, graphs) {
            Ok(line) => println!("{name} tp{tp} ep{ep}: {line}"),
            Err(e) => println!("{name} tp{tp} ep{ep}: FAILED {e}"),
        }
    }
    Ok(())
}

fn check(dir: &Path, name: &str, deployment: Deployment, graphs: bool) -> Result<String, Box<dyn std::error::Error>> {
    let spec = config::read(&std::fs::read_to_string(dir.join("config.json"))?, name)?;
    let weights = CheckpointWeights::open(dir, &spec, Layers::All)?;
    let expected = Checkpoint::from_bytes("expected", std::fs::read(dir.join("expected.safetensors"))?)?;
    let ids = expected.get("input_ids").ok_or("no input_ids")?;
    let width = ids.shape[1] as usize;
    let all: Vec<i32> = ids.bytes.chunks_exact(8).map(|c| i64::from_le_bytes(c.try_into().unwrap()) as i32).collect();
    let prompts: Vec<Vec<i32>> = all.chunks(width).map(<[i32]>::to_vec).collect();
    let new = 24usize.min(spec.max_positions as usize - width);
    let capacity = (width + new) as u32;
    let executor = CudaExecutor::open(deployment.ranks(), CudaOptions { capacity, deadline: Duration::from_secs(60), graphs })?;
    let mut session =
        Session::new(&spec, &weights, executor, SessionOptions { deployment, lower: Default::default(), dump: true }, capacity);
    let out = session.prefill(&prompts)?;
    let mut worst = (0.0f64, String::new());
    let (mut sets, mut total) = (0, 0);
    for v in &out.values {
        let Some(t) = expected.get(&v.name) else { continue };
        let cols = *t.shape.last().unwrap() as usize;
        if v.name.ends_with(".experts") {
            let want: Vec<i32> = t.bytes.chunks_exact(4).map(|c| i32::from_le_bytes(c.try_into().unwrap())).collect();
            let Data::Int(got) = &v.value.data else { continue };
            for (g, w) in got.chunks(cols).zip(want.chunks(cols)) {
                let sorted = |s: &[i32]| {
                    let mut s = s.to_vec();
                    s.sort_unstable();
                    s
                };
                total += 1;
                sets += usize::from(sorted(g) == sorted(w));
            }
        } else if v.name == "logits" || v.name.starts_with("hidden") {
            let want: Vec<f32> = t.bytes.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect();
            let Data::Real(got) = &v.value.data else { continue };
            let mut errors: Vec<f64> = got
                .chunks(cols)
                .zip(want.chunks(cols))
                .map(|(g, w)| {
                    let e: f64 = g.iter().zip(w).map(|(a, b)| f64::from(a - b).powi(2)).sum();
                    let n: f64 = w.iter().map(|b| f64::from(*b).powi(2)).sum();
                    (e / n.max(1e-30)).sqrt()
                })
                .collect();
            errors.sort_by(f64::total_cmp);
            let median = errors[errors.len() / 2];
            if !(median <= worst.0) {
                worst = (median, v.name.clone());
            }
        }
    }
    let rows: Vec<u32> = prompts.iter().map(|p| p.len() as u32).collect();
    let pick =
        |l: &[Vec<f32>]| -> Vec<i32> { l.iter().map(|r| (0..r.len()).fold(0, |b, i| if r[i] > r[b] { i } else { b }) as i32).collect() };
    let mut next = pick(&out.last_logits(&rows));
    let mut tokens = vec![next.clone()];
    for _ in 1..new {
        next = pick(&session.decode(&next)?.last_logits(&vec![1; prompts.len()]));
        tokens.push(next.clone());
    }
    let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(dir.join("expected.json"))?)?;
    let want: Vec<Vec<i32>> = serde_json::from_value(json["greedy"].clone())?;
    let same =
        tokens.iter().enumerate().map(|(i, t)| t.iter().enumerate().filter(|(s, x)| want[*s].get(i) == Some(x)).count()).sum::<usize>();
    Ok(format!("worst median {:.2e} at {}, expert sets {sets}/{total}, greedy {same}/{}", worst.0, worst.1, tokens.len() * prompts.len()))
}
