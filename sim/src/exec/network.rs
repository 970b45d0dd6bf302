//! The machine's collective model as the executor's transport.

use super::price::gpu_rates;
use super::transport::{Exchange, Outcome, Transport};
use crate::collective::{Algorithm, CollectiveOp, CollectiveRequest, Collectives, GraphMode, Launch, Library, Prediction, Protocol};
use crate::cost::{CostModel, ImportedTables, KernelTables, Kernels, OwnExchange, Provenance, quotient_at};
use crate::machine::{GpuModel, LaunchCosts, Machine, NCCL_CALL, Origin};
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

impl Backends {
    /// Host time of one collective that no framework issues, and whether it is assumed: a kernel of ours is launched like any other, NCCL is called.
    pub(super) fn native_call(&self, launch: &LaunchCosts) -> (Duration, bool) {
        match self.all_reduce {
            Library::OneShot => (launch.eager_kernel.value, false),
            _ => launch.nccl_call.as_ref().map_or((NCCL_CALL, true), |call| (call.value, false)),
        }
    }
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

impl Known {
    /// So many times as long, as it was measured. Nobody's wait for the last to come gets longer or shorter.
    fn times(self, quotient: f64, request: &CollectiveRequest, exact: bool) -> Self {
        let scaled = |time: Duration| Duration::from_ps(libm::rint(time.as_ps() as f64 * quotient) as u64);
        let last = request.arrivals.iter().copied().max().unwrap_or(Duration::ZERO);
        Self {
            finish: self.finish.iter().map(|f| (*f).min(last) + scaled(f.saturating_sub(last))).collect(),
            link: scaled(self.link),
            provenance: if exact { Provenance::Measured } else { Provenance::Interpolated },
            ..self
        }
    }
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
    /// Exchanges that were measured on the machine as it is.
    measured: Vec<&'m OwnExchange>,
    /// Of what was measured, by what the model says of it.
    quotients: BTreeMap<(CollectiveOp, Library, usize), Vec<(u64, f64)>>,
    /// The same of one-shot sums with a norm, by ranks.
    normed: BTreeMap<usize, Vec<(u64, f64)>>,
    memory: &'m mut SimMemory,
}

/// The collective that an op is; none of what ranks do by themselves.
pub fn collective_of(op: &Op) -> Option<CollectiveOp> {
    match op {
        Op::AllReduce { .. } | Op::AllReduceAddRmsNorm { .. } => Some(CollectiveOp::AllReduce),
        Op::AllGather { .. } => Some(CollectiveOp::AllGather),
        Op::ReduceScatter { .. } => Some(CollectiveOp::ReduceScatter),
        Op::Dispatch | Op::Combine => Some(CollectiveOp::AllToAll),
        Op::SendRecv { .. } => Some(CollectiveOp::SendRecv),
        _ => None,
    }
}

/// The twin machine that [`MachineTransport::new`] needs.
pub(super) fn faster_links(machine: &Machine) -> Machine {
    machine.clone().with_link_rates_scaled(FASTER, 1)
}

impl<'m> MachineTransport<'m> {
    /// On the machine that `memory` was turned to.
    pub(super) fn new(machine: &'m Machine, faster: &'m Machine, backends: Backends, memory: &'m mut SimMemory) -> Self {
        let (collectives, faster) = (Collectives::without_explanations(machine), Collectives::without_explanations(faster));
        let on = machine.peer_access.value;
        let measured = machine.kernels.iter().flat_map(|own| &own.exchanges).filter(|row| row.peer_access == on).collect();
        Self {
            backends,
            collectives,
            faster,
            links: BTreeMap::new(),
            measured,
            quotients: BTreeMap::new(),
            normed: BTreeMap::new(),
            memory,
        }
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
        let op = collective_of(exchange.op).ok_or_else(|| format!("{} is no exchange", exchange.op.name()))?;
        let library = if op == CollectiveOp::AllReduce { self.backends.all_reduce } else { Library::Nccl };
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
                    self.memory.known.insert(request.clone(), known.clone());
                }
                known
            }
        };
        let stand_in = matches!(exchange.op, Op::Dispatch | Op::Combine)
            && matches!(self.backends.all_to_all, AllToAll::Flashinfer | AllToAll::Deepep);
        let how = format!("{} {}", known.algorithm, known.protocol);
        let (known, how) = match exchange.norm {
            None => (known, how),
            Some(norm) if self.fuses() && known.algorithm == Algorithm::OneShot => {
                (self.with_norm(known, &request, norm.fused)?, format!("{how}, norm fused"))
            }
            Some(norm) => (Known { finish: known.finish.iter().map(|f| *f + norm.apart).collect(), ..known }, format!("{how}, norm apart")),
        };
        Ok(Outcome {
            ends: known.finish.iter().map(|finish| first + *finish).collect(),
            link: known.link,
            shares: known.shares,
            how,
            provenance: if stand_in { Provenance::Modelled } else { known.provenance },
        })
    }
    fn fuses(&self) -> bool {
        self.backends.all_reduce == Library::OneShot
    }
}

impl<'m> MachineTransport<'m> {
    /// What is known of an exchange: what the machine's collectives say, as far off as they are where it was measured.
    fn predict(&mut self, request: CollectiveRequest) -> Result<Known, String> {
        let known = self.modelled(request.clone())?;
        let Some((quotient, exact)) = self.quotient(&request)? else { return Ok(known) };
        Ok(known.times(quotient, &request, exact))
    }
    /// By how much the model is off at an exchange's size, and whether that very size was measured; nothing where no such exchange was.
    fn quotient(&mut self, request: &CollectiveRequest) -> Result<Option<(f64, bool)>, String> {
        let kind = (request.op, request.library, request.ranks.len());
        let rows = self.rows_like(request, false);
        if rows.is_empty() {
            return Ok(None);
        }
        if !self.quotients.contains_key(&kind) {
            let mut points = Vec::new();
            for row in &rows {
                let same = CollectiveRequest { bytes: row.bytes, arrivals: Vec::new(), ..request.clone() };
                let modelled = self.modelled(same)?.finish.iter().copied().max().unwrap_or(Duration::ZERO);
                points.push((row.bytes, row.time_ps as f64 / modelled.as_ps().max(1) as f64));
            }
            points.sort_by_key(|p| p.0);
            self.quotients.insert(kind, points);
        }
        let exact = rows.iter().any(|r| r.bytes == request.bytes);
        Ok(self.quotients.get(&kind).map(|points| (quotient_at(points, request.bytes), exact)))
    }
    /// A one-shot sum with a norm of so many bytes' time in it: as the sum alone and then the norm, as far off as that is where such sums were
    /// measured.
    fn with_norm(&mut self, known: Known, request: &CollectiveRequest, norm: Duration) -> Result<Known, String> {
        let whole = Known { finish: known.finish.iter().map(|f| *f + norm).collect(), ..known };
        let rows: Vec<&OwnExchange> = self.rows_like(request, true);
        if rows.is_empty() {
            return Ok(whole);
        }
        if !self.normed.contains_key(&request.ranks.len()) {
            let mut points = Vec::new();
            for row in &rows {
                let alone = CollectiveRequest { bytes: row.bytes, arrivals: Vec::new(), ..request.clone() };
                let alone = self.predict(alone)?.finish.iter().copied().max().unwrap_or(Duration::ZERO);
                let modelled = alone + norm.scaled(row.bytes, request.bytes.max(1));
                points.push((row.bytes, row.time_ps as f64 / modelled.as_ps().max(1) as f64));
            }
            points.sort_by_key(|p| p.0);
            self.normed.insert(request.ranks.len(), points);
        }
        let exact = rows.iter().any(|r| r.bytes == request.bytes);
        let quotient = self.normed.get(&request.ranks.len()).map_or(1.0, |points| quotient_at(points, request.bytes));
        Ok(whole.times(quotient, request, exact))
    }
    /// Rows that were measured of such exchanges, with a norm in them or without. Links of other GPUs may be others.
    fn rows_like(&self, request: &CollectiveRequest, normed: bool) -> Vec<&'m OwnExchange> {
        let kind = (request.op, request.library, request.ranks.len(), normed);
        let here = request.ranks.iter().enumerate().all(|(i, gpu)| i == *gpu);
        self.measured.iter().copied().filter(|r| here && (r.op, r.library, r.ranks, r.normed) == kind).collect()
    }
    /// What the machine's collectives say of an exchange.
    fn modelled(&mut self, mut request: CollectiveRequest) -> Result<Known, String> {
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

#[cfg(test)]
mod tests {
    use super::super::transport::NormAfter;
    use super::*;
    use crate::cost::OwnKernels;
    use crate::time::Time;

    fn all_reduce(machine: &Machine, arrivals_us: &[u64], bytes: u64) -> (Vec<u64>, Provenance) {
        let (found, known, _) = reduce(machine, Library::Nccl, arrivals_us, bytes, None);
        (found, known)
    }

    fn reduce(
        machine: &Machine,
        library: Library,
        arrivals_us: &[u64],
        bytes: u64,
        norm: Option<NormAfter>,
    ) -> (Vec<u64>, Provenance, String) {
        let backends = Backends { all_reduce: library, all_to_all: AllToAll::None, nccl_graph: GraphMode::Detected };
        let (faster, mut memory) = (faster_links(machine), SimMemory::default());
        memory.turn_to(machine);
        let mut transport = MachineTransport::new(machine, &faster, backends, &mut memory);
        let gpus: Vec<usize> = (0..arrivals_us.len()).collect();
        let arrivals: Vec<Time> = arrivals_us.iter().map(|us| Time::ZERO + Duration::from_us(*us)).collect();
        let op = Op::AllReduce { axis: moetwin_models::Axis::Tp };
        let found = transport.carry(&Exchange { op: &op, gpus: &gpus, arrivals: &arrivals, message_bytes: bytes, norm }).unwrap();
        (found.ends.iter().map(|e| e.since(Time::ZERO).as_ps()).collect(), found.provenance, found.how)
    }

    #[test]
    fn a_norm_adds_its_bytes_where_it_is_fused_and_a_kernel_elsewhere() {
        let machine = crate::machine::find("8x-h200-sxm").unwrap();
        let norm = Some(NormAfter { apart: Duration::from_us(3), fused: Duration::from_us(1) });
        for (library, added, how) in
            [(Library::OneShot, 1, "norm fused"), (Library::Nccl, 3, "norm apart"), (Library::Sglang, 3, "norm apart")]
        {
            for arrivals in [[0, 0], [0, 40]] {
                let (alone, with) =
                    (reduce(&machine, library, &arrivals, 14_336, None), reduce(&machine, library, &arrivals, 14_336, norm));
                assert!(with.2.ends_with(how) && !alone.2.contains("norm"), "{library:?}: {}", with.2);
                assert!(
                    alone.0.iter().zip(&with.0).all(|(a, b)| b - a == Duration::from_us(added).as_ps()),
                    "{library:?}: {alone:?} {with:?}"
                );
            }
        }
        // Beyond what one shot is worth the norm is apart again.
        let large = reduce(&machine, Library::OneShot, &[0; 8], 64 << 20, norm);
        assert!(large.2.ends_with("norm apart"), "{}", large.2);
    }

    #[test]
    fn what_was_measured_of_a_sum_with_its_norm_is_what_both_take() {
        let plain = crate::machine::find("8x-h200-sxm").unwrap();
        let row = |bytes, time_us: u64, normed| OwnExchange {
            op: CollectiveOp::AllReduce,
            library: Library::OneShot,
            ranks: 2,
            peer_access: true,
            bytes,
            normed,
            time_ps: Duration::from_us(time_us).as_ps(),
        };
        let exchanges = vec![row(1 << 14, 6, false), row(1 << 14, 5, true), row(1 << 18, 9, true)];
        let machine = Machine { kernels: Some(OwnKernels { exchanges, ..OwnKernels::default() }), ..plain };
        let norm = |bytes: u64| Some(NormAfter { apart: Duration::from_us(3), fused: Duration::from_ps(bytes * 10) });
        let last = |bytes, norm, arrivals: [u64; 2]| {
            let (ends, known, _) = reduce(&machine, Library::OneShot, &arrivals, bytes, norm);
            (ends.into_iter().max().unwrap() as f64 / 1e6, known)
        };
        let close = |(us, known): (f64, Provenance), wanted: f64, as_known| (us - wanted).abs() < 0.02 && known == as_known;
        assert!(close(last(1 << 14, None, [0, 0]), 6.0, Provenance::Measured));
        assert!(close(last(1 << 14, norm(1 << 14), [0, 0]), 5.0, Provenance::Measured));
        assert!(close(last(1 << 18, norm(1 << 18), [0, 0]), 9.0, Provenance::Measured));
        // Who waits for the last to come waits as long.
        assert!(close(last(1 << 14, norm(1 << 14), [0, 30]), 35.0, Provenance::Measured));
        let (between, known) = last(1 << 16, norm(1 << 16), [0, 0]);
        assert!(between > 5.0 && between < 9.0 && known == Provenance::Interpolated, "{between}");
    }

    #[test]
    fn what_was_measured_of_an_exchange_is_what_it_takes() {
        let plain = crate::machine::find("8x-h200-sxm").unwrap();
        let row = |bytes, time_us: u64, peer_access| OwnExchange {
            op: CollectiveOp::AllReduce,
            library: Library::Nccl,
            ranks: 2,
            peer_access,
            bytes,
            normed: false,
            time_ps: Duration::from_us(time_us).as_ps(),
        };
        let exchanges = vec![row(1 << 14, 9, true), row(1 << 18, 30, true), row(1 << 14, 70, false)];
        let machine = Machine { kernels: Some(OwnKernels { exchanges, ..OwnKernels::default() }), ..plain.clone() };
        let close = |ps: u64, us: f64| (ps as f64 / 1e6 - us).abs() < 0.01;
        let (ends, known) = all_reduce(&machine, &[0, 0], 1 << 14);
        assert!(ends.iter().all(|e| *e <= 9_010_000) && ends.iter().any(|e| close(*e, 9.0)) && known == Provenance::Measured, "{ends:?}");
        // The last to come transfers as long; how long the first waits is not stretched.
        let (late, _) = all_reduce(&machine, &[0, 50], 1 << 14);
        assert!(late.iter().any(|e| close(*e, 59.0)) && late.iter().all(|e| *e <= 59_010_000), "{late:?}");
        // Between sizes the quotient lies between, beyond them it is the nearest; without peer access other rows hold.
        let quotient = |bytes| all_reduce(&machine, &[0, 0], bytes).0[0] as f64 / all_reduce(&plain, &[0, 0], bytes).0[0] as f64;
        let (low, between, high) = (quotient(1 << 14), quotient(1 << 16), quotient(1 << 18));
        assert!((between - (low + high) / 2.0).abs() < 0.01 && (quotient(1 << 20) - high).abs() < 0.01, "{low} {between} {high}");
        let through_host = machine.clone().with_peer_access(false);
        assert!(all_reduce(&through_host, &[0, 0], 1 << 14).0.iter().any(|e| close(*e, 70.0)));
        // Of three ranks nothing was measured.
        assert_eq!(all_reduce(&machine, &[0, 0, 0], 1 << 14), all_reduce(&plain, &[0, 0, 0], 1 << 14));
    }
}
