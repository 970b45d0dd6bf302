//! What scripts rely on: exit codes, where things are written, messages that mark the place, files whole or absent.

mod support;

use std::fs;
use std::io::Read;
use std::process::Stdio;
use support::{command, line, listing, moetwin, scratch};

const SMALL: &str = "tests/fixtures/tiny-deepseek-v3";

#[test]
fn help_and_version_are_answers() {
    for words in ["--help", "-h", "--version", "sim --help", "help graph", "model list --help"] {
        let run = line(words);
        assert_eq!((run.code, run.err.as_str()), (0, ""), "{words}");
        assert!(!run.out.is_empty(), "{words}");
    }
    assert!(line("--help").out.contains("Exit codes:"));
    // Nothing asked is nothing understood.
    assert_eq!(line("").code, 2);
}

#[test]
fn wrong_words_are_marked_and_the_right_ones_named() {
    line("simm").refused(&["'simm'", "sim"]);
    line("sim --modle x").refused(&["'--modle'", "--model"]);
    line("sim --graphs maybe").refused(&["'maybe'", "--graphs", "on, off"]);
    line("sim --a2a deepepp").refused(&["'deepepp'", "none, nccl, flashinfer, deepep", "'deepep'"]);
    line("sim --tp 0").refused(&["'0'", "--tp", "less than 1", "accepted: a whole number from 1 to 4096"]);
    line("sim --tp eight").refused(&["'eight'", "--tp", "not a whole number"]);
    line("sim --tp").refused(&["--tp <N>"]);
    line("sim --phase verify:0").refused(&["'verify:0'", "--phase", "verify:3"]);
    line("sim --routing zipf:x").refused(&["'zipf:x'", "--routing", "accepted: zipf:S", "zipf:1.2"]);
    line("sim --requests closed:x").refused(&["'closed:x'", "--requests", "accepted: closed:N,.."]);
    line("sim --spec mtp:x").refused(&["'mtp:x'", "--spec", "accepted: none, eagle3:N, mtp:N"]);
    line("calibrate --splits epx").refused(&["'epx'", "--splits", "accepted: a number of ranks"]);
    line("sweep --batches 1,x").refused(&["'x'", "--batches", "accepted: a whole number from 1 to 65536"]);
    line("sim --seed -1").refused(&["--seed"]);
    line("sim extra").refused(&["'extra'"]);
    line("completions tcsh").refused(&["'tcsh'", "bash"]);
}

#[test]
fn names_that_resemble_come_first_and_the_place_is_under_carets() {
    let run = line("sim --model kimi-k25 --json");
    run.refused(&[
        "--model 'kimi-k25'",
        "\n  moetwin sim --model kimi-k25 --json\n                      ^^^^^^^^\n",
        "nearest: kimi-k2",
        "deepseek-v3",
    ]);
    let run = line("sim --machine=8x-h200");
    run.refused(&["\n  moetwin sim --machine=8x-h200\n                        ^^^^^^^\n", "accepted: 8x-"]);
    line("model show kimmi").refused(&["model 'kimmi'", "\n  moetwin model show kimmi\n                     ^^^^^\n"]);
    line("machine show nope").refused(&["machine 'nope'", "^^^^", "a machine file"]);
}

#[test]
fn deployments_that_cannot_be_are_bad_input() {
    line("sim --tp 8 --ep 3").refused(&["--ep '3'", "does not divide --tp = 8", "1, 2, 4, 8", "^"]);
    line("sim --ep 4 --dp-attention 3").refused(&["--dp-attention '3'", "--tp = 4"]);
    line("sim --tp 16").refused(&["--tp '16'", "16 ranks", "8 GPUs"]);
    line("sim --replicas 9").refused(&["9", "8 GPUs"]);
    // 384 experts in INT4 groups of 32: 64 ways leave 32 columns, one group; 128 would cut it, but 64 heads refuse first.
    line(&format!("run --model {SMALL} --tp 3 --prompt-ids 1")).refused(&["--tp '3'", "legal"]);
    line("sim --tp 2 --ep 2 --a2a deepep").refused(&["deepep"]);
    line("sim --tp 4 --dcp 3").refused(&["--dcp '3'", "1, 2, 4"]);
    line("sim --model qwen3-30b-a3b --tp 8 --dcp 4").refused(&["--dcp '4'", "4 heads", "legal dcp: 1, 2"]);
    line("sim --context 9999999").refused(&["--context '9999999'", "262144"]);
    line("sim --phase prefill --context 0").refused(&["--context '0'"]);
    line("sim --routing no/such/file").refused(&["--routing 'no/such/file'", "uniform"]);
}

#[test]
fn flags_whose_effect_comes_later_say_so() {
    line("run --backend cuda --tp 2 --allreduce two-shot").refused(&["--allreduce", "not modelled in this version", "accepted: ", "^"]);
    line("run --backend cuda --tp 2 --allreduce engine").refused(&["--allreduce 'engine'", "auto, nccl, one-shot"]);
    line("run --tp 2 --ep 2 --a2a nccl --ep-capacity 8").refused(&["--ep-capacity '8'", "--backend cuda"]);
    line("run --backend cuda --tp 2 --ep-capacity 8").refused(&["--ep-capacity '8'", "--a2a nccl"]);
    // And the neutral values of the same flags are accepted.
    assert_eq!(line("graph --engine native --spec none --tp 1 --model tests/fixtures/tiny-deepseek-v3").code, 0);
}

#[test]
fn files_from_elsewhere_are_refused_with_their_place() {
    let folder = scratch("files");
    let write = |name: &str, content: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, content).unwrap();
        path.to_string_lossy().into_owned()
    };
    let unfinished = write("unfinished.json", b"{\"model_type\": \"deepseek_v3\",\n \"hidden_size\": }");
    moetwin(&["sim", "--model", &unfinished]).refused(&["--model", "unfinished.json:2:17"]);
    let unknown = write("unknown.json", b"{\"model_type\": \"gpt2\"}");
    moetwin(&["sim", "--model", &unknown]).refused(&["model_type", "gpt2", "deepseek_v3", "kimi_k2"]);
    let binary = write("binary.json", &[0xff, 0xfe, 0]);
    moetwin(&["sim", "--model", &binary]).refused(&["not UTF-8"]);
    let machine = write("machine.json", b"{\"schema\": 1,\n \"name\": 3}");
    moetwin(&["sim", "--machine", &machine]).refused(&["--machine", "line 2"]);
    let histogram = write("histogram.json", b"{\"schema\": 1, \"layers\": {\"1\": [1, 2]}}");
    moetwin(&["sim", "--routing", &histogram]).refused(&["--routing", "layer 1", "384"]);
    moetwin(&["sim", "--model", folder.to_str().unwrap()]).refused(&["config.json"]);
    let ids = write("ids.safetensors", b"12345678");
    moetwin(&["run", "--input-ids", &ids]).refused(&["--input-ids"]);
}

#[test]
fn nothing_is_written_when_the_answer_does_not_come() {
    let folder = scratch("unwritten");
    let file = |name: &str| folder.join(name).to_string_lossy().into_owned();
    moetwin(&["sim", "--tp", "3", "--trace", &file("trace.json")]).refused(&["--tp"]);
    moetwin(&["graph", "--tp", "7", "--out", &file("graph.txt")]).refused(&["7"]);
    moetwin(&["run", "--prompt-ids", "99999999", "--dump", &file("dump")]).refused(&["99999999"]);
    assert_eq!(listing(&folder), [""; 0]);
    moetwin(&["sim", "--trace", folder.to_str().unwrap()]).refused(&["--trace", "folder"]);
    moetwin(&["sim", "--trace", &file("no/such/folder/trace.json")]).refused(&["--trace", "cannot be written"]);
    let written = moetwin(&["graph", "--model", SMALL, "--tp", "2", "--out", &file("graph.txt")]);
    assert_eq!((written.code, written.out.as_str()), (0, ""), "{}", written.err);
    assert_eq!(listing(&folder), ["graph.txt"]);
}

/// Flags of a help text whose values are files that are written: the one that says so, and everything until the next flag.
fn writing_flags(help: &str) -> Vec<String> {
    let mut flags: Vec<(String, String)> = Vec::new();
    for l in help.lines().map(str::trim) {
        match l.split_once("--").filter(|(before, _)| before.is_empty() || before.starts_with('-')) {
            Some((_, rest)) => flags.push((format!("--{}", rest.split([' ', '=']).next().unwrap()), l.to_owned())),
            None => flags.iter_mut().last().into_iter().for_each(|(_, text)| text.extend([" ", l])),
        }
    }
    let writes = |text: &str| text.contains("<FILE>") && ["Write ", "write it", "Keep rows"].iter().any(|w| text.contains(w));
    flags.into_iter().filter(|(_, text)| writes(text)).map(|(flag, _)| flag).collect()
}

#[test]
fn a_dash_is_no_file_where_standard_output_has_the_answer() {
    let asked = [
        ("sim", "sim", "--trace"),
        ("sim", "sim", "--report"),
        ("sweep", "sweep", "--resume"),
        ("graph", "graph", "--out"),
        ("run", "run --prompt-ids 1 --max-tokens 1", "--dump"),
        ("run", "run --prompt-ids 1 --max-tokens 1", "--record-routing"),
        ("run", "run --backend cuda --synthetic --only-rank 0", "--trace"),
        ("compare", "", ""),
        ("calibrate", "calibrate --machine 8x-l40s --from sim/data/nccl-tests/manifest.json", "--out"),
        ("calibrate", "calibrate", "--out"),
        ("collective", "collective", "--trace"),
        ("machine import", "machine import tests/topologies/rtx4090-p2p.txt", "--out"),
        ("machine detect", "machine detect", "--out"),
        ("doctor", "doctor", "--out"),
        ("check", "", ""),
        ("model show", "", ""),
        ("machine show", "", ""),
    ];
    for (of, words, flag) in asked.into_iter().filter(|(_, words, _)| !words.is_empty()) {
        let run = line(&format!("{words} {flag} -"));
        if of == "graph" {
            // The graph is the answer, so it goes there either way.
            assert_eq!((run.code, run.out.as_str()), (0, line("graph").out.as_str()), "{}", run.err);
        } else {
            run.refused(&[&format!("{flag} '-'"), "is no file: standard output is where the answer goes", "./-"]);
        }
    }
    // None is left out.
    for (of, ..) in asked {
        for flag in writing_flags(&line(&format!("{of} --help")).out) {
            assert!(asked.iter().any(|(o, _, f)| *o == of && *f == flag), "{of} {flag}");
        }
    }
    assert_eq!(writing_flags(&line("sim --help").out), ["--trace", "--report"]);
}

#[test]
fn a_value_that_is_given_again_is_taken_once_and_said() {
    let run = line("sim --requests closed:1,2,1 --request-count 4 --json");
    assert!(run.err.contains("note: --requests: 1 is given more than once and taken once"), "{}", run.err);
    assert_eq!(run.json()["loads"].as_array().unwrap().len(), 2, "{}", run.out);
    let sizes = line("collective --sizes 64K,65536,1M --json");
    assert!(sizes.err.contains("note: --sizes: 65536 is given more than once"), "{}", sizes.err);
    assert_eq!(sizes.json()["rows"].as_array().unwrap().len(), 2);
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let mut child = command(&["graph"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 16];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    // The pipe is closed now; the graph is far longer than its buffer.
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!((child.wait().unwrap().code(), err.as_str()), (Some(0), ""));
}

#[test]
fn completions_know_the_flags() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let run = moetwin(&["completions", shell]);
        assert_eq!(run.code, 0);
        assert!(run.out.contains("dp-attention"), "{shell}");
    }
}

#[test]
fn without_a_gpu_the_cuda_backend_names_what_to_install() {
    // An empty folder stands for each library, so that a machine that has them gives the same answer.
    let empty = scratch("no-cuda");
    let mut command = command(&["run", "--backend", "cuda", "--tp", "2"]);
    for variable in ["MOETWIN_CUDA_DRIVER", "MOETWIN_NVRTC", "MOETWIN_CUBLASLT", "MOETWIN_NCCL"] {
        command.env(variable, &empty);
    }
    let output = command.output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(3), &b""[..]), "{err}");
    for words in ["CUDA driver: not found", "NVRTC: not found", "NCCL: not found", "install", "pip install nvidia-nccl-cu13"] {
        assert!(err.contains(words), "no {words:?} in: {err}");
    }
}

#[test]
fn check_reads_logs_and_machines() {
    let dir = scratch("check-log");
    let log = dir.join("server.log");
    let text = "[TP0] Load weight begin. avail mem=94.02 GB\n[TP0] Load weight end. elapsed=340.1 s, type=KimiK25ForConditionalGeneration, avail mem=16.31 GB, mem usage=77.71 GB.\n\
                Traceback (most recent call last):\n  File \"m.py\", line 1, in init_memory_pool\nRuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n";
    fs::write(&log, text).unwrap();
    let alone = moetwin(&["check", "--log", log.to_str().unwrap(), "--json"]);
    assert_eq!(alone.code, 1, "{}", alone.err);
    assert!(alone.out.contains("\"died_in\": \"kv_alloc\""), "{}", alone.out);
    let kimi = "python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --ep 8 --moe-a2a-backend flashinfer --moe-runner-backend flashinfer_cutlass --cuda-graph-max-bs 128";
    let log_path = log.to_str().unwrap();
    let both = moetwin(&["check", "--log", log_path, "--machine", "8x-rtx-pro-6000-server", "--engine-version", "0.5.9", "--", kimi]);
    assert_eq!(both.code, 1, "{}", both.err);
    assert!(both.out.contains("the tables had put the first fault there: kv_alloc"), "{}", both.out);
    assert!(both.out.contains("Memory of the fullest GPU"), "{}", both.out);
    fs::remove_dir_all(&dir).ok();
}

/// A negative number is taken as a flag's value, so that the refusal names the flag.
#[test]
fn negative_numbers_are_refused_by_the_flag_they_are_given_to() {
    for (line_of, words) in [
        ("sim --batch -1", &["--batch", "-1"][..]),
        ("sim --context -5", &["--context", "-5"]),
        ("collective --sizes -1", &["--sizes", "-1"]),
        ("run --prompt-ids -1", &["--prompt-ids", "-1"]),
    ] {
        line(line_of).refused(words);
    }
}

/// Where one flag sets another's value, the one that was given is marked.
#[test]
fn a_split_that_no_flag_named_is_refused_at_the_flag_that_made_it() {
    line("sim --dp-attention 3").refused(&["--dp-attention '3': which makes it --tp 3: ", "moetwin sim --dp-attention 3\n"]);
    line("run --model tests/fixtures/tiny-olmoe --prompt-ids 1 --ep 3")
        .refused(&["--ep '3'", "4 key-value heads cannot be shared by tp 3; legal tp: 1, 2, 4"]);
}

#[test]
fn a_version_of_no_engine_is_refused() {
    line("sim --engine vllm --engine-version abc").refused(&["--engine-version 'abc'", "names no release", "accepted: "]);
    line("sim --engine-version 0.12.0").refused(&["--engine-version '0.12.0'", "--engine vllm"]);
    assert_eq!(line("sim --engine vllm --engine-version 0.12.0").code, 0);
}
