//! What links do, against what people measured on boxes of RTX PRO 6000 and others.

use moetwin_sim::machine::{Figure, LinkKind, Machine, PathClass, VertexKind, find};
use moetwin_sim::network::{Access, Network, Route};

fn built_in(name: &str) -> Machine {
    find(name).unwrap_or_else(|| panic!("{name} is built in"))
}

/// GB/s of each flow at once.
fn flows(machine: &Machine, pairs: &[(usize, usize)], access: Access) -> Vec<f64> {
    let network = Network::new(machine);
    let routes: Vec<Route> = pairs.iter().map(|&(a, b)| network.route(a, b, access).unwrap_or_else(|e| panic!("{e}"))).collect();
    let all: Vec<(&Route, u64)> = routes.iter().map(|route| (route, u64::MAX)).collect();
    network.rates(&all).into_iter().map(|rate| rate as f64 / 1e9).collect()
}

fn total(machine: &Machine, pairs: &[(usize, usize)], access: Access) -> f64 {
    flows(machine, pairs, access).iter().sum()
}

fn near(value: f64, wanted: f64, percent: f64) {
    assert!((value - wanted).abs() <= wanted * percent / 100.0, "{value}, measured {wanted}");
}

#[test]
fn a_switch_uplink_is_shared_and_ports_are_not() {
    let machine = built_in("8x-rtx-pro-6000-wrx90-2switch");
    let one = total(&machine, &[(0, 4)], Access::Write);
    // Two from one switch to another get one uplink together; four do too.
    near(total(&machine, &[(0, 4), (1, 5)], Access::Write), one, 1.0);
    near(total(&machine, &[(0, 4), (1, 5), (2, 6), (3, 7)], Access::Write), one, 1.0);
    // Two inside a switch do not share: 107.5 GB/s.
    near(total(&machine, &[(0, 1), (2, 3)], Access::Write), 107.5, 8.0);
    // Directions are apart: both ways at once is twice one way.
    near(total(&machine, &[(0, 4), (4, 0)], Access::Write), 2.0 * one, 1.0);
}

#[test]
fn one_gpus_port_bounds_all_its_flows() {
    let machine = built_in("8x-rtx-pro-6000-esc8000a");
    let port = total(&machine, &[(0, 1)], Access::Write);
    near(total(&machine, &[(0, 1), (0, 2), (0, 3)], Access::Write), port, 1.0);
    // Fair: three flows of one port get a third each.
    for rate in flows(&machine, &[(0, 1), (0, 2), (0, 3)], Access::Write) {
        near(rate, port / 3.0, 1.0);
    }
}

#[test]
fn reads_and_writes_differ_where_the_switch_makes_them() {
    let machine = built_in("8x-rtx-pro-6000-wrx90-2switch");
    let all: Vec<(usize, usize)> = (0..4).flat_map(|a| (0..4).filter(move |b| *b != a).map(move |b| (a, b))).collect();
    // All-to-all of four GPUs inside one switch: 164 GB/s by writes, 67 by reads.
    let (writes, reads) = (total(&machine, &all, Access::Write), total(&machine, &all, Access::Read));
    near(reads, 67.4, 5.0);
    assert!(writes > 2.0 * reads, "{writes} {reads}");
}

#[test]
fn posted_writes_from_one_virtual_switch_to_two_roots_collapse_and_reads_do_not() {
    let machine = built_in("8x-rtx-pro-6000-esc8000a");
    // GPU0 to GPU4 and GPU1 to GPU6: one virtual switch, two roots.
    near(total(&machine, &[(0, 4), (1, 6)], Access::Write), 2.7, 1.0);
    assert!(total(&machine, &[(0, 4), (1, 6)], Access::Read) > 8.0);
    // Different virtual switches, or one root: no collapse.
    assert!(total(&machine, &[(0, 4), (2, 6)], Access::Write) > 35.0);
    assert!(total(&machine, &[(0, 4), (1, 5)], Access::Write) > 35.0);
    let mut sound = machine.clone();
    sound.defects.clear();
    assert!(total(&sound, &[(0, 4), (1, 6)], Access::Write) > 35.0);
}

#[test]
fn virtual_switches_of_one_chip_do_not_use_their_uplinks() {
    let machine = built_in("8x-rtx-pro-6000-esc8000a");
    assert_eq!(Network::new(&machine).class(0, 2), Ok(PathClass::Node));
    near(total(&machine, &[(0, 2), (1, 3)], Access::Write), 107.0, 8.0);
}

#[test]
fn access_control_halves_traffic_of_one_switch() {
    let mut machine = built_in("8x-rtx-pro-6000-esc8000a");
    let both = |machine: &Machine| total(machine, &[(0, 1), (1, 0)], Access::Write);
    // 103 GB/s with access control off, 50 with it on: both copies go up and down the one uplink.
    near(both(&machine), 103.0, 3.0);
    for (_, vertex) in machine.vertices.iter_mut() {
        if let VertexKind::PcieSwitch { acs, .. } = &mut vertex.part {
            *acs = true;
        }
    }
    near(both(&machine), 50.0, 5.0);
    assert_eq!(Network::new(&machine).class(0, 1), Ok(PathClass::Phb));
}

#[test]
fn without_peer_access_copies_go_through_host_memory_twice_and_share_it() {
    let machine = built_in("8x-rtx-4090-epyc");
    let network = Network::new(&machine);
    let direct = network.route(0, 1, Access::Write).expect("a way");
    let bounce = network.route(0, 1, Access::Bounce).expect("a way");
    let memory = |route: &Route| {
        route
            .hops
            .iter()
            .filter(|(link, _)| machine.links.iter().nth(*link as usize / 2).is_some_and(|(_, l)| l.kind == LinkKind::Memory))
            .count()
    };
    // Written into memory by one GPU, read from there by the other: both directions of the memory's link.
    assert_eq!((memory(&direct), memory(&bounce)), (0, 2));
    assert!(bounce.latency > direct.latency);
    // The memory of the receivers' socket bounds all copies into it together.
    let into: Vec<(usize, usize)> = vec![(4, 0), (5, 1), (6, 2), (7, 3), (0, 1), (1, 2), (2, 3), (3, 0)];
    let mut slow = machine.clone();
    for (_, link) in slow.links.iter_mut().filter(|(_, link)| link.kind == LinkKind::Memory) {
        for rate in [&mut link.forward, &mut link.backward] {
            rate.write_bytes_per_s = Figure::assumed(10_000_000_000, "a slow host");
            rate.read_bytes_per_s = Figure::assumed(10_000_000_000, "a slow host");
        }
    }
    near(total(&slow, &into, Access::Bounce), 10.0, 1.0);
    near(total(&slow, &[(0, 1)], Access::Write), total(&machine, &[(0, 1)], Access::Write), 0.1);
}

#[test]
fn sockets_share_what_joins_them() {
    let machine = built_in("8x-rtx-4090-epyc");
    let across = [(0, 4), (1, 5), (2, 6), (3, 7)];
    near(total(&machine, &across, Access::Write), total(&machine, &across[..1], Access::Write), 1.0);
    assert!(machine.links.iter().any(|(_, link)| link.kind == LinkKind::Xgmi));
    // Ways inside a socket are not touched by traffic between sockets.
    let beside = flows(&machine, &[(0, 1), (4, 6), (5, 2), (7, 3)], Access::Write);
    near(beside[0], total(&machine, &[(0, 1)], Access::Write), 0.1);
}

#[test]
fn nvlink_pairs_carry_their_lanes_and_nvswitch_blocks_nobody() {
    let cube = built_in("8x-v100-sxm2");
    // GPU0 and GPU3 have two lanes, GPU0 and GPU1 one, GPU0 and GPU5 none.
    let (two, one) = (total(&cube, &[(0, 3)], Access::Write), total(&cube, &[(0, 1)], Access::Write));
    near(two, 2.0 * one, 1.0);
    assert_ne!(Network::new(&cube).class(0, 5), Ok(PathClass::Nvl));
    // Pairs do not share lanes.
    near(total(&cube, &[(0, 3), (0, 1)], Access::Write), two + one, 1.0);
    let board = built_in("8x-h100-sxm");
    let ring: Vec<(usize, usize)> = (0..8).map(|gpu| (gpu, (gpu + 1) % 8)).collect();
    near(total(&board, &ring, Access::Write), 8.0 * total(&board, &[(0, 1)], Access::Write), 0.1);
    // Seven into one share that one's lanes.
    let into: Vec<(usize, usize)> = (1..8).map(|gpu| (gpu, 0)).collect();
    near(total(&board, &into, Access::Write), total(&board, &[(1, 0)], Access::Write), 1.0);
}
