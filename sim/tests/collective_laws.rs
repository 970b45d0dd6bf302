//! Laws of collectives, for any size on any built-in machine.

use moetwin_sim::Duration;
use moetwin_sim::collective::{Algorithm, CollectiveOp, CollectiveRequest, Library, Prediction, Protocol, predict};
use moetwin_sim::machine::{LinkKind, Machine, VertexKind, find, list};
use moetwin_sim::network::{Access, Network};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// A choice of algorithm and protocol that every machine has for an op.
fn choices(op: CollectiveOp) -> Vec<(Algorithm, Option<Protocol>)> {
    let ring = [Protocol::Ll, Protocol::Simple].map(|protocol| (Algorithm::Ring, Some(protocol)));
    match op {
        CollectiveOp::AllReduce => {
            ring.into_iter().chain([(Algorithm::Tree, Some(Protocol::Ll)), (Algorithm::Tree, Some(Protocol::Simple))]).collect()
        }
        CollectiveOp::AllToAll | CollectiveOp::SendRecv => {
            vec![(Algorithm::Direct, Some(Protocol::Ll)), (Algorithm::Direct, Some(Protocol::Simple))]
        }
        _ => ring.to_vec(),
    }
}

#[derive(Clone)]
struct Case {
    machine: Machine,
    request: CollectiveRequest,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} peer access {}: {:?}", self.machine.name, self.machine.peer_access.value, self.request)
    }
}

fn case() -> impl Strategy<Value = Case> {
    let ops = prop::sample::select(CollectiveOp::ALL.to_vec());
    (0..list().len(), ops, 2usize..9, 64u64..1 << 28, any::<prop::sample::Index>(), any::<bool>()).prop_map(
        |(index, op, ranks, bytes, choice, peers)| {
            let mut machine = list().swap_remove(index);
            if !peers {
                machine = machine.with_peer_access(false);
            }
            let ranks = ranks.min(machine.gpu_count());
            let choices = choices(op);
            let (algorithm, protocol) = choices[choice.index(choices.len())];
            let request = CollectiveRequest { algorithm: Some(algorithm), protocol, ..CollectiveRequest::new(op, ranks, bytes) };
            Case { machine, request }
        },
    )
}

fn done(machine: &Machine, request: &CollectiveRequest) -> Prediction {
    predict(machine, request).unwrap_or_else(|error| panic!("{} {request:?}: {error}", machine.name))
}

/// Payload bytes that each rank sends.
fn sent(prediction: &Prediction, ranks: usize) -> Vec<u64> {
    let mut out = vec![0; ranks];
    for transfer in &prediction.transfers {
        out[transfer.from] += transfer.payload_bytes;
    }
    out
}

/// Bytes per second that the wires of a GPU could carry at most, one way: what the standards say of their lanes.
fn wires(machine: &Machine, gpu: usize) -> f64 {
    let slot = &machine.gpus[gpu];
    let mut sum = 0.0;
    for (_, link) in machine.links.iter().filter(|(_, link)| link.a == slot.vertex || link.b == slot.vertex) {
        sum += match link.kind {
            // 128 of 130 bits, or 8 of 10 up to the second generation.
            LinkKind::Pcie { generation, lanes } => {
                let lane = match generation {
                    1 => 0.25e9,
                    2 => 0.5e9,
                    more => 0.9846e9 * f64::from(1u32 << (more - 3)),
                };
                lane * f64::from(lanes)
            }
            LinkKind::NvLink { lanes } => f64::from(lanes) * if machine.models[slot.model].sm_major >= 10 { 50e9 } else { 25e9 },
            _ => link.forward.write_bytes_per_s.value.max(link.backward.write_bytes_per_s.value) as f64,
        };
    }
    sum
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn bytes_are_conserved(Case { machine, request } in case()) {
        let prediction = done(&machine, &request);
        let (n, bytes) = (request.ranks.len() as u64, request.bytes);
        let sums = sent(&prediction, request.ranks.len());
        let total: u64 = sums.iter().sum();
        let wanted = match request.op {
            CollectiveOp::AllReduce => 2 * (n - 1) * bytes,
            CollectiveOp::AllGather | CollectiveOp::ReduceScatter | CollectiveOp::Broadcast => (n - 1) * bytes,
            CollectiveOp::AllToAll => n * (n - 1) * (bytes / n),
            CollectiveOp::SendRecv => n * bytes,
        };
        // Parts are whole bytes: a transfer rounds up at most one.
        let rounding = prediction.transfers.len() as u64;
        prop_assert!((wanted..=wanted + rounding).contains(&total), "{total} bytes are moved, {wanted} needed");
    }

    #[test]
    fn nothing_is_faster_than_the_wire_or_the_floor(Case { machine, request } in case()) {
        let prediction = done(&machine, &request);
        prop_assert!(prediction.duration >= machine.collectives.kernel.value);
        for (rank, bytes) in sent(&prediction, request.ranks.len()).into_iter().enumerate() {
            let least = bytes as f64 / wires(&machine, rank);
            prop_assert!(prediction.duration.as_seconds() >= least, "rank {rank}: {} for {least} s of wire", prediction.duration);
        }
        for transfer in &prediction.transfers {
            prop_assert!(transfer.end <= prediction.duration && transfer.start <= transfer.end);
        }
    }

    #[test]
    fn time_is_continuous_in_size_within_a_protocol(Case { machine, request } in case()) {
        let few = done(&machine, &request).duration.as_us();
        let more = CollectiveRequest { bytes: request.bytes + request.bytes.div_ceil(512), ..request.clone() };
        let many = done(&machine, &more).duration.as_us();
        prop_assert!((many - few).abs() <= 0.03 * few + 0.5, "{few} us of {} bytes, {many} us of {}", request.bytes, more.bytes);
    }

    #[test]
    fn renaming_symmetric_gpus_changes_nothing(Case { machine, request } in case()) {
        // Pairs below one switch, or any GPUs of one NVSwitch.
        let mut renamed = request.clone();
        let network = Network::new(&machine);
        let twins = |a: usize, b: usize| network.place(a).ok() == network.place(b).ok() && network.class(a, b).is_ok();
        let cube = machine.links.iter().any(|(_, link)| matches!(link.kind, LinkKind::NvLink { .. }))
            && !machine.vertices.iter().any(|(_, vertex)| matches!(vertex.part, VertexKind::NvSwitch));
        prop_assume!(!cube);
        for pair in renamed.ranks.chunks_mut(2) {
            if pair.len() == 2 && twins(pair[0], pair[1]) {
                pair.swap(0, 1);
            }
        }
        prop_assert_eq!(done(&machine, &request).duration, done(&machine, &renamed).duration);
    }

    #[test]
    fn links_off_the_paths_do_not_matter(Case { machine, request } in case(), factor in 2u64..9) {
        let mut request = request;
        request.ranks.truncate(2);
        let network = Network::new(&machine);
        let mut on: BTreeSet<usize> = BTreeSet::new();
        for (a, b) in [(0, 1), (1, 0)] {
            for access in [Access::Write, Access::Read, Access::Bounce, Access::BounceFirst] {
                if let Ok(route) = network.route(a, b, access) {
                    on.extend(route.hops.iter().map(|hop| hop.0 as usize / 2));
                }
            }
        }
        let mut other = machine.clone();
        for (index, (_, link)) in other.links.iter_mut().enumerate().filter(|(index, _)| !on.contains(index)) {
            link.latency.value = link.latency.value * (factor + index as u64 % 3);
            for rate in [&mut link.forward, &mut link.backward] {
                rate.write_bytes_per_s.value = (rate.write_bytes_per_s.value / factor).max(1);
                rate.read_bytes_per_s.value = (rate.read_bytes_per_s.value / factor).max(1);
            }
        }
        prop_assert_eq!(done(&machine, &request).duration, done(&other, &request).duration);
    }

    #[test]
    fn a_late_rank_is_skew_and_makes_nothing_faster(Case { machine, request } in case(), late in 0usize..8, us in 0u64..300) {
        let together = done(&machine, &request);
        let mut late_request = request.clone();
        late_request.arrivals = vec![Duration::ZERO; request.ranks.len()];
        late_request.arrivals[late % request.ranks.len()] = Duration::from_us(us);
        let skewed = done(&machine, &late_request);
        prop_assert_eq!(skewed.arrival_skew, Duration::from_us(us));
        // Flows that come one after the other share links less: where they fill one, a late rank can leave the others a little better off.
        let hair = Duration::from_ps(together.duration.as_ps() / 5) + Duration::from_ns(1);
        prop_assert!(skewed.duration + hair >= together.duration, "{} {}", skewed.duration, together.duration);
        prop_assert!(skewed.transfer <= together.duration + hair, "{} {}", skewed.transfer, together.duration);
    }
}

#[test]
fn a_forced_kernel_needs_peer_access_and_an_all_reduce() {
    let machine = find("8x-rtx-pro-6000-3switch").expect("built in");
    let one_shot = CollectiveRequest { algorithm: Some(Algorithm::OneShot), ..CollectiveRequest::new(CollectiveOp::AllReduce, 8, 4096) };
    assert!(predict(&machine, &one_shot).is_ok());
    let without = machine.clone().with_peer_access(false);
    assert!(predict(&without, &one_shot).expect_err("needs peers").to_string().contains("peer access"));
    let gather = CollectiveRequest { op: CollectiveOp::AllGather, ..one_shot };
    assert!(predict(&machine, &gather).expect_err("all-reduce only").to_string().contains("all_reduce"));
    // An engine leaves to NCCL what it may not do.
    let left = CollectiveRequest { library: Library::OneShot, ..CollectiveRequest::new(CollectiveOp::AllReduce, 8, 4096) };
    assert_eq!(done(&without, &left).algorithm, Algorithm::Ring);
}
