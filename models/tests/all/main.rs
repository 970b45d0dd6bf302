//! Tests of the crate's public face, in one binary.

// By path, since the library of cases depends on crates above this one.
#[allow(unreachable_pub, dead_code)]
#[path = "../../../tests/cases/src/configs.rs"]
mod configs;
#[allow(unreachable_pub, dead_code)]
#[path = "../../../tests/cases/src/deployments.rs"]
mod deployments;
#[allow(unreachable_pub, dead_code)]
#[path = "../../../tests/cases/src/models.rs"]
mod models;

mod config_families;
mod config_faults;
mod config_properties;
mod edit;
mod facts;
mod fuse;
mod golden;
mod kimi;
mod properties;
mod refusals;
mod rules;
