//! The figures that a fit may move.

use crate::machine::{Figure, Link, LinkKind, Machine, NCCL_CALL, Origin};
use crate::time::Duration;

/// A figure that may be fitted: durations and rates alike are scaled.
pub(super) enum Knob<'a> {
    Time(&'a mut Figure<Duration>),
    Number(&'a mut Figure<u64>),
}

/// All figures of one name; links of a kind move together.
pub(super) type Find = for<'a> fn(&'a mut Machine) -> Vec<Knob<'a>>;

macro_rules! times {
    ($($name:literal: $($field:ident).+),* $(,)?) => { [$(($name, (|machine| vec![Knob::Time(&mut machine.$($field).+)]) as Find)),*] };
}
macro_rules! numbers {
    ($($name:literal: $($field:ident).+),* $(,)?) => { [$(($name, (|machine| vec![Knob::Number(&mut machine.$($field).+)]) as Find)),*] };
}

fn links(machine: &mut Machine, kind: fn(LinkKind) -> bool) -> Vec<Knob<'_>> {
    machine
        .links
        .iter_mut()
        .filter(|(_, link)| kind(link.kind))
        .flat_map(|(_, link)| [&mut link.forward, &mut link.backward])
        .flat_map(|rate| [&mut rate.write_bytes_per_s, &mut rate.read_bytes_per_s])
        .map(Knob::Number)
        .collect()
}

/// Latencies of links that nobody has measured: tables of collectives tell a step's overhead and its path's latency apart only where
/// ranks are differently far from each other, so a ping-pong knows better.
fn latencies(machine: &mut Machine, kind: fn(LinkKind) -> bool) -> Vec<Knob<'_>> {
    let open = |link: &Link| kind(link.kind) && link.latency.origin == Origin::Assumed;
    machine.links.iter_mut().filter(|(_, link)| open(link)).map(|(_, link)| Knob::Time(&mut link.latency)).collect()
}

/// Every figure that may be fitted, by its path in a machine file (links by kind).
pub(super) fn knobs() -> Vec<(&'static str, Find)> {
    let mut out: Vec<(&'static str, Find)> = times![
        "collectives.kernel_ps": collectives.kernel,
        "collectives.nvlink.ll_step_ps": collectives.nvlink.ll_step,
        "collectives.nvlink.ll_pass_ps": collectives.nvlink.ll_pass,
        "collectives.nvlink.ll128_step_ps": collectives.nvlink.ll128_step,
        "collectives.nvlink.simple_step_ps": collectives.nvlink.simple_step,
        "collectives.nvlink.simple_spread_ps": collectives.nvlink.simple_spread,
        "collectives.pcie.ll_step_ps": collectives.pcie.ll_step,
        "collectives.pcie.ll_pass_ps": collectives.pcie.ll_pass,
        "collectives.pcie.simple_step_ps": collectives.pcie.simple_step,
        "collectives.pcie.simple_spread_ps": collectives.pcie.simple_spread,
        "collectives.host.ll_step_ps": collectives.host.ll_step,
        "collectives.host.ll_pass_ps": collectives.host.ll_pass,
        "collectives.host.simple_step_ps": collectives.host.simple_step,
        "collectives.host.simple_spread_ps": collectives.host.simple_spread,
        "collectives.point_to_point.ll_latency_ps": collectives.point_to_point.ll_latency,
        "collectives.point_to_point.simple_latency_ps": collectives.point_to_point.simple_latency,
        "collectives.point_to_point.per_peer_ps": collectives.point_to_point.per_peer,
        "collectives.custom.barrier_ps": collectives.custom.barrier,
        "collectives.custom.push_barrier_ps": collectives.custom.push_barrier,
        "collectives.custom.per_rank_ps": collectives.custom.per_rank,
        "collectives.custom.phase_ps": collectives.custom.phase,
        "launch.eager_collective_ps": launch.eager_collective,
        "launch.eager_nccl_ps": launch.eager_nccl,
        "launch.loop_nccl_ps": launch.loop_nccl,
        "launch.graph_nccl_ps": launch.graph_nccl,
    ]
    .into();
    out.extend(numbers![
        "collectives.nvlink.ll128_channel_bytes_per_s": collectives.nvlink.ll128_channel_bytes_per_s,
        "collectives.nvlink.ll_wire_permille": collectives.nvlink.ll_wire_permille,
        "collectives.host.ll_wire_permille": collectives.host.ll_wire_permille,
        "collectives.nvlink.simple_bytes_per_s": collectives.nvlink.simple_bytes_per_s,
        "collectives.pcie.simple_bytes_per_s": collectives.pcie.simple_bytes_per_s,
        "collectives.host.simple_bytes_per_s": collectives.host.simple_bytes_per_s,
        "collectives.nvlink.finish_permille": collectives.nvlink.finish_permille,
        "collectives.pcie.finish_permille": collectives.pcie.finish_permille,
        "collectives.host.finish_permille": collectives.host.finish_permille,
        "collectives.point_to_point.peer_bytes_per_s": collectives.point_to_point.peer_bytes_per_s,
        "collectives.point_to_point.link_permille": collectives.point_to_point.link_permille,
        "collectives.custom.link_permille": collectives.custom.link_permille,
    ]);
    // A loop of collectives says what a call of NCCL costs the host, not what a launch of any kernel does. The search begins where calls can be
    // longer than small collectives: below it no factor would change anything.
    out.push(("launch.nccl_call_ps", |machine| {
        vec![Knob::Time(machine.launch.nccl_call.get_or_insert_with(|| Figure::assumed(NCCL_CALL, "a call of NCCL on a box of H200")))]
    }));
    let nvls: [(&'static str, Find); 6] = [
        ("collectives.nvls.symmetric_latency_ps", |machine| {
            machine.collectives.nvls.iter_mut().map(|nvls| Knob::Time(&mut nvls.symmetric_latency)).collect()
        }),
        ("collectives.nvls.symmetric_bytes_per_s", |machine| {
            machine.collectives.nvls.iter_mut().map(|nvls| Knob::Number(&mut nvls.symmetric_bytes_per_s)).collect()
        }),
        ("collectives.nvls.latency_ps", |machine| machine.collectives.nvls.iter_mut().map(|nvls| Knob::Time(&mut nvls.latency)).collect()),
        ("collectives.nvls.fill_ps", |machine| machine.collectives.nvls.iter_mut().map(|nvls| Knob::Time(&mut nvls.fill)).collect()),
        ("collectives.nvls.small_bytes_per_s", |machine| {
            machine.collectives.nvls.iter_mut().map(|nvls| Knob::Number(&mut nvls.small_bytes_per_s)).collect()
        }),
        ("collectives.nvls.bytes_per_s", |machine| {
            machine.collectives.nvls.iter_mut().map(|nvls| Knob::Number(&mut nvls.bytes_per_s)).collect()
        }),
    ];
    out.extend(nvls);
    let wires: [(&'static str, Find); 5] = [
        ("links PCIe", |machine| links(machine, |kind| matches!(kind, LinkKind::Pcie { .. }))),
        ("links memory", |machine| links(machine, |kind| kind == LinkKind::Memory)),
        ("links between sockets", |machine| links(machine, |kind| matches!(kind, LinkKind::Xgmi | LinkKind::Upi))),
        ("latency inside and between sockets", |machine| {
            latencies(machine, |kind| matches!(kind, LinkKind::SocketFabric | LinkKind::Xgmi | LinkKind::Upi))
        }),
        ("links NVLink", |machine| links(machine, |kind| matches!(kind, LinkKind::NvLink { .. }))),
    ];
    out.extend(wires);
    out
}

/// Scales all figures of a knob; times to whole nanoseconds and rates to whole megabytes a second, so that files stay readable.
pub(super) fn scale(machine: &mut Machine, find: Find, factor: f64) {
    for knob in find(machine) {
        match knob {
            Knob::Time(figure) => {
                let ns = libm::rint(figure.value.as_seconds() * 1e9 * factor).max(1.0);
                figure.value = Duration::from_seconds(ns * 1e-9);
            }
            Knob::Number(figure) => {
                // What is not a rate is a share in thousandths.
                let (unit, most) = if figure.value >= 1_000_000 { (1e6, 1e15) } else { (1.0, MOST_PERMILLE) };
                figure.value = (libm::rint(figure.value as f64 * factor / unit) * unit).clamp(1.0, most) as u64;
            }
        }
    }
}

/// A share of a link above what rings reach there is possible (more flows hide more latency), and LL doubles bytes; nothing does more.
const MOST_PERMILLE: f64 = 2000.0;
