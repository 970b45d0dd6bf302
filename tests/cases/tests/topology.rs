//! Any tree of GPUs, printed as `nvidia-smi topo -m` prints it, imports to the same tree.

use moetwin_cases::topology::{any_forest, check_printed};
use moetwin_sim::machine;
use moetwin_sim::network::Network;
use moetwin_sim::topology::{Options, Source, import};
use proptest::prelude::*;

proptest! {
    #[test]
    fn a_printed_matrix_imports_to_the_same_classes(forest in any_forest(), numa: bool, tabs: bool) {
        let text = forest.print(numa, tabs);
        let source = Source { label: "printed".into(), text: text.clone() };
        let machine = import(&[source], &Options::default()).unwrap_or_else(|e| panic!("{e}\n{text}")).machine;
        prop_assert_eq!(machine.gpu_count(), forest.gpus());
        let network = Network::new(&machine);
        for a in 0..forest.gpus() {
            for b in 0..forest.gpus() {
                if a != b {
                    prop_assert_eq!(network.class(a, b), Ok(forest.class(a, b)), "{} {}\n{}", a, b, text);
                }
            }
        }
        check_printed(&machine);
    }

    #[test]
    fn a_damaged_matrix_is_refused_or_read_but_never_panics(forest in any_forest(), at in 0.0f64..1.0, junk in "[ -~\t\n]{0,6}") {
        let mut text = forest.print(true, true);
        let mut cut = (at * text.len() as f64) as usize;
        while !text.is_char_boundary(cut) {
            cut += 1;
        }
        text.insert_str(cut, &junk);
        moetwin_cases::check_import_smi(text.as_bytes());
    }
}

#[test]
fn every_built_in_machine_prints_a_matrix_that_imports_to_its_classes() {
    for machine in machine::list() {
        check_printed(&machine);
    }
}

#[test]
fn a_log_that_names_no_gpus_may_stand_beside_a_file_that_does() {
    moetwin_cases::check_import_log(b"# gpus size count time `lgbw busbw\n.0 0.2 0.2\n 0 1024 512 9.0 0.1 400.2\n");
}
