//! Fitting a machine's figures to measured tables of collectives: few physical parameters, one set for all tables, residuals kept.

use crate::collective::{Algorithm, CollectiveError, CollectiveOp, CollectiveRequest, Collectives, GraphMode, Launch, Library, Protocol};
use crate::import::nccl_tests::Measurement;
use crate::machine::{Figure, Link, LinkKind, Machine, Origin};
use crate::time::Duration;

/// A measured table and the request it answers, but for ranks and sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Where it is from: becomes the source of fitted figures.
    pub name: String,
    /// What is communicated.
    pub op: CollectiveOp,
    /// Whose implementation.
    pub library: Library,
    /// Launch mode of all rows; else each row's own, else a graph.
    pub launch: Option<Launch>,
    /// Ranks of rows that do not say.
    pub ranks: usize,
    /// Peer access as it was, if not the machine's.
    pub peer_access: Option<bool>,
    /// Forced algorithm.
    pub algorithm: Option<Algorithm>,
    /// Forced protocol.
    pub protocol: Option<Protocol>,
    /// NCCL's view.
    pub nccl_graph: GraphMode,
    /// The rows.
    pub rows: Vec<Measurement>,
}

/// Sizes that count: smaller ones are all launch, larger ones all link.
pub const SIZES: std::ops::RangeInclusive<u64> = 8 << 10..=128 << 20;

/// One row, measured and predicted.
#[derive(Clone, Debug, PartialEq)]
pub struct Residual {
    /// Index of the table.
    pub table: usize,
    /// Ranks.
    pub ranks: usize,
    /// Launch mode.
    pub launch: Launch,
    /// Size.
    pub bytes: u64,
    /// Measured time.
    pub measured: Duration,
    /// Predicted time.
    pub predicted: Duration,
    /// What was simulated.
    pub algorithm: Algorithm,
    /// What was simulated.
    pub protocol: Protocol,
}

impl Residual {
    /// `(predicted - measured) / measured`.
    pub fn error(&self) -> f64 {
        let measured = self.measured.as_seconds();
        (self.predicted.as_seconds() - measured) / measured
    }
}

/// Why a fit failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CalibrateError {
    /// No row is in the range of sizes.
    #[error("no row between {} and {} bytes", SIZES.start(), SIZES.end())]
    NoRows,
    /// A table asks for what the machine cannot do.
    #[error("{table}: {error}")]
    Predict {
        /// The table.
        table: String,
        /// Why not.
        error: CollectiveError,
    },
    /// The best fit is too far from the tables to be used.
    #[error("the best fit is {:.0} % off in the mean (at most {:.0} % is defensible): the machine's topology or the tables are not what they seem", mean * 100.0, limit * 100.0)]
    Indefensible {
        /// Mean error of the best fit.
        mean: f64,
        /// Most that is accepted.
        limit: f64,
    },
}

/// A fitted machine.
#[derive(Clone, Debug)]
pub struct Fit {
    /// The machine with fitted figures, their origin measured and the tables their source.
    pub machine: Machine,
    /// Names of figures that the tables moved, with the factor.
    pub moved: Vec<(&'static str, f64)>,
    /// Every row.
    pub residuals: Vec<Residual>,
}

/// Predicts every row that counts.
///
/// # Errors
/// If a table asks for what the machine cannot do.
pub fn residuals(machine: &Machine, tables: &[Table]) -> Result<Vec<Residual>, CalibrateError> {
    let mut out = Vec::new();
    for (index, table) in tables.iter().enumerate() {
        let changed = table.peer_access.filter(|on| *on != machine.peer_access.value).map(|on| machine.clone().with_peer_access(on));
        let mut collectives = Collectives::new(changed.as_ref().unwrap_or(machine));
        for row in table.rows.iter().filter(|row| SIZES.contains(&row.bytes) && row.time > Duration::ZERO) {
            let ranks = row.ranks.unwrap_or(table.ranks);
            let mut request = CollectiveRequest::new(table.op, ranks, row.bytes);
            request.library = table.library;
            request.launch = table.launch.or(row.launch).unwrap_or(Launch::Graph);
            request.algorithm = table.algorithm;
            request.protocol = table.protocol;
            request.nccl_graph = table.nccl_graph;
            let prediction = collectives.predict(&request).map_err(|error| CalibrateError::Predict { table: table.name.clone(), error })?;
            out.push(Residual {
                table: index,
                ranks,
                launch: request.launch,
                bytes: row.bytes,
                measured: row.time,
                predicted: prediction.duration,
                algorithm: prediction.algorithm,
                protocol: prediction.protocol,
            });
        }
    }
    Ok(out)
}

/// Mean absolute relative error of each table; 0 for one without rows that count.
pub fn table_errors(residuals: &[Residual], tables: usize) -> Vec<f64> {
    let mut sums = vec![(0.0, 0u32); tables];
    for residual in residuals {
        let sum = &mut sums[residual.table];
        sum.0 += residual.error().abs();
        sum.1 += 1;
    }
    sums.into_iter().map(|(sum, count)| sum / f64::from(count.max(1))).collect()
}

/// A figure that may be fitted: durations and rates alike are scaled.
enum Knob<'a> {
    Time(&'a mut Figure<Duration>),
    Number(&'a mut Figure<u64>),
}

/// All figures of one name; links of a kind move together.
type Find = for<'a> fn(&'a mut Machine) -> Vec<Knob<'a>>;

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

fn knobs() -> Vec<(&'static str, Find)> {
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
        "collectives.custom.per_rank_ps": collectives.custom.per_rank,
        "collectives.custom.phase_ps": collectives.custom.phase,
        "launch.eager_kernel_ps": launch.eager_kernel,
        "launch.eager_collective_ps": launch.eager_collective,
        "launch.eager_nccl_ps": launch.eager_nccl,
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
fn scale(machine: &mut Machine, find: Find, factor: f64) {
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
/// Most mean error that a fit may have.
const DEFENSIBLE: f64 = 0.25;
/// Factors tried on each figure, coarse to fine.
const FACTORS: [f64; 6] = [2.0, 1.4, 1.2, 1.1, 1.05, 1.02];
/// Rounds over all figures at each factor.
const ROUNDS: usize = 3;
/// What a table must gain before a figure is moved: figures the tables do not speak of stay as they were.
const GAIN: f64 = 1e-4;
/// What a figure's move by a factor of e must gain: between fits that are as good, the one nearer to where it began is preferred.
const MOVING: f64 = 2e-3;

fn objective(machine: &Machine, tables: &[Table]) -> Result<f64, CalibrateError> {
    let residuals = residuals(machine, tables)?;
    if residuals.is_empty() {
        return Err(CalibrateError::NoRows);
    }
    let errors = table_errors(&residuals, tables.len());
    Ok(errors.iter().sum::<f64>() / errors.len() as f64)
}

/// Fits a machine's figures to tables by coordinate search on the mean error of the tables, each table weighing the same.
///
/// # Errors
/// If there is no row to fit, a table asks for what the machine cannot do, or the best fit is indefensible.
pub fn fit(machine: &Machine, tables: &[Table]) -> Result<Fit, CalibrateError> {
    let knobs = knobs();
    let mut best = machine.clone();
    let mut least = objective(&best, tables)?;
    let mut moved = vec![1.0f64; knobs.len()];
    for factor in FACTORS {
        for _ in 0..ROUNDS {
            let before = least;
            for (index, (_, find)) in knobs.iter().enumerate() {
                for factor in [factor, 1.0 / factor] {
                    let mut candidate = best.clone();
                    scale(&mut candidate, *find, factor);
                    let error = objective(&candidate, tables)?;
                    let further = libm::fabs(libm::log(moved[index] * factor)) - libm::fabs(libm::log(moved[index]));
                    if error < least - GAIN - MOVING * further {
                        (best, least) = (candidate, error);
                        moved[index] *= factor;
                        break;
                    }
                }
            }
            if least >= before - GAIN {
                break;
            }
        }
    }
    if least > DEFENSIBLE {
        return Err(CalibrateError::Indefensible { mean: least, limit: DEFENSIBLE });
    }
    let source = tables.iter().map(|table| table.name.as_str()).collect::<Vec<_>>().join(", ");
    for ((_, find), factor) in knobs.iter().zip(&moved) {
        if *factor == 1.0 {
            continue;
        }
        for knob in find(&mut best) {
            let (origin, text) = match knob {
                Knob::Time(figure) => (&mut figure.origin, &mut figure.source),
                Knob::Number(figure) => (&mut figure.origin, &mut figure.source),
            };
            *origin = Origin::Measured;
            *text = format!("fitted to {source}");
        }
    }
    let moved = knobs.iter().zip(moved).filter(|(_, factor)| *factor != 1.0).map(|((name, _), factor)| (*name, factor)).collect();
    let residuals = residuals(&best, tables)?;
    Ok(Fit { machine: best, moved, residuals })
}

/// For each table: the mean error of a fit to all the others. Tells how far the fit reaches beyond what it has seen.
///
/// # Errors
/// As [`fit`]; needs at least two tables.
pub fn leave_one_out(machine: &Machine, tables: &[Table]) -> Result<Vec<f64>, CalibrateError> {
    if tables.len() < 2 {
        return Err(CalibrateError::NoRows);
    }
    let mut out = Vec::new();
    for index in 0..tables.len() {
        let mut others = tables.to_vec();
        let left_out = [others.remove(index)];
        let fitted = fit(machine, &others)?;
        out.extend(table_errors(&residuals(&fitted.machine, &left_out)?, 1));
    }
    Ok(out)
}
