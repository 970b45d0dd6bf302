//! The machine's collective model as the executor's transport.

use super::transport::{Exchange, Outcome, Transport};
use crate::collective::{Algorithm, CollectiveOp, CollectiveRequest, Collectives, GraphMode, Launch, Library, Prediction, Protocol};
use crate::cost::Provenance;
use crate::machine::{Machine, Origin};
use crate::time::Duration;
use moetwin_models::{AllToAll, Op};
use std::collections::BTreeMap;
use std::sync::Arc;

/// By how much links are faster in the twin machine that tells bytes from latency.
const FASTER: u64 = 2;

/// Whose collectives a deployment uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backends {
    /// All-reduces; where its kernel may not run, it leaves them to NCCL.
    pub all_reduce: Library,
    /// Expert dispatch and combine. What has no model of its own goes by NCCL's grouped sends.
    pub all_to_all: AllToAll,
    /// How NCCL sees the links.
    pub nccl_graph: GraphMode,
}

/// Exchanges on one machine.
pub(super) struct MachineTransport<'m> {
    backends: Backends,
    collectives: Collectives<'m>,
    /// The same machine with faster links.
    faster: Collectives<'m>,
    links: BTreeMap<CollectiveRequest, Duration>,
}

/// The twin machine that [`MachineTransport::new`] needs.
pub(super) fn faster_links(machine: &Machine) -> Machine {
    machine.clone().with_link_rates_scaled(FASTER, 1)
}

impl<'m> MachineTransport<'m> {
    pub(super) fn new(machine: &'m Machine, faster: &'m Machine, backends: Backends) -> Self {
        let (collectives, faster) = (Collectives::without_explanations(machine), Collectives::without_explanations(faster));
        Self { backends, collectives, faster, links: BTreeMap::new() }
    }
    /// The part of an exchange that is bytes over link rates: a time `a + b / rate` loses half of `b` at twice the rate.
    fn link(&mut self, request: &CollectiveRequest, prediction: &Prediction) -> Result<Duration, String> {
        if let Some(&known) = self.links.get(request) {
            return Ok(known);
        }
        let mut same = request.clone();
        // The same algorithm, whatever would be chosen on faster links.
        (same.algorithm, same.protocol) = (Some(prediction.algorithm), Some(prediction.protocol).filter(|p| *p != Protocol::Peer));
        let fast = self.faster.predict(&same).map_err(|e| e.to_string())?;
        let link = ((prediction.transfer - fast.transfer) * FASTER).scaled(1, FASTER - 1).min(prediction.transfer);
        self.links.insert(request.clone(), link);
        Ok(link)
    }
}

impl Transport for MachineTransport<'_> {
    fn carry(&mut self, exchange: &Exchange<'_>) -> Result<Outcome, String> {
        let first = exchange.arrivals.iter().copied().min().unwrap_or_default();
        let (op, library) = match exchange.op {
            Op::AllReduce { .. } => (CollectiveOp::AllReduce, self.backends.all_reduce),
            Op::AllGather { .. } => (CollectiveOp::AllGather, Library::Nccl),
            Op::ReduceScatter { .. } => (CollectiveOp::ReduceScatter, Library::Nccl),
            Op::Dispatch | Op::Combine => (CollectiveOp::AllToAll, Library::Nccl),
            Op::SendRecv { .. } => (CollectiveOp::SendRecv, Library::Nccl),
            other => return Err(format!("{} is no exchange", other.name())),
        };
        let arrivals = exchange.arrivals.iter().map(|a| a.since(first)).collect();
        let request = CollectiveRequest {
            ranks: exchange.gpus.to_vec(),
            library,
            // The host's part of an eager launch is the host thread's.
            launch: Launch::Node,
            nccl_graph: self.backends.nccl_graph,
            arrivals,
            ..CollectiveRequest::new(op, exchange.gpus.len(), exchange.message_bytes)
        };
        let mut request = request;
        let mut prediction: Arc<Prediction> = self.collectives.predict(&request).map_err(|e| e.to_string())?;
        // The one-shot kernel is used up to the machine's cut-off: the size from which NCCL is faster.
        if library == Library::OneShot && prediction.algorithm == Algorithm::OneShot {
            let by_nccl = CollectiveRequest { library: Library::Nccl, ..request.clone() };
            let other = self.collectives.predict(&by_nccl).map_err(|e| e.to_string())?;
            if other.transfer < prediction.transfer {
                (request, prediction) = (by_nccl, other);
            }
        }
        let together = CollectiveRequest { arrivals: Vec::new(), ..request };
        let link = if exchange.gpus.len() > 1 { self.link(&together, &prediction)? } else { Duration::ZERO };
        let stand_in = matches!(exchange.op, Op::Dispatch | Op::Combine)
            && matches!(self.backends.all_to_all, AllToAll::Flashinfer | AllToAll::Deepep);
        Ok(Outcome {
            ends: prediction.ranks.iter().map(|r| first + r.finish).collect(),
            link,
            shares: prediction.link_shares.clone(),
            how: format!("{} {}", prediction.algorithm, prediction.protocol),
            provenance: if stand_in { Provenance::Modelled } else { provenance(&prediction) },
        })
    }
}

/// Collectives are computed from figures: where all of those are measured the result is as good as an interpolation.
fn provenance(prediction: &Prediction) -> Provenance {
    let measured = prediction.provenance.iter().all(|(_, origin, _)| matches!(origin, Origin::Measured | Origin::Spec));
    if measured { Provenance::Interpolated } else { Provenance::Modelled }
}
