//! What published measurements of all-reduce and its kin say any model must show, as behaviour of the built-in machines.

use moetwin_sim::Duration;
use moetwin_sim::collective::{
    Algorithm, CollectiveError, CollectiveOp, CollectiveRequest, GraphMode, Launch, Library, Prediction, Protocol, predict,
};
use moetwin_sim::machine::{Machine, find};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn machine(name: &str) -> Machine {
    find(name).unwrap_or_else(|| panic!("{name} is built in"))
}

fn request(op: CollectiveOp, ranks: usize, bytes: u64) -> CollectiveRequest {
    CollectiveRequest::new(op, ranks, bytes)
}

fn done(machine: &Machine, request: &CollectiveRequest) -> Prediction {
    predict(machine, request).unwrap_or_else(|error| panic!("{request:?}: {error}"))
}

fn us(machine: &Machine, request: &CollectiveRequest) -> f64 {
    done(machine, request).duration.as_us()
}

fn all_reduce(machine: &Machine, ranks: usize, bytes: u64) -> f64 {
    us(machine, &request(CollectiveOp::AllReduce, ranks, bytes))
}

fn busbw(machine: &Machine, ranks: usize, bytes: u64) -> f64 {
    done(machine, &request(CollectiveOp::AllReduce, ranks, bytes)).busbw_bytes_per_s() / 1e9
}

fn near(what: &str, got: f64, wanted: f64, tolerance: f64) {
    assert!((got - wanted).abs() <= tolerance * wanted, "{what}: {got:.2}, measured {wanted}");
}

#[test]
fn rule_1_the_floor_of_a_pcie_ring_is_the_same_time_a_step() {
    let server = machine("8x-rtx-pro-6000-server");
    let [two, four, eight] = [2, 4, 8].map(|ranks| all_reduce(&server, ranks, 8 * KIB));
    near("2 ranks", two, 6.8, 0.15);
    near("4 ranks", four, 13.5, 0.15);
    near("8 ranks", eight, 26.7, 0.15);
    // 2, 6 and 14 steps.
    near("a step from 4 to 8 ranks", (eight - four) / 8.0, 1.6, 0.2);
    near("a step from 2 to 4 ranks", (four - two) / 4.0, 1.6, 0.25);
    // And it holds to 16 KiB.
    near("16 KiB", all_reduce(&server, 8, 16 * KIB), eight, 0.1);
}

#[test]
fn rule_2_the_floor_grows_from_64_kib_and_time_is_not_monotone_where_the_protocol_changes() {
    let server = machine("8x-rtx-pro-6000-server");
    near("64 KiB", all_reduce(&server, 8, 64 * KIB), 34.2, 0.15);
    near("128 KiB", all_reduce(&server, 8, 128 * KIB), 47.8, 0.15);
    let before = done(&server, &request(CollectiveOp::AllReduce, 8, 512 * KIB));
    let after = done(&server, &request(CollectiveOp::AllReduce, 8, MIB));
    assert_eq!((before.protocol, after.protocol), (Protocol::Ll, Protocol::Simple));
    assert!(before.duration > after.duration, "{} {}", before.duration, after.duration);
    near("512 KiB", before.duration.as_us(), 156.0, 0.15);
    near("1 MiB", after.duration.as_us(), 132.0, 0.15);
}

#[test]
fn rule_3_ranks_cost_more_than_size_and_a_one_shot_kernel_wins_below_a_cut_off_only() {
    let server = machine("8x-rtx-pro-6000-server");
    for bytes in [8 * KIB, 16 * KIB, 32 * KIB] {
        let ratio = all_reduce(&server, 8, bytes) / all_reduce(&server, 2, bytes);
        assert!((3.2..4.5).contains(&ratio), "{bytes} bytes: 8 ranks take {ratio:.1} times as long as 2");
    }
    let box_a = machine("8x-rtx-pro-6000-3switch");
    let one_shot = |bytes: u64| us(&box_a, &CollectiveRequest { library: Library::OneShot, ..request(CollectiveOp::AllReduce, 8, bytes) });
    near("one-shot of 1 KiB", one_shot(KIB), 7.5, 0.25);
    near("one-shot of 8 KiB", one_shot(8 * KIB), 9.2, 0.15);
    near("one-shot of 32 KiB", one_shot(32 * KIB), 16.5, 0.15);
    near("one-shot of 256 KiB", one_shot(256 * KIB), 73.6, 0.15);
    let crossing = (1..=256).map(|kib| kib * KIB).find(|&bytes| one_shot(bytes) > all_reduce(&box_a, 8, bytes));
    let crossing = crossing.expect("NCCL wins at last");
    assert!((44 * KIB..72 * KIB).contains(&crossing), "they cross at {crossing} bytes, measured about 56 KiB");
}

#[test]
fn rule_3_an_engines_kernel_on_nvlink_moves_the_floor_to_a_few_microseconds() {
    for (name, library, floor) in
        [("8x-h200-sxm", Library::Sglang, 3.6), ("8x-a100-sxm", Library::Vllm, 6.3), ("8x-b200-sxm", Library::Vllm, 7.8)]
    {
        let own = CollectiveRequest { library, ..request(CollectiveOp::AllReduce, 8, 8 * KIB) };
        near(name, us(&machine(name), &own), floor, 0.15);
        assert!(all_reduce(&machine(name), 8, 8 * KIB) > 2.0 * floor, "{name}: NCCL's floor is higher");
    }
}

#[test]
fn rule_4_nccl_as_detected_is_slow_between_two_amd_sockets_and_a_graph_file_mends_it() {
    let turin = machine("8x-rtx-pro-6000-dual-turin");
    for (bytes, detected, tuned) in [(32 * KIB, 48.2, 26.2), (256 * KIB, 56.5, 37.3)] {
        let mut as_detected = request(CollectiveOp::AllReduce, 8, bytes);
        let slow = done(&turin, &as_detected);
        near("as detected", slow.duration.as_us(), detected, 0.12);
        assert!(slow.graph.fallback && slow.choice.contains("0.1 GB/s"), "{}", slow.choice);
        as_detected.nccl_graph = GraphMode::Tuned;
        let fast = done(&turin, &as_detected);
        near("as tuned", fast.duration.as_us(), tuned, 0.18);
        assert!(!fast.graph.fallback);
    }
}

#[test]
fn rule_5_root_placement_matters_little_for_rings() {
    let (shared, separate) = (machine("8x-rtx-pro-6000-wrx90-shared-root"), machine("8x-rtx-pro-6000-wrx90-2switch"));
    near("two roots, 16 KiB", all_reduce(&separate, 8, 16 * KIB), 18.7, 0.15);
    near("one root, 16 KiB", all_reduce(&shared, 8, 16 * KIB), 17.3, 0.15);
    for bytes in [4 * MIB, 16 * MIB, 64 * MIB] {
        let (one, two) = (busbw(&shared, 8, bytes), busbw(&separate, 8, bytes));
        near("one root against two", one, two, 0.05);
        assert!((38.0..48.0).contains(&one), "{bytes} bytes: {one:.1} GB/s");
    }
}

#[test]
fn rule_6_an_eager_launch_has_a_host_floor_whatever_the_size() {
    for (name, library) in [
        ("8x-rtx-pro-6000-server", Library::Sglang),
        ("8x-h200-sxm", Library::Sglang),
        ("8x-a100-sxm", Library::Vllm),
        ("8x-b200-sxm", Library::Vllm),
    ] {
        let machine = machine(name);
        let at =
            |bytes: u64, launch: Launch| us(&machine, &CollectiveRequest { library, launch, ..request(CollectiveOp::AllReduce, 2, bytes) });
        let floor = at(256, Launch::Eager);
        assert!((18.0..46.0).contains(&floor), "{name}: {floor:.1} us");
        near(name, at(64 * KIB, Launch::Eager), floor, 0.02);
        assert!(at(64 * KIB, Launch::Graph) < floor / 2.0, "{name}: a graph has no such floor");
    }
}

#[test]
fn rule_7_a_host_bounce_collapses_and_peer_access_does_not() {
    let l40s = machine("8x-l40s");
    assert!(busbw(&l40s, 2, 16 * MIB) > 17.0);
    for (ranks, most) in [(4, 5.0), (8, 3.0)] {
        let rate = busbw(&l40s, ranks, 16 * MIB);
        assert!((1.0..most).contains(&rate), "{ranks} L40S: {rate:.1} GB/s");
    }
    let patched = machine("8x-rtx-4090-epyc").with_peer_access(true);
    near("4 RTX 4090 with peer access", busbw(&patched, 4, 64 * MIB), 25.0, 0.1);
    let stock = machine("8x-rtx-4090-epyc");
    near("8 RTX 4090 without", busbw(&stock, 8, 64 * MIB), 15.0, 0.1);
}

#[test]
fn rule_8_half_an_all_reduce_has_half_its_floor_and_an_all_to_all_is_cheap_a_call() {
    let server = machine("8x-rtx-pro-6000-server");
    for op in [CollectiveOp::AllGather, CollectiveOp::ReduceScatter] {
        near(op.name(), us(&server, &request(op, 8, 8 * KIB)), 15.6, 0.12);
        let half = us(&server, &request(op, 8, 8 * KIB)) / all_reduce(&server, 8, 8 * KIB);
        assert!((0.5..0.68).contains(&half), "{op}: {half:.2} of an all-reduce");
    }
    for (bytes, measured) in [(8 * KIB, 12.7), (64 * KIB, 26.4), (MIB, 77.9)] {
        near("all-to-all", us(&server, &request(CollectiveOp::AllToAll, 8, bytes)), measured, 0.2);
    }
    for bytes in [8 * KIB, 16 * KIB, 32 * KIB] {
        let call = us(&server, &request(CollectiveOp::AllToAll, 8, bytes));
        assert!(call < all_reduce(&server, 8, bytes), "{bytes} bytes");
    }
    // A layer of experts needs two.
    assert!(2.0 * us(&server, &request(CollectiveOp::AllToAll, 8, 64 * KIB)) > all_reduce(&server, 8, 64 * KIB));
}

#[test]
fn origin_2_a_captured_verify_all_reduce_takes_tens_of_microseconds_and_the_rest_of_200_is_elsewhere() {
    let bytes = 3 * 7168 * 2;
    for name in ["8x-rtx-pro-6000-server", "8x-rtx-pro-6000-dual-turin", "8x-rtx-pro-6000-workstation", "8x-rtx-pro-6000-3switch"] {
        let captured = all_reduce(&machine(name), 8, bytes);
        assert!((22.0..58.0).contains(&captured), "{name}: {captured:.1} us");
    }
    // A rank that comes late makes the others wait, and no link is to blame.
    let server = machine("8x-rtx-pro-6000-server");
    let mut late = request(CollectiveOp::AllReduce, 8, bytes);
    late.arrivals = vec![Duration::ZERO; 8];
    late.arrivals[5] = Duration::from_us(170);
    let prediction = done(&server, &late);
    assert!(prediction.duration >= Duration::from_us(190) && prediction.transfer <= Duration::from_us(34));
    // And so does the host that launches it.
    late.arrivals.clear();
    late.launch = Launch::Eager;
    assert!(us(&server, &late) > all_reduce(&server, 8, bytes));
}

#[test]
fn origin_5_a_one_shot_kernel_forced_on_eight_pcie_gpus_wins_below_its_cut_off_and_loses_beyond() {
    for name in ["8x-rtx-pro-6000-3switch", "8x-rtx-pro-6000-dual-turin"] {
        let box_of_eight = machine(name);
        let forced =
            |bytes: u64| us(&box_of_eight, &CollectiveRequest { library: Library::OneShot, ..request(CollectiveOp::AllReduce, 8, bytes) });
        let decode = 7168 * 2;
        assert!(forced(decode) < all_reduce(&box_of_eight, 8, decode), "{name}: one token");
        assert!(forced(MIB) > 2.0 * all_reduce(&box_of_eight, 8, MIB), "{name}: a chunk of a prefill");
    }
    // The engines' own gate leaves it to NCCL there.
    let server = machine("8x-rtx-pro-6000-server");
    let engine = CollectiveRequest { library: Library::Sglang, ..request(CollectiveOp::AllReduce, 8, 7168 * 2) };
    let prediction = done(&server, &engine);
    assert_eq!(prediction.algorithm, Algorithm::Ring);
    assert!(prediction.choice.contains("NVLink"), "{}", prediction.choice);
}

#[test]
fn origin_6_a_bare_tree_leaves_all_gather_without_an_algorithm_and_is_no_faster_for_all_reduce() {
    let server = machine("8x-rtx-pro-6000-server");
    for op in [CollectiveOp::AllGather, CollectiveOp::ReduceScatter, CollectiveOp::Broadcast] {
        let forced = CollectiveRequest { algorithm: Some(Algorithm::Tree), ..request(op, 8, 64 * KIB) };
        match predict(&server, &forced) {
            Err(CollectiveError::NoAlgorithm { message, have }) => {
                assert!(message.contains("no algorithm/protocol available") && message.contains("NCCL_ALGO=allreduce:tree"), "{message}");
                assert!(have.iter().all(|name| name.starts_with("ring")), "{have:?}");
            }
            other => panic!("{op}: {other:?}"),
        }
    }
    let tree = CollectiveRequest { algorithm: Some(Algorithm::Tree), ..request(CollectiveOp::AllReduce, 8, 43_008) };
    assert!(us(&server, &tree) >= 0.95 * all_reduce(&server, 8, 43_008), "one node's tree is a chain: as many steps as the ring");
}

#[test]
fn engines_keep_to_their_own_gates() {
    let own = |name: &str, library: Library, ranks: usize, bytes: u64| {
        done(&machine(name), &CollectiveRequest { library, ..request(CollectiveOp::AllReduce, ranks, bytes) }).algorithm
    };
    let peer = [Algorithm::OneShot, Algorithm::TwoShot];
    // vLLM stops strictly below 8 MiB, SGLang at it.
    assert!(peer.contains(&own("8x-a100-sxm", Library::Vllm, 8, 4 * MIB)));
    assert_eq!(own("8x-a100-sxm", Library::Vllm, 8, 8 * MIB), Algorithm::Ring);
    assert!(peer.contains(&own("8x-rtx-pro-6000-server", Library::Sglang, 2, 8 * MIB)));
    assert_eq!(own("8x-rtx-pro-6000-server", Library::Sglang, 2, 16 * MIB), Algorithm::Ring);
    // World sizes, full NVLink, peer access, a multiple of 16 bytes.
    assert!(!peer.contains(&own("8x-h200-sxm", Library::Vllm, 3, 64 * KIB)));
    assert!(!peer.contains(&own("8x-rtx-pro-6000-server", Library::Vllm, 4, 64 * KIB)));
    assert!(!peer.contains(&own("2x-rtx-4090", Library::Vllm, 2, 64 * KIB)));
    assert!(!peer.contains(&own("8x-h200-sxm", Library::Sglang, 8, 64 * KIB + 8)));
    // vLLM's tables on eight B200: its kernel, NCCL, then symmetric memory.
    let by_size = [128 * KIB, 512 * KIB, MIB].map(|bytes| own("8x-b200-sxm", Library::Vllm, 8, bytes));
    assert!(peer.contains(&by_size[0]) && by_size[1] == Algorithm::Ring && by_size[2] == Algorithm::Symmetric, "{by_size:?}");
}

#[test]
fn without_peer_access_rings_go_through_host_memory_and_the_detected_graph_makes_it_worse() {
    let turin = machine("8x-rtx-pro-6000-dual-turin");
    let with = all_reduce(&turin, 8, 14_336);
    let without = all_reduce(&turin.clone().with_peer_access(false), 8, 14_336);
    assert!(without - with > 15.0, "{with:.1} us with peer access, {without:.1} without");
    // Where NCCL uses none between switches anyway, forbidding it changes the hops inside them only.
    let server = machine("8x-rtx-pro-6000-server");
    let more = all_reduce(&server.clone().with_peer_access(false), 8, 14_336) - all_reduce(&server, 8, 14_336);
    assert!((0.0..10.0).contains(&more), "{more:.1} us");
}

#[test]
fn without_peer_access_nccl_searches_through_the_cpu() {
    // Four GPUs share an uplink: a ring through the CPU gets 12 GB/s of its 48, and GPUs of SM 100 and later search no lower than 18.
    for name in ["8x-rtx-pro-6000-wrx90-2switch", "8x-rtx-pro-6000-3switch"] {
        let with = machine(name);
        let without = with.clone().with_peer_access(false);
        let (fast, slow) = (request(CollectiveOp::AllReduce, 8, 14_336), done(&without, &request(CollectiveOp::AllReduce, 8, 14_336)));
        let fast = done(&with, &fast);
        assert!(!fast.graph.fallback && slow.graph.fallback, "{name}");
        assert_eq!((fast.protocol, slow.protocol), (Protocol::Ll, Protocol::Simple), "{name}");
        assert!(slow.duration > fast.duration + Duration::from_us(30), "{name}: {} {}", fast.duration, slow.duration);
    }
    // Where two share one the search finds 24, and LL stays.
    let server = machine("8x-rtx-pro-6000-server").with_peer_access(false);
    assert_eq!(done(&server, &request(CollectiveOp::AllReduce, 8, 14_336)).protocol, Protocol::Ll);
    // On NVLink boards the rings lose LL128 and the multicast is what it was.
    let board = machine("8x-h200-sxm");
    let off = board.clone().with_peer_access(false);
    let large = request(CollectiveOp::AllReduce, 8, 16 * MIB);
    let (with, without) = (done(&board, &large), done(&off, &large));
    assert_eq!((with.algorithm, without.algorithm, with.duration), (Algorithm::Nvls, Algorithm::Nvls, without.duration));
    assert!(without.candidates.iter().all(|one| one.protocol != Protocol::Ll128));
    let ring = CollectiveRequest { algorithm: Some(Algorithm::Ring), ..large };
    assert!(us(&off, &ring) > 4.0 * us(&board, &ring));
}

#[test]
fn two_h200_without_peer_access_take_what_was_measured() {
    let off = machine("8x-h200-sxm").with_peer_access(false);
    for (bytes, measured, tolerance) in [(256 * KIB, 40.5, 0.15), (MIB, 67.0, 0.18), (16 * MIB, 610.0, 0.05), (256 * MIB, 9627.0, 0.05)] {
        near("two H200", all_reduce(&off, 2, bytes), measured, tolerance);
    }
}

#[test]
fn how_a_log_was_taken_is_kept_apart_from_the_collective() {
    let at = |name: &str, library: Library, launch: Launch| {
        us(&machine(name), &CollectiveRequest { library, launch, ..request(CollectiveOp::AllReduce, 4, 64 * KIB) })
    };
    // Graphs of one NCCL all-reduce replayed back to back, beside a node of a longer graph.
    let box_of_eight = "8x-rtx-pro-6000-wrx90-2switch";
    let replay = at(box_of_eight, Library::Nccl, Launch::Graph);
    near("replayed", replay, 33.3, 0.1);
    assert!(replay - at(box_of_eight, Library::Nccl, Launch::Node) > 20.0);
    assert_eq!(at(box_of_eight, Library::OneShot, Launch::Graph), at(box_of_eight, Library::OneShot, Launch::Node));
    assert_eq!(at("8x-rtx-pro-6000-server", Library::Nccl, Launch::Graph), at("8x-rtx-pro-6000-server", Library::Nccl, Launch::Node));
    // Loops of five launches.
    assert!(at("8x-a100-pcie-40gb", Library::Nccl, Launch::Loop) > at("8x-a100-pcie-40gb", Library::Nccl, Launch::Node) + 20.0);
}

#[test]
fn a_decode_all_reduce_feels_the_links() {
    for name in ["8x-rtx-pro-6000-server", "8x-rtx-pro-6000-3switch", "8x-rtx-pro-6000-wrx90-2switch"] {
        let here = machine(name);
        let slow = here.clone().with_link_rates_scaled(1, 8);
        assert!(all_reduce(&slow, 8, 43_008) > 1.1 * all_reduce(&here, 8, 43_008), "{name}");
        assert!(all_reduce(&slow, 8, 14_336) > all_reduce(&here, 8, 14_336), "{name}");
    }
}
