//! Speed of the event queue and of collectives: `cargo bench -p moetwin-sim`.

use moetwin_sim::collective::{CollectiveOp, CollectiveRequest, Collectives, predict};
use moetwin_sim::machine::find;
use moetwin_sim::{Duration, EventQueue};

fn main() {
    divan::main();
}

const EVENTS: u64 = 1_000_000;

/// A million events through a queue that holds a thousand: each served event schedules its successor.
#[divan::bench(counters = [divan::counter::ItemsCount::new(EVENTS)], sample_count = 20)]
fn queue_of_a_thousand() -> u64 {
    let mut queue = EventQueue::new();
    for lane in 0..1000u64 {
        queue.push(moetwin_sim::Time::from_ps(lane), lane);
    }
    let mut sum = 0;
    for _ in 0..EVENTS {
        let Some((time, lane)) = queue.pop() else { break };
        sum ^= time.as_ps();
        // A small multiplicative hash of the lane spreads the gaps.
        queue.push(time + Duration::from_ps(500 + (lane * 2_654_435_761) % 1000), lane + 1);
    }
    sum
}

/// One ring all-reduce of 8 ranks and 128 MiB, nothing remembered.
#[divan::bench(sample_count = 100)]
fn ring_of_8_ranks_128_mib(bencher: divan::Bencher<'_, '_>) {
    let machine = find("8x-rtx-pro-6000-server").expect("built in");
    let request = CollectiveRequest::new(CollectiveOp::AllReduce, 8, 128 << 20);
    bencher.bench(|| predict(&machine, &request).expect("predicts").duration);
}

/// The collectives of a decode step, cold: 244 all-reduces of two sizes with one memory of what was computed.
#[divan::bench(sample_count = 100)]
fn collectives_of_a_decode_step(bencher: divan::Bencher<'_, '_>) {
    let machine = find("8x-rtx-pro-6000-server").expect("built in");
    bencher.bench(|| {
        let mut collectives = Collectives::new(&machine);
        (0..244u64)
            .map(|index| {
                let request = CollectiveRequest::new(CollectiveOp::AllReduce, 8, 14_336 * (1 + index % 2));
                collectives.predict(&request).expect("predicts").duration
            })
            .sum::<Duration>()
    });
}
