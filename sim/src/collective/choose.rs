//! Which algorithm and protocol: the engine's kernel where its gates allow it, else what NCCL's cost model picks.

use super::library::custom_kernel;
use super::nccl::{Candidate, NcclGraph, nccl_times};
use super::point;
use super::predict::CollectiveError;
use super::{Algorithm, CollectiveOp, CollectiveRequest, Library, Protocol};
use crate::machine::Machine;
use crate::network::Network;

/// What will be carried out, and why.
pub(super) struct Choice {
    pub(super) algorithm: Algorithm,
    pub(super) protocol: Protocol,
    pub(super) why: String,
    /// What the cost model expected, where it was asked.
    pub(super) candidates: Vec<Candidate>,
}

impl Choice {
    fn of(algorithm: Algorithm, protocol: Protocol, why: String) -> Self {
        Self { algorithm, protocol, why, candidates: Vec::new() }
    }
}

fn no_algorithm<S: Into<String>>(message: impl Into<String>, have: impl IntoIterator<Item = S>) -> CollectiveError {
    CollectiveError::NoAlgorithm { message: message.into(), have: have.into_iter().map(Into::into).collect() }
}

/// Decides as the library would, unless something is forced.
///
/// # Errors
/// If nothing implements what is forced, or ranks are not connected.
pub(super) fn choose(network: &Network<'_>, request: &CollectiveRequest, graph: &NcclGraph) -> Result<Choice, CollectiveError> {
    let own = |algorithm: Algorithm, why: String| Choice::of(algorithm, Protocol::Peer, why);
    if let Some(algorithm @ (Algorithm::OneShot | Algorithm::TwoShot | Algorithm::Hierarchical | Algorithm::Symmetric)) = request.algorithm
    {
        if request.op != CollectiveOp::AllReduce {
            return Err(no_algorithm(format!("{algorithm} is for all_reduce, not {}", request.op), accepted_for(request.op)));
        }
        if !network.machine().peer_access.value {
            return Err(no_algorithm(format!("{algorithm} needs peer access, which is off"), ["ring", "tree"]));
        }
        return Ok(own(algorithm, format!("{algorithm} was asked for")));
    }
    let mut why = String::new();
    if request.library != Library::Nccl && request.algorithm.is_none() && request.protocol.is_none() {
        match custom_kernel(request.library, network, &request.ranks, request.op, request.bytes)? {
            Ok(algorithm) => return Ok(own(algorithm, format!("{} runs its own kernel", request.library))),
            Err(reason) => why = format!("{reason}; "),
        }
    }
    if matches!(request.op, CollectiveOp::AllToAll | CollectiveOp::SendRecv) {
        return choose_point(request, why);
    }
    choose_nccl(network.machine(), request, graph, why)
}

fn choose_point(request: &CollectiveRequest, why: String) -> Result<Choice, CollectiveError> {
    if let Some(algorithm) = request.algorithm.filter(|algorithm| *algorithm != Algorithm::Direct) {
        return Err(no_algorithm(format!("{} is grouped sends and receives: direct, not {algorithm}", request.op), ["direct"]));
    }
    match request.protocol {
        Some(protocol @ (Protocol::Ll | Protocol::Simple)) => {
            Ok(Choice::of(Algorithm::Direct, protocol, format!("{protocol} was asked for")))
        }
        Some(protocol) => Err(no_algorithm(format!("sends and receives go by ll or simple, not {protocol}"), ["ll", "simple"])),
        None => {
            let limit = point::LL_THRESHOLD_BYTES;
            let protocol = point::protocol(request);
            Ok(Choice::of(Algorithm::Direct, protocol, format!("{why}NCCL sends messages of up to {limit} bytes by LL")))
        }
    }
}

fn choose_nccl(machine: &Machine, request: &CollectiveRequest, graph: &NcclGraph, why: String) -> Result<Choice, CollectiveError> {
    let mut candidates = nccl_times(machine, graph, &request.ranks, request.op, request.bytes);
    // LL128 is off without NVLink throughout, unless it is named.
    if request.protocol == Some(Protocol::Ll128) && candidates.iter().all(|one| one.protocol != Protocol::Ll128) {
        candidates.push(Candidate::unknown(Algorithm::Ring, Protocol::Ll128));
    }
    let open = |one: &&Candidate| {
        request.algorithm.is_none_or(|algorithm| algorithm == one.algorithm)
            && request.protocol.is_none_or(|protocol| protocol == one.protocol)
    };
    let Some(&found) = candidates.iter().find(open) else { return Err(nothing_left(request, &candidates)) };
    let Candidate { algorithm, protocol, time_us: expected, .. } = found;
    let forced =
        if request.algorithm.is_some() || request.protocol.is_some() { "what was asked for leaves" } else { "NCCL's cost model picks" };
    let fallback = if graph.fallback {
        " on its fallback graph: no ring reaches the lowest search speed, so it takes the links for 0.1 GB/s"
    } else {
        ""
    };
    let expects = if expected.is_finite() { format!(" ({expected:.1} us by the model)") } else { String::new() };
    Ok(Choice { algorithm, protocol, why: format!("{why}{forced} {algorithm} {protocol}{expects}{fallback}"), candidates })
}

/// NCCL's own words for a forced algorithm that a function does not have, with what it does have.
fn nothing_left(request: &CollectiveRequest, candidates: &[Candidate]) -> CollectiveError {
    let wanted: Vec<&str> = request.algorithm.map(Algorithm::name).into_iter().chain(request.protocol.map(Protocol::name)).collect();
    let mut have: Vec<String> = candidates.iter().map(|one| format!("{} {}", one.algorithm, one.protocol)).collect();
    have.sort();
    let mut message =
        format!("no algorithm/protocol available: NCCL has no {} for {}; it has {}", wanted.join(" "), request.op, have.join(", "));
    if request.algorithm.is_some_and(|algorithm| algorithm != Algorithm::Ring) && request.op != CollectiveOp::AllReduce {
        // What a bare NCCL_ALGO=Tree does to a server: it forbids the ring for every function, those without a tree included.
        message.push_str(&format!(
            "; a bare NCCL_ALGO closes the ring for every function, NCCL_ALGO=allreduce:{} only for all-reduce",
            request.algorithm.map_or("", Algorithm::name)
        ));
    }
    no_algorithm(message, have)
}

/// Algorithms that an op has at all.
fn accepted_for(op: CollectiveOp) -> Vec<&'static str> {
    match op {
        CollectiveOp::AllToAll | CollectiveOp::SendRecv => vec!["direct"],
        _ => vec!["ring"],
    }
}
