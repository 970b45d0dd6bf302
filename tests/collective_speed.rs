//! Bounds on how long predictions of collectives take to compute. Loose, for an unoptimised build on a busy machine; the release figures are
//! those of `cargo bench -p moetwin-sim`.

use moetwin::sim::collective::{CollectiveOp, CollectiveRequest, Collectives, predict};
use moetwin::sim::machine::find;
use std::time::Instant;

/// How much slower than a release build on an idle machine a test may be.
const SLACK: u128 = 40;

#[test]
fn a_ring_of_128_mib_over_eight_ranks_takes_milliseconds() {
    let machine = find("8x-rtx-pro-6000-server").expect("built in");
    let begin = Instant::now();
    predict(&machine, &CollectiveRequest::new(CollectiveOp::AllReduce, 8, 128 << 20)).expect("predicts");
    let ms = begin.elapsed().as_millis();
    assert!(ms < 20 * SLACK, "{ms} ms");
}

#[test]
fn the_collectives_of_a_decode_step_take_milliseconds_cold() {
    let machine = find("8x-h200-sxm").expect("built in");
    let begin = Instant::now();
    let mut collectives = Collectives::without_explanations(&machine);
    // 244, none like another, so that nothing is remembered.
    for i in 0..244 {
        collectives.predict(&CollectiveRequest::new(CollectiveOp::AllReduce, 8, 14_336 + 16 * i)).expect("predicts");
    }
    let ms = begin.elapsed().as_millis();
    assert_eq!(collectives.remembered(), 244);
    assert!(ms < 50 * SLACK, "{ms} ms");
}
