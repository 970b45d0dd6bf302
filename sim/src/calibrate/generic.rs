//! Figures of nobody's machine in particular.

use crate::machine::{CollectiveFigures, Figure, Machine, RingFigures};
use crate::time::Duration;

const SOURCE: &str = "a round figure between those of published machines";

fn ns(value: u64) -> Figure<Duration> {
    Figure::assumed(Duration::from_ns(value), SOURCE)
}

fn number(value: u64) -> Figure<u64> {
    Figure::assumed(value, SOURCE)
}

/// The machine with its wires as they are and round figures for every protocol and kernel, as if no table of it had been seen. Fits begin
/// here where they are to show what they can do with what they are given.
pub fn generic(machine: &Machine) -> Machine {
    let mut out = machine.clone();
    let fastest = machine.models.iter().map(|model| model.pcie_gen).max().unwrap_or(4);
    // A kernel's reads from host memory over one port.
    let host_rate: u64 = if fastest >= 5 { 27_000_000_000 } else { 17_000_000_000 };
    let nvlink_rate = machine.models.iter().map(|model| model.nvlink_bytes_per_s).max().unwrap_or(0);
    let figures: &mut CollectiveFigures = &mut out.collectives;
    figures.kernel = ns(6000);
    set(&mut figures.nvlink, [800, 700, 1500, 4000, 400], [8_000_000_000, 2_000_000_000_000], 800);
    set(&mut figures.pcie, [500, 700, 2000, 3000, 200], [4_000_000_000, 60_000_000_000], 400);
    set(&mut figures.host, [700, 1400, 3000, 3500, 500], [3_000_000_000, host_rate], 450);
    let point = &mut figures.point_to_point;
    (point.ll_latency, point.simple_latency, point.per_peer) =
        if nvlink_rate > 0 { (ns(2500), ns(7000), ns(120)) } else { (ns(2000), ns(5000), ns(400)) };
    point.peer_bytes_per_s = number((nvlink_rate / 2).max(30_000_000_000));
    point.link_permille = number(if nvlink_rate > 0 { 650 } else { 1000 });
    let custom = &mut figures.custom;
    // Kernels that read meet their peers before and after; those that push need not.
    (custom.barrier, custom.push_barrier) = (ns(4000), ns(1500));
    (custom.per_rank, custom.phase) = (ns(200), ns(2500));
    custom.link_permille = number(800);
    if let Some(nvls) = &mut figures.nvls {
        (nvls.latency, nvls.fill, nvls.symmetric_latency) = (ns(20_000), ns(40_000), ns(14_000));
        nvls.small_bytes_per_s = number(nvlink_rate * 2 / 5);
        nvls.bytes_per_s = number(nvlink_rate * 3 / 5);
        nvls.symmetric_bytes_per_s = number(nvlink_rate * 3 / 5);
    }
    out.launch.eager_collective = ns(30_000);
    out.launch.eager_nccl = ns(35_000);
    // How logs were taken: the fit says how much, if it is there at all.
    for how in [&mut out.launch.loop_nccl, &mut out.launch.graph_nccl] {
        if how.value > Duration::ZERO {
            *how = ns(10_000);
        }
    }
    out
}

/// LL step and pass, LL128 step, Simple step and spread in nanoseconds; LL128 channel and Simple rates; thousandths of the local end.
fn set(ring: &mut RingFigures, times: [u64; 5], rates: [u64; 2], finish_permille: u64) {
    let [ll_step, ll_pass, ll128_step, simple_step, spread] = times.map(ns);
    (ring.ll_step, ring.ll_pass, ring.ll128_step, ring.simple_step, ring.simple_spread) =
        (ll_step, ll_pass, ll128_step, simple_step, spread);
    (ring.ll128_channel_bytes_per_s, ring.simple_bytes_per_s) = (number(rates[0]), number(rates[1]));
    ring.ll_wire_permille = number(2000);
    ring.finish_permille = number(finish_permille);
}
