//! `moetwin run` on the CPU reference.

mod support;

use moetwin::runtime::weights::Checkpoint;
use std::fs;
use support::{line, moetwin, scratch};

#[test]
fn without_arguments_it_writes_text() {
    let run = line("run --max-tokens 24");
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(run.out.starts_with("ROMEO:") && run.out.len() > "ROMEO:".len() + 8, "{}", run.out);
    assert!(run.err.contains("tok/s") && run.err.contains("CPU reference"), "{}", run.err);
    assert_eq!(line("run --max-tokens 24").out, run.out);
    let drawn = |seed: &str| moetwin(&["run", "--max-tokens", "24", "--temperature", "1.5", "--seed", seed]).out;
    assert_eq!(drawn("3"), drawn("3"));
    assert_ne!(drawn("3"), drawn("4"));
}

#[test]
fn the_documented_fields_are_there() {
    let json = line("run --prompt-ids 1,2,3 --max-tokens 4 --tp 2 --ep 2 --json").json();
    assert_eq!((json["backend"].as_str(), json["ranks"].as_u64()), (Some("cpu"), Some(2)));
    assert!(json["collectives"].as_u64().unwrap() > 0 && json["breakdown"].is_array());
    assert_eq!(json["tokens"].as_array().unwrap().len(), 1);
    assert_eq!(json["tokens"][0].as_array().unwrap().len(), 4);
    let (median, p99) = (json["step_ms"]["median"].as_f64().unwrap(), json["step_ms"]["p99"].as_f64().unwrap());
    assert!(median > 0.0 && p99 >= median && json["tokens_per_s"].as_f64().unwrap() > 0.0);
    // One pass decodes nothing, so there is no step to time.
    let json = line("run --prompt-ids 1,2,3 --max-tokens 1 --json").json();
    assert!(json["step_ms"].is_null() && json["tokens_per_s"].is_null());
    assert_eq!(json["collectives"], 0);
}

#[test]
fn splits_and_orders_do_not_change_the_tokens() {
    let tokens = |words: &str| line(&format!("run --prompt-ids 7,8,9,10 --max-tokens 6 --json {words}")).json()["tokens"].clone();
    let whole = tokens("");
    for words in ["--tp 2", "--ep 2", "--tp 2 --pp 2", "--dp-attention 2", "--ep 2 --a2a nccl", "--seed 5 --tp 2", "--tp 2 --dcp 2"] {
        assert_eq!(tokens(words), whole, "{words}");
    }
}

/// The CPU runs the program that GPUs run: with fewer commands, and the same tokens.
#[test]
fn sums_that_take_norms_with_them_do_not_change_the_tokens() {
    let run = |words: &str| line(&format!("run --prompt-ids 7,8,9,10 --max-tokens 6 --tp 2 --json {words}"));
    let (apart, fused, off) = (run(""), run("--allreduce one-shot"), run("--allreduce one-shot --fuse-allreduce off"));
    assert_eq!(apart.json()["tokens"], fused.json()["tokens"]);
    assert_eq!(apart.json()["collectives"], fused.json()["collectives"]);
    assert!(!fused.err.contains("has no effect") && off.err.contains("--allreduce has no effect"), "{}{}", fused.err, off.err);
    assert!(run("--fuse-allreduce off").err.contains("--fuse-allreduce has no effect on sums that are not by --allreduce one-shot"));
}

#[test]
fn the_dump_has_logits_hidden_states_and_router_choices() {
    let folder = scratch("dump");
    let file = folder.join("values.safetensors");
    let path = file.to_str().unwrap();
    let run = moetwin(&["run", "--model", "tests/fixtures/tiny-deepseek-v3", "--prompt-ids", "1,2,3", "--max-tokens", "1", "--dump", path]);
    assert_eq!(run.code, 0, "{}", run.err);
    let dump = Checkpoint::from_bytes("dump", fs::read(&file).unwrap()).unwrap();
    let shape = |name: &str| dump.get(name).unwrap_or_else(|| panic!("no {name}")).shape.to_vec();
    assert_eq!(shape("logits"), [3, 160]);
    // Four layers: the embedding, the first three, and the last after the final norm.
    for i in 0..=4 {
        assert_eq!(shape(&format!("hidden.{i}")), [3, 64]);
    }
    for layer in 1..4 {
        assert_eq!((shape(&format!("router.{layer}.experts")), shape(&format!("router.{layer}.weights"))), (vec![3, 4], vec![3, 4]));
    }
    assert!(dump.get("next_ids").is_none());
}

/// The shipped histogram is what the shipped model chooses on the text it was compared on.
#[test]
fn the_routing_that_ships_is_the_models_own() {
    let expected: serde_json::Value =
        serde_json::from_str(&fs::read_to_string("tests/fixtures/shakespeare-moe-int4/expected.json").unwrap()).unwrap();
    let folder = scratch("routing");
    let mut sum = moetwin::kernels::routing::RoutingHistogram { schema: 1, layers: Default::default() };
    for (prompt, greedy) in expected["prompts"].as_array().unwrap().iter().zip(expected["greedy_text"].as_array().unwrap()) {
        let file = folder.join("counts.json");
        let text = format!("{}{}", prompt.as_str().unwrap(), greedy.as_str().unwrap());
        moetwin(&["run", "--prompt", &text, "--max-tokens", "1", "--record-routing", file.to_str().unwrap()]);
        let counts: moetwin::kernels::routing::RoutingHistogram = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        for (layer, counts) in counts.layers {
            let total = sum.layers.entry(layer).or_insert_with(|| vec![0; counts.len()]);
            total.iter_mut().zip(counts).for_each(|(t, c)| *t += c);
        }
    }
    if std::env::var_os("MOETWIN_BLESS").is_some() {
        fs::write("tests/fixtures/shakespeare-moe-int4/routing.json", serde_json::to_string(&sum).unwrap()).unwrap();
    }
    assert_eq!(sum, moetwin::runtime::builtin::routing());
    let fits = line("sim --machine 2x-rtx-4090 --model shakespeare-moe-int4 --ep 2 --batch 8 --routing shakespeare --json").json();
    let even = line("sim --machine 2x-rtx-4090 --model shakespeare-moe-int4 --ep 2 --batch 8 --json").json();
    assert_ne!(fits["step_ms"], even["step_ms"]);
    line("sim --routing shakespeare").refused(&["--routing 'shakespeare'", "16 experts"]);
}

#[test]
fn tokens_of_made_up_weights_choose_experts_as_asked() {
    let file = scratch("routed").join("counts.json");
    let chosen = |more: &[&str]| -> Vec<Vec<u64>> {
        let always = ["run", "--synthetic", "--batch", "2", "--context", "5", "--max-tokens", "1", "--record-routing"];
        moetwin(&[&always[..], &[file.to_str().unwrap()], more].concat());
        let counts: moetwin::kernels::routing::RoutingHistogram = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        counts.layers.into_values().map(|layer| layer.into_iter().filter(|c| *c > 0).collect()).collect()
    };
    // Four experts a token; ten tokens.
    assert!(chosen(&["--routing", "same"]).iter().all(|layer| *layer == [10; 4]));
    assert!(chosen(&[]).iter().all(|layer| layer.len() > 4 && layer.iter().sum::<u64>() == 40));
    line("run --routing same --prompt-ids 1").refused(&["--routing", "--synthetic"]);
    line("run --model qwen3-30b-a3b --synthetic --layers 1 --routing same --prompt-ids 1").refused(&[
        "--routing",
        "without a bias",
        "uniform",
    ]);
}

#[test]
fn made_up_weights_take_prompts_of_the_batch_and_context_asked_for() {
    let ask = |more: &str| line(&format!("run --synthetic --layers 1 --batch 2 --context 5 --max-tokens 3 --json {more}")).json();
    let tokens = |json: &serde_json::Value| -> Vec<Vec<u64>> { serde_json::from_value(json["tokens"].clone()).unwrap() };
    let drawn = tokens(&ask(""));
    assert_eq!(drawn.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3]);
    assert_eq!(tokens(&ask("")), drawn, "the same seed draws the same prompts");
    assert_ne!(tokens(&ask("--seed 5")), drawn);
    line("run --synthetic --prompt-ids 1 --batch 2").refused(&["--batch", "prompts decide"]);
}

#[test]
fn prompts_that_cannot_be_run_are_refused() {
    line("run --prompt-ids 1,2,99999999").refused(&["--prompt-ids", "token 2 is 99999999"]);
    line("run --prompt-ids 1,x").refused(&["--prompt-ids", "'x'"]);
    line("run --model tests/fixtures/tiny-deepseek-v3").refused(&["none was given", "--prompt-ids"]);
    line("run --model tests/fixtures/tiny-deepseek-v3 --prompt hello").refused(&["--prompt", "tokenizer.json"]);
    line("run --prompt-ids 1 --prompt a").refused(&["cannot be used with"]);
    line("run --model kimi-k2.5 --prompt-ids 1").refused(&["--model 'kimi-k2.5'", "configuration only", "--synthetic"]);
    line("run --model deepseek-v3.2 --prompt-ids 1 --synthetic --layers 1").refused(&["cost only"]);
    line("run --prompt-ids 1 --layers 99").refused(&["--layers '99'", "1 to "]);
    line("run --prompt-ids 1 --temperature -1").refused(&["--temperature"]);
    line("run --prompt-ids 1 --top-p 0").refused(&["--top-p"]);
    line("run --batch 2").refused(&["--batch", "prompts decide"]);
    line("run --prompt-ids 1 --max-tokens 1000000").refused(&["--max-tokens", "position"]);
}

#[test]
fn a_damaged_checkpoint_is_bad_input() {
    let folder = scratch("damaged");
    let from = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-deepseek-v3");
    fs::copy(from.join("config.json"), folder.join("config.json")).unwrap();
    let model = folder.to_str().unwrap();
    let ask = || moetwin(&["run", "--model", model, "--prompt-ids", "1"]);
    ask().refused(&["--model", "model.safetensors"]);
    let whole = fs::read(from.join("model.safetensors")).unwrap();
    fs::write(folder.join("model.safetensors"), &whole[..whole.len() / 2]).unwrap();
    ask().refused(&["--model", "model.safetensors"]);
    fs::write(folder.join("model.safetensors"), &whole).unwrap();
    assert_eq!(ask().code, 0);
}

/// Both recorded generations, from the recorded prompts; the second one's was cut where the first one ends.
#[test]
fn the_shipped_model_writes_what_is_recorded_of_it() {
    let read = |name: &str| fs::read(format!("tests/fixtures/shakespeare-moe-int4/{name}")).unwrap();
    let expected: serde_json::Value = serde_json::from_slice(&read("expected.json")).unwrap();
    let values = Checkpoint::from_bytes("expected", read("expected.safetensors")).unwrap();
    let ids = values.get("input_ids").unwrap();
    let tokens = ids.shape[1] as usize;
    let text = moetwin::runtime::text::TextModel::open(std::path::Path::new("tests/fixtures/shakespeare-moe-int4"), 1024).unwrap();
    for (row, greedy) in ids.bytes.chunks(8 * tokens).zip(expected["greedy_text"].as_array().unwrap()) {
        let ids: Vec<u32> = row.chunks(8).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let prompt = text.decode(&ids).unwrap();
        assert_eq!(text.encode(&prompt).unwrap(), ids);
        for split in [&[][..], &["--tp", "2"], &["--ep", "2", "--dp-attention", "2"]] {
            let run = moetwin(&[&["run", "--prompt", &prompt, "--max-tokens", "48"][..], split].concat());
            assert_eq!((run.code, run.out), (0, format!("{prompt}{}\n", greedy.as_str().unwrap())), "{split:?}: {}", run.err);
        }
    }
}

/// Every value of the prompts, and the tokens, are the same bits on any number of threads.
#[test]
fn threads_change_no_bit() {
    let folder = scratch("threads");
    let run = |model: &str, threads: &str| {
        let dump = folder.join(format!("{threads}.safetensors"));
        let words = format!(
            "run --model tests/fixtures/{model} --prompt-ids 1,2,3,4,5,6,7,8,9 --max-tokens 3 --tp 2 --json --dump {}",
            dump.display()
        );
        let words: Vec<&str> = words.split_whitespace().collect();
        let run = support::finished(support::command(&words).env("RAYON_NUM_THREADS", threads).output().unwrap(), &words);
        assert_eq!(run.code, 0, "{}", run.err);
        (fs::read(&dump).unwrap(), run.json()["tokens"].clone())
    };
    for model in ["tiny-deepseek-v3", "tiny-gpt-oss", "shakespeare-moe-int4"] {
        let one = run(model, "1");
        for threads in ["2", "3", "8"] {
            assert!(run(model, threads) == one, "{model} on {threads} threads");
        }
    }
}

/// A run that is refused, or that fails before its first token, has printed nothing.
#[test]
fn what_is_refused_prints_no_prompt() {
    for words in ["--tp 3", "--pp 9", "--ep 5", "--tp 2 --dcp 3", "--layers 99", "--max-tokens 1000000", "--temperature -1"] {
        line(&format!("run {words}")).refused(&[]);
    }
}

/// A copy of a fixture in which every element of a bf16 tensor is `bits`.
fn spoiled(name: &str, tensor: &str, bits: u16) -> std::path::PathBuf {
    let folder = scratch(&format!("spoiled-{tensor}"));
    let from = std::path::Path::new("tests/fixtures").join(name);
    fs::copy(from.join("config.json"), folder.join("config.json")).unwrap();
    let mut file = fs::read(from.join("model.safetensors")).unwrap();
    let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let entries: serde_json::Value = serde_json::from_slice(&file[8..8 + header]).unwrap();
    let entry = &entries[tensor];
    assert_eq!(entry["dtype"], "BF16", "{tensor}");
    let end = |i: usize| 8 + header + entry["data_offsets"][i].as_u64().unwrap() as usize;
    file[end(0)..end(1)].chunks_mut(2).for_each(|element| element.copy_from_slice(&bits.to_le_bytes()));
    fs::write(folder.join("model.safetensors"), file).unwrap();
    folder
}

/// Weights that are no numbers: the run fails, names rank and command, and neither prints a token nor writes a dump.
#[test]
fn weights_that_are_not_finite_end_the_run_where_they_are_met() {
    const NAN: u16 = 0x7fc0;
    const INFINITY: u16 = 0x7f80;
    let cases = [
        ("model.layers.1.self_attn.o_proj.weight", NAN, "", "layers.1.attn.o"),
        ("model.layers.2.block_sparse_moe.gate.weight", INFINITY, "--tp 2", "layers.2.moe.router"),
        ("lm_head.weight", NAN, "--ep 2 --json", "logits"),
        ("model.embed_tokens.weight", NAN, "--tp 2 --pp 2", "embed"),
    ];
    for (tensor, bits, split, command) in cases {
        let folder = spoiled("tiny-mixtral", tensor, bits);
        let (model, dump) = (folder.display(), folder.join("dump.safetensors"));
        let run = line(&format!("run --model {model} --prompt-ids 1,2,3 --max-tokens 4 {split} --dump {}", dump.display()));
        assert_eq!((run.code, run.out.as_str()), (3, ""), "{tensor}: {}", run.err);
        for word in ["rank 0", command, "not finite"] {
            assert!(run.err.contains(word), "{tensor}: no {word:?} in {}", run.err);
        }
        assert!(!dump.exists(), "{tensor}");
    }
}

/// The arguments, in the environment of a launcher.
fn launched(words: &str, variables: &[(&str, &str)]) -> support::Run {
    let words: Vec<&str> = words.split_whitespace().collect();
    let mut command = support::command(&words);
    for (name, value) in variables {
        command.env(name, value);
    }
    support::finished(command.output().unwrap(), &words)
}

#[test]
fn what_launchers_leave_out_or_contradict_is_bad_input() {
    let run = "run --backend cuda --prompt-ids 1,2";
    launched(run, &[("RANK", "0")]).refused(&["WORLD_SIZE", "is not set", "all of RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT"]);
    let all = [("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")];
    launched(&format!("{run} --tp 4"), &all).refused(&["WORLD_SIZE '2'", "4 ranks", "accepted: 4 processes, --tp 2"]);
    let mut over = all;
    over[0].1 = "2";
    launched(run, &over).refused(&["RANK '2'", "accepted: 0 to 1"]);
    // The CPU reference holds all ranks itself, whoever starts it.
    assert_eq!(launched("run --prompt-ids 1,2 --max-tokens 1", &over).code, 0);
}

#[test]
fn faults_are_read_before_anything_starts() {
    line("run --inject 0:connect.0:die").refused(&["--inject '0:connect.0:die'", "--backend cuda"]);
    line("run --backend cuda --inject 0:boot.0:die").refused(&["--inject '0:boot.0:die'", "RANK:PHASE.CALL:KIND", "warm-up"]);
    line("run --backend cuda --tp 2 --inject 2:connect.0:die").refused(&["rank 2 of 2"]);
}

#[test]
fn what_a_run_has_not_is_refused_and_what_changes_nothing_is_said() {
    line("run --prompt-ids 1 --engine vllm").refused(&["--engine 'vllm'", "moetwin sim predicts", "accepted: native"]);
    line("run --prompt-ids 1 --engine-version 0.24").refused(&["--engine-version '0.24'"]);
    line("run --prompt-ids 1 --tp 2 --ep 2 --dp-attention 2 --a2a deepep").refused(&["--a2a 'deepep'", "accepted: none, nccl"]);
    line("run --prompt-ids 1 --tp 2 --ep 2 --dp-attention 2 --a2a flashinfer").refused(&["--a2a 'flashinfer'"]);
    let greedy = line("run --prompt-ids 1 --max-tokens 1 --top-p 0.5 --engine native");
    assert_eq!(greedy.code, 0);
    assert!(greedy.err.contains("--top-p has no effect on --temperature 0"), "{}", greedy.err);
    let drawn = line("run --prompt-ids 1 --max-tokens 1 --top-p 0.5 --temperature 1");
    assert!(drawn.code == 0 && !drawn.err.contains("--top-p"), "{}", drawn.err);
}

/// On the CPU every flag of `run` is obeyed, refused, or said to have no effect.
#[test]
fn no_flag_is_ignored_in_silence() {
    // What they do is what the other tests are about.
    let obeyed = [
        "--model",
        "--tp",
        "--pp",
        "--dp-attention",
        "--ep",
        "--dcp",
        "--replicas",
        "--batch",
        "--context",
        "--routing",
        "--a2a",
        "--seed",
        "--json",
        "--backend",
        "--synthetic",
        "--layers",
        "--input-ids",
        "--prompt-ids",
        "--prompt",
        "--max-tokens",
        "--temperature",
        "--dump",
        "--record-routing",
        "--help",
        "--version",
    ];
    let noted = [
        ("--machine", "8x-h200-sxm"),
        ("--graphs", "off"),
        ("--p2p", "off"),
        ("--kv-dtype", "fp8"),
        ("--allreduce", "one-shot"),
        ("--fuse-allreduce", "off"),
        ("--nccl-graph", "tuned"),
        ("--matmul", "own"),
        ("--deadline", "5"),
        ("--top-p", "0.5"),
    ];
    let refused = [
        ("--phase", "prefill"),
        ("--spec", "eagle3:2"),
        ("--spec-accept", "0.5"),
        ("--engine", "vllm"),
        ("--engine-version", "0.11.0"),
        ("--kernels", "sim/data/nccl-tests"),
        ("--only-rank", "0"),
        ("--no-prompt", ""),
        ("--collective-delay", "5"),
        ("--trace", "x.json"),
        ("--ep-capacity", "8"),
        ("--inject", "1"),
    ];
    for (flag, value) in noted {
        let run = line(&format!("run --prompt-ids 1 --max-tokens 1 {flag} {value}"));
        assert!(run.code == 0 && run.err.contains(&format!("note: {flag} has no effect on ")), "{flag}: {}", run.err);
    }
    for (flag, value) in refused {
        let run = line(format!("run --prompt-ids 1 --max-tokens 1 {flag} {value}").trim_end());
        assert!(run.code == 2 && run.err.contains(flag.trim_end_matches("-accept")), "{flag}: {}", run.err);
    }
    let help = line("run --help").out;
    let starts = |l: &str| l.trim().strip_prefix("-h, ").or(l.trim().strip_prefix("-V, ")).unwrap_or(l.trim()).to_owned();
    let flags = help.lines().map(starts).filter(|l| l.starts_with("--")).map(|l| l.split([' ', '=']).next().unwrap().to_owned());
    for flag in flags {
        let known = obeyed.contains(&flag.as_str()) || noted.iter().chain(&refused).any(|(f, _)| *f == flag);
        assert!(known, "{flag}: is it obeyed, refused or noted?");
    }
    // Of a step that is only measured as well, before GPUs are looked for.
    let alone = line("run --backend cuda --synthetic --only-rank 0 --temperature 1 --kv-dtype fp8");
    for flag in ["--temperature", "--kv-dtype"] {
        assert!(alone.err.contains(&format!("note: {flag} has no effect on ")), "{}", alone.err);
    }
    line("run --backend cuda --synthetic --only-rank 0 --dump x").refused(&["--only-rank", "--dump"]);
}

#[test]
fn a_model_beyond_this_machines_memory_is_refused_before_it_is_made() {
    // 1 T parameters as f32 are 4 TB.
    let run = line("run --model kimi-k2.5 --synthetic");
    assert_eq!((run.code, run.out.as_str()), (2, ""), "{}", run.err);
    assert!(run.err.contains("GiB of memory are free") && run.err.contains("--layers N"), "{}", run.err);
}
