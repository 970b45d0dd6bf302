//! What bounds a collective, in words.

use super::builder::Builder;
use super::plan::Plan;
use super::{Algorithm, Launch, Protocol};
use crate::machine::{Figure, LinkId, Origin};
use crate::network::{Access, RunError, Transfer, run};
use crate::time::{Duration, Time};
use moetwin_models::ids::Id;
use std::collections::BTreeMap;

/// A part of a collective's time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundStep {
    /// What it is, in words.
    pub what: String,
    /// Its part of the duration.
    pub duration: Duration,
}

/// The parts of a duration that are known before it is explained.
#[derive(Clone, Copy)]
pub(super) struct Times {
    pub(super) skew: Duration,
    pub(super) extra: Duration,
    pub(super) duration: Duration,
}

/// Splits the duration into arrival skew, kernel, latency (what an empty message would take), bytes and launch.
pub(super) fn explain(
    builder: &Builder<'_>,
    algorithm: Algorithm,
    protocol: Protocol,
    plan: &Plan,
    Times { skew, extra, duration }: Times,
) -> Result<Vec<BoundStep>, RunError> {
    let kernel = super::predict::kernel(builder.machine(), protocol);
    let empty: Vec<Transfer> = plan.transfers.iter().map(|transfer| Transfer { wire_bytes: 0, ..transfer.clone() }).collect();
    let spans = run(builder.network, &plan.routes, &empty)?;
    let ends = plan.ends.iter().flatten().map(|&(id, delay)| spans[id as usize].end + delay).max().unwrap_or(Time::ZERO);
    let latency = ends.since(Time::ZERO) - kernel - skew;
    let bytes = duration - skew - kernel - latency - extra;
    let mut steps = vec![
        BoundStep { what: "start and end of the kernel".into(), duration: kernel },
        BoundStep { what: format!("{} of {algorithm} {protocol} for an empty message", latency_words(plan)), duration: latency },
        BoundStep { what: busiest(builder, plan), duration: bytes },
        BoundStep { what: "waiting for the last rank to arrive".into(), duration: skew },
        BoundStep { what: launch_words(builder.request.launch).into(), duration: extra },
    ];
    steps.retain(|step| step.duration > Duration::ZERO);
    steps.sort_by_key(|step| std::cmp::Reverse(step.duration));
    Ok(steps)
}

fn latency_words(plan: &Plan) -> String {
    match plan.labels.iter().map(|label| label.step + 1).max().unwrap_or(0) {
        0 => "no step".into(),
        1 => "the latency of one step".into(),
        steps => format!("the latency of {steps} steps"),
    }
}

fn launch_words(launch: Launch) -> &'static str {
    match launch {
        Launch::Node => "the graph's node floor",
        Launch::Graph => "the replay of a graph that holds nothing else",
        Launch::Loop => "the host thread that launches one after the other",
        Launch::Eager => "the host's launch and the copy of the result",
    }
}

/// The link that is busy longest, or the senders' own pace if that is slower.
fn busiest(builder: &Builder<'_>, plan: &Plan) -> String {
    let mut links: BTreeMap<u32, Duration> = BTreeMap::new();
    let mut senders: BTreeMap<usize, Duration> = BTreeMap::new();
    for (transfer, label) in plan.transfers.iter().zip(&plan.labels) {
        for &(link, rate) in &plan.routes[transfer.route as usize].hops {
            *links.entry(link).or_default() += Duration::of_bytes(transfer.wire_bytes, rate);
        }
        *senders.entry(label.from).or_default() += Duration::of_bytes(transfer.wire_bytes, transfer.cap);
    }
    let slowest = links.iter().max_by_key(|(link, busy)| (**busy, std::cmp::Reverse(**link)));
    let pace = senders.values().copied().max().unwrap_or(Duration::ZERO);
    match slowest {
        Some((_, busy)) if *busy < pace => format!("bytes at the pace of the sending threads, {pace} a rank"),
        Some((&link, busy)) => {
            let id = LinkId::from_index(link as usize / 2);
            let Some(described) = builder.machine().links.get(id) else { return "bytes, at the rate of a defect".into() };
            let vertices = &builder.machine().vertices;
            let (a, b) = if link % 2 == 0 { (described.a, described.b) } else { (described.b, described.a) };
            format!("bytes over {} from {} to {}, busy {busy}", described.kind.name(), vertices[a].name, vertices[b].name)
        }
        None => "bytes".into(),
    }
}

/// The figures that a plan was computed from: name, origin and source.
pub(super) fn provenance(builder: &Builder<'_>, algorithm: Algorithm, protocol: Protocol, plan: &Plan) -> Vec<(String, Origin, String)> {
    let figures = &builder.machine().collectives;
    fn entry<T>(name: &str, figure: &Figure<T>) -> (String, Origin, String) {
        (name.to_owned(), figure.origin, figure.source.clone())
    }
    let mut out = Vec::new();
    if protocol != Protocol::Peer {
        out.push(entry("kernel", &figures.kernel));
    }
    let worst = plan.routes.iter().max_by_key(|route| (matches!(route.access, Access::Bounce | Access::BounceFirst), route.class));
    if let Some(route) = worst.filter(|_| matches!(algorithm, Algorithm::Ring | Algorithm::Tree)) {
        let ring = builder.figures(route);
        match protocol {
            Protocol::Ll => out.extend([entry("LL step", &ring.ll_step), entry("LL pass", &ring.ll_pass)]),
            Protocol::Ll128 => out.extend([entry("LL128 step", &ring.ll128_step), entry("LL128 channel", &ring.ll128_channel_bytes_per_s)]),
            _ => out.push(entry("Simple step", &ring.simple_step)),
        }
    }
    match algorithm {
        Algorithm::Direct => {
            let point = &figures.point_to_point;
            out.push(entry("message latency", if protocol == Protocol::Ll { &point.ll_latency } else { &point.simple_latency }));
        }
        Algorithm::OneShot | Algorithm::TwoShot | Algorithm::Hierarchical => out.push(entry("barrier", builder.barrier())),
        Algorithm::Nvls => out.extend(figures.nvls.as_ref().map(|nvls| entry("NVLS latency", &nvls.latency))),
        Algorithm::Symmetric => out.extend(figures.nvls.as_ref().map(|nvls| entry("symmetric latency", &nvls.symmetric_latency))),
        Algorithm::Ring | Algorithm::Tree => {}
    }
    if let Some(route) = worst
        && let Some((link, _)) = route.hops.iter().min_by_key(|hop| hop.1)
        && let Some(described) = builder.machine().links.get(LinkId::from_index(*link as usize / 2))
    {
        out.push(entry(&format!("{} rate", described.kind.name()), &described.forward.write_bytes_per_s));
    }
    out
}
