//! Strategies and oracles shared by the property tests and the fuzz targets.
//!
//! Each `check_*` function takes any bytes, feeds them to a reader and panics where a promise is broken: the fuzz targets call them, and so do
//! the tests that replay the corpora.

mod config;
pub mod configs;
mod deployment;
pub mod deployments;
mod engines;
mod graph_text;
mod index;
pub mod init_plans;
mod machine;
pub mod models;
mod nccl_log;
mod profile;
mod requests;
mod safetensors;
mod tokenizer;
pub mod topology;

pub use config::check_config;
pub use deployment::check_deployment;
pub use engines::{check_launch_case, check_launch_command, check_launch_log};
pub use graph_text::check_graph_text;
pub use index::check_index;
pub use init_plans::check_init_plan;
pub use machine::check_machine;
pub use nccl_log::check_nccl_log;
pub use profile::check_profile;
pub use requests::check_requests;
pub use safetensors::check_safetensors;
pub use tokenizer::check_tokenizer;
pub use topology::{check_import_log, check_import_lspci, check_import_lspci_tree, check_import_nccl, check_import_p2p, check_import_smi};

/// Takes any bytes and panics where a promise is broken.
pub type Check = fn(&[u8]);

/// Every fuzz target, by the name of its file in `fuzz/fuzz_targets` and of its corpus folder.
pub const TARGETS: &[(&str, Check)] = &[
    ("config", check_config),
    ("deployment", check_deployment),
    ("graph_text", check_graph_text),
    ("init_plan", check_init_plan),
    ("machine", check_machine),
    ("nccl_log", check_nccl_log),
    ("profile", check_profile),
    ("requests", check_requests),
    ("safetensors", check_safetensors),
    ("index", check_index),
    ("tokenizer", check_tokenizer),
    ("import_smi", check_import_smi),
    ("import_nccl", check_import_nccl),
    ("import_lspci", check_import_lspci),
    ("import_lspci_tree", check_import_lspci_tree),
    ("import_p2p", check_import_p2p),
    ("import_log", check_import_log),
    ("launch_case", check_launch_case),
    ("launch_command", check_launch_command),
    ("launch_log", check_launch_log),
];

/// What every rejection must be: a reason of a readable length, whatever the input was.
pub fn check_reason(reason: &str) {
    assert!(!reason.trim().is_empty(), "a rejection without a reason");
    assert!(reason.len() < 1 << 20, "a rejection of {} bytes", reason.len());
}
