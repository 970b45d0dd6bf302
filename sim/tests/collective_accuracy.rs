//! How near predictions are to the published tables that ship with the project.

use moetwin_sim::calibrate::{Table, fit, leave_one_out, residuals, shipped_left_out, table_errors};
use moetwin_sim::collective::{CollectiveOp, GraphMode, Launch, Library};
use moetwin_sim::import::nccl_tests::Measurement;
use moetwin_sim::import::tables::{Entry, manifest, table};
use moetwin_sim::machine::{Machine, find};
use moetwin_sim::time::Duration;
use std::path::PathBuf;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("data/nccl-tests")
}

fn entries() -> Vec<Entry> {
    let text = std::fs::read_to_string(folder().join("manifest.json")).expect("ships with the project");
    manifest(&text).expect("a manifest")
}

fn tables(entries: &[Entry], machine: &Machine) -> Vec<Table> {
    let mine = entries.iter().filter(|entry| entry.machine == machine.name);
    mine.map(|entry| {
        let text = std::fs::read_to_string(folder().join(&entry.file)).expect("ships with the project");
        table(&entry.file, &text, &entry.told, machine.gpu_count()).unwrap_or_else(|error| panic!("{}: {error}", entry.file))
    })
    .collect()
}

fn machines(entries: &[Entry]) -> Vec<Machine> {
    let mut names: Vec<&str> = entries.iter().map(|entry| entry.machine.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(|name| find(name).unwrap_or_else(|| panic!("{name} is built in"))).collect()
}

#[test]
fn built_in_machines_are_within_ten_percent_of_the_tables_in_the_mean_and_twenty_for_each() {
    let entries = entries();
    let mut every = Vec::new();
    for machine in machines(&entries) {
        let tables = tables(&entries, &machine);
        let rows = residuals(&machine, &tables).expect("predicts");
        for (table, error) in tables.iter().zip(table_errors(&rows, tables.len())) {
            assert!(error < 0.2, "{}: {:.1} %", table.name, error * 100.0);
        }
        every.extend(rows.iter().map(|row| row.error().abs()));
    }
    let mean = every.iter().sum::<f64>() / every.len() as f64;
    assert!(every.len() > 1200 && mean < 0.1, "{:.1} % of {}", mean * 100.0, every.len());
}

#[test]
fn a_table_left_out_of_its_machines_fit_is_still_predicted() {
    let entries = entries();
    // Two small sets; `moetwin calibrate --report` does the same for any.
    for name in ["4x-gb200", "8x-h100-sxm"] {
        let machine = find(name).expect("built in");
        let tables = tables(&entries, &machine);
        let shipped = shipped_left_out();
        for (table, left_out) in tables.iter().zip(leave_one_out(&machine, &tables).expect("fits")) {
            assert!(left_out.error < 0.15, "{}: {:.1} % when left out", table.name, left_out.error * 100.0);
            let told = shipped.iter().find(|one| one.machine == name && one.table == table.name).expect("all shipped tables are in it");
            let rounded = |error: f64| (error * 1e4).round();
            assert_eq!(rounded(told.left_out.error), rounded(left_out.error), "{}: run score_collectives --left-out again", table.name);
        }
    }
}

#[test]
fn every_shipped_table_has_an_error_when_left_out() {
    let entries = entries();
    let shipped = shipped_left_out();
    assert_eq!(shipped.len(), entries.len());
    for one in &shipped {
        assert!(entries.iter().any(|entry| entry.machine == one.machine && entry.file == one.table), "{}", one.table);
    }
    let mean = shipped.iter().map(|one| one.left_out.error).sum::<f64>() / shipped.len() as f64;
    assert!(mean < 0.12, "{:.1} %", mean * 100.0);
}

#[test]
fn a_fit_finds_figures_that_were_changed() {
    let entries = entries();
    let machine = find("4x-gb200").expect("built in");
    let tables = tables(&entries, &machine);
    let mut wrong = machine.clone();
    wrong.collectives.kernel.value = wrong.collectives.kernel.value * 3;
    wrong.collectives.nvlink.ll_step.value = wrong.collectives.nvlink.ll_step.value * 3;
    let mean = |machine: &Machine| {
        let errors = table_errors(&residuals(machine, &tables).expect("predicts"), tables.len());
        errors.iter().sum::<f64>() / errors.len() as f64
    };
    assert!(mean(&wrong) > 0.5);
    let fitted = fit(&wrong, &tables).expect("fits");
    assert!(mean(&fitted.machine) < 0.08, "{:.3}", mean(&fitted.machine));
    assert!(fitted.moved.iter().any(|(name, factor)| *name == "collectives.kernel_ps" && *factor < 0.6), "{:?}", fitted.moved);
    let kernel = &fitted.machine.collectives.kernel;
    assert!(kernel.source.starts_with("fitted to aic-gb200"), "{}", kernel.source);
}

#[test]
fn loops_of_collectives_say_what_a_call_of_nccl_costs_and_nothing_of_launches() {
    // The host issues a call every 12 us, more than the device takes for small sizes.
    let machine = find("8x-h200-sxm").expect("built in");
    let table = |name: &str, launch: Launch, times: [u64; 3]| Table {
        name: name.to_owned(),
        op: CollectiveOp::AllReduce,
        library: Library::Nccl,
        launch: Some(launch),
        ranks: 2,
        peer_access: Some(true),
        algorithm: None,
        protocol: None,
        nccl_graph: GraphMode::Detected,
        rows: [1u64 << 10, 8 << 10, 32 << 10]
            .into_iter()
            .zip(times)
            .map(|(bytes, ns)| Measurement { ranks: None, launch: None, bytes, time: Duration::from_ps(ns * 1000) })
            .collect(),
    };
    let tables = [table("in a graph", Launch::Node, [6300, 6500, 6900]), table("a loop", Launch::Loop, [12_000, 12_000, 12_000])];
    let fitted = fit(&machine, &tables).expect("fits");
    assert_eq!(fitted.machine.launch.eager_kernel, machine.launch.eager_kernel);
    let call = fitted.machine.launch.nccl_call.expect("the loop says it").value.as_us();
    assert!((11.0..13.0).contains(&call), "{call}");
}
