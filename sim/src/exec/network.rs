//! The machine's collective model as the executor's transport.

use super::price::gpu_rates;
use super::transport::{Exchange, Outcome, Transport};
use crate::collective::{Algorithm, CollectiveOp, CollectiveRequest, Collectives, GraphMode, Launch, Library, Prediction, Protocol};
use crate::cost::{CostModel, ImportedTables, KernelTables, Kernels, Provenance};
use crate::machine::{GpuModel, Machine, Origin};
use crate::time::Duration;
use moetwin_models::{AllToAll, Op};
use std::collections::BTreeMap;
use std::rc::Rc;
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

/// What the next simulation can use again, since programs on one machine have most of it in common: exchanges whose members came together (of each
/// what the executor is told, a few numbers), and the costs of kernels with the tables they were read from.
#[derive(Debug, Default)]
pub struct SimMemory {
    /// The machine it holds for, as it was simulated. On another one everything is forgotten.
    machine: Option<Machine>,
    known: BTreeMap<CollectiveRequest, Known>,
    /// A cost model for each GPU model of the machine, and whose kernels they are of.
    models: Option<CostModels>,
}

/// Cost models, one for each GPU model of a machine.
#[derive(Debug)]
struct CostModels {
    kernels: Kernels,
    tables: Option<Arc<ImportedTables>>,
    models: Rc<Vec<CostModel>>,
}

#[derive(Clone, Debug)]
struct Known {
    finish: Box<[Duration]>,
    link: Duration,
    shares: Arc<[(u32, u64)]>,
    algorithm: Algorithm,
    protocol: Protocol,
    provenance: Provenance,
}

impl SimMemory {
    /// Forgets what holds for another machine.
    pub(super) fn turn_to(&mut self, machine: &Machine) {
        if self.machine.as_ref() != Some(machine) {
            *self = Self { machine: Some(machine.clone()), ..Self::default() };
        }
    }
    /// What kernels cost on the GPU models of the machine that it holds for.
    pub(super) fn cost_models(&mut self, kernels: Kernels, tables: Option<&Arc<ImportedTables>>) -> Rc<Vec<CostModel>> {
        let same = |of: Option<&Arc<ImportedTables>>| match (of, tables) {
            (Some(of), Some(tables)) => Arc::ptr_eq(of, tables),
            (of, tables) => of.is_none() && tables.is_none(),
        };
        if let Some(known) = self.models.as_ref().filter(|known| known.kernels == kernels && same(known.tables.as_ref())) {
            return Rc::clone(&known.models);
        }
        let machine = self.machine.as_ref();
        let own = machine.and_then(|m| m.kernels.as_ref()).filter(|_| kernels == Kernels::Any);
        let model =
            |gpu: &GpuModel| CostModel::new(gpu_rates(gpu), KernelTables::with_imported(&gpu.name, kernels, tables)).with_own(own.cloned());
        let models: Rc<Vec<CostModel>> = Rc::new(machine.into_iter().flat_map(|m| &m.models).map(model).collect());
        self.models = Some(CostModels { kernels, tables: tables.cloned(), models: Rc::clone(&models) });
        models
    }
}

/// Exchanges on one machine.
pub(super) struct MachineTransport<'m> {
    backends: Backends,
    collectives: Collectives<'m>,
    /// The same machine with faster links.
    faster: Collectives<'m>,
    links: BTreeMap<CollectiveRequest, Duration>,
    memory: &'m mut SimMemory,
}

/// The twin machine that [`MachineTransport::new`] needs.
pub(super) fn faster_links(machine: &Machine) -> Machine {
    machine.clone().with_link_rates_scaled(FASTER, 1)
}

impl<'m> MachineTransport<'m> {
    /// On the machine that `memory` was turned to.
    pub(super) fn new(machine: &'m Machine, faster: &'m Machine, backends: Backends, memory: &'m mut SimMemory) -> Self {
        let (collectives, faster) = (Collectives::without_explanations(machine), Collectives::without_explanations(faster));
        Self { backends, collectives, faster, links: BTreeMap::new(), memory }
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
        let mut arrivals: Vec<Duration> = exchange.arrivals.iter().map(|a| a.since(first)).collect();
        let together = arrivals.iter().all(|a| *a == Duration::ZERO);
        if together {
            arrivals.clear();
        }
        let request = CollectiveRequest {
            ranks: exchange.gpus.to_vec(),
            library,
            // The host's part of an eager launch is the host thread's.
            launch: Launch::Node,
            nccl_graph: self.backends.nccl_graph,
            arrivals,
            ..CollectiveRequest::new(op, exchange.gpus.len(), exchange.message_bytes)
        };
        let known = match self.memory.known.get(&request) {
            Some(known) => known.clone(),
            None => {
                let known = self.predict(request.clone())?;
                if together {
                    self.memory.known.insert(request, known.clone());
                }
                known
            }
        };
        let stand_in = matches!(exchange.op, Op::Dispatch | Op::Combine)
            && matches!(self.backends.all_to_all, AllToAll::Flashinfer | AllToAll::Deepep);
        Ok(Outcome {
            ends: known.finish.iter().map(|finish| first + *finish).collect(),
            link: known.link,
            shares: known.shares,
            how: format!("{} {}", known.algorithm, known.protocol),
            provenance: if stand_in { Provenance::Modelled } else { known.provenance },
        })
    }
}

impl MachineTransport<'_> {
    /// What the machine's collectives say of an exchange.
    fn predict(&mut self, mut request: CollectiveRequest) -> Result<Known, String> {
        let mut prediction: Arc<Prediction> = self.collectives.predict(&request).map_err(|e| e.to_string())?;
        // The peer kernels are used up to the machine's cut-off: the size from which NCCL is faster.
        let kernels = (request.library, prediction.algorithm);
        if matches!(kernels, (Library::OneShot, Algorithm::OneShot) | (Library::TwoShot, Algorithm::TwoShot)) {
            let by_nccl = CollectiveRequest { library: Library::Nccl, ..request.clone() };
            let other = self.collectives.predict(&by_nccl).map_err(|e| e.to_string())?;
            if other.transfer < prediction.transfer {
                (request, prediction) = (by_nccl, other);
            }
        }
        let together = CollectiveRequest { arrivals: Vec::new(), ..request };
        let link = if together.ranks.len() > 1 { self.link(&together, &prediction)? } else { Duration::ZERO };
        Ok(Known {
            finish: prediction.ranks.iter().map(|r| r.finish).collect(),
            link,
            shares: prediction.link_shares.clone(),
            algorithm: prediction.algorithm,
            protocol: prediction.protocol,
            provenance: provenance(&prediction),
        })
    }
}

/// Collectives are computed from figures: where all of those are measured the result is as good as an interpolation.
fn provenance(prediction: &Prediction) -> Provenance {
    let measured = prediction.provenance.iter().all(|(_, origin, _)| matches!(origin, Origin::Measured | Origin::Spec));
    if measured { Provenance::Interpolated } else { Provenance::Modelled }
}
