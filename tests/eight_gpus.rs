//! docs/eight-gpus.sh from beginning to end, with stubs in the places of GPUs.

mod support;

use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use support::{moetwin, scratch};

fn stub(path: &Path, script: &str) {
    fs::write(path, format!("#!/bin/sh\n{script}")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The script's table on two GPUs of so much memory. Predictions are the program's; what would need a GPU is made up.
fn table(folder: &Path, memory_mib: u32) -> String {
    let gpus = "case \"$1\" in\n  -L) echo GPU 0; echo GPU 1 ;;\n  *) echo MEMORY; echo MEMORY ;;\nesac\n";
    stub(&folder.join("nvidia-smi"), &gpus.replace("MEMORY", &memory_mib.to_string()));
    let measured =
        "{\"step\": {\"measured_ms\": 2.0, \"predicted_ms\": 1.9, \"median_error\": 0.1}, \"classes\": [], \"distinct_experts\": 80}";
    let program = env!("CARGO_BIN_EXE_moetwin");
    let ours = format!("case \"$1\" in\n  run) echo '{{}}' ;;\n  compare) echo '{measured}' ;;\n  *) exec {program} \"$@\" ;;\nesac\n");
    stub(&folder.join("moetwin"), &ours);
    let machine = folder.join("machine.json");
    fs::write(&machine, moetwin(&["machine", "show", "8x-h200-sxm", "--json"]).out).unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let script = Command::new("bash")
        .arg("docs/eight-gpus.sh")
        .args([folder.join("moetwin"), folder.join("out")])
        .envs([("PATH", path.as_str()), ("SHORT", "1"), ("ONLY", "tp2-b1-c128"), ("MACHINE", machine.to_str().unwrap())])
        .env_remove("LAYERS")
        .output()
        .unwrap();
    let out = String::from_utf8(script.stdout).unwrap();
    assert!(script.status.success(), "{out}{}", String::from_utf8_lossy(&script.stderr));
    out
}

#[test]
fn the_script_takes_as_many_layers_as_fit_and_ends_with_a_table() {
    if Command::new("python3").arg("--version").output().is_err() {
        return;
    }
    let folder = scratch("eight-gpus");
    // What two GPUs hold of the first layers, GiB, by the same ledger: a layer is 9.1.
    let held = |layers: u32| {
        let layers = layers.to_string();
        let words = ["sim", "--json", "--machine", "8x-h200-sxm", "--model", "kimi-k2.5", "--tp", "1", "--layers", &layers];
        let json: Value = moetwin(&words).json();
        let ranks = json["memory"]["per_rank"].as_array().unwrap();
        ranks.iter().find(|r| r["phase"] == "kv_alloc").unwrap()["total_gib"].as_f64().unwrap()
    };
    for (memory_mib, most) in [(143_771, 8), (40_000, 8)] {
        let table = table(&folder, memory_mib);
        let layers: u32 = table.split(" layers of Kimi-K2.5 on 2 GPUs").next().unwrap().rsplit('\n').next().unwrap().parse().unwrap();
        let room = 2.0 * f64::from(memory_mib) / 1024.0 * 0.75;
        assert!(held(layers) <= room && (layers == most || held(layers + 1) > room), "{layers} layers in {room} GiB");
        let row = table.lines().find(|l| l.starts_with("tp2-b1-c128")).unwrap_or_else(|| panic!("{table}"));
        // Measured, and the step that was predicted before.
        let words: Vec<&str> = row.split_whitespace().collect();
        assert!(words[1] == "2.000" && words[2].parse::<f64>().unwrap() > 0.1, "{row}");
    }
}
