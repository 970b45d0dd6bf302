//! Every example of every help text runs.

mod support;

use std::collections::BTreeSet;
use support::{command, line, scratch};

/// `moetwin ...` lines of a help text, without what a shell would do with the output.
fn examples(help: &str) -> Vec<String> {
    let lines = help.lines().map(str::trim).filter(|l| l.starts_with("moetwin "));
    lines
        .map(|l| l.split([">", "|"].map(|c| format!(" {c} ")).map(|s| s.chars().nth(1).unwrap())).next().unwrap().trim().to_owned())
        .collect()
}

/// Words of a shell line with double quotes.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ' ' if !quoted => words.extend((!word.is_empty()).then(|| std::mem::take(&mut word))),
            _ => word.push(c),
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}

#[test]
fn examples_run() {
    let mut seen = BTreeSet::new();
    for subcommand in [
        "sim",
        "sweep",
        "graph",
        "run",
        "collective",
        "calibrate",
        "model list",
        "model show",
        "machine list",
        "machine show",
        "machine import",
        "completions",
    ] {
        let help = line(&format!("{subcommand} --help")).out;
        let found = examples(&help);
        assert!(!found.is_empty(), "{subcommand} has no example");
        // Sweeps of hundreds of points are a release build's work; tests/cli_sweep.rs runs small ones.
        let whole = |e: &String| e == "moetwin sweep" || e.starts_with("moetwin sweep --machine");
        for example in found.into_iter().filter(|e| !whole(e) && seen.insert(e.clone())) {
            let words = words(&example);
            // What an example writes goes to a folder of its own; what it reads is in the project.
            let folder = scratch("examples");
            let words: Vec<String> = words[1..]
                .iter()
                .enumerate()
                .map(|(i, w)| {
                    let writes = words[i] == "--out"
                        || words[i] == "--trace"
                        || (words[i] == "--report" && words[1] == "sim")
                        || words[i] == "--dump"
                        || words[i] == "--record-routing";
                    if writes { folder.join(w).to_string_lossy().into_owned() } else { w.clone() }
                })
                .collect();
            let output = command(&words.iter().map(String::as_str).collect::<Vec<_>>()).output().unwrap();
            // What needs a GPU says so where there is none.
            let measures = example.contains("--backend cuda") || example.starts_with("moetwin calibrate --model");
            let gpu = measures && output.status.code() == Some(3);
            assert!(output.status.code() == Some(0) || gpu, "{example}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
    assert!(seen.len() >= 15, "{seen:?}");
}

#[test]
fn every_flag_and_subcommand_is_explained() {
    for subcommand in [
        "",
        "sim",
        "sweep",
        "graph",
        "run",
        "collective",
        "compare",
        "calibrate",
        "model",
        "machine",
        "machine import",
        "machine detect",
        "completions",
    ] {
        let help = line(&format!("{subcommand} --help")).out;
        let mut lines = help.lines().peekable();
        while let Some(l) = lines.next() {
            let flag = l.trim_start();
            if flag.starts_with("--") || flag.starts_with("-h") {
                let explained =
                    flag.contains("  ") || lines.peek().is_some_and(|next| next.starts_with("      ") && !next.trim().is_empty());
                assert!(explained, "{subcommand}: {flag}");
            }
        }
    }
}
