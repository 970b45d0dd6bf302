//! `--kernels DIR` as scripts see it: times that a user brings are asked first, named, and part of the digest.

mod support;

use std::fs;
use support::{line, moetwin, scratch};

/// The words of a step whose matrix products a table of times may hold.
const STEP: [&str; 11] =
    ["sim", "--json", "--model", "Qwen/Qwen3-30B-A3B", "--machine", "8x-h200-sxm", "--tp", "1", "--engine", "vllm", "--kernels"];

/// A table of products of bf16, of one row in the time said and of more in longer ones.
fn products(us: f64) -> String {
    let rows = [(1, 1.0), (64, 2.0), (4096, 20.0)].map(|(m, times)| format!("x,bfloat16,{m},5120,2048,{}\n", us * times));
    format!("kernel_source,gemm_dtype,m,n,k,latency_us\n{}", rows.concat())
}

#[test]
fn times_that_a_user_brings_are_asked_first() {
    let folder = scratch("kernels");
    let of = |us: f64| {
        fs::write(folder.join("h200_sxm__vllm-0.99.0__gemm.csv"), products(us)).unwrap();
        let mut words = STEP.to_vec();
        words.push(folder.to_str().unwrap());
        let run = moetwin(&words);
        assert_eq!(run.code, 0, "{}", run.err);
        let json = run.json();
        let said: Vec<String> = json["assumptions"].as_array().unwrap().iter().map(|a| a.as_str().unwrap().to_owned()).collect();
        assert!(said.iter().any(|a| a.contains("asked first: vllm-0.99.0 on H200 SXM (gemm)")), "{said:?}");
        (json["step_ms"].as_f64().unwrap(), json["digest"].as_str().unwrap().to_owned())
    };
    let (fast, slow) = (of(5.0), of(15.0));
    // 48 layers have one such product, 10 us slower in each; products of other shapes take after it.
    assert!((0.48..2.0).contains(&(slow.0 - fast.0)), "{} and {} ms", fast.0, slow.0);
    assert_ne!(fast.1, slow.1);
    assert_eq!(fast.1, of(5.0).1);
}

#[test]
fn a_folder_that_holds_no_times_is_refused() {
    let folder = scratch("no-kernels");
    let words = [&STEP[..], &[folder.to_str().unwrap()]].concat();
    moetwin(&words).refused(&["--kernels", "no kernel table in CSV among 0 files"]);
    fs::write(folder.join("h200_sxm__vllm-0.99.0__gemm.csv"), "kernel_source,gemm_dtype,m,n,k,latency_us\nx,bfloat16,1,64,64,fast\n")
        .unwrap();
    moetwin(&words).refused(&["--kernels", "h200_sxm__vllm-0.99.0__gemm.csv", "line 2"]);
    fs::write(folder.join("h200_sxm__vllm-0.99.0__gemm.csv"), "version https://git-lfs.github.com/spec/v1\n").unwrap();
    moetwin(&words).refused(&["git lfs pull"]);
    let folder = folder.join("none");
    line(&format!("sim --kernels {}", folder.display())).refused(&["--kernels", "none"]);
}

#[test]
fn a_machine_file_with_a_rate_of_nought_is_refused_where_it_stands() {
    let file = scratch("rates").join("machine.json");
    let machine = line("machine show 8x-h200-sxm --json").out;
    let nought = machine.replacen("841000000000000", "0", 1);
    assert_ne!(machine, nought);
    fs::write(&file, nought).unwrap();
    line(&format!("sim --machine {}", file.display())).refused(&["reached_per_s"]);
}
