//! Tests of the crate's public face, in one binary.

// By path, since the library of cases depends on crates above this one.
#[allow(unreachable_pub, dead_code)]
#[path = "../../../tests/cases/src/deployments.rs"]
mod deployments;
#[allow(unreachable_pub, dead_code)]
#[path = "../../../tests/cases/src/models.rs"]
mod models;

mod edit;
mod golden;
mod kimi;
mod properties;
mod refusals;
mod rules;
