//! Laws that predictions of collectives obey on every built-in machine.

use moetwin_sim::Duration;
use moetwin_sim::collective::{Algorithm, CollectiveOp, CollectiveRequest, Collectives, Launch, Library, Protocol, predict};
use moetwin_sim::machine::{Machine, find, from_json, list, names};
use proptest::prelude::*;

fn machine(name: &str) -> Machine {
    find(name).unwrap_or_else(|| panic!("{name} is built in"))
}

fn time(machine: &Machine, request: &CollectiveRequest) -> Duration {
    predict(machine, request).unwrap_or_else(|error| panic!("{request:?}: {error}")).duration
}

#[test]
fn every_machine_reads_back_from_its_own_file() {
    for name in names() {
        let machine = machine(name);
        assert_eq!(machine.name, name);
        let text = machine.to_json();
        assert_eq!(from_json(&text).unwrap_or_else(|error| panic!("{name}: {error}")), machine);
    }
}

#[test]
fn the_origin_story_all_reduces_take_24_to_34_us_in_a_graph() {
    let server = machine("8x-rtx-pro-6000-server");
    for bytes in [14_336, 43_008] {
        let us = time(&server, &CollectiveRequest::new(CollectiveOp::AllReduce, 8, bytes)).as_us();
        assert!((24.0..34.0).contains(&us), "{bytes} bytes: {us} us");
    }
}

#[test]
fn a_late_rank_is_skew_and_not_transfer() {
    let server = machine("8x-rtx-pro-6000-server");
    let together = predict(&server, &CollectiveRequest::new(CollectiveOp::AllReduce, 8, 43_008)).expect("predicts");
    let mut late = CollectiveRequest::new(CollectiveOp::AllReduce, 8, 43_008);
    late.arrivals = vec![Duration::ZERO; 8];
    late.arrivals[3] = Duration::from_us(170);
    let prediction = predict(&server, &late).expect("predicts");
    assert_eq!(prediction.arrival_skew, Duration::from_us(170));
    assert!(prediction.transfer <= together.duration);
    assert!(prediction.duration >= Duration::from_us(170));
    assert_eq!(prediction.ranks[3].skew, Duration::ZERO);
    assert_eq!(prediction.ranks[0].skew, Duration::from_us(170));
}

#[test]
fn forcing_what_nccl_does_not_have_says_what_it_has() {
    let server = machine("8x-rtx-pro-6000-server");
    let mut request = CollectiveRequest::new(CollectiveOp::AllGather, 8, 1 << 20);
    request.algorithm = Some(Algorithm::Tree);
    let error = predict(&server, &request).expect_err("a bare NCCL_ALGO=Tree leaves all-gather without an algorithm");
    assert!(error.to_string().contains("no algorithm/protocol available"), "{error}");
}

#[test]
fn expansions_move_the_bytes_that_the_algorithm_needs() {
    let server = machine("8x-rtx-pro-6000-server");
    let mut request = CollectiveRequest::new(CollectiveOp::AllReduce, 8, 1 << 20);
    for (algorithm, protocol, per_rank) in [
        (Algorithm::Ring, Some(Protocol::Ll), 2 * 7 * (1u64 << 20) / 8),
        (Algorithm::Ring, Some(Protocol::Simple), 2 * 7 * (1 << 20) / 8),
        (Algorithm::OneShot, None, 7 << 20),
        (Algorithm::TwoShot, None, 2 * 7 * (1 << 20) / 8),
    ] {
        request.algorithm = Some(algorithm);
        request.protocol = protocol;
        let prediction = predict(&server, &request).expect("predicts");
        for rank in 0..8 {
            let sent: u64 =
                prediction.transfers.iter().filter(|transfer| transfer.from == rank).map(|transfer| transfer.payload_bytes).sum();
            assert_eq!(sent, per_rank, "{algorithm} from {rank}");
        }
    }
}

fn any_request() -> impl Strategy<Value = (usize, CollectiveRequest)> {
    let machines = list().len();
    let ops = prop::sample::select(CollectiveOp::ALL.to_vec());
    let launches = prop::sample::select(Launch::ALL.to_vec());
    let libraries = prop::sample::select(Library::ALL.to_vec());
    let arrivals = prop::collection::vec(0u64..50_000_000, 8);
    (0..machines, ops, 1usize..9, 1u64..1 << 27, launches, libraries, prop::option::of(arrivals)).prop_map(
        |(machine, op, ranks, bytes, launch, library, arrivals)| {
            let ranks = ranks.min(list()[machine].gpu_count());
            let mut request = CollectiveRequest::new(op, ranks, bytes);
            request.launch = launch;
            request.library = library;
            request.arrivals = arrivals.map(|list| list[..ranks].iter().map(|ps| Duration::from_ps(*ps)).collect()).unwrap_or_default();
            (machine, request)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn remembering_changes_nothing((index, request) in any_request()) {
        let machine = &list()[index];
        let mut collectives = Collectives::new(machine);
        let first = collectives.predict(&request).expect("predicts");
        let again = collectives.predict(&request).expect("predicts");
        prop_assert_eq!(collectives.remembered(), 1);
        prop_assert_eq!(&*first, &*again);
        prop_assert_eq!(&*first, &predict(machine, &request).expect("predicts"));
    }

    #[test]
    fn twice_the_link_rate_is_never_slower((index, request) in any_request()) {
        let machine = list().swap_remove(index);
        let slow = predict(&machine, &request).expect("predicts");
        let fast = predict(&machine.with_link_rates_scaled(2, 1), &request).expect("predicts");
        prop_assert!(fast.duration <= slow.duration, "{} {}", fast.duration, slow.duration);
    }

    #[test]
    fn without_peer_access_nothing_is_faster((index, mut request) in any_request()) {
        let machine = list().swap_remove(index);
        // A described collapse of peer writes is just what makes the way through the host the faster one.
        prop_assume!(machine.defects.is_empty());
        // The same choice on both sides: the fallback to NCCL may be a better choice than the engine's.
        request.library = Library::Nccl;
        let with = predict(&machine, &request).expect("predicts");
        request.algorithm = Some(with.algorithm);
        request.protocol = Some(with.protocol);
        if let Ok(without) = predict(&machine.with_peer_access(false), &request) {
            prop_assert!(with.duration <= without.duration + Duration::from_ns(1), "{} {}", with.duration, without.duration);
        }
    }

    #[test]
    fn more_bytes_never_take_less_time_under_one_choice((index, mut request) in any_request(), more in 1u64..1 << 24) {
        let machine = &list()[index];
        let few = predict(machine, &request).expect("predicts");
        request.algorithm = Some(few.algorithm);
        request.protocol = Some(few.protocol).filter(|protocol| *protocol != Protocol::Peer);
        request.bytes += more;
        let many = predict(machine, &request).expect("predicts");
        prop_assert!(few.duration <= many.duration, "{} {}", few.duration, many.duration);
    }
}
